"""Opens the null device for closed standard streams (`>&-`).

Otherwise the next opened file would take their descriptors.
"""

from __future__ import annotations

import os
import sys


def open_missing() -> None:
    """Gives each closed one the null device, before a file of a run takes its number and what is printed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)  # the lowest free number: that of the closed stream
            setattr(sys, name, os.fdopen(handle, mode, encoding="utf-8"))
