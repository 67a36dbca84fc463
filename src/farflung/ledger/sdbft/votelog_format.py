"""Encodes and decodes the records of a vote log file, and tells a record torn by a crash from damage. Pure.

A file is frames: number (8 bytes), length of the body (4), check of these (4), body, check of all (16). A frame is one
`append`: its records come back all or not at all. Frame 0 says the version,
how many frames the file began with, and the program; those frames were written whole (`write_atomic`), so only what was
appended later can be torn.

The house's other log (`core.io.durable_files.AppendLog`) drops a last record that does not check: it loses a little
work. Here that could be a vote which others have seen. So a last frame is *torn*, and dropped, only where that is what
a crash leaves behind: bytes are missing at the end, or a whole sector of the disk was never written and reads as
zeros. Anything else (a flipped bit) is damage, and a validator does not start from a damaged log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_VOTE_LOG, digest
from farflung.core.errors import ProtocolError, RunError
from farflung.core.file_header import FileFormat, other_version
from farflung.core.release import VERSION
from farflung.core.size_batches import batches

_REMEDY: Final = "wait until the epoch is over and join again under a new key; keep the file until then"
FORM: Final = FileFormat("votes", 1, _REMEDY)
_FORMAT: Final = b"farflung-votes/%d"
_SAID: Final = re.compile(rb"farflung-votes/([1-9][0-9]{0,8})")
_HEAD: Final = 16
_TAIL: Final = 16
_SECTOR: Final = 512  # what a disk writes as one piece


class VoteLogContents(NamedTuple):
    """What a log holds, in order; from which byte on it is damaged, if it is."""

    records: tuple[bytes, ...]
    damaged_at: int | None


class _VoteLogFrame(NamedTuple):
    records: tuple[bytes, ...]
    end: int  # offset behind it


def begun(records: Iterable[bytes]) -> tuple[bytes, int]:
    """A whole new log that holds `records`, and the number of its next frame. Raises RunError FF-LEDG-321 too large."""
    frames = [framed(number, batch) for number, batch in enumerate(_batches(records), 1)]
    first = (_FORMAT % FORM.version, str(len(frames)).encode(), VERSION.encode())
    return b"".join([framed(0, first), *frames]), len(frames) + 1


def _batches(records: Iterable[bytes]) -> Iterator[tuple[bytes, ...]]:
    """Records in groups that fit a frame; one that fits none is alone, and refused later."""
    return batches(records, lambda record: len(record) + 8, limits.VOTE_FRAME_BYTES)


def _head_check(number: bytes, size: bytes) -> bytes:
    return digest(NS_VOTE_LOG, b"head", number, size)[:4]


def framed(number: int, records: tuple[bytes, ...]) -> bytes:
    """The frame of one `append`. Raises RunError FF-LEDG-321 too large."""
    body = encode(records)
    if len(body) > limits.VOTE_FRAME_BYTES + 8:
        raise too_large(len(body), limits.VOTE_FRAME_BYTES)
    where, size = number.to_bytes(8, "little"), len(body).to_bytes(4, "little")
    check = digest(NS_VOTE_LOG, b"body", where, body)[:_TAIL]
    return where + size + _head_check(where, size) + body + check


def too_large(size: int, limit: int) -> RunError:
    """The error FF-LEDG-321."""
    return RunError(
        "FF-LEDG-321",
        "the vote log is full",
        cause=f"it would take {size} bytes, and {limit} is the limit",
        hint="no block became final for long: see why (`farflung ledger status`); nothing is signed until then",
    )


def read_frames(data: bytes) -> VoteLogContents:
    """What a log holds, without the last frame if a crash tore it; whether anything in it is not what was written.

    Raises VersionError FF-CORE-095.
    """
    records: list[bytes] = []
    number, place, whole = 0, 0, 1
    while place < len(data):
        frame = _frame(data, place, number)
        if frame is None:
            break
        if number == 0:
            begun_with = _begun_with(frame)
            if begun_with is None:
                return VoteLogContents((), 0)
            whole = begun_with
        else:
            records += frame.records
        number, place = number + 1, frame.end
    is_damaged = number < whole or (place < len(data) and not _is_torn(data, place, number))
    return VoteLogContents(tuple(records), place if is_damaged else None)


def _begun_with(frame: _VoteLogFrame) -> int | None:
    """How many frames, with the first, the file was made with; None where it is no vote log.

    Behind that stands the program that began it, unless it is older. Raises VersionError FF-CORE-095.
    """
    said = _SAID.fullmatch(frame.records[0]) if frame.records else None
    if said is None:
        return None
    if int(said[1]) != FORM.version:
        raise other_version(FORM, int(said[1]), _program(frame))
    if len(frame.records) not in (2, 3) or not frame.records[1].isdigit():
        return None
    return 1 + int(frame.records[1])


def _program(frame: _VoteLogFrame) -> str:
    return frame.records[2].decode("ascii", "replace") if len(frame.records) == 3 else ""


def _length(data: bytes, place: int) -> int | None:
    """The length of the body of the frame whose head is at `place`; None where there is no whole head."""
    where, size, check = (data[place : place + 8], data[place + 8 : place + 12], data[place + 12 : place + _HEAD])
    is_head = len(check) == 4 and check == _head_check(where, size)
    return int.from_bytes(size, "little") if is_head else None


def _frame(data: bytes, place: int, number: int) -> _VoteLogFrame | None:
    """The frame of this number at `place`, or None where it is not whole."""
    size = _length(data, place)
    if size is None or int.from_bytes(data[place : place + 8], "little") != number:
        return None
    body, end = data[place + _HEAD : place + _HEAD + size], place + _HEAD + size + _TAIL
    if not is_sound(data, place, end):
        return None
    try:
        return _VoteLogFrame(decode(body, tuple[bytes, ...], limits.VOTE_FRAME_BYTES + 8), end)
    except ProtocolError:
        return None


def is_sound(data: bytes, place: int, end: int) -> bool:
    """Whether the frame between two bytes holds what was written: its check says so."""
    body = data[place + _HEAD : end - _TAIL]
    return digest(NS_VOTE_LOG, b"body", data[place : place + 8], body)[:_TAIL] == data[end - _TAIL : end]


def _is_torn(data: bytes, place: int, number: int) -> bool:
    """Whether what begins at `place` can be what a crash left of the last `append`."""
    size = _length(data, place)
    if len(data) < place + _HEAD or (size is not None and len(data) < place + _HEAD + size + _TAIL):
        return True  # cut off: so it was never synced
    if size is not None and len(data) > place + _HEAD + size + _TAIL:
        return False  # others follow, so it was
    hurt = len(data) if size is not None else place + _HEAD  # a head that does not check was itself not written
    return _lacks_sector(data, place, hurt) and not _is_followed(data, place + 1, number)


def _lacks_sector(data: bytes, place: int, stop: int) -> bool:
    """Whether a sector with bytes from `place` to `stop` is all zeros from `place` on."""
    start = place
    while start < stop:
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
