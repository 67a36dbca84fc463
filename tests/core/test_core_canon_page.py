"""docs/protocol/canon.md has every operation and constant of the code: a second implementation is written from it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from farflung.core import limits
from farflung.core.canon import math_functions
from farflung.core.canon.array_operations import CANONICAL_NAN
from farflung.core.canon.operation_rules import OPERATIONS
from farflung.core.canon.tiles import SIDE

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "protocol" / "canon.md").read_text(encoding="utf-8")


def test_the_pages_table_has_every_operation_in_order() -> None:
    table = PAGE.split("## Operations")[1].split("## Functions")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(OPERATIONS)


def test_every_operation_has_a_row_about_what_it_asks_for() -> None:
    table = PAGE.split("## Tiles")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))))
    assert named == {"sum", "max", "matmul", "move", "place", "take", "put_add"}


def test_the_pages_constants_are_the_codes() -> None:
    block = PAGE.split("```text")[1].split("```")[0]
    found: dict[str, list[float]] = {}
    for token in block.split():
        if token[0].isupper():
            name = token
            found[name] = []
        else:
            found[name].append(float.fromhex(token))
    assert list(found) == [
        *("LOG2_E", "LN2_HIGH", "LN2_LOW", "TWO_OVER_ROOT_PI", "ROOT_2", "TO_WHOLE"),
        *("EXP", "LOG", "ERF_NEAR", "ERF_FAR"),
    ]
    for name, values in found.items():
        assert np.ravel(getattr(math_functions, name)).tolist() == values, name


def test_the_pages_bounds_are_the_codes() -> None:
    assert limits.GRAPH_FOLD == 256
    assert PAGE.count("≤ 256") == 4
    assert (limits.ELEMENTS, limits.TENSOR_DIMENSIONS, limits.GRAPH_BYTES) == (1 << 36, 8, 16 << 20)
    assert limits.GRAPH_INPUTS == limits.GRAPH_NODES == limits.GRAPH_OUTPUTS == 1 << 17
    assert f"`{CANONICAL_NAN:#x}`" in PAGE
    assert f"Tiles are {SIDE} \N{MULTIPLICATION SIGN} {SIDE} of it" in " ".join(PAGE.split())
