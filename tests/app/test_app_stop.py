"""`farflung stop`, which is the first Ctrl-C: the open round is finished and settled; and what is said meanwhile."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from app_trees import MANY, UNAUDITED, Ended, Farflung, stored_events

from farflung.core.money import MICRO

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def compared(run: Path) -> set[str]:
    """What the run was compared with its plan in."""
    return {event["quantity"] for event in stored_events(run) if event["event"] == "compared"}


def test_a_run_that_is_stopped_settles_and_is_handed_over(farflung: Farflung, command: Callable[..., Ended]) -> None:
    process = farflung.start("run", "--preset", "tiny", *UNAUDITED, *MANY, "--json")
    assert process.stdout is not None
    for line in process.stdout:
        if '"event":"round"' in line:
            break
    run = farflung.newest()
    assert run is not None
    (row,) = json.loads(command("status", "--json").lines[0])["runs"]
    assert (row["state"], row["rounds"]) == ("running", 150)
    assert "farflung watch" in command("sample", run.name).refusal("FF-APP-160", 1)
    # Its folder is its own.
    assert str(process.pid) in command("resume", run.name).refusal("FF-APP-010", 1)
    assert "farflung resume" in command("run", "--preset", "tiny", "--out", str(run)).refusal("FF-APP-012", 1)
    stopping = command("stop", "--json")
    assert json.loads(stopping.lines[0])["run"] == run.name
    ended = farflung.finish(process)
    assert "error[FF-APP-132]" in ended.errors
    assert ended.code == 130
    result = ended.events[-1]
    assert result["event"] == stored_events(run)[-1]["event"] == "result"
    assert result["sum"] == 0
    assert 0 < result["rounds"] < 150
    paid = sum(event["paid"] for event in ended.events if event["event"] == "settled")
    assert result["paid"] == paid == result["rounds"] * 2 * 2 * 32 * 3 * MICRO  # peers, sequences, context, steps
    checked = command("verify-run", run.name)
    assert checked.code == 0, checked.errors
    assert {"sync", "join", "worker memory", "time", "price"} <= compared(run)
    assert "it is finished" in command("stop", run.name).refusal("FF-APP-015", 2)
    assert command("fetch", "--out", str(run.parent / "got")).code == 0


def test_a_run_that_stops_at_once_can_be_resumed_and_ctrl_c_after_the_work_leaves_out_only_the_comparison(
    farflung: Farflung, command: Callable[..., Ended]
) -> None:
    """The second session is interrupted when it has settled, while the baseline trains.

    When nobody reads its lines any more, a run stops, too: test_peers_bad_input.
    """
    words = ("--preset", "tiny", *UNAUDITED, "--baseline", "--set", "sync.steps=300", "--set", "budget=10")
    process = farflung.start("run", *words, "--json")
    assert process.stdout is not None
    for line in process.stdout:
        if '"event":"joined"' in line:
            break
    stopped = command("stop", "--now")
    assert stopped.code == 0, stopped.errors
    ended = farflung.finish(process)
    assert ended.code == 130, ended.errors
    assert "farflung resume" in ended.errors
    process = farflung.start("resume", "--json")
    assert process.stdout is not None
    for line in process.stdout:
        if '"event":"settled"' in line:
            break
    os.kill(process.pid, signal.SIGINT)
    ended = farflung.finish(process)
    assert ended.code == 0, ended.errors
    assert (ended.result["rounds"], ended.result["sum"], ended.result["loss_baseline"]) == (3, 0, None)
    assert [e["code"] for e in ended.events if e["event"] == "warning"] == ["FF-APP-133"]
    run = farflung.newest()
    assert run is not None
    assert {"sync", "join", "worker memory", "price"} <= compared(run)
    assert "time" not in compared(run)
