"""One round's public arithmetic: a codec and an outer optimizer, joined once for everybody.

Workers, the requester and the second reader of `verify-run` all merge through `Sync.apply`: decode, merge in
64-bit fixed point (compress.merge), one element-wise outer step (core.canon). Methods: SparseLoCo (Sarfi et al.
2025, arXiv 2508.15706) is `topk_2bit` with error feedback; DiLoCo (Douillard et al. 2023, arXiv 2311.08105) is a
dense codec, usually with outer momentum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from farflung.compress import registry
from farflung.compress.merge import Part as Decoded
from farflung.compress.merge import mean, merge
from farflung.compress.payload import About
from farflung.compress.registry import Codec
from farflung.core.canon import apply_outer
from farflung.core.ids import PeerId
from farflung.core.layout import Float32, Layout
from farflung.job.spec import SyncSpec
from farflung.train.messages import Part
from farflung.train.snapshot import PublicState


@dataclass(frozen=True)
class Sync:
    """A sync method, ready to use. Build with `Sync.of`."""

    spec: SyncSpec
    codec: Codec

    @classmethod
    def of(cls, spec: SyncSpec) -> Sync:
        """The method that a spec names."""
        codec = registry.make(spec.codec, topk=spec.topk, chunk=spec.chunk, error_decay=spec.error_decay)
        return cls(spec, codec)

    def initial(self, params: Float32) -> PublicState:
        """Public state of round 0 from weights of shape (size,); momentum starts at zero."""
        momentum = np.zeros_like(params) if self.spec.outer_momentum else None
        return PublicState(0, params.copy(), momentum)

    def about(self, state: PublicState, layout: Layout, peer: PeerId) -> About:
        """What the payload of `peer` to `state`'s round is bound to."""
        return About(state.round, 0, state.root(layout), peer)

    def encode(
        self, residual: Float32 | None, delta: Float32, layout: Layout, about: About
    ) -> tuple[Float32 | None, bytes]:
        """The peer's change P_end - P_r of shape (size,) → what it did not send, and the payload."""
        return self.codec.encode(residual, delta, layout, about)

    def apply(self, state: PublicState, layout: Layout, parts: Sequence[Part]) -> PublicState:
        """P_r and the accepted parts, in any order → P_{r+1}. Raises ProtocolError for a bad payload.

        A round without parts changes nothing but the round's number.
        """
        if not parts:
            return PublicState(state.round + 1, state.params, state.momentum)
        decoded = [
            Decoded(p.peer, p.weight, self.codec.decode(p.payload, layout, self.about(state, layout, p.peer)))
            for p in parts
        ]
        change = mean(merge(layout, decoded))
        spec = self.spec
        params, momentum = apply_outer(
            state.params, state.momentum, change, spec.outer_lr, spec.outer_momentum, spec.nesterov
        )
        return PublicState(state.round + 1, params, momentum)
