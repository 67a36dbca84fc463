"""The example notebook as it is kept: nothing that a run of it left behind. It is executed in tests/extras."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook.ipynb"


def cells() -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    found: list[dict[str, Any]] = notebook["cells"]
    return found


def test_the_notebook_is_kept_without_outputs() -> None:
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert all(cell["metadata"] == {} for cell in cells())


def test_every_cell_of_the_notebook_is_python_and_says_before_what_it_shows() -> None:
    kinds = [cell["cell_type"] for cell in cells()]
    assert kinds[0] == "markdown"
    for cell in cells():
        if cell["cell_type"] == "code":
            ast.parse("".join(cell["source"]))
    assert len({cell["id"] for cell in cells()}) == len(kinds)
