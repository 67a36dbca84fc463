"""The law has integers only: no float literal, no true division, no float() anywhere below ledger/."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import farflung.ledger

FOLDER = Path(farflung.ledger.__file__).parent
FILES = sorted(FOLDER.rglob("*.py"))


def floats_in(source: str) -> list[int]:
    """Lines that could make a float."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Constant) and isinstance(node.value, float | complex))
        or (isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div))
        or (isinstance(node, ast.Name) and node.id in ("float", "complex", "math", "numpy"))
    ]


def test_no_floats_under_ledger():
    assert [(path.name, found) for path in FILES if (found := floats_in(path.read_text()))] == []


@pytest.mark.parametrize("line", ["x = 1.0", "x = a / b", "x /= 2", "x = float(1)", "x = 1e3", "import numpy\nnumpy.x"])
def test_the_check_finds_floats(line: str):
    assert floats_in(line)


def test_law_catches_only_errors_it_names():
    for path in FILES:
        handlers = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ExceptHandler)]
        wide = [node.lineno for node in handlers if node.type is None or ast.unparse(node.type) == "Exception"]
        assert not wide, path.name
