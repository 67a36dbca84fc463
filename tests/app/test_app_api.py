"""The Python API: from a plain script, and from inside a running event loop as in a notebook."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import farflung
from farflung.core.errors import SpecError
from farflung.core.events import AnyEvent, Planned, RoundClosed

pytestmark = [pytest.mark.tree, pytest.mark.xdist_group("tree")]


def test_a_run_inside_a_running_loop_calls_back_and_hands_over(tmp_path: Path) -> None:
    seen: list[AnyEvent] = []

    async def notebook() -> farflung.Run:
        return farflung.run(preset="tiny", set={"rounds": 1}, callbacks=[seen.append], out=tmp_path / "run")

    run = asyncio.run(notebook())
    assert run.result.rounds == 1
    assert run.result.sum == 0
    assert isinstance(seen[0], Planned)
    assert sum(isinstance(e, RoundClosed) for e in seen) == 1
    assert [type(e) for e in run.events()] == [type(e) for e in seen]
    assert (run.folder / "model.safetensors").exists()
    assert "rounds=1" in repr(run)


def test_a_plan_starts_nothing_and_a_wrong_key_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    planned = farflung.plan(preset="tiny")
    assert planned.peers == 2
    with pytest.raises(SpecError, match="FF-JOB-001"):
        farflung.run(set={"sync.stepz": 3}, out=tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_importing_the_package_loads_no_torch_and_unknown_names_are_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        farflung.trian  # noqa: B018
