"""The network benchmark's broken transfer: the relay that carries an object between two homes is killed half-way."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Iterator
from typing import Final, NamedTuple

from net_lines import Case
from net_stage import MB, Failed, Stage, Worker, listed, median
from net_worker import PIECE
from reporting import Row, at_least, at_most, told

from farflung.local.netlab import EmulatedHome, NatType

GAP: Final = 5.0  # seconds
SECONDS: Final = 60.0
RELAYS: Final = ("s1", "s2")


class _Run(NamedTuple):
    gap: float  # seconds
    whole: bool
    again: int  # chunks that were here and were asked for once more
    twice: int  # chunks that came twice
    seconds: float  # of the whole transfer
    ways: int  # connections at the kill


def _homes(quick: bool) -> list[EmulatedHome]:
    """Two whose routers let them meet nowhere but on a relay."""
    return [EmulatedHome(up=20, down=100, rtt=40, nat=NatType.SYMMETRIC)] * 2


def killed(stage: Stage, numbers: list[int]) -> Iterator[Row]:
    """SIGKILL for the relay's process after an eighth of the object."""
    size = (12 if stage.quick else 32) * PIECE
    runs = [_run(stage, *(f"h{number}" for number in numbers), size) for _ in range(stage.times)]
    name = "relay killed in mid-transfer, homes of 20/100, 40 ms, symmetric NAT"
    spent = listed([run.seconds for run in runs], 1)
    against = (
        f"{size / MB:.0f} MB by app.objects.fetch in {spent} s, two relays known; at the kill "
        f"{listed([run.ways for run in runs], 0)} connections carried; each run: "
        f"{listed([run.gap for run in runs], 2)} s"
    )
    yield at_most(f"{name}: the longest gap between two chunks", max(run.gap for run in runs), "s", GAP, against)
    against = "each chunk by its hash, and what was opened is what was sealed, in the worst run"
    yield at_least(f"{name}: hash equal", min(float(run.whole) for run in runs), "of 1", 1, against)
    against = "asked for again after they had arrived whole, all runs together"
    yield at_most(f"{name}: chunks asked for again", sum(run.again for run in runs), "chunks", 0, against)
    against = "at the end an idle connection asks once more for what a much slower one owes; median of all runs"
    yield told(f"{name}: chunks that came twice", median([run.twice for run in runs]), "chunks", against)


def _run(stage: Stage, holding: str, asking: str, size: int) -> _Run:
    with contextlib.ExitStack() as stack:

        def worker(who: str, role: str, **options: object) -> Worker:
            return stack.enter_context(stage.worker(who, "net_transfer_worker", role, **options))

        relays, places = [], []
        for number, server in enumerate(RELAYS):
            host = stage.laboratory.address(server)
            relays.append(worker(server, "relay", host=host, number=number))
            places.append((host, relays[-1].line()["port"]))
        count = worker(holding, "holder", places=places, bytes=size).line()["chunks"]
        asker = worker(asking, "asker", places=places, bytes=size)
        middle = asker.line(SECONDS)
        os.killpg(relays[middle["relay"]].process.pid, signal.SIGKILL)
        facts = asker.line(SECONDS)
    if facts["error"]:
        raise Failed(f"the transfer did not survive: {facts['error']}")
    return _judged(facts["asked"], facts["came"], count, facts["whole"], len(middle["ways"]))


def _judged(
    asked: list[tuple[float, int]], came: list[tuple[float, int]], count: int, is_whole: bool, ways: int
) -> _Run:
    """What the questions and the arrivals of one run say."""
    times = [when for when, _ in came]
    first: dict[int, float] = {}
    for when, index in came:
        first.setdefault(index, when)
    gap = max(later - earlier for earlier, later in itertools.pairwise(times))
    again = sum(first.get(index, when) < when for when, index in asked)
    began = min(when for when, _ in asked)
    return _Run(gap, is_whole, again, len(came) - count, times[-1] - began, ways)


LINES: Final = {"killed": Case(_homes, killed)}
