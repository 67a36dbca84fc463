"""The judging graph finds guilty whom the audits' own measure finds beyond two tolerances."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import Tolerance
from farflung.ledger.rules.slashes import EXCESS_FALSE
from farflung.train import segments
from farflung.verify.audit_verdict import compare
from farflung.verify.canon.distance_graph import GUILTY, distance_graph
from farflung.verify.canon.execute import execute

LAYOUT = TensorLayout.of({"a": (2, 300), "b": (), "c": (5,)})
LIMIT = 1 << 19
TOLERANCE = Tolerance((("params", (LIMIT, LIMIT, 0)), ("mean", (1 << 27, 0, 3))))
GRAPH = distance_graph(LAYOUT, TOLERANCE)
NAMES = [each.name for each in GRAPH.inputs]


def judged(start, final, claimed) -> bool:
    """By the graph."""
    flat = {"start": {"params": start}, "final": final, "claimed": claimed}
    given = {
        f"{kind}/{vector}/{name}": value
        for kind, vectors in flat.items()
        for vector, values in vectors.items()
        for name, value in LAYOUT.unflatten(values).items()
    }
    found = execute(GRAPH, {name: given[name] for name in NAMES})
    assert found[GUILTY].shape == ()
    return bool(found[GUILTY])


def excess(start, final, claimed) -> int:
    """As audits measure it."""
    with np.errstate(all="ignore"):
        return compare(TOLERANCE, LAYOUT, segments.distances(LAYOUT, start, final, claimed))


def drawn(seed: int, scale: float):
    """A start, an end whose parts have moved by about `scale`, and no difference yet."""
    draw = np.random.default_rng(seed)
    start = draw.standard_normal(LAYOUT.size).astype(np.float32)
    moved = (start + scale * draw.standard_normal(LAYOUT.size)).astype(np.float32)
    mean = (scale * draw.standard_normal(LAYOUT.size)).astype(np.float32)
    return start, {"params": moved, "mean": mean}


@given(
    seed=st.integers(0, 1 << 20),
    scale=st.sampled_from([1e-3, 1e-6, 1.0, 1e-30, 1e-38]),
    vector=st.sampled_from(["params", "mean"]),
    place=st.integers(0, LAYOUT.size - 1),
    power=st.floats(-12, 3),
)
@settings(max_examples=150)
def test_the_graph_finds_what_the_audits_measure_finds(seed, scale, vector, place, power):
    start, final = drawn(seed, scale)
    claimed = {name: values.copy() for name, values in final.items()}
    claimed[vector][place] += np.float32(scale * 10.0**power)
    found = excess(start, final, claimed)
    if not EXCESS_FALSE - 2 <= found <= EXCESS_FALSE + 2:  # where float32 and float64 may round apart
        assert judged(start, final, claimed) == (found > EXCESS_FALSE)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38])
def test_what_is_no_number_or_beyond_all_is_guilty_and_in_a_noise_tensor_nothing_is(value):
    start, final = drawn(1, 1e-3)
    for place, is_guilty in ((0, True), (599, True), (600, True), (603, False)):
        claimed = {"params": final["params"].copy(), "mean": final["mean"]}
        claimed["params"][place] = value
        assert judged(start, final, claimed) is is_guilty
        assert (excess(start, final, claimed) > EXCESS_FALSE) is is_guilty


def test_an_end_without_a_number_is_guilty_whoever_claims_it():
    start, final = drawn(1, 1e-3)
    final["params"][7] = np.nan
    assert judged(start, final, final)


def test_a_tensor_that_did_not_move_may_not_be_moved_by_the_least_number():
    start, final = drawn(1, 0.0)
    assert not judged(start, final, final)
    for vector, place in (("params", 5), ("mean", 5), ("mean", 602)):
        claimed = {name: values.copy() for name, values in final.items()}
        claimed[vector][place] += np.float32(2e-38 if vector == "mean" else 1e-3)
        assert judged(start, final, claimed)


def test_the_border_lies_at_two_tolerances():
    """One element that moved by 1 and is claimed to have moved by a little more: distances are exact."""
    start = np.zeros(LAYOUT.size, np.float32)
    final = {"params": np.ones(LAYOUT.size, np.float32), "mean": np.ones(LAYOUT.size, np.float32)}
    for less, is_guilty in ((0.999, False), (1.0, False), (1.001, True)):
        claimed = {name: values.copy() for name, values in final.items()}
        claimed["params"][600] += np.float32(less * 2 * LIMIT / (1 << 30))
        assert judged(start, final, claimed) is is_guilty


def test_the_verdict_is_the_last_value_and_noise_tensors_are_no_input():
    assert (GRAPH.nodes[-1].kind, GRAPH.nodes[-1].shape) == ("bool", ())
    assert GRAPH.outputs[0].value == len(GRAPH.inputs) + len(GRAPH.nodes) - 1
    assert not [name for name in NAMES if name.endswith("params/c")]
    assert "start/mean/a" not in NAMES
