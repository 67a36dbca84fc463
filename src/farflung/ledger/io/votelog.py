"""The votes of one validator, on disk before they leave: who forgets a vote may vote twice, and lose its stake.

A file is frames: number (8 bytes), length of the body (4), check of these (4), body, check of all (16). A frame is one
`append`: its records come back all or not at all. Frame 0 says how many frames the file began with; those were
written whole (`write_atomic`), so only what was appended later can be torn.

The house's other log (`core.io.durable.AppendLog`) drops a last record that does not check: it loses a little work.
Here that could be a vote which others have seen. So a last frame is *torn*, and dropped, only where that is what a
crash leaves behind: bytes are missing at the end, or a whole sector of the disk was never written and reads as
zeros. Anything else (a flipped bit) is damage, and a validator does not start from a damaged log.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_VOTE_LOG, digest
from farflung.core.errors import ProtocolError, RunError
from farflung.core.ids import PeerId
from farflung.core.io.durable import append_whole, write_atomic
from farflung.ledger.io.store import Store

_FORMAT: Final = b"farflung-votes/1"
_LABEL: Final = "ledger.votes"
_HEAD: Final = 16
_TAIL: Final = 16
_SECTOR: Final = 512  # what a disk writes as one piece


class _Frame(NamedTuple):
    records: tuple[bytes, ...]
    end: int  # offset behind it


def open_votes(store: Store, key: PeerId) -> VoteLog:
    """The vote log of a key, beside the store and under its lock.

    Raises RunError FF-LEDG-332 when there was one and it is gone, and what `VoteLog` raises.
    """
    path = store.path.with_name(f"votes-{key.hex()[:16]}.log")
    if path.name in store.marks and not path.exists():
        raise RunError(
            "FF-LEDG-332",
            f"{path.name} is gone",
            cause="this key has voted, and nobody knows any more for what",
            hint="put the file back if you moved it (never an older copy), or join again under a new key",
        )
    log = VoteLog(path)
    store.mark(path.name)
    return log


class VoteLog:
    """An open vote log. One process at a time: whoever holds the ledger's store, which is locked."""

    def __init__(self, path: Path) -> None:
        """Opens the log, or makes it; `records` holds what was logged, in order.

        Raises RunError FF-LEDG-320 damaged, -321 too large, -323 cannot be read, FF-CORE-050 not written.
        """
        self.path = path
        self._handle: int | None = None
        self._next, self._size = 0, 0
        self.records = _read(path) if path.exists() else ()
        self.begin(
            self.records
        )  # what was read may not have reached the disk: it does before a vote rests on it

    @property
    def size(self) -> int:
        """Bytes of the file. At `limits.VOTE_LOG_BYTES` nothing more can be appended."""
        return self._size

    def append(self, records: Sequence[bytes]) -> None:
        """Adds records, all or none; durable on return: only then may a vote leave.

        Raises RunError FF-LEDG-321 too large, FF-CORE-050 not written; after that the log must be opened again,
        for nobody knows what of it the disk holds: FF-LEDG-322.
        """
        if self._handle is None:
            raise RunError(
                "FF-LEDG-322",
                "the vote log is closed",
                cause="it was closed, or writing to it failed before",
                hint="mend what the first error names, then start the validator again",
            )
        frame = _framed(self._next, tuple(records))
        if self._size + len(frame) > limits.VOTE_LOG_BYTES:
            raise _too_large(self._size + len(frame), limits.VOTE_LOG_BYTES)
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
        frames = [_framed(number, batch) for number, batch in enumerate(_batches(records), 1)]
        data = b"".join([_framed(0, (_FORMAT, str(len(frames)).encode())), *frames])
        if len(data) > limits.VOTE_LOG_BYTES:
            raise _too_large(len(data), limits.VOTE_LOG_BYTES)
        write_atomic(self.path, data, f"{_LABEL}.begin", private=True)
        self._handle = os.open(self.path, os.O_WRONLY)
        self._next, self._size = len(frames) + 1, len(data)

    def close(self) -> None:
        """Closes the file."""
        if self._handle is not None:
            os.close(self._handle)
        self._handle = None


def _batches(records: Iterable[bytes]) -> Iterator[tuple[bytes, ...]]:
    """Records in groups that fit a frame; one that fits none is alone, and refused later."""
    batch, room = list[bytes](), limits.VOTE_FRAME_BYTES
    for record in records:
        cost = len(record) + 8
        if batch and cost > room:
            yield tuple(batch)
            batch, room = [], limits.VOTE_FRAME_BYTES
        batch.append(record)
        room -= cost
    if batch:
        yield tuple(batch)


