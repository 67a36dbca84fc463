"""The folder for `transformers`: it computes what our own GPT computes, and its tokens are the bytes of the text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from app_models import JOB, finished_run

from farflung.job.spec import JobSpec
from farflung.local.model import hf_export, load
from farflung.train import flat_model

BIGGER = JOB.replace("layers = 1", "layers = 3").replace("width = 16", "width = 48").replace("heads = 2", "heads = 6")


@pytest.fixture(scope="module", params=[JOB, BIGGER], ids=["small", "bigger"])
def made(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, flat_model.FlatModel]:
    """An export with random weights and biases, and the model that it was made from."""
    root = tmp_path_factory.mktemp("hf")
    run = finished_run(root / "runs", "small", request.param)
    held = load.open_model(str(run.root))
    built = flat_model.build(JobSpec(model=held.card.model), b"")
    weights = 0.3 * np.random.default_rng(4).standard_normal(built.layout.size).astype(np.float32)
    built.put(weights)
    folder = root / "out"
    folder.mkdir()
    for name, data in hf_export.files(held.card, dict(built.layout.unflatten(weights)), "card").items():
        (folder / name).write_bytes(data)
    return folder, built


@pytest.fixture
def loaded(
    made: tuple[Path, flat_model.FlatModel], monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Any, flat_model.FlatModel]:
    """transformers' model and tokenizer, offline."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    library = pytest.importorskip("transformers", reason="transformers is not installed")
    library.utils.logging.disable_progress_bar()
    folder, ours = made
    theirs, info = library.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return theirs, library.AutoTokenizer.from_pretrained(folder), ours


def test_every_byte_has_a_visible_character_of_its_own() -> None:
    letters = hf_export.alphabet()
    assert len(set(letters)) == 256
    assert all(char.isprintable() and not char.isspace() for char in letters)
    assert letters[ord("a")] == "a"
    assert letters[ord(" ")] == "Ġ"


def test_a_model_of_numbers_has_no_tokenizer_and_a_small_vocabulary_a_small_one(tmp_path: Path) -> None:
    small = JOB.replace("[model]", "[model]\nvocabulary = 128")
    held = load.open_model(str(finished_run(tmp_path / "runs", "small", small).root))
    files = hf_export.files(held.card, held.tensors, "")
    vocabulary = json.loads(files["tokenizer.json"])["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(128))
    of_numbers = hf_export.files(msgspec.structs.replace(held.card, tokens="ids"), held.tensors, "")
    assert set(files) - set(of_numbers) == {"tokenizer.json", "tokenizer_config.json"}


@pytest.mark.extra(name="hf")
def test_transformers_computes_the_same_logits(loaded: tuple[Any, Any, flat_model.FlatModel]) -> None:
    theirs, _, ours = loaded
    tokens = torch.randint(0, 256, (8, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted, found = ours.module.logits(tokens), theirs(tokens).logits
    assert wanted.std() > 0.1
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


@pytest.mark.extra(name="hf")
@pytest.mark.parametrize(
    "text",
    ["", "plain", " two  spaces ", "don't\r\n\tstop", "héllo 🌍👩‍🔬", "\x00\x1f\x7f\x85\u2028", "日本語 العربية"],
)
def test_a_token_is_a_byte_and_text_comes_back(loaded: tuple[Any, Any, flat_model.FlatModel], text: str) -> None:
    _, tokenizer, _ = loaded
    ids = tokenizer(text)["input_ids"]
    assert bytes(ids) == text.encode()
    assert tokenizer.decode(ids) == text


@pytest.mark.extra(name="hf")
def test_transformers_writes_what_we_write(loaded: tuple[Any, Any, flat_model.FlatModel]) -> None:
    from farflung.train.token_sampler import SamplingOptions, stream

    theirs, tokenizer, ours = loaded
    start = tokenizer("ten ", return_tensors="pt")
    found = theirs.generate(**start, do_sample=False, max_new_tokens=12)[0, 4:].tolist()
    random = torch.Generator()
    assert found == list(stream(ours.module.logits, list(b"ten "), 12, 24, SamplingOptions(temperature=0), random))
    assert theirs.generate(**start).shape == (1, 24)  # its own settings: prompt and answer fill the context
