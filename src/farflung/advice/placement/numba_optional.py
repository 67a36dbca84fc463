"""Compiles loops of placement by numba where it is installed and wanted, else leaves them as they are.

`@loop` only marks a function, so a module of loops is imported without numba, and runs as it stands until it is
loaded. `load` puts compiled functions in the place of those that are marked, under the same names: they call each
other by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any


def loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it stands, marked as one to compile."""
    function.is_loop = True  # type: ignore[attr-defined]
    return function


def load(scope: dict[str, Any], names: tuple[str, ...], cache: str) -> Mapping[str, Callable[..., Any]]:
    """The loops called `names` of a module's `scope`, compiled where numba is installed, all that are marked with them.

    `cache`: a folder that keeps compiled code, "": none.
    """
    try:
        from farflung.compress.loops.numba_compile import keep
        from farflung.compress.loops.numba_compile import loop as compiled
    except ImportError:
        return {name: scope[name] for name in names}
    marked = {name: each for name, each in scope.items() if hasattr(each, "is_loop")}
    scope.update(
        {name: compiled(each) for name, each in marked.items() if isinstance(each, FunctionType)}
    )  # a second time there is nothing left to compile
    found = {name: scope[name] for name in names}
    keep(found, cache)
    return found
