"""Defines the state at the border of a segment: its roots, its byte form for an auditor, the distance of two
states.

A border's state is weights, optimizer and what is unsent (core.commitments.Border says which ones). Opened, it is a
file of train.tensor_file; what everybody already has is left out: the weights of border 0 are P_r's, and a fresh
optimizer with nothing unsent is no file at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from farflung.core.commitments import BorderRoots
from farflung.core.errors import RunError
from farflung.core.ids import ZERO_HASH, Hash
from farflung.core.mapped_pages import leave
from farflung.core.tensor_layout import Float32, TensorLayout, state_root
from farflung.job.spec import OptimizerSpec
from farflung.train import inner_state, tensor_file
from farflung.train.blobs import Blob
from farflung.train.contribution_trace import PARAMS
from farflung.train.inner_state import OFFSET, RESIDUAL
from farflung.train.tensor_file import TensorFileContent, TensorFileKind
from farflung.train.vector_store import IN_MEMORY, VectorStore, blocks, kept

Float64 = NDArray[np.float64]

KIND: Final = TensorFileKind(b"FFSEGMT\x02", "opened state", "the peer that opened it owes another, or loses the audit")
UNBOUNDED: Final = 1e9  # the largest distance that is told apart; stands for a division by zero as well


@dataclass(frozen=True, eq=False)
class BorderState:
    """Private state in `round` after `step` steps of the optimizer; flat vectors of shape (layout.size,).

    params None: those of the round's public state. No vectors: a fresh optimizer. residual, offset None: there is none,
    or it is not told. At border 0 training starts at params + offset.
    """

    round: int
    step: int
    params: Float32 | None = None
    vectors: tuple[Float32, ...] = ()
    residual: Float32 | None = None
    offset: Float32 | None = None

    def named(self, optimizer: OptimizerSpec) -> dict[str, Float32]:
        """The vectors that are there, by the names under which they are stored and compared."""
        found = inner_state.named(optimizer, self.vectors)
        if self.params is not None:
            found[PARAMS] = self.params
        return found | inner_state.unsent(self.residual, self.offset)


def pack(state: BorderState, optimizer: OptimizerSpec, layout: TensorLayout) -> bytes:
    """The one byte form of a state at a border; empty when it has no vector (fresh)."""
    return bytes(pieces(state, optimizer, layout))


def pieces(state: BorderState, optimizer: OptimizerSpec, layout: TensorLayout) -> Blob:
    """The same, with the vectors where they are."""
    found = state.named(optimizer)
    content = TensorFileContent(state.round, state.step, found)
    return tensor_file.pieces(KIND, layout, content) if found else b""


def unpack(data: Blob, optimizer: OptimizerSpec, layout: TensorLayout, round: int) -> BorderState:
    """Reads `pack`'s form of a state in `round`. Total.

    Raises RunError FF-TRAIN-070 (damaged), FF-TRAIN-071 (another model or optimizer), FF-TRAIN-082 (another round).
    """
    if not len(data):
        return BorderState(round, 0)
    found = tensor_file.unpack(KIND, data, layout)
    if found.round != round:
        raise unfit(f"it is of round {found.round}, and round {round} was asked for")
    if not found.vectors:
        raise unfit("it holds nothing")
    held = {name: found.vectors.pop(name, None) for name in (PARAMS, RESIDUAL, OFFSET)}
    vectors = inner_state.in_order(KIND, optimizer, found.vectors)
    return BorderState(round, found.step, held[PARAMS], vectors, held[RESIDUAL], held[OFFSET])


def start(states: Sequence[BorderState], segment: int) -> BorderState:
    """What a verifier trains `segment` from, of the round's states at all borders: P_r itself is not repeated."""
    held = states[segment]
    return held if segment else replace(held, params=None)


def end(states: Sequence[BorderState], segment: int) -> BorderState:
    """What `segment` led to; what was not sent is no part of it."""
    return replace(states[segment + 1], residual=None, offset=None)


def planted(end: BorderState, source: BorderState) -> BorderState:
    """What a planted trace says that a segment led to: `end` with the weights of another border."""
    return replace(end, params=source.params)


def last(states: Sequence[BorderState]) -> BorderState:
    """What the encoding was made of: the weights at border K, and what was unsent before the round."""
    return replace(states[-1], vectors=(), residual=states[0].residual, offset=states[0].offset)


def weights(state: BorderState) -> memoryview:
    """The weights of a state alone, float32, little-endian."""
    if state.params is None:
        raise unfit("it holds no weights")
    return np.ascontiguousarray(state.params, "<f4").data.cast("B")


def params_root(layout: TensorLayout, params: Float32) -> Hash:
    """Root of local weights, as it is in a border."""
    return state_root(layout, {PARAMS: params})


