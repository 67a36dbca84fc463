"""Where a job is submitted its graph is tried first: one that cannot be used makes the job outcome only."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from farflung.core.errors import FarflungError, RunError, SpecError
from farflung.core.ids import Hash
from farflung.job.job_loader import load
from farflung.local.network import prepare
from farflung.peers.program.cache import ProfileRequest
from farflung.peers.rundir.folder import RunFolder

SPEC = load(None, preset="tiny").spec
ASKED = ProfileRequest(SPEC, Hash(bytes(32)), Hash(b"d" * 32), Hash(b"i" * 32))
SLOW = RunError("FF-VERI-117", "it takes too long", cause="an hour")


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What comes of trials that end so, one after another, and how many were made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = RunFolder(tmp_path)
    folder.snapshots.mkdir()
    folder.initial_file.write_bytes(b"state")
    monkeypatch.setattr(prepare.public_state, "unpack", lambda *_: None)

    def run(asked: ProfileRequest, *ends: FarflungError | None) -> tuple[list[str], int]:
        left = list(ends)

        async def trial(*_: object) -> None:
            if (error := left.pop(0)) is not None:
                raise error

        monkeypatch.setattr(prepare.graph_trial, "try_step", trial)
        graph: Any = type("Graph", (), {"layout": None})
        worker: Any = None
        folder.graph_file.write_bytes(b"graph")
        said = [asyncio.run(prepare._tried(folder, worker, graph, asked)) for _ in ends]
        assert folder.graph_file.exists() is (said[-1] == "")
        return said, len(ends) - len(left)

    return run


def test_a_graph_that_takes_too_long_makes_a_job_outcome_only(tried: Any) -> None:
    assert tried(ASKED, SLOW, SLOW) == (["it takes too long: an hour"] * 2, 2)


def test_a_job_that_asks_to_be_proven_is_refused_instead(tried: Any) -> None:
    spec = replace(SPEC, audit=replace(SPEC.audit, proof="proven"))
    with pytest.raises(SpecError, match="FF-APP-341"):
        tried(ASKED._replace(spec=spec), SLOW)


def test_another_fault_is_the_runs_own(tried: Any) -> None:
    with pytest.raises(RunError, match="FF-TRAIN-090"):
        tried(ASKED, RunError("FF-TRAIN-090", "the worker process is gone"))


def test_a_graph_that_was_tried_here_is_not_tried_again(tried: Any) -> None:
    assert tried(ASKED, None, None) == (["", ""], 1)
