"""Each row of the page of guarantees has a check that bench/mutants.py takes away, and each still fits the source."""

from __future__ import annotations

import ast
from pathlib import Path

import mutants

ROOT = Path(__file__).resolve().parents[2]


def test_each_guarantee_has_a_mutant_that_a_test_of_its_row_must_see() -> None:
    rows, tried = mutants.promises(), {each.test for each in mutants.mutants()}
    assert len(rows) > 15
    assert [claim for claim, named in rows if not named & tried] == []


def test_each_mutant_changes_the_source_as_it_is_and_has_a_test_that_the_documents_name() -> None:
    named = set().union(*(named for _, named in mutants.promises()))
    named |= set(mutants.NAMED.findall(mutants.THREATS.read_text("utf-8")))
    for each in mutants.mutants():
        changed = each.change((ROOT / each.file).read_text("utf-8"))
        assert changed is not None, each.gone
        assert ast.parse(changed), each.gone
        file, _, test = each.test.partition("::")
        assert {file, each.test} & named, each.test
        assert f"def {test}" in (ROOT / "tests" / file).read_text("utf-8"), each.test
