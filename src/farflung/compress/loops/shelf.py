"""All loops by name; optionally with a folder that keeps compiled code between processes."""

from __future__ import annotations

import os
import stat
from typing import Any

import numpy as np
from numba import config as numba_config

from farflung.compress.loops import coding, contexts, levels, selecting, sums, supports

LOOPS: dict[str, Any] = {
    **selecting.LOOPS, **levels.LOOPS, **sums.LOOPS, **coding.LOOPS, **supports.LOOPS, **contexts.LOOPS,
}  # fmt: skip


def load(cache: str) -> dict[str, Any]:
    """The loops, one of them compiled and run; raises whatever numba raises where it does not work."""
    if cache and _is_private(cache):
        config: Any = numba_config
        before, config.CACHE_DIR = config.CACHE_DIR, cache
        try:
            for loop in LOOPS.values():
                loop.enable_caching()
        finally:
            config.CACHE_DIR = before
    total, is_finite = LOOPS["accumulate"](np.ones(1, np.float32), np.ones(1, np.float32), np.float32(0.5))
    if total[0] != np.float32(1.5) or not is_finite:
        raise RuntimeError("the compiler is broken")
    return dict(LOOPS)


def _is_private(folder: str) -> bool:
    """Makes a folder, and says whether nobody but this user can put anything into it: what lies there is run."""
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        about = os.stat(folder)
    except OSError:
        return False
    is_shared = about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return not is_shared and os.access(folder, os.W_OK)
