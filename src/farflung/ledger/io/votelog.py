"""Writes the votes of one validator to disk before they are sent.

A validator that forgets a vote may vote twice, and lose its stake.

What its bytes are, and how a torn write is told from damage: ledger.sdbft.votelog_format.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.errors import RunError
from farflung.core.ids import PeerId
from farflung.core.io.durable_files import append_whole, write_atomic
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.sdbft.votelog_format import begun, framed, read_frames, too_large

_LABEL: Final = "ledger.votes"


def open_votes(store: LedgerStore, key: PeerId) -> VoteLog:
    """The vote log of a key, beside the store and under its lock.

    Raises RunError FF-LEDG-332 when there was one and it is gone, and what `VoteLog` raises.
    """
    path = store.path.with_name(f"votes-{key.hex()[:16]}.log")
    if path.name in store.marks and not path.exists():
        raise RunError(
            "FF-LEDG-332",
            f"{path.name} is gone",
            cause="this key has voted, and the record of its votes is lost",
            hint="put the file back if you moved it (never an older copy), or join again under a new key",
        )
    log = VoteLog(path)
    store.mark(path.name)
    return log


class VoteLog:
    """An open vote log. One process at a time: whoever holds the ledger's store, which is locked."""

    def __init__(self, path: Path) -> None:
        """Opens the log, or makes it; `records` holds what was logged, in order.

        Raises RunError FF-LEDG-320 damaged, -321 too large, -323 cannot be read, FF-CORE-050 not written,
        VersionError FF-CORE-095.
        """
        self.path = path
        self._handle: int | None = None
        self._next, self._size = 0, 0
        self.records = _read(path) if path.exists() else ()
        self.begin(self.records)  # what was read may not have reached the disk: it does before a vote rests on it

    @property
    def size(self) -> int:
        """Bytes of the file. At `limits.VOTE_LOG_BYTES` nothing more can be appended."""
        return self._size

    def append(self, records: Sequence[bytes]) -> None:
        """Adds records, all or none; durable on return: only then may a vote leave.

        Raises RunError FF-LEDG-321 too large, FF-CORE-050 not written; after that the log must be opened again,
        for what the disk holds is unknown: FF-LEDG-322.
        """
        if self._handle is None:
            raise RunError(
                "FF-LEDG-322",
                "the vote log is closed",
                cause="it was closed, or writing to it failed before",
                hint="mend what the first error names, then start the validator again",
            )
        frame = framed(self._next, tuple(records))
        if self._size + len(frame) > limits.VOTE_LOG_BYTES:
            raise too_large(self._size + len(frame), limits.VOTE_LOG_BYTES)
        try:
            append_whole(self._handle, self.path, frame, _LABEL)
        except RunError:
            self.close()
            raise
        self._next, self._size = self._next + 1, self._size + len(frame)

    def begin(self, records: Sequence[bytes]) -> None:
        """Replaces the whole log by a new one that holds `records`: wholly or not at all, durable on return.

        For when blocks became final and are in the store: what is older needs no log. Raises as `append` does.
        """
        self.close()
        data, following = begun(records)
        if len(data) > limits.VOTE_LOG_BYTES:
            raise too_large(len(data), limits.VOTE_LOG_BYTES)
        write_atomic(self.path, data, f"{_LABEL}.begin", private=True)
        self._handle = os.open(self.path, os.O_WRONLY)
        self._next, self._size = following, len(data)

    def close(self) -> None:
        """Closes the file."""
        if self._handle is not None:
            os.close(self._handle)
        self._handle = None


def _read(path: Path) -> tuple[bytes, ...]:
    """All records. Raises RunError FF-LEDG-320, -323."""
    try:
        if path.stat().st_size > limits.VOTE_LOG_BYTES:
            raise _damaged(path, limits.VOTE_LOG_BYTES)
        data = path.read_bytes()
    except OSError as error:
        raise RunError(
            "FF-LEDG-323",
            f"cannot read {path.name}",
            cause=error.strerror or str(error),
            hint=f"check the permissions of {path.parent}; a validator does not start without its votes",
        ) from error
    records, damaged_at = read_frames(data)
    if damaged_at is not None:
        raise _damaged(path, damaged_at)
    return records


def _damaged(path: Path, place: int) -> RunError:
    return RunError(
        "FF-LEDG-320",
        f"{path.name} is damaged",
        cause=f"what was logged from byte {place} on is not what was written: a vote that left may be missing",
        hint="do not start from an older copy: two votes of one key cost its stake; leave the committee with this key "
        "(or wait until the epoch is over), move the file away, and join again under a new key",
    )
