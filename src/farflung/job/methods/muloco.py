"""Makes local steps of Muon, then sends the change at two bits with error feedback (Therien et al. 2025, arXiv
2505.23725).
"""

from __future__ import annotations

from typing import Final

from farflung.job.methods.sync_method import LinkRole, SyncMethod

MULOCO: Final = SyncMethod(
    "muloco",
    source="Therien et al. 2025",
    sends="every element, 2 bits",
    optimizers=("muon",),
    codecs=("dense", "topk"),
    outers=("sgd",),
    role=LinkRole.BROAD,
    own={
        "optimizer.lr": 1e-2,
        "optimizer.momentum": 0.95,
        "sync.value_bits": 2,
        "sync.outer_lr": 0.8,
        "sync.outer_momentum": 0.6,
        "sync.error_decay": 0.95,
    },
)
