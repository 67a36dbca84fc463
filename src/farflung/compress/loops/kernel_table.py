"""Lists all loops by name; optionally with a folder that keeps compiled code between processes."""

from __future__ import annotations

from typing import Any

import numpy as np

from farflung.compress.loops import contexts, entropy_coder, index_coder, levels, sums, topk
from farflung.compress.loops.numba_compile import keep

LOOPS: dict[str, Any] = {
    **topk.LOOPS, **levels.LOOPS, **sums.LOOPS, **entropy_coder.LOOPS, **index_coder.LOOPS, **contexts.LOOPS,
}  # fmt: skip


def load(cache: str) -> dict[str, Any]:
    """The loops, one of them compiled and run; raises whatever numba raises where it does not work."""
    keep(LOOPS, cache)
    total, is_finite = LOOPS["accumulate"](np.ones(1, np.float32), np.ones(1, np.float32), np.float32(0.5))
    if total[0] != np.float32(1.5) or not is_finite:
        raise RuntimeError("the compiler is broken")
    return dict(LOOPS)
