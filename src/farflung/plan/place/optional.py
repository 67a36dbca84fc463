"""How loops of placement are compiled: by numba where it is installed, else not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

try:
    from farflung.compress.loops.compiling import keep, loop
except ImportError:

    def loop(function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as it stands."""
        return function

    def keep(loops: Mapping[str, Any], cache: str) -> None:
        """Nothing is compiled, so nothing is kept."""


__all__ = ["keep", "loop"]
