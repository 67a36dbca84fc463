"""The process that executes a job's graph: it answers, says why it does not, or its end is told."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import dispute_match as match
import pytest

from farflung.core.codec import encode
from farflung.core.errors import RunError
from farflung.job import dataset
from farflung.job.dataset import Dataset
from farflung.peers.program import graph_runs
from farflung.train import public_state, segments
from farflung.train.blobs import bytes_of
from farflung.train.segments import BorderState
from farflung.train.sync_arithmetic import Sync
from farflung.verify.canon.graph_file import pack
from farflung.verify.canon.graph_requests import AccusationRequest, StepTrialRequest
from farflung.verify.canon.step_graph import buffers
from farflung.verify.io import graph_process

LAYOUT = match.job().model.layout
ABOUT = (
    match.SPEC,
    LAYOUT,
    match.tolerance(),
    dataset.pack(Dataset(match.TOKENS, match.TOKENS[:100])),
    b"",  # all of it is there
    encode(pack(match.parts().graph, buffers(match.job().model))),
    public_state.pack(Sync.of(match.SPEC).initial(match.job().start), LAYOUT),
)


def packed(state: BorderState) -> bytes | memoryview:
    return bytes_of(segments.pieces(state, match.SPEC.optimizer, LAYOUT))


def accused(claimed: BorderState) -> AccusationRequest:
    start = packed(segments.start([match.border(0), match.border(1)], match.SEGMENT))
    first, after = match.SPEC.borders_of(match.SPEC.sync.steps)[match.SEGMENT : match.SEGMENT + 2]
    place = match.ROUND, match.SEAT, first, after - first
    return AccusationRequest(*ABOUT, *place, start, packed(claimed))


def test_a_process_in_the_sandbox_finds_what_the_graph_finds(tmp_path: Path) -> None:
    end = match.border(match.SEGMENT + 1)
    for claimed, is_false in ((end, False), (replace(end, params=end.params * 1.5), True)):
        assert asyncio.run(graph_runs.finding(accused(claimed), 1 << 20, tmp_path)).is_false is is_false
    assert list(tmp_path.iterdir()) == []  # what travelled beside the request has no name


def test_the_end_of_the_process_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_runs, "MODULE", "farflung.core.release")
    with pytest.raises(RunError, match="FF-APP-692"):
        asyncio.run(graph_runs.finding(accused(match.border(2)), 1 << 20, tmp_path))


def test_a_step_that_would_take_too_long_is_not_begun() -> None:
    request = StepTrialRequest(*ABOUT, 0, 0, b"", b"", 0)
    with pytest.raises(RunError, match="FF-VERI-117"):
        next(graph_process.answer(request))
