"""transformers #38870, gemma #8: the tied head is missing in the file, and strict loading fails untold."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import safetensors.numpy
import torch
from app_models import JOB, finished_run

from farflung.app.cli import fetch
from farflung.core.errors import RunError
from farflung.local.model import load, model_card
from farflung.local.model.load import SavedModel
from farflung.local.model.model_card import TensorNames
from farflung.local.model.text_generation import ask
from farflung.train import inference
from farflung.train.inference_messages import ParameterNamesReply, ParameterNamesRequest

MODULE = """
import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 256{bias})
        {more}

    def logits(self, x_BT):
        return self.head({last}(self.mix(self.embed(x_BT))))

    def forward(self, x_BT, y_BT):
        return functional.cross_entropy(self.logits(x_BT).flatten(0, 1), y_BT.flatten())


def build():
    return Net()
"""
TIE = "self.head.weight = self.embed.weight"
BUFFER = "self.register_buffer('scale', torch.ones(8))"
VIEWS = "table = torch.ones(2, 4); self.register_buffer('a', table[0]); self.register_buffer('b', table[1])"
KINDS: dict[str, tuple[str, TensorNames]] = {
    "nothing is tied": ("", TensorNames()),
    "a tied head": (TIE, TensorNames((("head.weight", "embed.weight"),))),
    "a module under two names": (
        "self.again = self.mix",
        TensorNames((("again.bias", "mix.bias"), ("again.weight", "mix.weight"))),
    ),
    "one tensor, three names": (
        f"{TIE}; self.third = self.embed",
        TensorNames((("head.weight", "embed.weight"), ("third.weight", "embed.weight"))),
    ),
    "a buffer": (BUFFER, TensorNames((), ("scale",))),
    "a buffer that is not kept": (BUFFER.replace("ones(8)", "ones(8), persistent=False"), TensorNames()),
    "a tied head and a buffer": (f"{TIE}; {BUFFER}", TensorNames((("head.weight", "embed.weight"),), ("scale",))),
    "buffers of one storage": (VIEWS, TensorNames((), ("a", "b"))),
}


def source(more: str) -> str:
    return MODULE.format(more=more or "pass", bias=", bias=False", last="torch.tanh")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which a README's lines can be run, with the user's module in the path."""
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "runs" / "data")
    monkeypatch.setattr(fetch, "ask", lambda held, request: inference.answer(request))  # here, not in a sandbox
    yield tmp_path
    sys.modules.pop("model", None)


def exported(here: Path, held: SavedModel) -> dict[str, Any]:
    """What the README's lines define, run beside the files of an export."""
    for name, data in fetch.exported(held, "safetensors", "ab" * 32, "out").items():
        (here / "out" / name).write_bytes(data)
    (lines,) = re.findall(r"```python\n(.*?)```", (here / "out" / "README.md").read_text(), re.DOTALL)
    defined: dict[str, Any] = {}
    exec(lines, defined)
    return defined


@pytest.mark.parametrize("kind", KINDS)
def test_the_readme_loads_the_file_into_the_module_and_names_what_is_not_in_it(kind: str, here: Path) -> None:
    more, names = KINDS[kind]
    held = load.open_model(str(finished_run(here / "runs", "own", JOB, source=source(more)).root))
    assert fetch.names_of(held) == names
    defined = exported(here, held)
    state, tied = defined["model"].state_dict(), dict(names.tied)
    saved = safetensors.numpy.load_file(here / "out" / "model.safetensors")
    assert set(state) == {*saved, *tied, *names.made}
    for name, values in saved.items():
        assert torch.equal(state[name], torch.from_numpy(values))
    for name, kept in tied.items():
        assert state[name].data_ptr() == state[kept].data_ptr()
    assert set(defined.get("missing", names.made)) - set(tied) == set(names.made)
    assert not defined.get("unexpected")
    text = (here / "out" / "README.md").read_text()
    assert all(f"`{name}` is the same tensor as `{kept}`" in text for name, kept in names.tied)
    assert all(f"`{name}`" in text for name in names.made)
    assert ("strict" in text) == bool(names.tied or names.made)


def test_the_built_in_model_is_loaded_strictly(here: Path) -> None:
    held = load.open_model(str(finished_run(here / "runs", "small").root))
    model = exported(here, held)["model"]
    saved = safetensors.numpy.load_file(here / "out" / "model.safetensors")
    assert set(model.state_dict()) == set(saved)
    assert all(torch.equal(tensor, torch.from_numpy(saved[name])) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("tokens", ["bytes", "ids"])
def test_a_folder_for_transformers_says_that_its_head_is_tied(tokens: str, here: Path) -> None:
    held = load.open_model(str(finished_run(here / "runs", "small").root))
    held = held._replace(card=msgspec.structs.replace(held.card, tokens=tokens))
    files = fetch.exported(held, "hf", "ab" * 32, "out")
    assert "lm_head.weight" not in safetensors.numpy.load(files["model.safetensors"])
    assert "`lm_head.weight` is the same tensor as `transformer.wte.weight`" in files["README.md"].decode()


def test_a_module_that_cannot_be_built_is_exported_and_the_readme_says_what_is_not_known(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(held: SavedModel, request: ParameterNamesRequest) -> Iterator[ParameterNamesReply]:
        raise RunError("FF-APP-167", "the model's process ended without its answer")
        yield

    held = load.open_model(str(finished_run(here / "runs", "own", JOB, source=source(f"{TIE}; {BUFFER}")).root))
    monkeypatch.setattr(fetch, "ask", fails)
    defined = exported(here, held)
    assert set(defined["missing"]) == {"head.weight", "scale"}
    assert "could not be listed here" in (here / "out" / "README.md").read_text()


@pytest.mark.parametrize("file", ["my-model.py", "class.py", "mo'del\".py", "model"])
def test_a_file_whose_name_is_no_name_in_python_is_run_by_its_path(file: str, here: Path) -> None:
    (here / file).write_text(source(TIE))
    held = load.open_model(str(finished_run(here / "runs", "own", JOB, source=source(TIE)).root))
    held = held._replace(card=msgspec.structs.replace(held.card, module=f"{file}:build"))
    defined = exported(here, held)
    assert defined["model"].head.weight is defined["model"].embed.weight


def test_names_of_tensors_stay_between_their_backticks() -> None:
    names = TensorNames((("a`\n# b", "c`d"),), ("`x", *(f"b{n}" for n in range(99))))
    text = "\n".join(model_card._explained(names))
    assert "a'" in text
    assert "\n# b" not in text
    assert "and 68 more" in text


@pytest.mark.slow
def test_the_names_come_out_of_the_sandbox(tmp_path: Path) -> None:
    held = load.open_model(str(finished_run(tmp_path, "own", JOB, source=source(f"{TIE}; {BUFFER}")).root))
    (found,) = ask(held, ParameterNamesRequest(held.data, held.source))
    assert found == ParameterNamesReply((("head.weight", "embed.weight"),), ("scale",))
