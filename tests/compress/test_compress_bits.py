"""Planes and Rice codes: one valid encoding, and a decoder that only ever raises ProtocolError."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress.bits import (
    pack_plane,
    pack_rice,
    plane_bytes,
    rice_bits,
    rice_mean,
    rice_parameter,
    unpack_plane,
    unpack_rice,
)
from farflung.core.errors import ProtocolError

CASES = settings(max_examples=60)


@CASES
@given(st.lists(st.booleans(), min_size=1, max_size=70))
def test_a_plane_comes_back(bits):
    data = pack_plane(np.array(bits))
    assert len(data) == plane_bytes(len(bits))
    assert unpack_plane(memoryview(data), len(bits)).tolist() == bits


def test_a_plane_with_a_padding_bit_is_refused():
    with pytest.raises(ProtocolError) as caught:
        unpack_plane(memoryview(b"\x08"), 3)
    assert caught.value.code == "FF-COMP-012"


@CASES
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 12)), min_size=1, max_size=50))
def test_gaps_come_back_whatever_the_parameter_of_each(pairs):
    gaps, parameters = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    unary, low = pack_rice(gaps, parameters)
    bits = rice_bits(gaps, parameters)
    assert bits == (sum((gap >> r) + 1 for gap, r in pairs), sum(r for _, r in pairs))
    assert (len(unary), len(low)) == tuple(map(plane_bytes, bits))
    assert unpack_rice(memoryview(unary), memoryview(low), parameters).tolist() == gaps.tolist()


@pytest.mark.parametrize(
    "unary",
    [b"\x00", b"\x01", b"\x07", b"\x03\x00", b"\xff", b"\x00\x00\x00"],
    ids=["no gap", "one missing", "one too many", "a zero byte more", "full", "zeros"],
)
def test_a_unary_plane_of_other_than_two_gaps_is_refused(unary):
    with pytest.raises(ProtocolError) as caught:
        unpack_rice(memoryview(unary), memoryview(b""), np.zeros(2, np.int64))
    assert caught.value.code == "FF-COMP-013"


def test_padding_of_the_remainders_is_refused():
    with pytest.raises(ProtocolError) as caught:
        unpack_rice(memoryview(b"\x03"), memoryview(b"\x10"), np.array([1, 2]))
    assert caught.value.code == "FF-COMP-012"


@pytest.mark.parametrize(
    ("count", "size"), [(1, 4096), (8, 4096), (64, 4096), (256, 4096), (3, 5), (1, 2), (7, 7), (1000, 1009)]
)
def test_the_rice_parameter_is_the_best_one_for_a_uniform_support(count, size):
    costs = [r + rice_mean(count, size, r) for r in range(14)]
    assert costs[rice_parameter(count, 1, size)] <= min(costs) * 1.005


def test_the_expected_cost_is_the_enumerated_one():
    supports = [(a, b) for a in range(9) for b in range(a + 1, 9)]
    for r in range(4):
        bits = [(a >> r) + ((b - a - 1) >> r) + 2 for a, b in supports]
        assert math.isclose(rice_mean(2, 9, r), sum(bits) / len(bits) / 2, rel_tol=1e-9)
