"""Defines one bounded canonical file form for flat float32 vectors, used by train.public_state and
train.inner_state.

    magic (7) | version (1) | layout id (32) | round (8) | step (8) | count (1) | count x { length (1), name } |
    padding to a multiple of 64 bytes | count x { vector of layout.size float32 } | checksum (32)

A file in a mapping is read where it lies: its vectors are views of it. Version 1, which is read too, has no padding.
Integers and floats are little-endian; names are sorted ASCII; every vector has exactly `layout.size` elements, so
the length of the whole is known from its head before anything is allocated. One value has one form.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from farflung.core import limits
from farflung.core.crypto import NS_SECTIONS, PieceDigest, digest
from farflung.core.errors import RunError
from farflung.core.file_header import FileFormat, other_version
from farflung.core.mapped_pages import leave
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.train.blobs import Blob, bytes_of, joined_later
from farflung.train.vector_store import is_finite

MAGIC_BYTES: Final = 8
HEAD_BYTES: Final = MAGIC_BYTES + 32 + 8 + 8 + 1
CHECKSUM_BYTES: Final = 32
SECTIONS: Final = 8  # vectors in one file
NAME_BYTES: Final = 256  # of a section, with its length
COUNTER: Final = 1 << 63
ALIGNMENT: Final = 64
UNPADDED: Final = 1  # the version of files whose vectors follow the names at once


class TensorFileKind(NamedTuple):
    """What a file is: its magic with the version as its last byte, the word for it, and what to do when it is bad."""

    magic: bytes
    word: str
    hint: str


class TensorFileContent(NamedTuple):
    """Named flat vectors of shape (layout.size,), and two counters."""

    round: int
    step: int
    vectors: dict[str, Float32]


def largest(layout: TensorLayout) -> int:
    """The most bytes that a file of this layout may have."""
    return HEAD_BYTES + SECTIONS * (NAME_BYTES + 4 * layout.size) + ALIGNMENT + CHECKSUM_BYTES


def pack(kind: TensorFileKind, layout: TensorLayout, sections: TensorFileContent) -> bytes:
    """The one byte form of `sections`; every vector has shape (layout.size,)."""
    return bytes(pieces(kind, layout, sections))


def pieces(kind: TensorFileKind, layout: TensorLayout, sections: TensorFileContent) -> Blob:
    """The same, with the vectors where they are."""
    names = sorted(sections.vectors)
    head = b"".join(
        [
            kind.magic,
            layout.id,
            sections.round.to_bytes(8, "little"),
            sections.step.to_bytes(8, "little"),
            bytes([len(names)]),
            *(bytes([len(name)]) + name.encode("ascii") for name in names),
        ]
    )
    bodies = [np.ascontiguousarray(sections.vectors[name], "<f4").data.cast("B") for name in names]
    parts: list[bytes | memoryview] = [head + bytes(-len(head) % ALIGNMENT), *bodies]
    checksum = PieceDigest(NS_SECTIONS, sum(map(len, parts)))
    for part in parts:
        checksum.update(part)
    return joined_later([*parts, checksum.value()])


def unpack(kind: TensorFileKind, data: Blob, layout: TensorLayout) -> TensorFileContent:
    """Reads `pack`'s form; vectors are read-only views of `data`.

    Total: raises RunError FF-TRAIN-070 when damaged, FF-TRAIN-071 of another model, VersionError FF-CORE-095.
    """
    view = memoryview(bytes_of(data)).toreadonly()
    if len(view) < HEAD_BYTES + CHECKSUM_BYTES or bytes(view[: MAGIC_BYTES - 1]) != kind.magic[:-1]:
        raise _damaged(kind, "it does not begin as one")
    version = view[MAGIC_BYTES - 1]
    if version not in (UNPADDED, kind.magic[-1]):
        raise other_version(FileFormat(kind.word, kind.magic[-1], kind.hint), version)
    if bytes(view[MAGIC_BYTES : MAGIC_BYTES + 32]) != layout.id:
        raise _foreign(kind)
    names, end = _names(kind, view)
    start = end if version == UNPADDED else end + -end % ALIGNMENT
    if any(view[end:start]):
        raise _damaged(kind, "its padding is not empty")
    if len(view) != start + 4 * layout.size * len(names) + CHECKSUM_BYTES:
        raise _damaged(kind, f"{len(view)} bytes is not its length")
    if digest(NS_SECTIONS, view[:-CHECKSUM_BYTES]) != bytes(view[-CHECKSUM_BYTES:]):
        raise _damaged(kind, "its checksum does not agree")
    vectors = {
        name: _vector(kind, view[start + 4 * layout.size * i : start + 4 * layout.size * (i + 1)])
        for i, name in enumerate(names)
    }
    return TensorFileContent(_counter(kind, view, 40, limits.ROUNDS), _counter(kind, view, 48, COUNTER), vectors)


def _names(kind: TensorFileKind, view: memoryview) -> tuple[list[str], int]:
    count, place = view[HEAD_BYTES - 1], HEAD_BYTES
    names: list[str] = []
    for _ in range(count if count <= SECTIONS else 0):
        end = place + 1 + (view[place] if place < len(view) else 0)
        raw = bytes(view[place + 1 : end])
        if not raw or len(raw) != end - place - 1 or not raw.isascii():
            raise _damaged(kind, "a section has no name")
        names.append(raw.decode("ascii"))
        place = end
    if count > SECTIONS or names != sorted(set(names)):
        raise _damaged(kind, "its sections are not in order")
    return names, place


def _vector(kind: TensorFileKind, raw: memoryview) -> Float32:
    values = np.frombuffer(raw, "<f4")
    if not values.flags.aligned:
        values = values.copy()
        values.flags.writeable = False
    if not is_finite(values):
        raise _damaged(kind, "it holds NaN or an infinity")
    leave(raw)
    return values.astype(np.float32, copy=False)


def _counter(kind: TensorFileKind, view: memoryview, place: int, limit: int) -> int:
    value = int.from_bytes(view[place : place + 8], "little")
    if value > limit:
        raise _damaged(kind, f"{value} is no round and no step")
    return value


def _damaged(kind: TensorFileKind, cause: str) -> RunError:
    return RunError("FF-TRAIN-070", f"damaged {kind.word}", cause=cause, hint=kind.hint)


def _foreign(kind: TensorFileKind) -> RunError:
    return RunError(
        "FF-TRAIN-071",
        f"{kind.word} of another model",
        cause="its tensor names or shapes are not this job's (or its head is damaged)",
        hint=kind.hint,
    )
