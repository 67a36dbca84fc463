"""Sends the largest coefficients of a momentum's cosine transform and moves by their sign (Peng et al. 2024, arXiv
2411.19870).
"""

from __future__ import annotations

from typing import Final

from farflung.job.methods.sync_method import LinkRole, SyncMethod

DEMO: Final = SyncMethod(
    "demo",
    source="Peng et al. 2024",
    sends="32 of 4096 after a DCT, fp32",
    optimizers=("gradient",),
    codecs=("topk",),
    outers=("sign",),
    is_stepwise=True,
    role=LinkRole.LOCAL,
    own={
        "optimizer.lr": 1e-3,
        "optimizer.momentum": 0.0,
        "optimizer.clip": 0.0,
        "sync.value_bits": 32,
        "sync.topk": 32,
        "sync.chunk": 4096,
        "sync.transform": "dct",
        "sync.error_decay": 0.999,
    },
)
