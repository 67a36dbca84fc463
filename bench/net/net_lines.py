"""The network benchmark's cases over lines: what of a line arrives as payload, and what plain TCP makes of the same."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from net_stage import MB, PLAIN, Failed, Stage, Transfer, Worker, listed, median, payload, percentile
from net_worker import FIRST, PIECE
from reporting import Row, at_least, at_most, told

from farflung.local.netlab import EmulatedHome, NatType

FAST: Final = 100.0  # Mbit/s, both ways
SLOW: Final = 20.0  # up
TRIP: Final = 100.0  # ms between two homes
CLEAN, LITTLE, MUCH, HEAVY = 0.0, 0.005, 0.02, 0.05  # chances to lose a packet between two homes, each way
BURST: Final = 8.0
LOSSES: Final = (0.0, 0.005, 0.02, 0.03)
TRIPS: Final = (20.0, 100.0, 200.0)
DIRECT: Final = {CLEAN: 0.95, LITTLE: 30.0, MUCH: 60.0}  # times cubic
RELAYED: Final = {(CLEAN, 1.0): 0.95, (HEAVY, 1.0): 0.80, (MUCH, BURST): 0.80, (HEAVY, BURST): None}
CONTROL: Final = 0.150  # seconds beyond the round trip
START: Final = 2.0  # seconds in which a sender finds the rate of its line
PING: Final = 100.0  # ms
SETUP: Final = 3.0  # round trips


class Case(NamedTuple):
    """A group of rows: the homes that it needs (`quick`), and what it does with their numbers."""

    homes: Callable[[bool], list[EmulatedHome]]
    rows: Callable[[Stage, list[int]], Iterator[Row]]


def home(
    loss: float = 0.0, trip: float = TRIP, burst: float = 1.0, nat: NatType = NatType.NONE, up: float = FAST
) -> EmulatedHome:
    """One of two ends: half of the round trip, and as much loss as makes `loss` with its like."""
    half = 1 - (1 - loss) ** 0.5
    return EmulatedHome(up=up, down=FAST, rtt=trip / 2, loss=half, burst=burst, nat=nat)


def size(quick: bool) -> tuple[int, float]:
    """Bytes of a transfer, and seconds that it may take: in full runs slow start is a small part of it."""
    return (16 * PIECE, 3.0) if quick else (96 * PIECE, 10.0)


def long(quick: bool) -> tuple[int, float]:
    """The same of a model's weights, of which slow start and the end are a smaller part."""
    return size(quick) if quick else (224 * PIECE, 24.0)


def rates(seen: list[Transfer]) -> list[float]:
    """Mbit/s of each run."""
    return [one.rate for one in seen]


def conditions(loss: float, trip: float, burst: float = 1.0) -> str:
    """Of a path, as a row's name tells them."""
    bursts = f" in bursts of {burst:g}" if burst > 1 else ""
    return f"loss {loss * 100:g} %{bursts}, {trip:g} ms"


def _ways(seen: list[Transfer]) -> str:
    """Over how many connections bulk went, as jobs do it."""
    most = max(run.facts["ways"] for run in seen)
    return "one connection" if most == 1 else f"bulk over {most} connections of one path"


def compared(name: str, ours: list[Transfer], plain: list[Transfer], goal: float | None) -> Row:
    """How many times plain TCP's rate, of the same run."""
    if not median(rates(plain)):
        raise Failed(f"{name}: plain TCP brought nothing at all")
    ratio = median(rates(ours)) / median(rates(plain))
    against = (
        f"{PLAIN}, one connection, not encrypted, {plain[0].bytes / MB:.0f} MB in {plain[0].seconds:.1f} s: "
        f"{listed(rates(plain), 2)} Mbit/s; ours by {ours[0].facts['congestion']}, encrypted, {_ways(ours)}: "
        f"{listed(rates(ours), 2)}"
    )
    row = f"{name}: against {PLAIN}"
    return told(row, ratio, "ratio", against) if goal is None else at_least(row, ratio, "ratio", goal, against)


def filled(name: str, ours: list[Transfer], rate: float, goal: float | None) -> Row:
    """The share of a line's payload rate that arrived, from the first byte sent to the last one there."""
    line = payload(rate)
    against = (
        f"{line:.1f} Mbit/s of TCP payload in a line of {rate:g}; {ours[0].bytes / MB:.0f} MB in "
        f"{ours[0].seconds:.1f} s by {ours[0].facts['congestion']}, {_ways(ours)}; {listed(rates(ours), 1)} Mbit/s"
    )
    row, share = f"{name}: goodput", median(rates(ours)) / line
    return told(row, share, "share", against) if goal is None else at_least(row, share, "share", goal, against)


