"""A model that was written in a notebook trains: its source is taken with what it uses, or it is said why not."""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from farflung.app.api.module_source import source_of
from farflung.core import limits
from farflung.core.errors import FarflungError, SpecError
from farflung.job.io.job_files import read_module
from farflung.job.job_loader import load
from farflung.job.module_package import pack, unpack
from farflung.job.spec import JobSpec
from farflung.train import flat_model, user_module

CELL = """
import math
import torch
from torch import nn
from torch.nn import functional as F

WIDTH, SCALES = 8, (1.0, 2.0)

def scaled(x):
    return x * SCALES[0] / math.sqrt(WIDTH)

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)

    def forward(self, x):
        return scaled(self.up(x))

class Net(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(256, width), Block(width), nn.Linear(width, 256)

    def forward(self, x):
        return self.head(self.block(self.embed(x)))

class WithLoss(Net):
    def forward(self, x, y):
        return F.cross_entropy(super().forward(x).flatten(0, 1), y.flatten())

class Sized(Net):
    def __init__(self, width):
        super().__init__(width)

def wide():
    return Sized(16)

TABLE = torch.zeros(3)

class Opaque(Net):
    def forward(self, x):
        return super().forward(x) + TABLE.sum()

class Three(Net):
    def forward(self, x, y, z):
        return x

class Words(Net):
    def forward(self, x):
        return "no"

class Flat(Net):
    def forward(self, x):
        return super().forward(x).flatten(0, 1)
"""
SPEC = load(None, preset="tiny", flags={"model.kind": "module", "model.module": "Net.py:build"}).spec


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """What a notebook has after a cell was run: no file, and the source where IPython leaves it."""
    name, file = "notebook_cell", "<ipython-input-1>"
    made = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    linecache.cache[file] = (len(CELL), None, CELL.splitlines(keepends=True), file)
    made.__file__ = file
    exec(compile(CELL, file, "exec"), made.__dict__)
    return types.SimpleNamespace(**vars(made))


def trained(name: str, source: bytes) -> float:
    """The loss of one step of the source, as a worker makes it."""
    spec = JobSpec(batch=2, model=type(SPEC.model)(kind="module", module=name, context=16))
    model = flat_model.build(spec, source)
    flat_model.check_source(spec, source)
    x_BT, y_BT = torch.randint(0, 256, (2, 16)), torch.randint(0, 256, (2, 16))
    model.probe(x_BT, y_BT)
    return model.gradient(x_BT, y_BT)


@pytest.mark.parametrize(
    "given",
    [lambda c: c.Net(), lambda c: c.Net, lambda c: c.WithLoss(), lambda c: c.WithLoss, lambda c: c.wide],
    ids=["instance", "class", "with a loss", "class with a loss", "function"],
)
def test_what_a_notebook_defines_trains_in_a_worker(cell: Any, given: Callable[[Any], Any]) -> None:
    name, source = source_of(given(cell))
    assert b"class Block" in source
    assert source_of(given(cell)).source == source  # the same text, and so the same hash, each time
    assert 4 < trained(name, source) < 7


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda c: c.Sized(16), "needs arguments"),
        (lambda c: c.Net(32), "its parameters differ"),
        (lambda c: c.Opaque, "TABLE"),
        (lambda c: lambda: c.Net(), "has no source"),
        (lambda c: type("Made", (c.Net,), {}), "Made has no source"),
        (lambda c: torch.nn.Linear(2, 2), "needs arguments"),
    ],
)
def test_a_source_that_cannot_be_had_is_refused_with_what_to_do(
    cell: Any, given: Callable[[Any], Any], says: str
) -> None:
    with pytest.raises(SpecError) as error:
        source_of(given(cell))
    assert error.value.code == "FF-APP-496"
    assert says in f"{error.value.message} {error.value.cause}"
    assert "farflung.run(" in error.value.hint or "rename" in error.value.hint


