"""Makes local steps, then takes the mean of all weights (Stich 2019, arXiv 1805.09767)."""

from __future__ import annotations

from typing import Final

from farflung.job.methods.sync_method import SyncMethod

LOCAL_SGD: Final = SyncMethod(
    "local_sgd",
    source="Stich 2019",
    sends="every element, fp32",
    optimizers=("adamw", "sgd", "muon"),
    codecs=("dense",),
    outers=("sgd",),
    own={"sync.value_bits": 32},
)
