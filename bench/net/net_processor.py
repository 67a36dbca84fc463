"""The network benchmark's cases over loopback: what a core seals and forwards, what idle circuits cost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from net_stage import MB, Failed, Worker, listed, median
from net_worker import PIECE
from reporting import Row, at_least, at_most, told

LOCAL: Final = "127.0.0.1"
LIMIT: Final = 60.0  # seconds of a transfer that should take one or two
SEALED, OF_SSL = 4.0, 0.8
SPLICED, COPIED = 10.0, 3.0
CIRCUITS, MOST = 1000, 200.0


def gigabits(size: int, processor: float) -> float:
    """A processor second. Raises Failed where the clock has not moved."""
    if processor <= 0:
        raise Failed("too little to be measured")
    return size * 8 / 1e9 / processor


def record(quick: bool) -> Iterator[Row]:
    """Our own connection beside blocking `ssl` sockets: each side on a core of its own, and then both on one.

    Apart they are what two machines are. On one core the kernel charges to either side what it does for both.
    """
    times, size = (1, 128 * PIECE) if quick else (3, 512 * PIECE)
    cores = sorted(os.sched_getaffinity(0))
    yield from _against(times, size, (cores[0], cores[-1]))
    if len(cores) > 1:
        yield from _against(times, size, (cores[0], cores[0]))


def _against(times: int, size: int, cores: tuple[int, int]) -> Iterator[Row]:
    """Goals are for sides that are apart. `cores`: the sender's and the receiver's."""
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "ssl": []}
    for _ in range(times):  # in turn, so that both meet the same machine
        found["ours"].append(_pair(("net_worker", "receive", "send"), size, cores))
        found["ssl"].append(_pair(("net_plain", "sealed-take", "sealed-give"), size, cores))
    for at, side in enumerate(("sender", "receiver")):
        ours, theirs = ([run[at] for run in found[name]] for name in ("ours", "ssl"))
        ratio = median(ours) / median(theirs)
        facts = f"{listed(ours, 2)} Gbit a processor second, ssl {listed(theirs, 2)}"
        if cores[0] == cores[1]:
            yield told(f"record layer, {side}: against ssl, both on one core", ratio, "ratio", facts)
            continue
        against = f"{size / MB:.0f} MB over loopback: {listed(ours, 2)} Gbit a processor second of its process"
        yield at_least(f"record layer, {side}", median(ours), "Gbit/CPU s", SEALED, against)
        against = f"blocking ssl sockets, TLS 1.3 by the same library: {listed(theirs, 2)} Gbit a processor second"
        yield at_least(f"record layer, {side}: against ssl", ratio, "ratio", OF_SSL, against)


def _pair(names: tuple[str, str, str], size: int, cores: tuple[int, int]) -> tuple[float, float]:
    """Gbit a processor second of the sender and of the receiver, in the second of two transfers: the first warms up."""
    script, receiver, sender = names
    with Worker(None, "", script, receiver, host=LOCAL, times=2) as there:
        options = {"host": LOCAL, "port": there.line()["port"], "bytes": size, "seconds": LIMIT, "times": 2}
        os.sched_setaffinity(there.process.pid, {cores[1]})
        with Worker(None, "", script, sender, **options) as here:
            os.sched_setaffinity(here.process.pid, {cores[0]})
            for _ in range(2):
                facts, seen = here.line(LIMIT), there.line(LIMIT)
                if seen["bytes"] < size:
                    raise Failed(f"{script}: {seen['bytes']} of {size} bytes in {LIMIT} s")
            return gigabits(size, facts["cpu"]), gigabits(size, seen["cpu"])


def forward(quick: bool) -> Iterator[Row]:
    """The relay's own process while one circuit carries bytes, which are no TLS: it cannot tell."""
    times = 1 if quick else 3
    for name, splice, goal in (("splice", True, SPLICED), ("memory", False, COPIED)):
        size = (1024 if quick else 4096) * PIECE // (1 if splice else 4)
        found = []
        with Worker(None, "", "net_worker", "relay", host=LOCAL, splice=splice) as relay:
            place = {"host": LOCAL, "port": relay.line()["port"]}
            with Worker(None, "", "net_plain", "meet", times=times, **place) as there:
                there.line()
                for _ in range(times):
                    before = relay.processor()
                    options = {"bytes": size, "seconds": LIMIT, "times": 1}
                    with Worker(None, "", "net_plain", "flood", **place, **options) as here:
                        seen, _ = there.line(LIMIT), here.line(LIMIT)
                    if seen["bytes"] < size:
                        raise Failed(f"relay: {seen['bytes']} of {size} bytes in {LIMIT} s")
                    found.append(gigabits(size, relay.processor() - before))
        against = f"{size / MB:.0f} MB over loopback through one circuit: {listed(found, 1)} Gbit a processor second"
        yield at_least(f"forwarding by {name}", median(found), "Gbit/CPU s", goal, against)


def circuits(quick: bool) -> Iterator[Row]:
    """A relay's memory while nobody says anything."""
    with Worker(None, "", "net_worker", "relay", host=LOCAL) as relay:
        place = {"host": LOCAL, "port": relay.line()["port"]}
        before = relay.resident()
        with Worker(None, "", "net_plain", "crowd", count=CIRCUITS, **place) as crowd:
            count = crowd.line(LIMIT)["circuits"]
            held = relay.resident()
    against = f"{before:.0f} MiB without any; buffers in the kernel are not counted"
    yield at_most(f"{count} idle circuits: resident memory", held, "MiB", MOST, against)
    yield told("an idle circuit: resident memory", (held - before) * 1024 / count, "KiB", against)


CASES: Final = {"record": record, "forward": forward, "circuits": circuits}
