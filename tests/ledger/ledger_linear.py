"""Whether a history of reads and writes of one register can be what a single register did, one operation at a time.

An operation takes effect at one moment between its call and its return. Wing and Gong ("Testing and verifying
concurrent objects", JPDC 17, 1993) search for such moments; Lowe ("Testing for linearizability", Concurrency and
Computation 29(4), 2017) puts an operation into the order only just in time, when one has to be there because it
returns, and never looks twice at one configuration: the register's value, and who of those that are open took effect.

A system of registers is linearizable exactly if each register is (Herlihy and Wing, TOPLAS 12(3), 1990, theorem 1),
so each is looked at alone. An operation that nobody knows the outcome of may take effect at any time, or never.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Operation:
    """A write of `value`, or a read that gave it, with its times. `ended` None: its outcome is not known."""

    value: int
    is_write: bool
    began: float
    ended: float | None = None


_Configuration = tuple[int, frozenset[int]]  # the register's value; open operations that took effect


def contradiction(history: Iterable[Operation], initial: int) -> Operation | None:
    """The first operation that cannot have returned when it did, whatever the order; None: it is linearizable."""
    known = [each for each in history if each.ended is not None or each.is_write]
    last: dict[int, float] = {}  # when a value was read for the last time
    for each in known:
        if not each.is_write and each.ended is not None:
            last[each.value] = max(each.ended, last.get(each.value, each.ended))
    moments = []
    for place, each in enumerate(known):
        # A write of unknown outcome explains who read it, and nothing else: not one that nobody read, nor afterwards.
        end = last.get(each.value) if each.ended is None else each.ended
        if end is not None and end >= each.began:
            moments += [(each.began, 0, place), (end, 1 if each.ended is not None else 2, place)]
    running: set[int] = set()
    configurations: set[_Configuration] = {(initial, frozenset())}
    for _, kind, place in sorted(moments):  # calls first: what touches is concurrent
        if kind == 0:
            running.add(place)
            continue
        if kind == 1:
            configurations = _returned(known, running, configurations, place)
        else:
            configurations = {(value, done - {place}) for value, done in configurations}
        running.remove(place)
        if not configurations:
            return known[place]
    return None


def _returned(
    known: list[Operation], running: set[int], before: set[_Configuration], place: int
) -> set[_Configuration]:
    """The configurations in which the operation at `place` took effect, and is open no more."""
    left, seen = list(before), set(before)
    found: set[_Configuration] = set()
    while left:
        value, done = left.pop()
        if place in done:
            found.add((value, done - {place}))
            continue
        for other in running - done:
            operation = known[other]
            if operation.is_write or operation.value == value:
                after = (operation.value, done | {other})
                if after not in seen:
                    seen.add(after)
                    left.append(after)
    return found
