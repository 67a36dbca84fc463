"""Hugging Face's Trainer with a sync method: one callback. Needs `pip install -e '.[hf]'`.

python examples/sync_hf.py             trains a small model alone; with a group, every peer runs this program
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import farflung


class FarflungSync(TrainerCallback):
    """Exchanges every `sync_every` steps of the Trainer, whose own optimizer makes the local steps.

    `settings` go to farflung.sync.SparseLoCo: group, topk, fragment_sync_delay and the others. Each checkpoint of the
    Trainer gets a file for each peer, with this peer's weights and all that its next step depends on; training that
    goes on from a checkpoint begins with it, inside a round too. `checkpoint`: the folder that the Trainer resumes
    from, where that is not in its own output folder.
    """

    def __init__(self, *, checkpoint: str | Path | None = None, **settings: Any) -> None:
        self.settings, self.checkpoint = settings, checkpoint
        self.reports: list[farflung.sync.RoundReport] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.model = kwargs["model"]
        self.sync = farflung.sync.SparseLoCo(self.model, kwargs["optimizer"], **self.settings)
        if state.global_step:
            # Without this file the run would go on as another one: better an error than that.
            kept = torch.load(self.file(self.checkpoint or folder_of(args, state)))
            self.model.load_state_dict(kept["model"])
            self.sync.load_state_dict(kept["sync"])

    def file(self, folder: str | Path) -> Path:
        return Path(folder) / f"farflung-sync-{self.sync.group.rank}.pt"

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        report = self.sync.advance()  # the Trainer has made the step itself
        if report is not None:
            self.reports.append(report)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        kept = {"model": self.model.state_dict(), "sync": self.sync.state_dict()}
        torch.save(kept, self.file(folder_of(args, state)))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.sync.finish()
        self.sync.close()


def folder_of(args: Any, state: Any) -> Path:
    """Where the Trainer keeps the checkpoint of the step that it stands at."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def main() -> None:
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    rows = [
        {"input_ids": (torch.arange(16) + start) % 64, "labels": (torch.arange(16) + start) % 64} for start in range(64)
    ]
    callback = FarflungSync(sync_every=4, topk=128)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            max_steps=12,
            per_device_train_batch_size=4,
            report_to=[],
            use_cpu=True,
            save_steps=6,
            logging_steps=6,
        )
        Trainer(model, settings, train_dataset=rows, callbacks=[callback]).train()
    print(f"{len(callback.reports)} rounds, {sum(r.payload_bytes for r in callback.reports)} bytes in payloads")


if __name__ == "__main__":
    main()
