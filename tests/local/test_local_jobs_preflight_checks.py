"""A plan refuses what a run refuses: the same job meets the same code before anything is started."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from app_models import JOB, finished_run

from farflung.app.api import runs as api
from farflung.core.crypto import local_key
from farflung.core.errors import FarflungError
from farflung.core.ids import ZERO_HASH
from farflung.core.tensor_layout import TensorLayout
from farflung.job import terms_file
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.job_loader import load
from farflung.job.spec import JobTerms
from farflung.local.jobs import preflight_checks
from farflung.train.gauge import job_step
from farflung.train.gauge.request import StepMemoryRequest

SMALL = {"data.limit": 400_000}


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runs of this test, one of them finished and exported: `small`."""
    runs = tmp_path / "runs"
    monkeypatch.setenv("FARFLUNG_RUNS", str(runs))
    run = finished_run(runs, "small", JOB)
    run.export.mkdir(exist_ok=True)
    (run.export / "genesis.bin").write_bytes(b"")
    spec = load(JOB).spec
    layout = TensorLayout.of(gpt_shapes(spec.model))
    terms = JobTerms(spec, ZERO_HASH, ZERO_HASH, layout, local_key(1, "r", 0).public, ZERO_HASH)
    (run.export / "terms.bin").write_bytes(terms_file.write(terms))
    return runs


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of this computer on which somebody listens."""
    with socket.socket() as busy:
        busy.bind((preflight_checks.LOOPBACK, 0))
        busy.listen(1)
        yield busy.getsockname()[1]


def refused(call: Callable[..., Any], **said: Any) -> str:
    """The code with which a plan or a run refuses; "" where it does not."""
    try:
        call(preset="tiny", **said)
    except FarflungError as error:
        return error.code
    return ""


def test_a_plan_and_a_run_refuse_the_same_before_anything_is_started(
    parent: Path, taken: int, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    (parent / "weights.safetensors").write_bytes(b"\0" * 64)
    (parent / "hf").mkdir()
    (parent / "hf" / "config.json").write_text("{}")
    rows: list[tuple[dict[str, object], str]] = [
        ({"model.start": "gpt2"}, "FF-APP-350"),
        ({"model.start": str(parent / "weights.safetensors")}, "FF-APP-350"),
        ({"model.start": str(parent / "hf")}, "FF-APP-350"),
        ({"network.port": taken}, "FF-NET-040"),
        ({"network.providers": 1}, "FF-JOB-004"),
        ({"audit.proof": "proven", "sync.delay": 1}, "FF-JOB-004"),
        ({"budget": "0.000001"}, "FF-PLAN-001"),
        ({"data.path": str(parent / "nothing.txt")}, "FF-JOB-010"),
    ]
    for said, code in rows:
        with subtests.test(said=said):
            assert refused(api.plan, set=SMALL | said) == code
            assert refused(api.run, set=SMALL | said, out=parent / "out", display=False) == code
    monkeypatch.setattr(preflight_checks, "disk_bytes", lambda _: 1000)
    assert refused(api.plan, set=SMALL) == "FF-APP-495"
    assert refused(api.run, set=SMALL, out=parent / "full", display=False) == "FF-APP-495"


def test_a_run_to_start_from_must_have_the_tensors_of_the_model(parent: Path) -> None:
    sizes = {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.context": 24}
    assert refused(api.plan, set=SMALL | sizes | {"model.start": "small"}) == ""
    assert refused(api.plan, set=SMALL | sizes | {"model.start": "small", "model.width": 32}) == "FF-APP-352"
    (parent / "small" / "export" / "terms.bin").write_bytes(b"of another kind")
    assert refused(api.plan, set=SMALL | sizes | {"model.start": "small"}) == "FF-CORE-096"


HEAD = "from torch import nn\nimport torch\n"
BATCH_NORM = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(256, 8), nn.BatchNorm1d(8), nn.Linear(8, 256)

    def forward(self, x, y):
        found = self.head(self.norm(self.embed(x).transpose(1, 2)).transpose(1, 2))
        return nn.functional.cross_entropy(found.flatten(0, 1), y.flatten())


def build():
    return Net()
"""
REPLACED = (
    BATCH_NORM.replace("nn.BatchNorm1d(8)", "nn.Identity()")
    .replace("        found =", "        self.seen = self.seen + 1\n        found =")
    .replace("nn.Linear(8, 256)\n", "nn.Linear(8, 256)\n        self.register_buffer('seen', torch.zeros(1))\n")
)
CONSTANT = REPLACED.replace("        self.seen = self.seen + 1\n", "")


@pytest.mark.parametrize(("source", "code"), [(BATCH_NORM, "FF-TRAIN-054"), (REPLACED, "FF-TRAIN-054"), (CONSTANT, "")])
def test_a_trace_without_numbers_finds_buffers_that_change(source: str, code: str) -> None:
    flags = {"model.kind": "module", "model.module": "m.py:build", "model.context": "16"}
    request = StepMemoryRequest(load(None, flags=flags).spec, (HEAD + source).encode())
    try:
        job_step.answer(request)
        found = ""
    except FarflungError as error:
        found = error.code
    assert found == code
