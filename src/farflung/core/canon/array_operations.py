"""Computes the operations of a canonical graph on arrays of any shape, element by element or along one axis.

The one meaning of each: tiles (`core.canon.tiles`) and whole tensors are computed by it. IEEE-754 binary32 to nearest
even, nothing fused, denormals kept; 64-bit whole numbers wrap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from farflung.core.canon import math_functions
from farflung.core.canon.operation_rules import BOOL, F32, I64
from farflung.core.tensor_layout import Float32

Array = NDArray[Any]

DTYPES: Final[dict[str, np.dtype[Any]]] = {F32: np.dtype(np.float32), I64: np.dtype(np.int64), BOOL: np.dtype(np.bool_)}
CANONICAL_NAN: Final = 0x7FC00000
FAR: Final = np.float32(2.0**63)  # from here on, a float32 is no 64-bit whole number


def _sign(x: Float32) -> Array:
    return np.where(x > 0, np.float32(1), np.where(x < 0, np.float32(-1), np.float32(0)))


_OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": _sign,
    "sqrt": np.sqrt,
    "exp": math_functions.exp,
    "log": math_functions.log,
    "erf": math_functions.erf,
    "tanh": math_functions.tanh,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "iadd": np.add,
    "isub": np.subtract,
    "imul": np.multiply,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "select": np.where,
}
ELEMENTWISE: Final = frozenset({*_OPERATIONS, "convert"})


def elementwise(op: str, kind: str, *args: Array) -> Array:
    """An operation of ELEMENTWISE on arrays that fit each other (broadcasting), whose result is of `kind`."""
    with np.errstate(all="ignore"):
        made = _converted(kind, *args) if op == "convert" else _OPERATIONS[op](*args)
    return np.asarray(made)


def _converted(kind: str, x: Array) -> Array:
    if x.dtype == np.float32 and kind == I64:
        x = np.where((x >= -FAR) & (x < FAR), x, np.float32(0))
    return x.astype(DTYPES[kind])


def const(kind: str, shape: tuple[int, ...], attr: int) -> Array:
    """A tensor of one value: a float32 by its bits, a whole number or a truth by itself."""
    if kind == F32:
        return np.full(shape, attr, np.uint32).view(np.float32)
    return np.full(shape, attr, DTYPES[kind])


def tree_sum(x: Float32) -> Float32:
    """[..., n] → [...]: filled up with +0.0 to a power of two, then halves are added until one is left."""
    size = 1 << (x.shape[-1] - 1).bit_length()
    if size > x.shape[-1]:
        x = np.concatenate([x, np.zeros((*x.shape[:-1], size - x.shape[-1]), np.float32)], axis=-1)
    with np.errstate(all="ignore"):
        while size > 1:
            size //= 2
            x = x[..., :size] + x[..., size:]
    return x[..., 0]


def maximum(x: Float32) -> Float32:
    """[..., n] → [...]: from the left, what is greater takes the place. A NaN stays at the start, and nowhere else."""
    made = x[..., 0]
    with np.errstate(all="ignore"):
        for k in range(1, x.shape[-1]):
            made = np.where(made < x[..., k], x[..., k], made)
    return made


def canonical_bytes(array: Array) -> bytes:
    """What is hashed and compared: row-major, little-endian, a truth as one byte, every NaN as 0x7fc00000."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype == np.float32:
        bits = flat.view(np.uint32)
        return np.where((bits & 0x7FFFFFFF) > 0x7F800000, CANONICAL_NAN, bits).astype("<u4").tobytes()
    return flat.astype(flat.dtype.newbyteorder("<"), copy=False).tobytes()
