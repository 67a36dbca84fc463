"""Sends every gradient: a job trains as one machine with a larger batch does."""

from __future__ import annotations

from typing import Final

from farflung.job.methods.sync_method import LinkRole, SyncMethod

DENSE: Final = SyncMethod(
    "dense",
    source="data parallelism",
    sends="every element, fp32",
    optimizers=("gradient",),
    codecs=("dense",),
    outers=("adamw", "sgd"),
    is_stepwise=True,
    role=LinkRole.LOCAL,
    own={"optimizer.momentum": 0.0, "sync.value_bits": 32, "sync.error_decay": 1.0},
)
