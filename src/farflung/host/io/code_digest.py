"""Computes the digest of the code that a node runs: farflung's own source files, as they lie on its disk."""

from __future__ import annotations

from pathlib import Path

from farflung.core.crypto import NS_IMAGE, digest
from farflung.core.ids import Hash
from farflung.host.io.launch import PACKAGE


def image_digest(package: Path = PACKAGE) -> Hash:
    """Names and contents of all `*.py` below `package`, sorted by name. Some 20 ms; raises OSError."""
    parts = [
        digest(NS_IMAGE, path.relative_to(package).as_posix().encode(), path.read_bytes())
        for path in sorted(package.rglob("*.py"))
    ]
    return digest(NS_IMAGE, *parts)
