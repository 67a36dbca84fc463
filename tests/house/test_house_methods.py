"""Nothing knows a sync method by its name but its own file: who has to know something of it asks its row."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from farflung.job.methods.registry import BUILT_IN

SOURCE = Path(__file__).resolve().parents[2] / "src" / "farflung"
NAMES = {method.name for method in BUILT_IN}
ALSO_CODECS = {"dense"}  # a codec has the name, too
WORTH_READING = re.compile(rf"[\"'](?:{'|'.join(NAMES)})[\"']|\.method\b")
NAMED = {  # files that write a name, and compare none
    "job/spec.py": "the default",
    "sync/methods.py": "the library's classes, a name each",
    "advice/method_loss_table.py": "what was measured, a row a setting",
    "advice/memory/model_states.py": "a recipe of memory that has the name of one",
}


def names_in(module: ast.Module) -> Iterator[int]:
    """Lines that write a method's name, or compare a method with a text."""
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and node.value in NAMES - ALSO_CODECS:
            yield node.lineno
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            of_method = any(isinstance(side, ast.Attribute) and side.attr == "method" for side in sides)
            if of_method and any(isinstance(n, ast.Constant) for side in sides for n in ast.walk(side)):
                yield node.lineno


def test_no_method_is_known_by_its_name_outside_of_its_file() -> None:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        place, text = path.relative_to(SOURCE).as_posix(), path.read_text("utf-8")
        if not place.startswith("job/methods/") and WORTH_READING.search(text):
            found[place] = sorted(set(names_in(ast.parse(text))))
    assert {place: lines for place, lines in found.items() if lines and place not in NAMED} == {}
    assert [place for place in NAMED if not found[place]] == []


def test_each_method_has_a_file_of_its_own() -> None:
    room = SOURCE / "job" / "methods"
    assert all((room / f"{name}.py").exists() for name in NAMES)
    for path in room.glob("*.py"):
        text = path.read_text("utf-8")
        assert [name for name in NAMES - ALSO_CODECS if f'"{name}"' in text and name != path.stem] == [], path.name


@pytest.mark.parametrize("code", ['sync.method == "dense"', 'x = "dgc"', 'a.method in ("demo",)', '{"muloco": 1}'])
def test_the_rule_of_names_sees(code: str) -> None:
    assert list(names_in(ast.parse(code)))


@pytest.mark.parametrize("code", ['sync.codec == "dense"', "a.method == b.method", 'f"{a.method} dgc"'])
def test_the_rule_of_names_lets_pass(code: str) -> None:
    assert not list(names_in(ast.parse(code)))
