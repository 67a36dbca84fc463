"""The network benchmark's fan-out: a round of payloads between homes on one relay, and what copying costs a relay."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from net_lines import FAST, SLOW, Case
from net_processor import LIMIT, LOCAL, gigabits
from net_stage import MB, PLAIN, Failed, Stage, Worker, listed, median, payload
from reporting import Row, at_least, at_most, told

from farflung.local.netlab import EmulatedHome

ROUND: Final = 1.2  # times what the slowest line needs for what it has to carry
COPIED: Final = 3.0  # Gbit/s out of one core
ONCE: Final = 1.1  # payloads that a home sends: what headers, acknowledgements and joins take is in it
START, PERIOD = 0.5, 4.0  # seconds from the sign to the first round, and from one round to the next
PLAIN_ROUNDS: Final = 8  # whose bytes plain TCP carries to compare
MEMBERS: Final = 8  # of the group over loopback
TRAIN: Final = 8  # packets of one connection that a network card is given at once: 1 ms of FAST


def _homes(quick: bool) -> list[EmulatedHome]:
    return [EmulatedHome(up=SLOW, down=FAST, rtt=40, train=TRAIN)] * (4 if quick else 8)


def lines(stage: Stage, numbers: list[int]) -> Iterator[Row]:
    """Each home has a payload of 1 MB for all others, and all begin at once."""
    count, rounds = len(numbers), 1 + stage.times
    seen, sent = _rounds(stage, numbers, rounds, MB)
    bound = MB * 8 / 1e6 * max(1 / payload(SLOW), (count - 1) / payload(FAST))
    spent = [max(times[at] for times in seen) for at in range(rounds)]
    name = f"fan-out, {count} homes of {SLOW:g}/{FAST:g}, 1 MB each, one relay"
    against = (
        f"{bound:.3f} s for {count - 1} MB in a line of {FAST:g} Mbit/s, or 1 MB in one of {SLOW:g}; "
        f"{listed(spent[1:])} s, from the common start to the last payload at the last home, sealed; the connections "
        "have carried one round before"
    )
    yield at_most(f"{name}: a round", median(spent[1:]) / bound, "times the bound", ROUND, against)
    against = f"{spent[0]:.3f} s: all connections begin with slow start"
    yield told(f"{name}: the first round", spent[0] / bound, "times the bound", against)
    shares = [size / (rounds * MB) for size in sent]
    against = f"bytes of IP packets up each line in {rounds} rounds, acknowledgements included: {listed(shares)}"
    yield at_most(f"{name}: each uplink carries its payload", max(shares), "times", ONCE, against)
    yield _carried(stage, numbers)


def _carried(stage: Stage, numbers: list[int]) -> Row:
    """What the laboratory itself has the processor for: as much as in a few rounds, without anything of ours."""
    size, seconds = PLAIN_ROUNDS * (len(numbers) - 1) * MB, 30.0
    host = stage.laboratory.address("s1")
    options = {"count": len(numbers), "bytes": size, "seconds": seconds, "congestion": PLAIN}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(stage.worker("s1", "net_plain", "serve", host=host, **options))
        place = {"host": host, "port": server.line()["port"]}
        takers = [stack.enter_context(stage.worker(f"h{n}", "net_plain", "fetch", **place)) for n in numbers]
        found = [taker.line(seconds) for taker in takers]
    spent = max(facts["began"] + facts["seconds"] for facts in found) - min(facts["began"] for facts in found)
    share = size * 8 / 1e6 / spent / payload(FAST)
    against = (
        f"{size / MB:.0f} MB to each of {len(numbers)} homes at once in {spent:.2f} s by one connection of {PLAIN} "
        "each, not encrypted, slow start included: what is missing to 1 the machine has no processor for"
    )
    return told(f"fan-out, {len(numbers)} homes: plain TCP to all of them fills", share, "of the lines", against)


def _rounds(stage: Stage, numbers: list[int], rounds: int, size: int) -> tuple[list[list[float]], list[int]]:
    """Seconds of each round at each home, and the bytes that went up each line."""
    host = stage.laboratory.address("s1")
    with contextlib.ExitStack() as stack:
        go = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "go"
        relay = stack.enter_context(stage.worker("s1", "net_worker", "relay", host=host))
        place = {"host": host, "port": relay.line()["port"]}
        options: dict[str, Any] = {**place, "go": str(go), "rounds": rounds, "bytes": size, "period": PERIOD}
        workers: list[Worker] = []
        for index, number in enumerate(numbers):
            made = stage.worker(f"h{number}", "net_fanout_worker", "member", index=index, count=len(numbers), **options)
            workers.append(stack.enter_context(made))
        for worker in workers:
            worker.line()
        before = [stage.laboratory.counters(number)[0].bytes for number in numbers]
        go.write_text(str(time.monotonic() + START))
        found = [worker.line(START + rounds * PERIOD) for worker in workers]
        after = [stage.laboratory.counters(number)[0].bytes for number in numbers]
    for worker, facts in zip(workers, found, strict=True):
        if facts["missing"]:
            raise Failed(f"{worker.name}: {facts['missing']} payloads did not come by fan-out")
    return [facts["seconds"] for facts in found], [b - a for a, b in zip(before, after, strict=True)]


def copying(quick: bool) -> Iterator[Row]:
    """The relay's own process while one member of a group sends to all others over loopback."""
    times, size = (1, 64 * MB) if quick else (3, 512 * MB)
    found = []
    with Worker(None, "", "net_worker", "relay", host=LOCAL) as relay:
        place = {"host": LOCAL, "port": relay.line()["port"], "count": MEMBERS}
        for number in range(times):
            with Worker(None, "", "net_fanout_worker", "crowd", epoch=number + 1, **place) as there:
                there.line()
                before = relay.processor()
                options = {"bytes": size, "epoch": number + 1}
                with Worker(None, "", "net_fanout_worker", "flood", **place, **options) as here:
                    here.line(LIMIT)
                    got = there.line(LIMIT)["bytes"]
                if got < size * (MEMBERS - 1):
                    raise Failed(f"fan-out: {got} of {size * (MEMBERS - 1)} bytes arrived")
                found.append(gigabits(got, relay.processor() - before))
    against = f"{size / MB:.0f} MB in by loopback, {MEMBERS - 1} times out: {listed(found, 1)} Gbit a processor second"
    yield at_least("fan-out by copying", median(found), "Gbit/CPU s", COPIED, against)


LINES: Final = {"fanout": Case(_homes, lines)}
PROCESSOR: Final[dict[str, Callable[[bool], Iterator[Row]]]] = {"copying": copying}
