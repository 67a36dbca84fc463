"""Graphs that are kept between submissions: found again for the same step, and for no other; damage is no graph."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from farflung.core.canon.graph import CanonicalGraph, GraphInput, GraphNode, GraphOutput
from farflung.core.codec import encode
from farflung.core.errors import VerificationError
from farflung.core.ids import Hash
from farflung.job.job_loader import load
from farflung.job.spec import JobSpec
from farflung.peers.program import cache, trace
from farflung.peers.rundir.folder import RunFolder
from farflung.verify.canon.graph_file import GraphFile
from farflung.verify.io.tracer import TraceStepRequest

SPEC = load(None, preset="tiny").spec
SHIPPED = GraphFile(
    encode(
        CanonicalGraph((GraphInput("x", "f32", ()),), (GraphNode("neg", (0,), "f32", (), ()),), (GraphOutput("y", 1),))
    ),
    (),
)
DATA = encode(SHIPPED)
STEP = TraceStepRequest(SPEC, b"")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "farflung" / "graphs"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[TraceStepRequest]]:
    """Submits jobs one after another; the steps for which a tracer was started."""

    def submit(*jobs: tuple[JobSpec, bytes], says: GraphFile | VerificationError = SHIPPED) -> list[TraceStepRequest]:
        requests: list[TraceStepRequest] = []

        async def traced(_: RunFolder, request: TraceStepRequest) -> GraphFile:
            requests.append(request)
            if isinstance(says, VerificationError):
                raise says
            return says

        monkeypatch.setattr(trace, "_traced", traced)
        for spec, module in jobs:
            found = asyncio.run(trace.trace(RunFolder(tmp_path), spec, module))
            assert found.shipped == ("" if found.why else DATA) or found.why
        return requests

    return submit


def test_a_step_that_was_traced_before_is_not_traced_again(asked: Callable[..., list[TraceStepRequest]]) -> None:
    other = replace(SPEC, name="b", rounds=9, budget="7", data=replace(SPEC.data, limit=10**6))
    assert len(asked((SPEC, b""), (SPEC, b""), (other, b""))) == 1


@pytest.mark.parametrize(
    "changed",
    [
        (replace(SPEC, seed=SPEC.seed + 1), b""),
        (replace(SPEC, batch=SPEC.batch + 1), b""),
        (replace(SPEC, model=replace(SPEC.model, layers=3)), b""),
        (replace(SPEC, optimizer=replace(SPEC.optimizer, clip=0.5)), b""),
        (replace(SPEC, sync=replace(SPEC.sync, steps=SPEC.sync.steps + 1)), b""),
        (replace(SPEC, network=replace(SPEC.network, providers=9)), b""),  # its clipping counts them
        (SPEC, b"def model(): ..."),
    ],
)
def test_another_step_is_traced(asked: Callable[..., list[TraceStepRequest]], changed: tuple[JobSpec, bytes]) -> None:
    assert len(asked((SPEC, b""), changed)) == 2


def test_what_cannot_be_traced_is_tried_again(asked: Callable[..., list[TraceStepRequest]], folder: Path) -> None:
    no = VerificationError("FF-VERI-080", "aten.sort.default cannot be checked")
    assert len(asked((SPEC, b""), (SPEC, b""), says=no)) == 2
    assert not list(folder.glob("*"))


def test_other_sources_other_versions_find_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.keep(STEP, DATA)
    assert cache.find(STEP) == DATA
    with monkeypatch.context() as patched:
        patched.setattr(cache, "image_digest", lambda: Hash(bytes(32)))
        assert cache.find(STEP) is None
    monkeypatch.setattr(cache, "version", lambda _: "9.9")
    assert cache.find(STEP) is None


@pytest.mark.parametrize("at", [0, 40, -1])
def test_a_damaged_file_is_as_none(folder: Path, at: int) -> None:
    cache.keep(STEP, DATA)
    (path,) = folder.iterdir()
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 1
    path.write_bytes(damaged)
    assert cache.find(STEP) is None
    path.write_bytes(b"")
    assert cache.find(STEP) is None


def test_nothing_is_read_from_a_folder_that_others_may_write_to(folder: Path) -> None:
    cache.keep(STEP, DATA)
    folder.chmod(0o777)
    assert cache.find(STEP) is None
    cache.keep(replace(STEP, module=b"x"), DATA)
    assert len(list(folder.iterdir())) == 1


@pytest.mark.whole
def test_the_oldest_are_dropped(folder: Path) -> None:
    for number in range(cache.KEPT + 3):
        cache.keep(replace(STEP, module=bytes([number])), DATA)
        for path in folder.iterdir():  # one older with each that comes
            os.utime(path, (path.stat().st_mtime - 10,) * 2)
    assert [number for number in range(cache.KEPT + 3) if cache.find(replace(STEP, module=bytes([number])))] == [
        *range(3, cache.KEPT + 3)
    ]


@pytest.mark.whole
def test_what_is_asked_for_again_and_again_stays(folder: Path) -> None:
    for number in range(cache.KEPT + 3):
        cache.keep(replace(STEP, module=bytes([number])), DATA)
        for path in folder.iterdir():
            os.utime(path, (path.stat().st_mtime - 10,) * 2)
        assert cache.find(replace(STEP, module=b"\0")) == DATA
    assert cache.find(replace(STEP, module=b"\1")) is None
