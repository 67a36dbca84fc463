"""Makes local steps, then moves by all changes with Nesterov's momentum (Douillard et al. 2023, arXiv 2311.08105)."""

from __future__ import annotations

from typing import Final

from farflung.job.methods.sync_method import SyncMethod

DILOCO: Final = SyncMethod(
    "diloco",
    source="Douillard et al. 2023",
    sends="every element, fp32",
    optimizers=("adamw", "sgd", "muon"),
    codecs=("dense",),
    outers=("sgd",),
    own={"sync.value_bits": 32, "sync.outer_lr": 0.7, "sync.outer_momentum": 0.9},
)