def _head_check(number: bytes, size: bytes) -> bytes:
    return digest(NS_VOTE_LOG, b"head", number, size)[:4]


def _framed(number: int, records: tuple[bytes, ...]) -> bytes:
    body = encode(records)
    if len(body) > limits.VOTE_FRAME_BYTES + 8:
        raise _too_large(len(body), limits.VOTE_FRAME_BYTES)
    where, size = number.to_bytes(8, "little"), len(body).to_bytes(4, "little")
    check = digest(NS_VOTE_LOG, b"body", where, body)[:_TAIL]
    return where + size + _head_check(where, size) + body + check


def _too_large(size: int, limit: int) -> RunError:
    return RunError(
        "FF-LEDG-321",
        "the vote log is full",
        cause=f"it would take {size} bytes, and {limit} is the limit",
        hint="no block became final for long: see why (`farflung ledger status`); nothing is signed until then",
    )


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
    records: list[bytes] = []
    number, place, whole = 0, 0, 1
    while place < len(data):
        frame = _frame(data, place, number)
        if frame is None:
            break
        if number == 0:
            whole = _begun_with(path, frame)
        else:
            records += frame.records
        number, place = number + 1, frame.end
    if number < whole or (place < len(data) and not _is_torn(data, place, number)):
        raise _damaged(path, place)
    return tuple(records)


def _begun_with(path: Path, frame: _Frame) -> int:
    """How many frames, with the first, the file was made with."""
    if len(frame.records) != 2 or frame.records[0] != _FORMAT or not frame.records[1].isdigit():
        raise _damaged(path, 0)
    return 1 + int(frame.records[1])


def _length(data: bytes, place: int) -> int | None:
    """The length of the body of the frame whose head is at `place`; None where there is no whole head."""
    where, size, check = (
        data[place : place + 8],
        data[place + 8 : place + 12],
        data[place + 12 : place + _HEAD],
    )
    is_head = len(check) == 4 and check == _head_check(where, size)
    return int.from_bytes(size, "little") if is_head else None


def _frame(data: bytes, place: int, number: int) -> _Frame | None:
    """The frame of this number at `place`, or None where it is not whole."""
    size = _length(data, place)
    if size is None or int.from_bytes(data[place : place + 8], "little") != number:
        return None
    body, end = data[place + _HEAD : place + _HEAD + size], place + _HEAD + size + _TAIL
    if digest(NS_VOTE_LOG, b"body", data[place : place + 8], body)[:_TAIL] != data[end - _TAIL : end]:
        return None
    try:
        return _Frame(decode(body, tuple[bytes, ...], limits.VOTE_FRAME_BYTES + 8), end)
    except ProtocolError:
        return None


def _is_torn(data: bytes, place: int, number: int) -> bool:
    """Whether what begins at `place` can be what a crash left of the last `append`."""
    size = _length(data, place)
    if len(data) < place + _HEAD or (size is not None and len(data) < place + _HEAD + size + _TAIL):
        return True  # cut off: so it was never synced
    if size is not None and len(data) > place + _HEAD + size + _TAIL:
        return False  # others follow, so it was
    return _lacks_sector(data, place) and not _is_followed(data, place + 1, number)


def _lacks_sector(data: bytes, place: int) -> bool:
    """Whether a sector behind `place` is all zeros. A frame's first and last bytes never are."""
    start = place
    while start < len(data):
        end = min(len(data), (start // _SECTOR + 1) * _SECTOR)
        if not any(data[start:end]):
            return True
        start = end
    return False


def _is_followed(data: bytes, start: int, number: int) -> bool:
    """Whether a head of a later frame stands anywhere behind `start`."""
    for place in range(start, len(data) - _HEAD + 1):
        later = int.from_bytes(data[place : place + 8], "little")
        if number < later < number + limits.VOTE_LOG_BYTES // _HEAD and _length(data, place) is not None:
            return True
    return False


def _damaged(path: Path, place: int) -> RunError:
    return RunError(
        "FF-LEDG-320",
        f"{path.name} is damaged",
        cause=f"what was logged from byte {place} on is not what was written: a vote that left may be missing",
        hint="do not start from an older copy: two votes of one key cost its stake; leave the committee with this key "
        "(or wait until the epoch is over), move the file away, and join again under a new key",
    )
