"""Defines the private inner state S[i,r] that one peer carries from round to round and shows only to an auditor.

Optimizer vectors, the residual of error feedback, the offset of local weights, and the count of inner steps. It is made
durable before a commitment leaves; losing it costs one peer its momentum, and nobody else anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from farflung.core.errors import RunError
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.spec import OptimizerSpec
from farflung.train import tensor_file
from farflung.train.blobs import Blob
from farflung.train.tensor_file import TensorFileContent, TensorFileKind

VECTORS: Final = {
    "adamw": ("mean", "square"),
    "sgd": ("velocity",),
    "muon": ("mean", "square"),
    "gradient": ("velocity",),
}
RESIDUAL: Final = "residual"
OFFSET: Final = "offset"

KIND: Final = TensorFileKind(
    b"FFINNER\x02", "checkpoint of inner state", "remove it: the peer goes on with a fresh optimizer"
)


@dataclass(frozen=True)
class InnerState:
    """State before `round`: `step` inner steps done; vectors of shape (layout.size,), in the order of VECTORS.

    A fresh optimizer has no vectors (they are zeros), a codec that has sent nothing has no residual, and local weights
    that start each round at public ones have no offset.
    """

    round: int = 0
    step: int = 0
    vectors: tuple[Float32, ...] = ()
    residual: Float32 | None = None
    offset: Float32 | None = None


def unsent(residual: Float32 | None, offset: Float32 | None) -> dict[str, Float32]:
    """What a peer holds back, by name."""
    both = {RESIDUAL: residual, OFFSET: offset}
    return {name: vector for name, vector in both.items() if vector is not None}


def named(optimizer: OptimizerSpec, vectors: tuple[Float32, ...]) -> dict[str, Float32]:
    """The optimizer's vectors by name; none when it is fresh."""
    return dict(zip(VECTORS[optimizer.name], vectors, strict=True)) if vectors else {}


def in_order(kind: TensorFileKind, optimizer: OptimizerSpec, found: dict[str, Float32]) -> tuple[Float32, ...]:
    """The opposite of `named`, for what a file of `kind` holds; raises RunError FF-TRAIN-071 (another optimizer)."""
    names = VECTORS[optimizer.name]
    if found and sorted(found) != sorted(names):
        raise RunError(
            "FF-TRAIN-071",
            f"{kind.word} of another optimizer",
            cause=f"it holds {', '.join(sorted(found))}; {optimizer.name} has {', '.join(names)}",
            hint=kind.hint,
        )
    return tuple(found[name] for name in names) if found else ()


def pack(inner: InnerState, optimizer: OptimizerSpec, layout: TensorLayout) -> bytes:
    """The one byte form of inner state."""
    return bytes(pieces(inner, optimizer, layout))


def pieces(inner: InnerState, optimizer: OptimizerSpec, layout: TensorLayout) -> Blob:
    """The same, with the vectors where they are."""
    held = named(optimizer, inner.vectors) | unsent(inner.residual, inner.offset)
    return tensor_file.pieces(KIND, layout, TensorFileContent(inner.round, inner.step, held))


def unpack(data: Blob, optimizer: OptimizerSpec, layout: TensorLayout) -> InnerState:
    """Reads `pack`'s form; raises RunError FF-TRAIN-070 (damaged) or FF-TRAIN-071 (another model or optimizer)."""
    found = tensor_file.unpack(KIND, data, layout)
    residual, offset = found.vectors.pop(RESIDUAL, None), found.vectors.pop(OFFSET, None)
    return InnerState(found.round, found.step, in_order(KIND, optimizer, found.vectors), residual, offset)
