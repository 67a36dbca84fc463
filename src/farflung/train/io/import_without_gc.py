"""Switches the garbage collector off while a large library is imported, because nothing becomes garbage
meanwhile.

The interpreter looks through all that it holds again and again while torch's half a million objects are made, and once
more when the process ends: a quarter of the CPU time of `import torch` in a process that does little else.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """No garbage is looked for inside; what is there at the end is never looked through again (gc.freeze)."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
