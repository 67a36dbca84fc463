"""Computes the digest of the code that a node runs: farflung's own source files, as they lie on its disk, and the names
and versions of the packages that add sync methods.
"""

from __future__ import annotations

from pathlib import Path

from farflung.core.crypto import NS_IMAGE, digest
from farflung.core.ids import Hash
from farflung.host.io.launch import PACKAGE
from farflung.job.methods.registry import installed


def image_digest(package: Path = PACKAGE) -> Hash:
    """Names and contents of all `*.py` below `package`, sorted by name, then methods of other packages with their
    `name version`. Some 20 ms; raises OSError.
    """
    parts = [
        digest(NS_IMAGE, path.relative_to(package).as_posix().encode(), path.read_bytes())
        for path in sorted(package.rglob("*.py"))
    ]
    others = [digest(NS_IMAGE, name.encode(), added.encode()) for name, added in sorted(installed().packages.items())]
    return digest(NS_IMAGE, *parts, *others)
