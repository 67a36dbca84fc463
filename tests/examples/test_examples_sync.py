"""The examples of farflung.sync run as they are written, and so does the loop of the README."""

from __future__ import annotations

import importlib
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import farflung

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.timeout(300)


def said(name: str, folder: Path) -> str:
    """What an example writes to its standard output."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.whole
def test_two_peers_with_a_plain_loop_end_alike(tmp_path: Path) -> None:
    rounds = re.findall(r"round (\d+): loss ([0-9.]+)", said("sync_plain.py", tmp_path))
    assert [int(number) for number, _ in rounds] == list(range(6))
    assert float(rounds[-1][1]) < float(rounds[0][1])


@pytest.mark.extra(name="hf")
@pytest.mark.slow
def test_the_trainer_of_hugging_face_exchanges_by_a_callback(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra hf: pip install 'farflung[hf]'")
    pytest.importorskip("accelerate", reason="needs the extra hf: pip install 'farflung[hf]'")
    assert "3 rounds" in said("sync_hf.py", tmp_path)


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(name)


@pytest.mark.extra(name="hf")
@pytest.mark.slow
@pytest.mark.parametrize("stop", [6, 8], ids=["after a round", "within a round"])
def test_the_trainer_of_hugging_face_goes_on_from_a_checkpoint_bit_for_bit(
    stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("accelerate", reason="needs the extra hf: pip install 'farflung[hf]'")
    transformers = pytest.importorskip("transformers", reason="needs the extra hf: pip install 'farflung[hf]'")
    import torch

    example = loaded("sync_hf", monkeypatch)
    rows = [{"input_ids": (torch.arange(16) + n) % 64, "labels": (torch.arange(16) + n) % 64} for n in range(64)]

    def trained(folder: str, resume: bool) -> Any:
        torch.manual_seed(1)
        config = transformers.GPT2Config(
            vocab_size=64, n_positions=32, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
        )
        model = transformers.GPT2LMHeadModel(config)
        settings = transformers.TrainingArguments(
            str(tmp_path / folder),
            max_steps=2 * stop,
            save_steps=stop,
            per_device_train_batch_size=4,
            report_to=[],
            use_cpu=True,
        )
        callback = example.FarflungSync(sync_every=3, topk=8, chunk=256, checkpoint=checkpoint if resume else None)
        trainer = transformers.Trainer(model, settings, train_dataset=rows, callbacks=[callback])
        trainer.train(resume_from_checkpoint=str(checkpoint) if resume else None)
        return model, callback

    checkpoint = tmp_path / "whole" / f"checkpoint-{stop}"
    whole, _ = trained("whole", resume=False)
    part, callback = trained("part", resume=True)
    assert [report.round for report in callback.reports] == list(range(stop // 3, 2 * stop // 3))
    for (name, p), q in zip(whole.named_parameters(), part.parameters(), strict=True):
        assert torch.equal(p, q), name
    (checkpoint / "farflung-sync-0.pt").unlink()
    with pytest.raises(FileNotFoundError):
        trained("lost", resume=True)


@pytest.mark.extra(name="lightning")
@pytest.mark.slow
def test_lightning_exchanges_by_a_strategy(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="needs lightning: pip install lightning")
    assert "3 rounds" in said("sync_lightning.py", tmp_path)


@pytest.mark.extra(name="lightning")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Lightning's own
@pytest.mark.parametrize("stop", [6, 8], ids=["after a round", "within a round"])
def test_lightning_goes_on_from_a_checkpoint_bit_for_bit(
    stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lightning = pytest.importorskip("lightning", reason="needs lightning: pip install lightning")
    import torch

    example = loaded("sync_lightning", monkeypatch)
    rows = torch.utils.data.TensorDataset(torch.randn(8, 16, generator=torch.Generator().manual_seed(3)))

    def trained(steps: int, checkpoint: Path | None) -> Any:
        torch.manual_seed(1)
        model = example.Reverse()
        keeper = lightning.pytorch.callbacks.ModelCheckpoint(
            tmp_path, "{step}", every_n_train_steps=stop, save_top_k=-1
        )
        trainer = lightning.Trainer(
            strategy=example.FarflungStrategy(sync_every=3, topk=8, chunk=256),
            max_steps=steps,
            logger=False,
            callbacks=[keeper],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        loader = torch.utils.data.DataLoader(rows, batch_size=8)  # one an epoch: Lightning keeps no place within one
        trainer.fit(model, loader, ckpt_path=None if checkpoint is None else str(checkpoint))
        return model, trainer.strategy

    whole, _ = trained(2 * stop, None)
    checkpoint = tmp_path / f"step={stop}.ckpt"
    part, strategy = trained(2 * stop, checkpoint)
    assert [report.round for report in strategy.reports] == list(range(stop // 3, 2 * stop // 3))
    for (name, p), q in zip(whole.named_parameters(), part.parameters(), strict=True):
        assert torch.equal(p, q), name
    strategy.file(checkpoint).unlink()
    with pytest.raises(FileNotFoundError):
        trained(2 * stop, checkpoint)


PEER = """
import json, sys, torch, farflung
rank = int(sys.argv[1])
peers = [tuple(peer) for peer in json.load(open("../peers.json"))]
tokens = [(torch.arange(16) * (rank + 1) + n) % 64 for n in range(40)]
batches = [{"input_ids": x[None], "labels": x[None]} for x in tokens]
CODE
sync.check()  # raises where the peers differ
print(sync.round, sum(p.numel() for p in model.parameters() if p.requires_grad))
group.close()
"""


@pytest.mark.extra(name="lora")
@pytest.mark.slow
def test_the_loop_of_the_readme_tunes_an_adapter_at_two_peers(tmp_path: Path) -> None:
    """As it is written, but for the checkpoint: a folder of that name with random weights, the same at both."""
    pytest.importorskip("peft", reason="needs peft: pip install peft")
    transformers = pytest.importorskip("transformers", reason="needs the extra hf: pip install 'farflung[hf]'")
    (code,) = re.findall(r"```python\n(.*?)```", (EXAMPLES.parent / "README.md").read_text(), re.DOTALL)
    assert len(code.split("\n\n")[1].splitlines()) <= 10  # lines behind the imports
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=32, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    book = []
    for rank in range(2):
        folder = tmp_path / str(rank)
        model.save_pretrained(folder / "gpt2")
        with socket.create_server(("127.0.0.1", 0)) as free:
            book.append((farflung.sync.new_key(folder / "peer.key"), *free.getsockname()))
    (tmp_path / "peers.json").write_text(json.dumps(book))
    words = [sys.executable, "-c", PEER.replace("CODE", code)]
    peers = [
        subprocess.Popen([*words, str(rank)], cwd=tmp_path / str(rank), stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [peer.communicate(timeout=240)[0] for peer in peers]
    assert [peer.returncode for peer in peers] == [0, 0]
    assert said == ["2 1024\n"] * 2
