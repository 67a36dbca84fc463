"""Reads vectors to measure codecs on: tensors of any model file, or what a finished run recorded.

A model file is read like anything that comes from elsewhere: its head is bounded and checked before a number is read,
no more is read than was asked for, and whatever it holds ends in vectors of finite numbers or in an error.

A run keeps payloads, not what they were made from: that is private, and gone when the run ends. Payloads of an exact
codec *are* the pseudo-gradients. Of a lossy one the change of public state over several rounds is taken instead: error
feedback brings through later what a round left out, so that the sum over rounds lies near what peers meant.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.io.ordinary_files import open_ordinary
from farflung.core.tensor_layout import Float32, TensorLayout

HEAD_BYTES: Final = 64 << 20  # the longest head that is looked at
SIZES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_KINDS: Final = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class BenchVector(NamedTuple):
    """One vector of shape (layout.size,), finite and not all zero, and the shapes of its tensors."""

    name: str
    layout: TensorLayout
    values: Float32


class VectorSelection(NamedTuple):
    """What was found: `whole` numbers, of which the vectors hold some; and what must be said of them."""

    items: tuple[BenchVector, ...]
    whole: int
    notes: tuple[str, ...]


class _SafetensorsEntry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _StoredTensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    offset: int  # of its first byte in the file

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class _TensorRows(NamedTuple):
    """Rows `first` to `first + rows` of a tensor."""

    tensor: _StoredTensor
    first: int
    rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.tensor.shape[1:]) if self.tensor.shape else ()


def from_model(path: Path, most: int, seed: int) -> VectorSelection:
    """At most `most` numbers of a safetensors file: all of it, or whole rows of tensors drawn by `seed`.

    Raises UsageError FF-APP-190 (no such file), FF-APP-191 (nothing in it to measure on).
    """
    with _opened(path) as file:
        tensors, others = _tensors(path, file)
        whole = sum(tensor.size for tensor in tensors)
        pieces = _drawn(tensors, most, seed)
        found = [(piece.shape, _read(path, file, piece)) for piece in pieces]
    good = [(shape, values) for shape, values in found if np.isfinite(values).all()]
    if not any(values.any() for _, values in good):
        raise _nothing(path, "all of its numbers are zero, or none is finite")
    layout = TensorLayout.of({f"{index:06d}": shape for index, (shape, _) in enumerate(good)})
    flat = np.concatenate([values for _, values in good])
    notes = [
        "these are weights, a stand-in: what is sent in training are changes of them, which are distributed otherwise;"
        " --recorded RUN measures on those"
    ]
    if layout.size < whole:
        notes.append(f"{layout.size} of {whole} numbers are measured, drawn by seed {seed}")
    if others:
        notes.append(f"{others} tensors hold no floating-point numbers and are left out")
    if len(good) < len(found):
        notes.append(f"{len(found) - len(good)} tensors hold NaN or infinities and are left out")
    return VectorSelection((BenchVector(path.name, layout, flat),), whole, tuple(notes))


def _opened(path: Path) -> BinaryIO:
    try:
        return open_ordinary(path)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error


def _tensors(path: Path, file: BinaryIO) -> tuple[list[_StoredTensor], int]:
    """The file's tensors of floating-point numbers, by name, and how many others there are."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(HEAD_BYTES, size - 8):
        raise _unreadable(path, "it does not begin like a safetensors file")
    try:
        raw = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        if len(raw) > limits.TENSORS:
            raise _unreadable(path, f"it has more than {limits.TENSORS} tensors")
        heads = {name: msgspec.json.decode(one, type=_SafetensorsEntry) for name, one in raw.items()}
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"its head is damaged: {error}") from None
    found = []
    for name in sorted(heads):
        head = heads[name]
        if head.dtype not in SIZES:
            continue
        begin, end = head.data_offsets
        is_bounded = len(head.shape) <= limits.TENSOR_DIMENSIONS and all(
            0 <= side <= limits.ELEMENTS for side in head.shape
        )
        wanted = math.prod(head.shape) * SIZES[head.dtype] if is_bounded else -1
        if not (0 <= begin <= end <= size - 8 - length and end - begin == wanted):
            raise _unreadable(path, f"tensor {name[:60]!r} lies outside the file, or is not as long as its shape")
        if wanted:
            found.append(_StoredTensor(head.dtype, head.shape, 8 + length + begin))
    if not found:
        raise _nothing(path, f"none of its {len(heads)} tensors holds floating-point numbers")
    return found, sum(1 for head in heads.values() if head.dtype not in SIZES)


def _drawn(tensors: Sequence[_StoredTensor], most: int, seed: int) -> list[_TensorRows]:
    """All tensors where they fit; else tensors in an order drawn by `seed`, the last ones by a run of their rows."""
    whole = [_TensorRows(tensor, 0, tensor.shape[0] if tensor.shape else 1) for tensor in tensors]
    if sum(tensor.size for tensor in tensors) <= most:
        return whole
    source, left = np.random.default_rng(seed), most
    pieces: list[_TensorRows] = []
    for index in source.permutation(len(whole)):
        piece = whole[index]
        row = piece.tensor.size // piece.rows
        rows = min(piece.rows, left // row)
        if rows:
            pieces.append(_TensorRows(piece.tensor, int(source.integers(piece.rows - rows + 1)), rows))
            left -= rows * row
    if pieces:
        return pieces
    # Each row is longer than all that was asked for: the first numbers of one of them.
    first = whole[0].tensor
    return [_TensorRows(_StoredTensor(first.dtype, (most,), first.offset), 0, most)]


def _read(path: Path, file: BinaryIO, piece: _TensorRows) -> Float32:
    """The piece's numbers as float32, flat; what float32 cannot hold becomes an infinity."""
    tensor, count = piece.tensor, math.prod(piece.shape)
    width = SIZES[tensor.dtype]
    row = tensor.size // (tensor.shape[0] if tensor.shape else 1)
    file.seek(tensor.offset + piece.first * row * width)
    data = file.read(count * width)
    if len(data) != count * width:
        raise _unreadable(path, "it ended while it was read")
    values: NDArray[Any] = np.frombuffer(data, _KINDS[tensor.dtype])
    if tensor.dtype == "BF16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _unreadable(path: Path, cause: str) -> UsageError:
    return UsageError(
        "FF-APP-190",
        f"cannot read tensors from {path}",
        cause=cause[:200],
        hint="name a .safetensors file that is yours to read",
    )


def _nothing(path: Path, cause: str) -> UsageError:
    return UsageError(
        "FF-APP-191",
        f"there is nothing to measure in {path}",
        cause=cause,
        hint="name a file whose tensors are F32, F16, BF16 or F64",
    )
