"""Compiles a loop with numba, for one thread, without the licence to change floating point arithmetic.

And where compiled code may be kept between processes: in a folder that nobody else can put anything into.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numba import config as numba_config
from numba import njit

from farflung.core.folder_owner import is_private


def loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled when it is first called with arguments of some types.

    No `fastmath`: LLVM then neither fuses a product with a sum nor re-orders a sum of floats. Without the global
    lock, so that a caller's other threads go on. No bounds are checked: callers give arrays of the right shapes.
    """
    compiled: Callable[..., Any] = njit(nogil=True, fastmath=False, error_model="numpy")(function)
    return compiled


def part(function: Callable[..., Any]) -> Callable[..., Any]:
    """A piece of loops, written into each of them: a call would count references to every array that it is given."""
    inlined: Callable[..., Any] = njit(inline="always")(function)
    return inlined


def keep(loops: Mapping[str, Any], cache: str) -> None:
    """Lets loops keep their compiled code in a folder (it is made), unless that is "" or open to others."""
    if not cache or not is_private(cache):  # what lies there is run
        return
    config: Any = numba_config
    before, config.CACHE_DIR = config.CACHE_DIR, cache
    try:
        for loop in loops.values():
            loop.enable_caching()
    finally:
        config.CACHE_DIR = before
