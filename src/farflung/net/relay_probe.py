"""Decides what a relay measures for peers that ask, and how much, so that nobody can be harmed through it.

    method         question                     answer
    relay.time     nothing                      milliseconds since 1970, by the relay's clock
    relay.where    nothing                      (host, port) that the asker's connection comes from
    relay.sink     up to limits.MEASURE_BYTES   how many bytes those were
    relay.source   how many bytes               as many, all zero
    relay.reach    a port of the asker's own    a `ReachResult`: the relay has tried to connect to that port

A relay connects to nobody but the very address that the asker's own connection comes from, once a minute for a key and
limits.MEASURE_REACHES times a minute for an address. Bytes go only to who has proved a key, over TCP: there is no
address to forge, and never more goes back than the asker's own allowance. All bounds begin anew with each minute.

Whoever speaks another version, or is not sure, asks with QUESTION instead of a hello: every relay answers four bytes
that name its version, and its key. So two versions can say that they are two.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import Final

from farflung.core import limits
from farflung.core.ids import ID_BYTES, PeerId
from farflung.net import tls

TIME: Final = "relay.time"
WHERE: Final = "relay.where"
SINK: Final = "relay.sink"
SOURCE: Final = "relay.source"
REACH: Final = "relay.reach"

FAMILY: Final = b"FF"  # what the first four bytes of all our versions begin with
QUESTION: Final = b"FFV?"
ANSWER_BYTES: Final = len(tls.MAGIC) + ID_BYTES
WINDOW_SECONDS: Final = 60


class ReachResult(enum.IntEnum):
    """What became of a relay's try to connect."""

    YES = 0
    REFUSED = 1  # somebody said that nobody listens
    SILENT = 2  # no answer in time
    UNREACHABLE = 3  # a router said no, or there is no way


def answer(key: PeerId) -> bytes:
    """What a relay says to a QUESTION."""
    return tls.MAGIC + key


class ProbeRateLimiter:
    """A rate limiter: how much is still to be had in this minute. `now`: seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._window = -1
        self._bytes: Counter[PeerId] = Counter()
        self._total = 0
        self._reached: set[PeerId] = set()
        self._addresses: Counter[str] = Counter()

    def take(self, key: PeerId, size: int, now: float) -> bool:
        """Whether `size` bytes more may be moved for `key`; then they are counted."""
        self._turn(now)
        is_new = key not in self._bytes
        if is_new and len(self._bytes) >= limits.MEASURE_KEYS:
            return False
        if self._bytes[key] + size > limits.MEASURE_KEY_BYTES or self._total + size > limits.MEASURE_ALL_BYTES:
            return False
        self._bytes[key] += size
        self._total += size
        return True

    def reach(self, key: PeerId, address: str, now: float) -> bool:
        """Whether the relay may try once to connect to `address`, which `key` asks from; then that is counted."""
        self._turn(now)
        if key in self._reached or self._addresses[address] >= limits.MEASURE_REACHES:
            return False
        if len(self._reached) >= limits.MEASURE_KEYS:
            return False
        self._reached.add(key)
        self._addresses[address] += 1
        return True

    def _turn(self, now: float) -> None:
        window = int(now // WINDOW_SECONDS)
        if window != self._window:
            self._window, self._total = window, 0
            self._bytes.clear()
            self._reached.clear()
            self._addresses.clear()
