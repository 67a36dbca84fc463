"""Makes a codec by its name in a job file."""

from __future__ import annotations

import math
from typing import Final

from farflung.compress.chunks import SLAB
from farflung.compress.codecs import Codec as Codec
from farflung.compress.dense import DenseCodec
from farflung.compress.payload import KINDS, TRANSFORMS
from farflung.compress.powersgd import LowRankCodec
from farflung.compress.sparse import TopKCodec
from farflung.compress.transform import check_chunk
from farflung.compress.values import alphabet
from farflung.core.errors import SpecError
from farflung.core.similar_name import similar_name

NAMES: Final = KINDS


def make(name: str, *, value_bits: int, topk: int, chunk: int, transform: str, rank: int, error_decay: float) -> Codec:
    """The codec `name`. Parameters that it does not use are checked anyway.

    Raises SpecError FF-COMP-030 (unknown name), FF-COMP-031 (a parameter out of range), FF-COMP-032
    (a chunk that has no transform), FF-COMP-033 (value bits), FF-COMP-045 (the rank).
    """
    if name not in NAMES:
        near = similar_name(name, NAMES)
        raise SpecError(
            "FF-COMP-030",
            f"unknown codec {name[:40]!r}",
            cause=f"there are {', '.join(NAMES)}",
            hint=f'write sync.codec = "{near}"' if near else "choose one of them",
        )
    if not 1 <= topk <= chunk <= SLAB:
        raise SpecError(
            "FF-COMP-031",
            f"cannot send {topk} of {chunk} elements",
            cause=f"1 <= topk <= chunk <= {SLAB} must hold",
            hint="write sync.topk = 64 and sync.chunk = 4096",
        )
    if not (math.isfinite(error_decay) and 0.0 <= error_decay <= 1.0):
        raise SpecError(
            "FF-COMP-031",
            f"cannot keep {error_decay} of the residual",
            cause="sync.error_decay lies between 0 and 1",
            hint="write sync.error_decay = 0.95",
        )
    alphabet(value_bits)
    if transform not in TRANSFORMS:
        raise SpecError(
            "FF-COMP-031",
            f"unknown transform {transform[:40]!r}",
            cause=f"there are {', '.join(TRANSFORMS)}",
            hint="write sync.transform = 'auto'",
        )
    if transform != "raw":
        check_chunk(chunk)
    if name == "low_rank":
        return LowRankCodec(rank, error_decay)
    if name == "dense":
        return DenseCodec(value_bits, transform, chunk, error_decay)
    return TopKCodec(value_bits, topk, chunk, transform, error_decay)