# Two homes, one of which can be dialled


def _direct_losses(quick: bool) -> list[float]:
    return [CLEAN, MUCH] if quick else list(DIRECT)


def _direct_homes(quick: bool) -> list[EmulatedHome]:
    return [home(loss) for loss in _direct_losses(quick) for _ in range(2)]


def direct(stage: Stage, numbers: list[int]) -> Iterator[Row]:
    """Farflung's own connection, and plain TCP between the same homes."""
    for at, loss in enumerate(_direct_losses(stage.quick)):
        one, two = f"h{numbers[2 * at]}", f"h{numbers[2 * at + 1]}"
        # a quick run is over before more connections have found their rates
        ours = stage.ours(one, two, *long(stage.quick), lanes=not stage.quick)
        plain = stage.plain(one, two, *long(stage.quick))
        name = f"direct, {conditions(loss, TRIP)}"
        yield filled(name, ours, FAST, 0.90)
        if first := [FIRST * 8 / 1e6 / one.first for one in ours if one.first]:
            against = f"the first {FIRST / MB:.0f} MB of the same runs, slow start included: {listed(first, 1)} Mbit/s"
            yield told(f"{name}: goodput, first", median(first) / payload(FAST), "share", against)
        yield compared(name, ours, plain, DIRECT[loss])


def _control_losses(quick: bool) -> list[float]:
    return [CLEAN] if quick else [CLEAN, LITTLE]


def _control_homes(quick: bool) -> list[EmulatedHome]:
    return [home(loss) for loss in _control_losses(quick) for _ in range(2)]


def control(stage: Stage, numbers: list[int]) -> Iterator[Row]:
    """Small calls on a connection that carries bulk at the same time."""
    for at, loss in enumerate(_control_losses(stage.quick)):
        one, two = f"h{numbers[2 * at]}", f"h{numbers[2 * at + 1]}"
        seen = stage.ours(one, two, *size(stage.quick), asking=True, lanes=True)
        calls = [call for run in seen for call in run.facts["trips"]]
        trips = [trip for _, trip in calls]
        quiet = min(trip for run in seen for trip in run.facts["quiet"])
        against = (
            f"{quiet * 1000:.0f} ms of the same call before the bulk, and {CONTROL * 1000:.0f}; {len(trips)} calls "
            f"during {listed(rates(seen), 1)} Mbit/s; median {median(trips) * 1000:.0f}"
        )
        name = f"control during bulk, {conditions(loss, TRIP)}: 99th percentile"
        goal = (quiet + CONTROL) * 1000
        yield at_most(name, percentile(trips, 0.99) * 1000, "ms", goal, against)
        yield _plain_calls(stage, one, two, name, median(trips))
        later = [trip for when, trip in calls if when >= START]
        if later:
            against = f"the same run, without calls of the first {START:g} s, while the sender looks for the rate"
            yield told(f"{name}, later", percentile(later, 0.99) * 1000, "ms", against)


def _plain_calls(stage: Stage, one: str, two: str, name: str, ours: float) -> Row:
    """The same of a small word on a plain connection beside another one's bulk."""
    host, plain = stage.laboratory.address(two), {"congestion": PLAIN}
    with contextlib.ExitStack() as stack:
        stop = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "stop"
        there = stack.enter_context(stage.worker(two, "net_plain", "answer", host=host, **plain))
        place = {"host": host, "port": there.line()["port"], "stop": str(stop)}
        asker = stack.enter_context(stage.worker(one, "net_plain", "ask", **place, **plain))
        bulk = stage.plain(one, two, *size(stage.quick))
        stop.touch()
        said = asker.line()
    if said["congestion"] != PLAIN:
        raise Failed(f"the plain words had {said['congestion']} instead of {PLAIN}")
    spans = [(run.began, run.began + run.seconds) for run in bulk]
    trips = [trip for when, trip in said["trips"] if any(first <= when < last for first, last in spans)]
    slowest = percentile(trips, 0.99)
    against = (
        f"words of {PLAIN} on a connection of their own, {len(trips)} during {listed(rates(bulk), 1)} Mbit/s of "
        f"another's; median {median(trips) * 1000:.0f}, ours {ours * 1000:.0f}"
    )
    return told(f"{name} with {PLAIN}", slowest * 1000, "ms", against)


