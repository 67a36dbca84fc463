"""Measures bytes against error for every codec on given vectors, beside the information-theoretic floor.

Two floors. *Support*: to say which k of n equally likely elements are meant takes log2 C(n, k) / k bits each (Cover &
Thomas 2006, section 13.2); real supports cluster, and a context model may go below. *Rate-distortion*: R bits a number
cannot bring the relative L2 error of Gaussian numbers below 2^-R (section 10.3.2); of all sources with the same energy
a Gaussian one is the hardest, so that on sparse or clustered tensors a good codec lies below.

Each vector is encoded once, without error feedback: what is left out would be sent later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from farflung.app.codec_bench.vectors import BenchVector
from farflung.compress import registry
from farflung.compress.payload import ContributionKey
from farflung.compress.powersgd import BASIS, FACTOR, LowRankCodec
from farflung.core.errors import FarflungError
from farflung.core.ids import ID_BYTES, ZERO_HASH, PeerId
from farflung.core.tensor_layout import Float32, TensorLayout

CHUNK: Final = 4096
DECAY: Final = 0.95
_PEER: Final = PeerId(bytes(ID_BYTES))


class CodecConfig(NamedTuple):
    """One codec with its parameters. `topk` 0: every element is sent; `rank` 0: no factors."""

    name: str
    value_bits: int = 32
    topk: int = 0
    transform: str = "raw"
    rank: int = 0


CONFIGS: Final = (
    CodecConfig("dense fp32"),
    CodecConfig("dense bf16", 16),
    CodecConfig("dense 8-bit", 8),
    CodecConfig("dense 4-bit", 4),
    CodecConfig("dense 2-bit", 2),
    CodecConfig("dense 1-bit", 1),
    CodecConfig("top 768 2-bit", 2, 768),
    CodecConfig("top 256 2-bit", 2, 256),
    CodecConfig("top 64 fp32", 32, 64),
    CodecConfig("top 64 4-bit", 4, 64),
    CodecConfig("top 64 2-bit", 2, 64),
    CodecConfig("top 64 2-bit dct", 2, 64, "dct"),
    CodecConfig("top 64 2-bit auto", 2, 64, "auto"),
    CodecConfig("top 32 fp32 dct", 32, 32, "dct"),
    CodecConfig("top 4 fp32", 32, 4),
    CodecConfig("low_rank 1", rank=1),
    CodecConfig("low_rank 4", rank=4),
)


class CodecResult(msgspec.Struct, frozen=True):
    """One codec on all vectors: `bits` a number, relative L2 `error` (root mean square over vectors), mean `cosine`.

    `error_floor`: 2^-bits. Of sparse codecs: `coefficient` bits each, all in, and `support_floor` of the index alone.
    `why`: why there are no figures.
    """

    codec: str
    bytes: int
    bits: float
    below_float32: float
    error: float | None
    cosine: float | None
    error_floor: float
    coefficient: float | None = None
    support_floor: float | None = None
    why: str = ""


def measure(items: Sequence[BenchVector], ways: Sequence[CodecConfig] = CONFIGS) -> tuple[CodecResult, ...]:
    """One row a codec, in the order of `ways`; a codec that cannot send these vectors says why."""
    return tuple(_row(items, way) for way in ways)


def _row(items: Sequence[BenchVector], way: CodecConfig) -> CodecResult:
    try:
        results = [_once(one, way) for one in items]
    except FarflungError as error:
        return CodecResult(way.name, 0, 0.0, 0.0, None, None, 1.0, why=error.message)
    size = sum(one.layout.size for one in items)
    total = sum(sent for sent, _ in results)
    pairs = [_apart(one.values, back) for one, (_, back) in zip(items, results, strict=True)]
    bits = 8 * total / size
    count = sum(coefficients(one.layout, way.topk) for one in items) if way.topk else 0
    return CodecResult(
        codec=way.name,
        bytes=total,
        bits=bits,
        below_float32=32 / bits,
        error=math.sqrt(float(np.mean([error**2 for error, _ in pairs]))),
        cosine=float(np.mean([cosine for _, cosine in pairs])),
        error_floor=2.0**-bits,
        coefficient=8 * total / count if count else None,
        support_floor=support_floor(CHUNK, way.topk) if way.topk else None,
    )


def _once(one: BenchVector, way: CodecConfig) -> tuple[int, Float32]:
    """Bytes sent for a vector, and what arrives."""
    if way.rank:
        return _factored(one, LowRankCodec(way.rank, DECAY))
    codec = registry.make(
        "topk" if way.topk else "dense",
        value_bits=way.value_bits,
        topk=way.topk or 1,
        chunk=CHUNK,
        transform=way.transform,
        rank=1,
        error_decay=DECAY,
    )
    about = ContributionKey(0, 0, ZERO_HASH, _PEER)
    _, payload = codec.encode(None, one.values, one.layout, about)
    return len(payload), codec.decode(payload, one.layout, about)


def _factored(one: BenchVector, codec: LowRankCodec) -> tuple[int, Float32]:
    """One step of power iteration from the first warm start: later rounds start from better factors."""
    first, second = (ContributionKey(0, phase, ZERO_HASH, _PEER) for phase in (BASIS, FACTOR))
    layout, nothing = one.layout, np.zeros_like(one.values)
    start = codec.starting(codec.query(layout, 0))
    unsent, left = start.encode(None, one.values, layout, first)
    basis = codec.basis(codec.decode(left, layout, first), layout)
    _, right = codec.starting(basis).encode(unsent, nothing, layout, second)
    back, _ = codec.change(basis, codec.decode(right, layout, second), layout)
    return len(left) + len(right), back


def _apart(values: Float32, back: Float32) -> tuple[float, float]:
    """Relative L2 error and cosine, in double precision; the cosine with nothing is 0."""
    x, y = values.astype(np.float64), back.astype(np.float64)
    scale = float(np.abs(x).max()) or 1.0  # squares of what float32 holds can be too large or too small
    x, y = x / scale, y / scale
    norm, other = float(np.linalg.norm(x)), float(np.linalg.norm(y))
    error = float(np.linalg.norm(x - y)) / norm
    return error, float(x @ y) / (norm * other) if other else 0.0


def coefficients(layout: TensorLayout, topk: int, chunk: int = CHUNK) -> int:
    """How many elements a top-k codec sends: of each chunk of a tensor, small tensors as one."""
    sizes = [t.size for t in layout.tensors if t.size >= chunk]
    sizes.append(sum(t.size for t in layout.tensors if t.size < chunk))
    return sum(size // chunk * topk + min(topk, size % chunk) for size in sizes)


def support_floor(n: int, k: int) -> float:
    """log2 C(n, k) / k: bits an index, when every support is as likely as any other."""
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return log / math.log(2) / k


def facts(row: CodecResult) -> dict[str, Any]:
    """The row as one object, without what it has not."""
    return {name: value for name, value in msgspec.structs.asdict(row).items() if value not in (None, "")}
