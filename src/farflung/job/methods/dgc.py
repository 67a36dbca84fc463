"""Sends the largest of each chunk of a velocity that every peer keeps, masked where all was sent (Lin et al. 2018,
arXiv 1712.01887).

Momentum correction (section 3.1) is the velocity of the inner optimizer. Warm-up of the density and the arithmetic of
local clipping are compress.dgc's.
"""

from __future__ import annotations

from typing import Final

from farflung.compress.dgc import local_limit
from farflung.job.methods.sync_method import FixedSetting, SyncMethod, Vector

TOLD: Final = "what is unsent is masked: it must be told exactly"


class MaskedMomentum(SyncMethod):
    """Deep Gradient Compression: local clipping (section 3.2) and momentum factor masking (section 3.3)."""

    def clip_limit(self, limit: float, peers: int) -> float:
        """See `SyncMethod.clip_limit`."""
        return local_limit(limit, peers)

    def begun(self, vector: Vector, residual: Vector) -> Vector:
        """No velocity where all was sent, that is, where nothing is unsent."""
        left: Vector = vector * (residual != 0)
        return left


DGC: Final = MaskedMomentum(
    "dgc",
    source="Lin et al. 2018",
    sends="4 of 4096, fp32",
    optimizers=("gradient",),
    codecs=("topk",),
    outers=("sgd",),
    is_stepwise=True,
    fixed=(FixedSetting("sync.value_bits", 32, TOLD), FixedSetting("sync.error_decay", 1.0, TOLD)),
    unproven="masks the momentum by what is unsent",
    own={
        "optimizer.lr": 0.1,
        "optimizer.momentum": 0.9,
        "optimizer.weight_decay": 1e-4,
        "sync.value_bits": 32,
        "sync.topk": 4,
        "sync.chunk": 4096,
        "sync.error_decay": 1.0,
    },
)
