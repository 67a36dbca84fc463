"""Makes local steps, then sends the largest of each chunk with error feedback (Sarfi et al. 2025, arXiv 2508.15706)."""

from __future__ import annotations

from typing import Final

from farflung.job.methods.sync_method import LinkRole, SyncMethod

SPARSE_LOCO: Final = SyncMethod(
    "sparse_loco",
    source="Sarfi et al. 2025, there with AdamW",
    sends="64 of 4096, 2 bits",
    optimizers=("muon", "adamw", "sgd"),
    codecs=("topk",),
    outers=("sgd",),
    role=LinkRole.NARROW,
    own={
        "optimizer.lr": 1e-2,
        "optimizer.momentum": 0.95,
        "sync.value_bits": 2,
        "sync.topk": 64,
        "sync.chunk": 4096,
        "sync.error_decay": 0.95,
    },
)