def _table_pairs(quick: bool) -> list[tuple[float, float]]:
    return [(MUCH, TRIPS[-1])] if quick else [(loss, trip) for trip in TRIPS for loss in LOSSES]


def _table_homes(quick: bool) -> list[EmulatedHome]:
    return [home(loss, trip) for loss, trip in _table_pairs(quick) for _ in range(2)]


def table(stage: Stage, numbers: list[int]) -> Iterator[Row]:
    """Where "hundreds of times plain TCP" is true. One run each: a map, not a measurement."""
    once = Stage(stage.laboratory, quick=True)
    for at, (loss, trip) in enumerate(_table_pairs(stage.quick)):
        one, two = f"h{numbers[2 * at]}", f"h{numbers[2 * at + 1]}"
        ours, plain = (act(one, two, 40 * PIECE, 6.0) for act in (once.ours, once.plain))
        yield compared(f"table, {conditions(loss, trip)}", ours, plain, None)


# Two homes that only a relay can join


def _relay_paths(quick: bool) -> list[tuple[float, float]]:
    return [(CLEAN, 1.0)] if quick else list(RELAYED)


def _relay_homes(quick: bool) -> list[EmulatedHome]:
    """Two behind NATs, and one like the second whom plain TCP can reach."""
    nats = (NatType.PORT_RESTRICTED, NatType.PORT_RESTRICTED, NatType.NONE)
    return [home(loss, TRIP, burst, nat) for loss, burst in _relay_paths(quick) for nat in nats]


def relay(stage: Stage, numbers: list[int]) -> Iterator[Row]:
    """Through a relay in the middle; plain TCP goes the same way without one, to a home without a NAT."""
    for at, (loss, burst) in enumerate(_relay_paths(stage.quick)):
        # on a line without loss what slow start costs would be more than the goal leaves
        amount = (24 if stage.quick else 64 if loss else 128) * PIECE
        seconds = 5.0 if stage.quick else 8.0 if loss else 16.0
        one, two, open_one = (f"h{number}" for number in numbers[3 * at : 3 * at + 3])
        ours = stage.relayed(one, two, amount, seconds, lanes=not stage.quick)
        plain = stage.plain(one, open_one, amount, seconds)
        name = f"relay, {conditions(loss, TRIP, burst)}"
        yield filled(name, ours, FAST, RELAYED[loss, burst])
        yield compared(name, ours, plain, None)
        if not loss:
            yield first_answer(ours)


def first_answer(seen: list[Transfer]) -> Row:
    """From the dial to the first answer, in round trips of the same path."""
    quiet = min(trip for run in seen for trip in run.facts["quiet"])
    spent = [run.facts["setup"] for run in seen]
    against = f"round trips of {quiet * 1000:.0f} ms, measured on the same connections; {listed(spent)} s"
    return at_most("relay, set-up: the first answer", median(spent) / quiet, "round trips", SETUP, against)


# A slow uplink


def _uplink_homes(quick: bool) -> list[EmulatedHome]:
    return [EmulatedHome(up=SLOW, down=FAST, rtt=40), EmulatedHome(up=FAST, down=FAST, rtt=40, nat=NatType.NONE)]


def uplink(stage: Stage, numbers: list[int]) -> Iterator[Row]:
    """A home's whole upload, and what its owner's pings feel of it."""
    amount, seconds = (6 * PIECE, 4.0) if stage.quick else (24 * PIECE, 15.0)
    one, two = (f"h{number}" for number in numbers)
    with stage.pings(numbers[0]) as trips:
        time.sleep(1.0)
        quiet = median([trip for _, trip in trips])
    for name, act, goal in (("ours", stage.ours, PING), (PLAIN, stage.plain, None)):
        with stage.pings(numbers[0]) as trips:
            seen = act(one, two, amount, seconds)
        spans = [(run.began, run.began + run.seconds) for run in seen]
        busy = [trip for when, trip in trips if any(first <= when < last for first, last in spans)]
        rise, middle = ((found - quiet) * 1000 for found in (percentile(busy, 0.95), median(busy)))
        pace = "TCP alone decides" if name == PLAIN else "paced below the measured line, without a cap"
        against = (
            f"{quiet * 1000:.0f} ms without load; median rise {middle:.0f}; {len(busy)} pings during "
            f"{listed(rates(seen), 1)} Mbit/s; {pace}"
        )
        row = f"uplink 20/100, {name}: a ping rises by, 95th percentile"
        if goal is None:
            yield told(row, rise, "ms", against)
        else:
            yield filled(f"uplink 20/100, {name}", seen, SLOW, 0.95)
            yield at_most(row, rise, "ms", goal, against)


