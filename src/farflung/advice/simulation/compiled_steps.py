"""Compiles advice.simulation.node_steps: importing this module imports numba.

There are no twins: the functions are the same.
"""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from farflung.advice.simulation import node_steps
from farflung.advice.simulation.random_draws import words
from farflung.compress.loops.numba_compile import keep, loop

KNOWN_ANSWER = (0xFF1DAE59, 0x6CD10DF2)  # of Philox2x32-10 to zeros (Random123, kat_vectors)


def load(cache: str) -> dict[str, Any]:
    """The loops, the generator compiled and run; raises whatever numba raises where it does not work."""
    for part in node_steps.PARTS:
        register_jitable(part)
    loops = {name: loop(function) for name, function in node_steps.LOOPS.items()}
    trial = {"words": loop(words)}
    keep({**loops, **trial}, cache)
    if trial["words"](0, 0, 0) != KNOWN_ANSWER:
        raise RuntimeError("the compiler is broken")
    return loops
