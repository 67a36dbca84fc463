"""Two of eight peers send poison in every round of a training, through the product's own encode, merge and outer step.

The whole table is bench/robust.py --training; these rounds are few, and one attack fails where the rule is taken away.
"""

from __future__ import annotations

from functools import cache

import pytest
from poison import ATTACKS, Training

from farflung.compress import merge as merging


@cache
def training() -> Training:
    sizes = {"model__width": "16", "model__context": "16", "batch": "2", "sync__steps": "2"}
    return Training.of(4, "local_sgd", optimizer__lr="0.01", schedule__warmup="2", data__limit="100000", **sizes)


@cache
def honest() -> float:
    return training().run("clip")


def kept(rule: merging.Rule, attack: str) -> float:
    """What is left of what an honest run learns."""
    begun = training().loss(training().job.start)
    return (begun - training().run(rule, ATTACKS[attack], 2)) / (begun - honest())


@pytest.mark.parametrize("rule", ["clip", "centered"])
def test_two_that_shout_a_hundredfold_leave_a_training_that_learns(rule: merging.Rule) -> None:
    assert kept(rule, "x100") > 0.3


def test_without_the_rule_they_undo_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_ceiling", lambda shares, rule: max((s.square for s in shares), default=0))
    assert kept("clip", "x100") < 0
