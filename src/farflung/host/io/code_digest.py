"""Computes the digest of the code that a node runs: farflung's own source files, as they lie on its disk, and the names
and versions of the packages that add sync methods.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from farflung.core.crypto import NS_IMAGE, digest
from farflung.core.ids import Hash
from farflung.host.io.launch import PACKAGE
from farflung.job.methods.registry import installed


def image_digest(package: Path = PACKAGE) -> Hash:
    """Names and contents of all `*.py` below `package`, sorted by name, then methods of other packages with their
    `name version`. Some 20 ms; raises OSError.
    """
    parts = []
    for names in sorted(_sources(package)):
        with open(os.path.join(package, *names), "rb", buffering=0) as file:
            parts.append(digest(NS_IMAGE, "/".join(names).encode(), file.readall()))
    others = [digest(NS_IMAGE, name.encode(), added.encode()) for name, added in sorted(installed().packages.items())]
    return digest(NS_IMAGE, *parts, *others)


def _sources(package: Path) -> Iterator[list[str]]:
    """Each source file by the names of the folders that lead to it, and its own. Without `pathlib`: half the time."""
    root = os.path.join(package, "")
    for folder, _, names in os.walk(package):
        way = [name for name in folder[len(root) :].split(os.sep) if name]
        yield from ([*way, name] for name in names if name.endswith(".py"))
