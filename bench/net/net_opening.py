"""The network benchmark's start of two peers behind routers: the first answer by a relay, and the way without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from net_lines import SETUP, Case, home
from net_stage import Facts, Failed, Stage, listed, median
from reporting import Row, at_most

from farflung.local.netlab import EmulatedHome, NatType

TRIP: Final = 40.0  # ms between the two homes
OPEN: Final = 2.0  # seconds
SCRIPT: Final = "net_opening_worker"


def _homes(quick: bool) -> list[EmulatedHome]:
    """Two whose routers give each local port one port, and let in only who was called."""
    return [home(trip=TRIP, nat=NatType.PORT_RESTRICTED)] * 2


def opening(stage: Stage, numbers: list[int]) -> Iterator[Row]:
    """From the dial on, with processes that know nothing of each other yet."""
    seen = [_once(stage, *(f"h{number}" for number in numbers)) for _ in range(stage.times)]
    trip, setups = min(run["trip"] for run in seen), [run["setup"] for run in seen]
    against = f"round trips of {trip * 1000:.0f} ms through the relay, at {TRIP:g} ms; {listed(setups, 3)} s"
    yield at_most(
        "opening, before it: the first answer via a relay", median(setups) / trip, "round trips", SETUP, against
    )
    opened = [run["opened"] for run in seen]
    if None in opened:
        raise Failed("two homes behind port-restricted routers did not meet")
    against = f"from the dial until control goes without the relay; {listed(opened)} s"
    yield at_most("opening: TCP simultaneous open through two routers", median(opened), "s", OPEN, against)


def _once(stage: Stage, one: str, two: str) -> Facts:
    host = stage.laboratory.address("s1")
    with stage.worker("s1", "net_worker", "relay", host=host) as relay:
        place = [host, relay.line()["port"]]
        with stage.worker(two, SCRIPT, "stay", relay=place) as there:
            there.line()
            with stage.worker(one, SCRIPT, "meet", relay=place) as here:
                return here.line()


LINES: Final = {"opening": Case(_homes, opening)}
