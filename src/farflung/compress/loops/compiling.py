"""How a loop is compiled: by numba, for one thread, without the licence to change floating point arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


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
