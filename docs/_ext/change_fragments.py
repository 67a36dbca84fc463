"""The page of changes (docs/changelog.md): each file of changes/ in the order of its name, below what the page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

PAGE = "changelog"
BLOCK = "\n```{{include}} ../changes/{name}\n:heading-offset: 1\n```\n"


def add_fragments(app: Sphinx, page: str, source: list[str]) -> None:
    """Appends one include to the page of changes for each fragment."""
    if page == PAGE:
        paths = sorted((Path(app.srcdir).parent / "changes").glob("[0-9]*.md"))
        source[0] += "".join(BLOCK.format(name=path.name) for path in paths)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", add_fragments)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
