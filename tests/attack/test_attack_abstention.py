"""A peer that leaves out a tensor which it had work for: it moves nothing, costs the others nothing, and is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from segment_play import FALSE, OPTIMIZERS, stage

from farflung.compress.merge import Rule, WeightedUpdate
from farflung.compress.tensor_range import ranged_mean
from farflung.core.ids import PeerId
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.verify.submission_checks import NORM, flags

LAYOUT = TensorLayout.of({"expert": (64, 32), "rest": (64, 32)})
EXPERT, REST = (place for _, place in LAYOUT.slices())


def parts(*absent: int, tensor: slice = EXPERT) -> list[WeightedUpdate]:
    found = []
    for index in range(4):
        values = np.random.default_rng(index).standard_normal(LAYOUT.size).astype(np.float32)
        if index in absent:
            values[tensor] = 0.0
        found.append(WeightedUpdate(PeerId(bytes([index + 1]) * 32), 8, values))
    return found


def merged(given: list[WeightedUpdate], rule: Rule) -> Float32:
    return ranged_mean(LAYOUT, given, rule).values


@pytest.mark.parametrize("rule", ["mean", "clip", "centered"])
def test_who_abstains_from_a_tensor_takes_nothing_from_the_others_work_on_it(rule: Rule) -> None:
    """The tensor comes to what the others agree on, as if there were nobody else; what it sent of the rest counts."""
    with_it, without = merged(parts(3), rule), merged(parts()[:3], rule)
    assert with_it[EXPERT].tobytes() == without[EXPERT].tobytes()
    assert with_it[REST].tobytes() == merged(parts(), rule)[REST].tobytes()
    assert np.linalg.norm(with_it[EXPERT]) > 0.5 * np.linalg.norm(merged(parts(), rule)[EXPERT])


@pytest.mark.parametrize("tensor", [EXPERT, REST])
def test_who_abstains_where_most_worked_is_surely_audited(tensor: slice) -> None:
    given = parts(3, tensor=tensor)
    assert flags(LAYOUT, given) == {given[3].peer: NORM}


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: each.name)
def test_an_audit_finds_that_it_had_work_for_the_tensor(optimizer) -> None:  # type: ignore[no-untyped-def]
    one = stage(0, optimizer)
    assert one.right.params is not None
    layout = one.segment.job.model.layout
    for tensor, place in layout.slices():
        if tensor.size < 256:
            continue
        params = one.right.params.copy()
        params[place] = one.segment.start[place]
        found = one.judged(replace(one.right, params=params))
        assert found.finding is FALSE, tensor.name
