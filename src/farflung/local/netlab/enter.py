"""Runs `python -m farflung.local.netlab.enter NAMESPACE PROGRAM ...`: executes a program in a namespace.

`ip netns exec` does the same and more: it gives the program a /sys of its own, in which there are no control groups,
so that no worker's memory and processor time could be bounded any more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from farflung.local.netlab import namespaces


def main(words: Sequence[str]) -> NoReturn:
    """The process keeps its number and its open files. Raises OSError."""
    name, program, *arguments = words
    namespaces.enter(name)
    os.execv(program, [program, *arguments])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