def optimizer_root(layout: TensorLayout, optimizer: OptimizerSpec, vectors: tuple[Float32, ...]) -> Hash:
    """Root of the optimizer's vectors, as it is in a border; ZERO_HASH when it is fresh."""
    return state_root(layout, inner_state.named(optimizer, vectors)) if vectors else ZERO_HASH


def unsent_root(layout: TensorLayout, residual: Float32 | None, offset: Float32 | None) -> Hash:
    """Root of what was not sent, as it is in a border; ZERO_HASH when there is nothing."""
    held = inner_state.unsent(residual, offset)
    return state_root(layout, held) if held else ZERO_HASH


def begin(state: BorderState, public: Float32, store: VectorStore = IN_MEMORY) -> Float32:
    """The weights that training goes on from, shape (size,). At border 0, where none are told, they are the public ones
    and what the peer has changed and not sent, which `store` then holds.
    """
    if state.params is not None:
        return state.params
    return public if state.offset is None else kept(store, public + state.offset)


def border(
    layout: TensorLayout, optimizer: OptimizerSpec, index: int, state: BorderState, residual: Hash | None = None
) -> BorderRoots:
    """The border `index` at which `state`, weights included, stands. `residual`: its root, when it is known already."""
    if state.params is None:
        raise unfit("it holds no weights")
    return BorderRoots(
        round=state.round,
        index=index,
        steps=state.step,
        params=params_root(layout, state.params),
        optimizer=optimizer_root(layout, optimizer, state.vectors),
        residual=unsent_root(layout, state.residual, state.offset) if residual is None else residual,
    )


def borders(
    layout: TensorLayout,
    optimizer: OptimizerSpec,
    states: Sequence[BorderState],
    residual: Float32 | None,
    offset: Float32 | None,
) -> tuple[BorderRoots, ...]:
    """All borders of a round. `states[0]` holds what was unsent before it; `residual` and `offset`, which its encoding
    left, are at the last border.
    """
    before = unsent_root(layout, states[0].residual, states[0].offset)
    after = unsent_root(layout, residual, offset)
    final = len(states) - 1
    return tuple(
        border(layout, optimizer, index, state, after if index == final else before)
        for index, state in enumerate(states)
    )


def compared(state: BorderState, optimizer: OptimizerSpec) -> dict[str, Float32]:
    """What of a segment's end is held against another's: its weights, then the optimizer's vectors."""
    if state.params is None:
        raise unfit("it holds no weights")
    return {PARAMS: state.params, **inner_state.named(optimizer, state.vectors)}


def distances(
    layout: TensorLayout, start: Float32, mine: Mapping[str, Float32], claimed: Mapping[str, Float32]
) -> dict[str, Float64]:
    """How far `claimed` lies from `mine`, for each vector of `mine` one number a tensor in layout order.

    Both are the state at a segment's end (`compared`), `start` the weights at its start (P_r at border 0).
    Weights in units of the segment's own change, ||claimed - mine|| / ||mine - start||; the optimizer's vectors, which
    may start at nothing, in units of themselves, ||claimed - mine|| / ||mine||. L2 norms in float64. Equal tensors lie
    0 apart, even where the unit is 0; otherwise a unit of 0 gives UNBOUNDED, and nothing is farther apart than that.
    """
    result: dict[str, Float64] = {}
    for name, vector in mine.items():
        base = start if name == PARAMS else None
        rows = [distance(vector[p], claimed[name][p], None if base is None else base[p]) for _, p in layout.slices()]
        result[name] = np.array(rows, np.float64)
    return result


def distance(mine: Float32, claimed: Float32, base: Float32 | None) -> float:
    """How far one tensor lies from another (`distances`); `base`: where both began, None: the unit is `mine` itself."""
    apart, unit = 0.0, 0.0
    for piece in blocks(slice(0, mine.size)):
        wide = mine[piece].astype(np.float64)
        apart = math.hypot(apart, float(np.linalg.norm(claimed[piece].astype(np.float64) - wide)))
        unit = math.hypot(unit, float(np.linalg.norm(wide if base is None else wide - base[piece])))
        for read in (mine, claimed, base):
            leave(None if read is None else read[piece])
        for vector in (mine, claimed, base):
            leave(None if vector is None else vector[piece])
    if apart == 0.0:
        return 0.0
    return min(apart / unit, UNBOUNDED) if unit > 0.0 else UNBOUNDED


def unfit(cause: str) -> RunError:
    """The error for an opened state that is whole, and not what was asked for."""
    return RunError("FF-TRAIN-082", "opened state does not fit", cause=cause, hint=KIND.hint)
