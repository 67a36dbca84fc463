"""Codes values as symbols of a small alphabet and a few levels, with 1, 2, 4, 8, 16 or 32 bits a value.

| bits | symbols                             | levels                                  | error of a value at most |
|-----:|-------------------------------------|-----------------------------------------|--------------------------|
|    1 | 0, 1: -a, +a                        | a: fp16, the mean of all |v|            | max(|v|, a)              |
|    2 | 0..3: -high, -low, +low, +high      | low, high: fp16 (see `quantise`)        | max(|v|, high)           |
|    4 | 0..14: code + 7, codes -7..7        | s of each block of `block` values: bf16 | s / 2 (1 + 2^-20)        |
|    8 | 0..254: code + 127, codes -127..127 | s of each block of `block` values: bf16 | s / 2 (1 + 2^-16)        |
|   16 | the bits of a bf16                  | none                                    | 2^-8 |v|; or 2^-134     |
|   32 | the bits of a float32               | none                                    | 0                        |

Symbols of 1 to 8 bits ascend with the value. Entropy coding is left to the codec: there is no packing here.

4 and 8 bits (block-wise symmetric uniform, as in Dettmers et al., arXiv 2110.02861): with top = 7 or 127,
    m = max |v| of the block        s = m / top, rounded half to even to bf16; 0 where m < top * 2^-126
    code = v / s, rounded half to even
All of it is float32 division and rounding, correct to the last bit on every machine. bf16 has float32's range, so no
scale under- or overflows (fp16 would, for gradients: 10^-5 / 127 is one unit of it). s is off by at most 2^-9 of
itself and top * 2^-9 < 1/2, so the largest |v| of each block has code ±top, and no code lies beyond (a block of zero
scale loses less than top * 2^-126). code * s has at most 15 bits: `restore` is exact, and quantising what it gives
back changes nothing.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from farflung.compress import quantise as lloyd
from farflung.compress.kernels import compiled
from farflung.core.errors import ProtocolError, SpecError, VerificationError
from farflung.core.tensor_layout import Float32

BITS: Final = (1, 2, 4, 8, 16, 32)
BLOCK: Final = 128  # values that share a scale in a dense codec

Symbols = NDArray[np.unsignedinteger[Any]]

_TOP: Final = {4: 7, 8: 127}
_ALPHABET: Final = {1: 2, 2: 4, 4: 15, 8: 255, 16: 1 << 16, 32: 1 << 32}
_TINY: Final = np.float32(2.0**-126)  # smallest normal number: no denormal takes part


class QuantisedValues(NamedTuple):
    """`levels` of `levels_bytes` bytes, and one symbol in [0, alphabet) a value, shape (count,).

    The type of the symbols is uint8 for 1 to 8 bits a value, uint16 for 16, uint32 for 32.
    """

    levels: bytes
    symbols: Symbols
    alphabet: int


def alphabet(bits: int) -> int:
    """How many symbols there are: 2, 4, 15, 255, 2^16, 2^32. Raises SpecError FF-COMP-033."""
    if bits not in _ALPHABET:
        cause = f"there are {', '.join(map(str, BITS))} bits"
        raise SpecError("FF-COMP-033", f"no values of {bits} bits", cause=cause, hint="write sync.value_bits = 2")
    return _ALPHABET[bits]


def levels_bytes(count: int, bits: int, block: int | None = BLOCK) -> int:
    """Bytes of the levels of `count` values; `block` as in `quantise`."""
    if bits in _TOP:
        return 2 * (-(-count // block) if block else min(count, 1))
    return 2 * bits if bits <= 2 else 0


def quantise(values: Float32, bits: int, block: int | None = BLOCK) -> QuantisedValues:
    """The canonical symbols of float32 values, shape (count,); no values give zero levels and no symbols.

    `block`: how many values share a scale, for 4 and 8 bits; None: all. Raises SpecError FF-COMP-033 (bits),
    VerificationError FF-COMP-035 (NaN or an infinity).
    """
    size = alphabet(bits)
    if not np.isfinite(values).all():
        raise VerificationError("FF-COMP-035", "values to be quantised are not finite")
    if bits == 32:
        return QuantisedValues(b"", values.copy().view(np.uint32), size)
    if bits == 16:
        return QuantisedValues(b"", _to_bf16(values), size)
    if bits in _TOP:
        scales, symbols = _uniform(values, _TOP[bits], block or max(values.size, 1))
        return QuantisedValues(scales.astype("<u2").tobytes(), symbols, size)
    return QuantisedValues(*lloyd.to_symbols(values, bits), size)


def restore(levels: bytes | memoryview, symbols: Symbols, bits: int, block: int | None = BLOCK) -> Float32:
    """What canonical levels and symbols stand for, float32 of shape (count,), always a new array."""
    values = np.empty(symbols.size, np.float32)
    restore_into(values, levels, symbols, bits, block)
    return values


def restore_into(
    values: Float32, levels: bytes | memoryview, symbols: Symbols, bits: int, block: int | None = BLOCK
) -> None:
    """The same, written into `values`, shape (count,)."""
    if bits == 32:
        values.view(np.uint32)[:] = symbols
    elif bits == 16:
        values[:] = _from_bf16(symbols)
    elif bits in _TOP:
        scales = np.frombuffer(levels, "<u2")
        _scaled(symbols, scales, _TOP[bits], block or max(symbols.size, 1), values)
    else:
        lloyd.from_symbols(levels, symbols, values)


def check_canonical(levels: bytes | memoryview, symbols: Symbols, bits: int, block: int | None = BLOCK) -> None:
    """Refuses what comes from elsewhere and `quantise` could not have made. `levels` has `levels_bytes` bytes.

    Raises ProtocolError: FF-COMP-034 (a symbol outside the alphabet), 015 (a level that is not finite, negative, -0
    or not ordered, or a scale that is denormal or too large), 016 (a level that no value has, a zero with a sign),
    017 (16 and 32 bits: NaN or an infinity).
    """
    size = alphabet(bits)
    if symbols.size and int(symbols.max()) >= size:
        cause = f"the largest is {int(symbols.max())}, there are {size}"
        raise ProtocolError("FF-COMP-034", "symbol outside its alphabet", cause=cause)
    if bits >= 16:
        exponent = 0x7F80 if bits == 16 else 0x7F800000
        if ((symbols & symbols.dtype.type(exponent)) == exponent).any():
            raise ProtocolError("FF-COMP-017", "payload holds NaN or an infinity")
    elif bits in _TOP:
        _check_scales(levels, symbols, _TOP[bits], block)
    else:
        lloyd.check_symbols(levels, symbols)


def _to_bf16(values: Float32) -> NDArray[np.uint16]:
    """The upper half of each float32, rounded half to even; what would become infinite is the largest number."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    rounded[(rounded & np.uint16(0x7FFF)) == 0x7F80] -= np.uint16(1)
    return rounded


