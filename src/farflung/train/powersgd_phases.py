"""Decides which round is which phase of a two-phase method (PowerSGD: compress.powersgd), and what each leaves.

A phase is a round of its own: it has its members, its accept set, its tokens and its audits, and the root that its
payloads carry is that of public state with all that the phase before agreed on. So nothing else in a job knows of
phases, a peer may leave or come between them, and a run is resumed between them as anywhere else.

    phase 0, even rounds     public state gains BASIS                                weights stay
    phase 1, odd rounds      public state loses BASIS, QUERY is the next warm start  the outer step

A peer trains in both: what it wants after phase 0 is added to what it could not say yet. A caller whose weights stay in
a phase 1 (end = P, no change) makes the step of the paper, with both factors from one gradient.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from farflung.compress.powersgd import BASIS as BASIS_PHASE
from farflung.compress.powersgd import PHASES, LowRankCodec
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.train.public_state import BASIS, QUERY, PublicState

LOW_RANK: Final = "low_rank"


def phases(codec: str) -> int:
    """Rounds that one outer step takes under the codec of that name."""
    return PHASES if codec == LOW_RANK else 1


def shared(codec: str, round: int) -> frozenset[str]:
    """Names of what public state may hold before `round` on account of the codec of that name."""
    if codec != LOW_RANK:
        return frozenset()
    return frozenset({QUERY} if round >= PHASES else ()) | frozenset({BASIS} if round % PHASES != BASIS_PHASE else ())


def encoder(codec: LowRankCodec, state: PublicState, layout: TensorLayout, seed: int) -> LowRankCodec:
    """The codec as it encodes contributions to `state`'s round; the job's seed gives the first warm start."""
    if state.round % PHASES == BASIS_PHASE:
        return codec.starting(_query(codec, state, layout, seed))
    return codec.starting(_basis(codec, state, layout))


def settled(
    codec: LowRankCodec, state: PublicState, layout: TensorLayout, mean: Float32 | None
) -> tuple[Float32 | None, dict[str, Float32]]:
    """The mean of a round's factors, shape (layout.size,) or None without any → the change to apply (None in phase 0),
    and what public state shares besides parameters from here on.
    """
    vectors = dict(state.vectors)
    if state.round % PHASES == BASIS_PHASE:
        agreed = np.zeros(layout.size, np.float32) if mean is None else mean
        return None, vectors | {BASIS: codec.basis(agreed, layout)}
    basis = _basis(codec, state, layout)
    vectors.pop(BASIS, None)
    if mean is None:
        return None, vectors
    change, query = codec.change(basis, mean, layout)
    return change, vectors | {QUERY: query}


def taken(codec: LowRankCodec, state: PublicState, layout: TensorLayout, factors: Float32) -> Float32:
    """What a payload that decodes to `factors` took out of its maker's residual, shape (layout.size,)."""
    if state.round % PHASES == BASIS_PHASE:
        return np.zeros(layout.size, np.float32)
    return codec.restored(_basis(codec, state, layout), factors, layout)


def _query(codec: LowRankCodec, state: PublicState, layout: TensorLayout, seed: int) -> Float32:
    found = state.vectors.get(QUERY)
    return codec.query(layout, seed) if found is None else found


def _basis(codec: LowRankCodec, state: PublicState, layout: TensorLayout) -> Float32:
    """The basis in public state; one made of nothing where a snapshot lacks it (no honest one does)."""
    found = state.vectors.get(BASIS)
    return codec.basis(np.zeros(layout.size, np.float32), layout) if found is None else found
