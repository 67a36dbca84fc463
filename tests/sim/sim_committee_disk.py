"""The disk of one simulated validator: its vote log in the very bytes of the real one, and what a crash makes of them.

What was synced is there after a crash, and nothing else is sure to be: of an unsynced frame any prefix may be kept, or
all of its length with sectors in it that were never written. A disk that decays flips a bit besides, anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from farflung.ledger.block import Block
from farflung.ledger.sdbft import votelog_format

SECTOR = 512


class Violation(AssertionError):
    """A rule that must hold whatever happens did not."""


@dataclass
class Disk:
    """What survives a crash: stored blocks, and the vote log."""

    blocks: list[Block] = field(default_factory=list)
    votes: bytes = b""
    synced: int = 0  # bytes of the log that no crash takes
    sync_ms: int = 0
    _next: int = 0  # number of the next frame
    _written: list[bytes] = field(default_factory=list)  # records since the log was begun
    _sure: int = 0  # how many of them are synced
    _is_altered: bool = False

    def open(self) -> tuple[bytes, ...] | None:
        """What the log holds; it is written anew, as `VoteLog` does. None, and the log stays, where it is damaged."""
        if not self.votes:
            self.begin(())
        records, damaged_at = votelog_format.read_frames(self.votes)
        if damaged_at is None:
            if not self._sure <= len(records) or list(records) != self._written[: len(records)]:
                raise Violation("a log is started from that is not what was written, with all that was synced")
            self.begin(records)
            return records
        if not self._is_altered:
            raise Violation("a log that a crash tore is refused")
        return None

    def append(self, records: Sequence[bytes]) -> None:
        """Adds a frame, which is not synced yet."""
        self.votes += votelog_format.framed(self._next, tuple(records))
        self._next += 1
        self._written += records

    def sync(self) -> None:
        self.synced, self._sure = len(self.votes), len(self._written)

    def begin(self, records: Sequence[bytes]) -> None:
        """Replaces the log: the new one or the old one is there, whatever happens (`write_atomic`)."""
        self.votes, self._next = votelog_format.begun(records)
        self._written, self._is_altered = list(records), False
        self.sync()

    def crash(self, source: random.Random, decays: bool = False) -> None:
        """The process or the machine died: what was not synced is there in part."""
        if self.synced < len(self.votes):
            self.votes = self._torn(source)
        if decays and self.votes:
            bit = source.randrange(8 * len(self.votes))
            flipped = bytearray(self.votes)
            flipped[bit // 8] ^= 1 << bit % 8
            self.votes, self._is_altered = bytes(flipped), True
        self.synced = len(self.votes)

    def _torn(self, source: random.Random) -> bytes:
        if source.random() < 0.7:
            return self.votes[: source.randint(self.synced, len(self.votes))]
        left = bytearray(self.votes)
        for start in range(self.synced // SECTOR * SECTOR, len(left), SECTOR):
            begin, end = max(start, self.synced), min(start + SECTOR, len(left))
            if source.random() < 0.5:
                left[begin:end] = bytes(end - begin)
        return bytes(left)
