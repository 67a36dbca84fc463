"""Takes the long byte strings out of a message, so that they travel beside it, and puts them back.

A message between agent and worker stays as short as its figures are, whatever the model's size. Its long fields are
marked `Blob`; a message that has arrived holds them as read-only views of a file (core.io.spool_file), which behave
like bytes where they are read.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar, cast

from msgspec.structs import replace

from farflung.core.codec import Wire


class ChunkedBytes:
    """A long byte string in parts that nobody has joined: vectors of a model, which lie in memory already."""

    def __init__(self, parts: Sequence[bytes | memoryview]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(memoryview(part).nbytes for part in self.parts)

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChunkedBytes | bytes | memoryview) and bytes(self) == bytes(other)

    __hash__ = None  # type: ignore[assignment]


class FileBytes:
    """A long byte string that is a whole file already, which nobody changes: it is lent as it lies there."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size

    def __len__(self) -> int:
        return self.size


_MARK: Final = "travels beside its message"
if TYPE_CHECKING:
    Blob = bytes | memoryview
else:
    Blob = Annotated[bytes, _MARK]  # what is read holds views
MessageT = TypeVar("MessageT", bound=Wire)


def joined_later(parts: Sequence[bytes | memoryview]) -> Blob:
    """A long field of a message that is still to be sent: it is sent in these parts."""
    return cast(Blob, ChunkedBytes(parts))


def in_file(path: Path, size: int) -> Blob:
    """A long field of a message that is still to be sent: the file is lent. Only what lends it can read it."""
    return cast(Blob, FileBytes(path, size))


def file_of(blob: Blob) -> FileBytes | None:
    """The file that is lent as this field; None: it is no file."""
    whole: object = blob
    return whole if isinstance(whole, FileBytes) else None


def bytes_of(blob: Blob) -> bytes | memoryview:
    """A long field as one byte string."""
    whole: object = blob
    return bytes(whole) if isinstance(whole, ChunkedBytes) else blob


def parts_of(blob: Blob) -> Sequence[bytes | memoryview]:
    """A long field as it is sent, part by part."""
    whole: object = blob
    return whole.parts if isinstance(whole, ChunkedBytes) else (blob,)


def take(message: MessageT) -> tuple[MessageT, list[Blob]]:
    """The message without its long fields, and these in order."""
    own, nested = _fields(type(message))
    found = [getattr(message, name) for name in own]
    changes: dict[str, object] = dict.fromkeys(own, b"")
    for name in nested:
        parts = [take(part) for part in getattr(message, name)]
        changes[name] = tuple(part for part, _ in parts)
        found += [blob for _, blobs in parts for blob in blobs]
    return replace(message, **changes), found


def count(message: Wire) -> int:
    """How many long fields a message has, empty ones among them."""
    own, nested = _fields(type(message))
    return len(own) + sum(count(part) for name in nested for part in getattr(message, name))


def put(message: MessageT, blobs: Iterator[memoryview]) -> MessageT:
    """The opposite of `take`; the first `count` of `blobs` are used up."""
    own, nested = _fields(type(message))
    changes: dict[str, object] = {name: next(blobs) for name in own}
    for name in nested:
        changes[name] = tuple(put(part, blobs) for part in getattr(message, name))
    return replace(message, **changes)


@cache
def _fields(kind: type[Wire]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of a struct's long fields, and of its tuples of structs that have some."""
    own, nested = [], []
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        if _MARK in getattr(hint, "__metadata__", ()):
            own.append(name)
        elif typing.get_origin(hint) is tuple and isinstance(part := typing.get_args(hint)[0], type):
            nested += [name] * (issubclass(part, Wire) and any(_fields(part)))
    return tuple(own), tuple(nested)
