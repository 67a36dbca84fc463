"""Docstrings are written as plain text, in the manner of Markdown; here they become what Sphinx reads.

A name in backticks stays a name (`default_role`). An indented part is shown as it stands; stars, bars and trailing
underscores have no meaning.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

NAMES = re.compile(r"(`[^`]*`)")
INDENT = "    "
ALIAS = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")
ARGUMENT = re.compile(r"([a-z_]+): ")


def escaped(line: str) -> str:
    """Signs that reStructuredText would take for markup, outside of backticks."""
    parts = NAMES.split(line)
    for place in range(0, len(parts), 2):
        part = re.sub(r"[*|\\]", r"\\\g<0>", parts[place])
        parts[place] = re.sub(r"(?<=\w)_(?!\w)", r"\\_", part)
    return "".join(parts)


def converted(lines: list[str]) -> list[str]:
    """The same text: indented parts as literal blocks, `name: what it is` as a list, a blank line before each list."""
    rows: list[str] = []
    kind = ""  # of the row before: text, item, literal; empty after a blank line
    for line in lines:
        argument = ARGUMENT.match(line) if kind != "text" else None
        is_item = line.startswith("- ") or argument is not None
        if not line:
            kind = kind if kind == "literal" else ""
            rows.append("")
        elif line.startswith(INDENT) and kind in ("", "literal"):
            rows += [] if kind else ["::", ""]
            rows.append(line)
            kind = "literal"
        elif is_item:
            rows += [""] if kind in ("text", "literal") else []
            name = f"- `{argument[1]}`:" if argument else ""
            rows.append(name + escaped(line.removeprefix(f"{argument[1]}:") if argument else line))
            kind = "item"
        elif line.startswith(" ") or kind == "item":
            rows.append(("  " if kind == "item" else "") + escaped(line.strip()))
        else:
            rows += [""] if kind == "literal" or (kind and line.startswith("Raises ")) else []
            rows.append(escaped(line))
            kind = "text"
    return rows


def process(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Called by autodoc for each docstring."""
    lines[:] = converted(list(lines))


def named(app: Sphinx, what: str, name: str, obj: object, options: Any, *shown: str | None) -> tuple[str, ...] | None:
    """Type aliases by their names, in a signature and its result."""
    return tuple(ALIAS.sub(r"\1", part) if part else part for part in shown)  # type: ignore[return-value]


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", named)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