@pytest.mark.parametrize("name", ["Three", "Words", "Flat"])
def test_what_a_module_needs_is_said_wherever_it_has_something_else(cell: Any, name: str) -> None:
    with pytest.raises(FarflungError) as error:
        trained(*source_of(getattr(cell, name)))
    assert "forward(x, y) -> scalar loss, or forward(x) -> logits" in error.value.hint
    assert error.value.hint == user_module.CONTRACT


def test_a_module_of_logits_still_gives_them(cell: Any) -> None:
    name, source = source_of(cell.Net)
    built = user_module.build(name, source)
    x_BT = torch.zeros(2, 3, dtype=torch.int64)
    assert built(x_BT).shape == built.logits(x_BT).shape == (2, 3, 256)  # type: ignore[operator]
    assert built(x_BT, x_BT).shape == ()
    assert list(dict(built.named_parameters())) == list(dict(cell.Net().named_parameters()))


PACKAGE = {
    "__init__.py": b"from .net import Net\n\n\ndef build():\n    return Net()\n",
    "net.py": b"from torch import nn\nfrom mine.parts.block import HIDDEN\n\n\nclass Net(nn.Module):\n"
    b"    def __init__(self):\n        super().__init__()\n        self.embed, self.head = nn.Embedding(256, HIDDEN),"
    b" nn.Linear(HIDDEN, 256)\n\n    def forward(self, x):\n        return self.head(self.embed(x))\n",
    "parts/__init__.py": b"",
    "parts/block.py": b"HIDDEN = 8\n",
}


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "mine" / name).write_bytes(data)
    return folder


def test_a_module_may_be_a_package_folder(tmp_path: Path) -> None:
    source, function = read_module("mine:build", written(tmp_path, PACKAGE))
    assert function == "build"
    assert unpack(source) == PACKAGE
    assert 4 < trained("mine:build", source) < 7
    assert user_module.build("mine:build", source) is not user_module.build("mine:build", source)
    other = pack(PACKAGE | {"parts/block.py": b"HIDDEN = 4\n"})
    assert dict(user_module.build("mine:build", other).named_parameters())["embed.weight"].shape == (256, 4)


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"net.py": PACKAGE["net.py"]}, "FF-JOB-049"),
        (PACKAGE | {"not-a-name.py": b""}, "FF-JOB-049"),
        (PACKAGE | {"__init__.py": b"x = 1\n"}, "FF-JOB-043"),
        (PACKAGE | {"parts/block.py": b"HIDDEN = = 8\n"}, "FF-JOB-042"),
        (PACKAGE | {f"parts/{name}.py": b"#" * (limits.MODULE_BYTES // 2) for name in "abc"}, "FF-JOB-041"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(tmp_path: Path, files: dict[str, bytes], code: str) -> None:
    with pytest.raises(SpecError) as error:
        read_module("mine:build", written(tmp_path, files))
    assert error.value.code == code


def test_a_package_hides_no_module_that_a_worker_loads(tmp_path: Path) -> None:
    (written(tmp_path, PACKAGE) / "mine").rename(tmp_path / "torch")
    with pytest.raises(SpecError, match="FF-JOB-049"):
        read_module("torch:build", tmp_path)


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_packed_module_that_is_damaged_is_refused(cut: int) -> None:
    with pytest.raises(SpecError, match="FF-JOB-048"):
        unpack(pack(PACKAGE)[:-cut])


def test_each_file_of_a_package_is_looked_at_for_what_no_job_commits_to() -> None:
    clock = pack(PACKAGE | {"parts/block.py": b"import time\nHIDDEN = 8\nWHEN = time.time()\n"})
    with pytest.raises(SpecError) as error:
        flat_model.check_source(JobSpec(model=type(SPEC.model)(kind="module", module="mine:build")), clock)
    assert error.value.code == "FF-TRAIN-067"
    assert "mine/parts/block.py" in error.value.cause
