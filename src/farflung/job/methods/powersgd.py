"""Sends two thin factors of each matrix in two phases, each a round (Vogels et al. 2019, arXiv 1905.13727;
compress.powersgd).

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

from farflung.compress.codecs import Codec
from farflung.compress.powersgd import BASIS as BASIS_PHASE
from farflung.compress.powersgd import PHASES, LowRankCodec
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.methods.sync_method import FixedSetting, SharedState, SyncMethod
from farflung.job.spec import SyncSpec

QUERY: Final = "query"  # the warm start
BASIS: Final = "basis"  # what phase 0 agreed on


class PhasedFactors(SyncMethod):
    """PowerSGD: the first warm start comes from the job's seed, each later one from the step before."""

    def has_residual(self, sync: SyncSpec) -> bool:
        """See `SyncMethod.has_residual`: factors never say all."""
        return True

    def describe(self, sync: SyncSpec) -> str:
        """See `SyncMethod.describe`: `low_rank 4`."""
        return f"{sync.codec} {sync.rank}"

    def shared(self, sync: SyncSpec, round: int) -> frozenset[str]:
        """See `SyncMethod.shared`. Both are absent where nobody took part in the phase that makes them."""
        query = {QUERY} if round >= PHASES else set()
        basis = {BASIS} if round % PHASES != BASIS_PHASE else set()
        return super().shared(sync, round) | query | basis

    def encoder(self, codec: Codec, state: SharedState, layout: TensorLayout, seed: int) -> Codec:
        """See `SyncMethod.encoder`."""
        codec = _factors(codec)
        if state.round % PHASES != BASIS_PHASE:
            return codec.starting(_basis(codec, state, layout))
        query = state.vectors.get(QUERY)
        return codec.starting(codec.query(layout, seed) if query is None else query)

    def settled(
        self, codec: Codec, state: SharedState, layout: TensorLayout, mean: Float32 | None
    ) -> tuple[Float32 | None, dict[str, Float32]]:
        """See `SyncMethod.settled`."""
        codec, vectors = _factors(codec), dict(state.vectors)
        if state.round % PHASES == BASIS_PHASE:
            agreed = np.zeros(layout.size, np.float32) if mean is None else mean
            return None, vectors | {BASIS: codec.basis(agreed, layout)}
        basis = _basis(codec, state, layout)
        vectors.pop(BASIS, None)
        if mean is None:
            return None, vectors
        change, query = codec.change(basis, mean, layout)
        return change, vectors | {QUERY: query}

    def taken(self, codec: Codec, state: SharedState, layout: TensorLayout, said: Float32) -> Float32:
        """See `SyncMethod.taken`: nothing in phase 0."""
        codec = _factors(codec)
        if state.round % PHASES == BASIS_PHASE:
            return np.zeros(layout.size, np.float32)
        return codec.restored(_basis(codec, state, layout), said, layout)


def _factors(codec: Codec) -> LowRankCodec:
    assert isinstance(codec, LowRankCodec)  # the only one that the method is made of
    return codec


def _basis(codec: LowRankCodec, state: SharedState, layout: TensorLayout) -> Float32:
    """The basis in public state; one made of nothing where a snapshot lacks it (no honest one does)."""
    found = state.vectors.get(BASIS)
    return codec.basis(np.zeros(layout.size, np.float32), layout) if found is None else found


POWERSGD: Final = PhasedFactors(
    "powersgd",
    source="Vogels et al. 2019",
    sends="factors of rank 4, in two phases",
    optimizers=("gradient",),
    codecs=("low_rank",),
    outers=("adamw", "sgd"),
    is_stepwise=True,
    phases=PHASES,
    fixed=(FixedSetting("sync.value_bits", 32), FixedSetting("sync.fragments", 1), FixedSetting("sync.delay", 0)),
    own={"optimizer.momentum": 0.0, "sync.value_bits": 32, "sync.error_decay": 1.0},
)