def _from_bf16(halves: Symbols) -> Float32:
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _blocks(count: int, block: int | None) -> tuple[int, int]:
    """Values a block, and how many blocks are full."""
    width = block if block else max(count, 1)
    return width, count // width


def _split(values: Float32, scales: Float32, block: int | None) -> list[tuple[Float32, Float32]]:
    """Views of the full blocks (as rows) and of the short last one, each with its scales as a column."""
    width, full = _blocks(values.size, block)
    parts = [(values[: full * width].reshape(full, width), scales[:full, None])]
    if full * width < values.size:
        parts.append((values[full * width :].reshape(1, -1), scales[full:, None]))
    return parts


def _maxima(values: Float32, block: int | None) -> Float32:
    """The largest value of each block."""
    width, full = _blocks(values.size, block)
    tops: Float32 = values[: full * width].reshape(full, width).max(axis=1)
    if full * width < values.size:
        tops = np.append(tops, values[full * width :].max())
    return tops


@compiled("uniform")
def _uniform(values: Float32, top: int, block: int) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """Scales (bf16) and symbols, as the module's head says."""
    maxima = _maxima(np.abs(values), block)
    maxima[maxima < np.float32(top) * _TINY] = 0.0
    scales = _to_bf16(maxima / np.float32(top))
    codes = np.array(values)
    for rows, scale in _split(codes, _from_bf16(scales), block):
        rows /= np.where(scale > 0, scale, np.float32(np.inf))
    np.rint(codes, out=codes)
    codes += np.float32(top)
    return scales, codes.astype(np.uint8)


@compiled("scaled")
def _scaled(symbols: Symbols, scales: NDArray[np.uint16], top: int, block: int, values: Float32) -> None:
    """Code times scale, exactly, into `values`."""
    np.subtract(symbols, np.float32(top), out=values, dtype=np.float32)
    for rows, scale in _split(values, _from_bf16(scales), block):
        rows *= scale


@compiled("peaks")
def _peaks(symbols: Symbols, top: int, block: int) -> Float32:
    """The largest |code| of each block."""
    return _maxima(np.abs(symbols.astype(np.float32) - np.float32(top)), block)


def _check_scales(levels: bytes | memoryview, symbols: Symbols, top: int, block: int | None) -> None:
    scales = _from_bf16(np.frombuffer(levels, "<u2"))
    with np.errstate(over="ignore", invalid="ignore"):
        good = (scales.view(np.uint32) == 0) | ((scales >= _TINY) & np.isfinite(scales * np.float32(top)))
    if not good.all():
        cause = f"scale {scales[np.argmin(good)]}"
        raise ProtocolError("FF-COMP-015", "bad quantiser levels", cause=cause)
    reached = _peaks(symbols, top, block or max(symbols.size, 1))
    if (reached != np.where(scales > 0, np.float32(top), np.float32(0))).any():
        raise ProtocolError("FF-COMP-016", "payload is not canonical", cause="a block without its largest code")
