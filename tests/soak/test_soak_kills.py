"""Twenty seeds, each killed at random moments: the whole tree dies by SIGKILL, what is resumed gives the same bits.

The moments come from the seed and from the time that the undisturbed run took here, so a failure names all that
is needed to see it again: `pytest -m soak -s -v -k seed7`. Starting processes takes longer than training so small
a model: every second seed therefore dies after its first peer has joined.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from app_trees import Ended, Farflung, kill_tree, living, outcome, reexecuted, stored_events

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

JOB = ("--preset", "tiny", "--rounds", "6", "--set", "sync.steps=20")
EARLIEST = 0.5  # seconds after the start
JOBS = 4  # the seeds share these
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


def kill_at(farflung: Farflung, words: tuple[str, ...], second: float, after: str | None) -> Kill | None:
    """Kills a session so many seconds after its start, or after it told of an event; None: it had ended."""
    began = time.monotonic()
    process = farflung.start(*words)
    if after is not None:
        assert process.stdout is not None
        assert any(f'"event":"{after}"' in line for line in process.stdout)
    try:
        process.communicate(timeout=second)
    except subprocess.TimeoutExpired:
        kill_tree(process)
        return Kill(time.monotonic() - began, place_of(farflung.newest()))
    assert process.returncode == 0
    return None


@dataclass(frozen=True)
class Undisturbed:
    """A job's run that nobody killed, and how long it took."""

    words: tuple[str, ...]
    ended: Ended
    duration: float


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Undisturbed]:
    """What is killed at a seed: one of a few jobs, so that not each kill needs an undisturbed run of its own."""

    @cache
    def run(job: int) -> Undisturbed:
        words = ("run", *JOB, "--seed", str(job), "--json")
        began = time.monotonic()
        ended = Farflung(tmp_path_factory.mktemp(f"undisturbed{job}"), LIMIT)(*words)
        return Undisturbed(words, ended, time.monotonic() - began)

    return lambda seed: run(1 + seed % JOBS)


@pytest.mark.parametrize("seed", range(1, 21), ids=lambda seed: f"seed{seed}")
def test_a_tree_killed_at_a_random_moment_ends_with_the_same_bits(
    seed: int, calm: Callable[[int], Undisturbed], tmp_path: Path
) -> None:
    draw = random.Random(seed)
    found = calm(seed)
    words, undisturbed, duration = found.words, found.ended, found.duration
    wanted = outcome(undisturbed.result)
    after = None if seed % 2 else "joined"
    earliest = EARLIEST if after is None else 0.0
    latest = duration - next((e["at"] for e in undisturbed.events if e["event"] == after), 0.0)

    farflung, kill = Farflung(tmp_path / "runs", LIMIT), None
    while kill is None:  # a run that was quicker this time, and came to its end, is no test
        shutil.rmtree(farflung.runs, ignore_errors=True)
        latest = draw.uniform(earliest, latest)
        kill = kill_at(farflung, words, latest, after)
    kills = [kill]
    if seed % TWICE == 0 and farflung.newest() is not None:
        again = kill_at(farflung, ("resume", "--json"), draw.uniform(EARLIEST, duration), None)
        kills += [again] if again is not None else []
    run = farflung.newest()
    assert not (run and living(run))

    ended = farflung(*(("resume", "--json") if run else words))
    run = farflung.newest()
    assert run is not None
    repeated = reexecuted(run)
    told = ", then ".join(str(kill) for kill in kills)
    same = "same bits" if outcome(ended.result) == wanted else "OTHER BITS"
    print(f"\nseed {seed}: of {duration:.2f} s killed at {told}; resumed, {repeated.total()} re-executed, {same}")

    assert outcome(ended.result) == wanted
    assert ended.result["sum"] == 0
    assert max(repeated.values(), default=0) <= 1
    assert not living(run)
    checked = farflung("verify-run", str(run))
    assert checked.code == 0, checked.errors
