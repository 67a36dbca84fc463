"""No cheat at all: nobody honest is ever accused, whatever its threads and however busy its machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from cheat_play import SEEDS, SHORT, play
from msgspec.structs import replace

from farflung.ledger.tx import Finding

ONCE = replace(SHORT, rounds=1)  # two threads on a busy core wait for each other most of the time
measured: list[int] = []


@pytest.fixture(scope="module")
def busy() -> Iterator[None]:
    """A process that does nothing but take time from the others."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("seed", SEEDS)
def test_honest_peers_with_one_and_two_threads_are_never_accused(seed: int) -> None:
    run = play(seed, peers=2, threads=(1, 2 if seed % 3 == 0 else 1), spec=ONCE)
    assert set(run.findings.values()) == {Finding.HOLDS}
    assert len(run.findings) == 2
    measured.extend(run.excesses.values())


def test_two_threads_do_give_other_bits_than_one() -> None:
    """Else the test before this one would show nothing. Half a tolerance is far from anything that was measured."""
    run = play(0, peers=2, threads=(1, 2), spec=ONCE)
    found = [*measured, *run.excesses.values()]
    assert 0 < max(found) < 500
