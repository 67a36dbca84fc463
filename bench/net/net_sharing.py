"""How our upload shares a home's line with its owner's: shares, fairness and pings beside one and four cubic flows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from net_lines import Case, jain
from net_stage import MB, PLAIN, Failed, Stage, listed, median, payload, percentile
from reporting import Row, told

from farflung.local.netlab import EmulatedHome, NatType

UP, DOWN, TRIP = 20.0, 100.0, 40.0  # Mbit/s, ms to the backbone
AHEAD: Final = 4.0  # seconds in which we are alone
SECONDS: Final = 10.0
MUCH: Final = 1000 * MB  # more than the line carries in that time


class Manner(NamedTuple):
    """How we send: with which congestion control, and whether the line is measured and paced."""

    congestion: str
    is_paced: bool

    @property
    def name(self) -> str:
        """As a row tells it."""
        return f"{self.congestion}, {'paced' if self.is_paced else 'not paced'}"


MANNERS: Final = (Manner("bbr", True), Manner("bbr", False), Manner("cubic", True), Manner("cubic", False))
FLOWS: Final = (1, 4)


def homes(quick: bool) -> list[EmulatedHome]:
    """The home, and one that can be dialled."""
    return [EmulatedHome(up=UP, down=DOWN, rtt=TRIP), EmulatedHome(up=DOWN, down=DOWN, rtt=TRIP, nat=NatType.NONE)]


def rows(stage: Stage, numbers: list[int]) -> Iterator[Row]:
    """Everything at once for some seconds; with --quick the two that matter most, once."""
    one, two = (f"h{number}" for number in numbers)
    line = payload(UP)
    manners = MANNERS[:2] if stage.quick else MANNERS
    for count in FLOWS[:1] if stage.quick else FLOWS:
        for manner in manners:
            runs = [_together(stage, numbers[0], one, two, manner, count) for _ in range(stage.times)]
            name = f"sharing 20/100 with {count} own {PLAIN}, ours {manner.name}"
            ours = [run.ours for run in runs]
            own = [sum(run.own) for run in runs]
            fair = [jain([run.ours, *run.own]) for run in runs]
            rises = [run.rise for run in runs]
            against = (
                f"{line:.1f} Mbit/s of TCP payload in {SECONDS:g} s, ours had been alone for 4 s; the home's own got "
                f"{listed(own, 1)} Mbit/s; Jain's index over all flows {listed(fair, 2)}; a ping rises by "
                f"{listed(rises, 0)} ms, median of each run"
            )
            yield told(f"{name}: our part", median(ours) / line, "share", against)


class _Run(NamedTuple):
    ours: float  # Mbit/s
    own: list[float]
    rise: float  # ms


def _together(stage: Stage, home: int, one: str, two: str, manner: Manner, count: int) -> _Run:
    """We begin, and the home's own follow when our line is known; the line's own count less theirs is ours."""
    once = Stage(stage.laboratory, quick=True)
    options = {"paced": manner.is_paced, "wanted": manner.congestion}
    with stage.pings(home) as trips, ThreadPoolExecutor(count + 1) as pool:
        quiet = min(trip for _, trip in _some(trips))
        ours = pool.submit(once.ours, one, two, MUCH, AHEAD + SECONDS + 3, **options)
        time.sleep(AHEAD)
        began, before = time.monotonic(), stage.laboratory.counters(home)[0].bytes
        others = [pool.submit(once.plain, one, two, MUCH, SECONDS) for _ in range(count)]
        time.sleep(SECONDS)
        sent = stage.laboratory.counters(home)[0].bytes - before
        spent = time.monotonic() - began
        own = [each.result()[0] for each in others]
        congestion = ours.result()[0].facts["congestion"]
    if congestion != manner.congestion:
        raise Failed(f"we had {congestion} instead of {manner.congestion}")
    theirs = [each.bytes * 8 / 1e6 / spent for each in own]
    all_of_it = sent * 8 / 1e6 / spent * 1448 / 1500
    busy = [trip for when, trip in trips if began + 2 <= when < began + SECONDS]
    return _Run(max(0.0, all_of_it - sum(theirs)), theirs, (percentile(busy, 0.5) - quiet) * 1000)


def _some(trips: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The first pings, of a quiet line."""
    deadline = time.monotonic() + 20
    while len(trips) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    if not trips:
        raise Failed("no ping came back")
    return trips


LINES: Final = {"sharing": Case(homes, rows)}
