"""Loads the loops of placement, compiled where numba is installed and plain Python where it is not.

Both give the same results, bit for bit: no `fastmath`, and random numbers are arguments. Loading is lazy, so that what
only imports this package never imports numba; compiled code is kept where the process keeps that of its codecs.

Compiling costs half a minute where nothing is kept. Who has little to place says so (`as_it_stands`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from farflung.compress.kernels import KernelRegistry

PLAIN: Final = ("group_search_loops", "pipeline_loops", "grid_loops", "block_loops")
_HOME: Final = "farflung.advice.placement."
_registries: Final = {name: KernelRegistry(_HOME + name, {}) for name in PLAIN}


def loop(module: str, name: str) -> Callable[..., Any]:
    """A loop of one of the modules PLAIN; every one of them has `load(cache)`, which names its loops."""
    registry = _registries[module]
    found = None if registry.mode == "numpy" else registry.loop(name)
    if found is None:  # not wanted, or numba does not work here, though it is installed
        found = getattr(importlib.import_module(_HOME + module), name)
    return found


@contextmanager
def as_it_stands() -> Iterator[None]:
    """Within, nothing is compiled that is not yet: for what is placed sooner than it is compiled."""
    before = {name: registry.settled for name, registry in _registries.items()}
    for registry in _registries.values():
        registry.settled = "numpy"
    try:
        yield
    finally:
        for name, settled in before.items():
            _registries[name].settled = settled
