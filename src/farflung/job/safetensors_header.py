"""Parses the header of a .safetensors file that holds tokens and finds their bytes. Total and bounded.

Format: 8 bytes little-endian head length, a JSON head {name: {dtype, shape, data_offsets}}, then the data.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from farflung.core import limits
from farflung.core.canon.token_leaves import Tokens
from farflung.core.errors import SpecError
from farflung.job.dataset import token_dtype

HEAD_BYTES: Final = limits.MIB  # the longest head that is read
_DTYPES: Final = {
    name: np.dtype(code)
    for name, code in [
        ("U8", "<u1"), ("U16", "<u2"), ("U32", "<u4"), ("U64", "<u8"),
        ("I8", "<i1"), ("I16", "<i2"), ("I32", "<i4"), ("I64", "<i8"),
    ]
}  # fmt: skip


class _TensorHeader(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class TokenExtent(NamedTuple):
    """Where tokens lie in a file: `offset` in bytes from its start, `length` tokens of `dtype`."""

    offset: int
    length: int
    dtype: np.dtype[Any]


def bad_tokens(name: str, cause: str) -> SpecError:
    """What is said of a token file that cannot be used: SpecError FF-JOB-024."""
    return SpecError(
        "FF-JOB-024",
        f"{name} holds no tokens that can be used",
        cause=cause[:200],
        hint="save a 1-D array of whole numbers: numpy.save(path, tokens), or save_file({'tokens': tokens}, path)",
    )


def find_tokens(name: str, head: bytes, file_bytes: int) -> TokenExtent:
    """The tensor `tokens`, or the only one, of a file of `file_bytes` whose first bytes (all of its head) are given.

    Raises SpecError FF-JOB-024.
    """
    length = int.from_bytes(head[:8], "little")
    if len(head) < 8 or length > HEAD_BYTES or 8 + length > min(len(head), file_bytes):
        raise bad_tokens(name, "it is not a safetensors file, or its head is too long")
    try:
        raw = msgspec.json.decode(head[8 : 8 + length], type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        chosen = raw["tokens"] if "tokens" in raw or len(raw) != 1 else next(iter(raw.values()))
        tensor = msgspec.json.decode(chosen, type=_TensorHeader)
    except KeyError:
        raise bad_tokens(name, f"none of its {len(raw)} tensors is called `tokens`") from None
    except (ValueError, RecursionError) as error:
        raise bad_tokens(name, str(error)) from None
    return _place(name, tensor, 8 + length, file_bytes)


def _place(name: str, tensor: _TensorHeader, start: int, file_bytes: int) -> TokenExtent:
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None or len(tensor.shape) != 1:
        raise bad_tokens(name, f"its tensor is {tensor.dtype[:20]} with {len(tensor.shape)} dimensions")
    begin, end = tensor.data_offsets
    if not 0 <= begin <= end <= file_bytes - start or end - begin != tensor.shape[0] * dtype.itemsize:
        raise bad_tokens(name, "its tensor lies outside the file, or has another length than its shape")
    return TokenExtent(start + begin, tensor.shape[0], dtype)


def check_kind(name: str, dtype: np.dtype[Any], dimensions: int) -> None:
    """Raises SpecError FF-JOB-024 for what are no 1-D whole numbers."""
    if dimensions != 1 or dtype.kind not in "iu":
        raise bad_tokens(name, f"it is {dtype} with {dimensions} dimensions")


def check_range(name: str, block: NDArray[Any], vocabulary: int) -> None:
    """Raises SpecError FF-JOB-023 for whole numbers outside [0, vocabulary); there is at least one."""
    low, high = int(block.min()), int(block.max())
    if low < 0 or high >= vocabulary:
        raise SpecError(
            "FF-JOB-023",
            f"token {low if low < 0 else high} in {name}",
            cause=f"model.vocabulary = {vocabulary}, so tokens go from 0 to {vocabulary - 1}",
            hint="set vocabulary in [model] to one more than the largest token; tokens are never negative",
        )


def narrowed(name: str, tokens: Tokens, vocabulary: int) -> Tokens:
    """Tokens in [0, vocabulary) in the smallest dtype; raises SpecError FF-JOB-023."""
    check_range(name, tokens, vocabulary)
    return tokens.astype(token_dtype(vocabulary), copy=False)