# Many homes at once


def _many(quick: bool) -> int:
    return 4 if quick else 8


def _many_homes(quick: bool) -> list[EmulatedHome]:
    return [EmulatedHome(up=SLOW, down=FAST, rtt=40)] * _many(quick)


def everybody(stage: Stage, numbers: list[int]) -> Iterator[Row]:
    """Every home sends to every other one at once, through one relay."""
    warm, seconds = (1.0, 3.0) if stage.quick else (3.0, 10.0)
    sums, fairness, pairs = [], [], []
    for _ in range(stage.times):
        got = _all_to_all(stage, numbers, warm, seconds)
        sent = [sum(one.get(str(n), 0) for one in got) for n in range(len(numbers))]
        sums.append(sum(sent) * 8 / 1e6 / seconds)
        fairness.append(jain(sent))
        pairs.append(jain([size for one in got for size in one.values()]))
    line, name = payload(SLOW) * len(numbers), f"{len(numbers)} homes, all to all, one relay"
    against = f"{line:.0f} Mbit/s of TCP payload in all uplinks of 20; {listed(sums, 1)} Mbit/s in {seconds:g} s"
    yield at_least(f"{name}: of the summed uplinks", median(sums) / line, "share", 0.90, against)
    yield _all_plain(stage, numbers, warm, seconds, name, line)
    against = f"bytes sent by each home, Jain's index: {listed(fairness)}"
    yield at_least(f"{name}: fairness between homes", median(fairness), "index", 0.95, against)
    against = f"bytes of each home to each other, Jain's index: {listed(pairs)}"
    yield told(f"{name}: fairness between pairs", median(pairs), "index", against)


def _all_to_all(stage: Stage, numbers: list[int], warm: float, seconds: float) -> list[dict[str, int]]:
    host, count = stage.laboratory.address("s1"), len(numbers)
    with contextlib.ExitStack() as stack:
        go = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "go"
        server = stack.enter_context(stage.worker("s1", "net_worker", "relay", host=host))
        options = {"host": host, "port": server.line()["port"], "go": str(go), "warm": warm, "seconds": seconds}
        workers: list[Worker] = []
        for index, number in enumerate(numbers):
            made = stage.worker(f"h{number}", "net_worker", "mesh", index=index, count=count, **options)
            workers.append(stack.enter_context(made))
        for worker in workers:
            if (met := worker.line()["met"]) != count - 1:
                raise Failed(f"{worker.name}: met {met} of {count - 1} homes")
        go.write_text(str(time.monotonic() + 0.2))
        return [worker.line(warm + seconds)["got"] for worker in workers]


def _all_plain(stage: Stage, numbers: list[int], warm: float, seconds: float, name: str, line: float) -> Row:
    """As many plain connections of each home, to where the relay stands and no further: what its line gives them."""
    host, each, plain = stage.laboratory.address("s1"), len(numbers) - 1, {"congestion": PLAIN}
    sums = []
    for _ in range(stage.times):
        with contextlib.ExitStack() as stack:
            wanted = {"count": each * len(numbers), "warm": warm, "seconds": seconds}
            server = stack.enter_context(stage.worker("s1", "net_plain", "drain", host=host, **wanted))
            place = {"host": host, "port": server.line()["port"], "count": each}
            for number in numbers:
                worker = stack.enter_context(stage.worker(f"h{number}", "net_plain", "pour", **place, **plain))
                if (found := worker.line()["congestion"]) != [PLAIN]:
                    raise Failed(f"plain TCP had {found} instead of {PLAIN}")
            sums.append(sum(server.line(warm + seconds)["got"]) * 8 / 1e6 / seconds)
    against = (
        f"{each} plain connections of each home to the relay's place, not encrypted, no way down: "
        f"{listed(sums, 1)} Mbit/s"
    )
    return told(f"{name}: {PLAIN} fills", median(sums) / line, "of the summed uplinks", against)


def jain(values: list[int]) -> float:
    """Jain, Chiu and Hawe 1984: 1 if all are equal, 1/n if one has all."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


CASES: Final = {
    "direct": Case(_direct_homes, direct),
    "relay": Case(_relay_homes, relay),
    "uplink": Case(_uplink_homes, uplink),
    "homes": Case(_many_homes, everybody),
    "control": Case(_control_homes, control),
    "table": Case(_table_homes, table),
}
