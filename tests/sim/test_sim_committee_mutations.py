"""A test that cannot fail is no test: each safety rule is taken away in turn, and the scenarios must notice."""

from __future__ import annotations

import pytest
from sim_committee_mutants import MUTANTS, findings


def test_the_scenarios_find_nothing_while_all_rules_hold() -> None:
    assert findings() == {}


@pytest.mark.guarantee
@pytest.mark.whole
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_no_mutant_survives(name: str) -> None:
    assert findings(MUTANTS[name]) != {}
