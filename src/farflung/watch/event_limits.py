"""Bounds the events of an untrusted log, so that rendering it ends in limited time and memory.

A log can come with a run's folder from anybody. What is beyond these bounds is passed over like a damaged line; a
float beyond them counts as the largest.
"""

from __future__ import annotations

from typing import Final

import msgspec

from farflung.core import events, limits
from farflung.core.events import AnyEvent, FileCount, LossProbeCounts, SentBytesByKind

EVENTS: Final = 1 << 21  # of one log, and as many entries of lists in them
LOG_BYTES: Final = 256 * limits.MIB
NAMES: Final = 512  # different peers and processes; a job has 64 providers and 16 verifiers at most
ENTRIES: Final = 256  # of one list
TEXT: Final = 64 * limits.KIB  # characters of one text
LEAST_WHOLE, MOST_WHOLE = -(1 << 63), (1 << 63) - 1
MOST_REAL: Final = 1e30
# What tables and drawings have rows for.
_COUNTED: Final = frozenset({"round", "rounds", "segment", "session"})
_NAMING: Final = frozenset({"peer", "peers", "process"})


class EventFilter:
    """Lets the events of one log pass, in order; knows whom they named so far."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self.weight = 0  # events, and entries of their lists, that were looked at

    def passed(self, event: AnyEvent) -> AnyEvent | None:
        """The event as it may be shown, or None."""
        self.weight += 1
        changed: dict[str, object] = {}
        named: list[str] = []
        for field in event.__struct_fields__:
            value = getattr(event, field)
            if isinstance(value, float):
                if not -MOST_REAL <= value <= MOST_REAL:
                    changed[field] = min(max(value, -MOST_REAL), MOST_REAL)
            elif not _is_possible(field, value):
                return None
            elif isinstance(value, tuple):
                self.weight += len(value)
                named += value if field in _NAMING else ()
            elif field in _NAMING:
                named.append(value)
        if isinstance(event, events.ProcessStartEvent):
            named.append(event.name)
        fresh = set(named) - self._names
        if len(self._names) + len(fresh) > NAMES:
            return None
        self._names |= fresh
        return msgspec.structs.replace(event, **changed) if changed else event


def _is_possible(field: str, value: object) -> bool:
    match value:
        case int():
            low, high = (0, limits.ROUNDS) if field in _COUNTED else (LEAST_WHOLE, MOST_WHOLE)
            return low <= value <= high
        case str():
            return len(value) <= TEXT
        case tuple():
            return len(value) <= ENTRIES and all(_is_possible("", each) for each in value)
        case float():
            return -MOST_REAL <= value <= MOST_REAL
        case SentBytesByKind() | LossProbeCounts() | FileCount():
            return all(_is_possible("", getattr(value, each)) for each in value.__struct_fields__)
    return value is None
