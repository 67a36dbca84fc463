"""Twenty seeds, each killed at random moments: the whole tree dies by SIGKILL, what is resumed gives the same bits.

The moments come from the seed and from the time that the undisturbed run took here, so a failure names all that
is needed to see it again: `pytest -m soak -s -v -k "seed7"`.
"""

from __future__ import annotations

import random
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from app_trees import Farflung, kill_tree, living, outcome, reexecuted, stored_events

pytestmark = [pytest.mark.soak, pytest.mark.tree, pytest.mark.timeout(900)]

EARLIEST = 0.5  # seconds after the start; every second seed: not before the first peer has joined
TWICE = 3  # every third seed: the resumed run is killed as well
LIMIT = 300.0


@dataclass(frozen=True)
class Kill:
    """One killed session."""

    second: float
    place: str

    def __str__(self) -> str:
        return f"{self.second:.2f} s {self.place}"


def place_of(run: Path | None) -> str:
    """Where a run stands, in words."""
    if run is None:
        return "before it was a run"
    events = [event["event"] for event in stored_events(run)]
    closed = max((e["round"] + 1 for e in stored_events(run) if e["event"] == "round"), default=0)
    if "settled" in events:
        return f"while settling after round {closed - 1}"
    return f"in round {closed}" if "joined" in events else "before round 0"


def kill_at(farflung: Farflung, words: tuple[str, ...], second: float) -> Kill | None:
    """Starts a session and kills its tree at that second; None when it came to its end before."""
    process = farflung.start(*words)
    try:
        process.communicate(timeout=second)
    except subprocess.TimeoutExpired:
        kill_tree(process)
        return Kill(second, place_of(farflung.newest()))
    assert process.returncode == 0
    return None


@pytest.mark.parametrize("seed", range(1, 21), ids=lambda seed: f"seed{seed}")
def test_a_tree_killed_at_a_random_moment_ends_with_the_same_bits(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    words = ("run", "--preset", "tiny", "--seed", str(seed), "--rounds", "6", "--json")
    began = time.monotonic()
    undisturbed = Farflung(tmp_path / "undisturbed", LIMIT)(*words)
    duration = time.monotonic() - began
    wanted = outcome(undisturbed.result)
    joined = next(event["at"] for event in undisturbed.events if event["event"] == "joined")
    earliest = EARLIEST if seed % 2 else joined

    farflung = Farflung(tmp_path / "runs", LIMIT)
    kills = [kill_at(farflung, words, draw.uniform(earliest, duration))]
    if seed % TWICE == 0 and farflung.newest() is not None:
        kills.append(kill_at(farflung, ("resume", "--json"), draw.uniform(EARLIEST, duration)))
    run = farflung.newest()
    assert not (run and living(run))

    ended = farflung(*(("resume", "--json") if run else words))
    run = farflung.newest()
    assert run is not None
    again = reexecuted(run)
    told = ", then ".join(str(kill) for kill in kills if kill) or "came to its end before the kill"
    same = "same bits" if outcome(ended.result) == wanted else "OTHER BITS"
    print(
        f"\nseed {seed}: of {duration:.2f} s killed at {told}; resumed, {again.total()} re-executed, {same}"
    )

    assert outcome(ended.result) == wanted
    assert ended.result["sum"] == 0
    assert max(again.values(), default=0) <= 1
    assert not living(run)
    checked = farflung("verify-run", str(run))
    assert checked.code == 0, checked.errors
