"""Draws of simulated networks: the published generator, and numbers that have the distribution that they should."""

from __future__ import annotations

import math
from statistics import fmean, median, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.advice.simulation import random_draws
from farflung.advice.simulation.random_draws import SIGMA, WORD, normal, spread, waited, words

WORDS = st.integers(0, WORD)

# Philox2x32-10 of Random123's kat_vectors: counter, key, result.
KNOWN = [
    ((0x00000000, 0x00000000), 0x00000000, (0xFF1DAE59, 0x6CD10DF2)),
    ((0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
    ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_the_generator_gives_the_published_answers(counter: tuple[int, int], key: int, result: tuple[int, int]) -> None:
    assert words(key, *counter) == result


@given(WORDS, WORDS, WORDS)
def test_nothing_on_the_way_of_the_generator_is_over_63_bits(key: int, left: int, right: int) -> None:
    """numba lets LLVM suppose so: a product of 64 bits gave other numbers compiled than plain."""
    assert max(random_draws._LOW, random_draws._HIGH) * WORD + (1 << 48) < 1 << 63
    assert all(0 <= word <= WORD for word in words(key, left, right))


@given(WORDS, st.integers(1, 1 << 40))
def test_a_wait_is_minus_the_logarithm_of_its_word(word: int, mean: int) -> None:
    exact = -math.log((2 * word + 1) / (1 << 33)) * mean
    assert waited(word, mean) == pytest.approx(exact, rel=1e-6, abs=2 + mean * 2e-6)
    assert 0 <= waited(word, mean) <= 23 * mean


def test_waits_of_all_words_have_their_mean_and_their_variance() -> None:
    waits = [waited(words(7, node, 0)[0], 1 << 30) / (1 << 30) for node in range(40_000)]
    assert fmean(waits) == pytest.approx(1, rel=0.02)
    assert pvariance(waits) == pytest.approx(1, rel=0.05)
    assert sum(wait > 3 for wait in waits) == pytest.approx(40_000 * math.exp(-3), rel=0.08)


def test_normal_numbers_have_mean_0_and_variance_1_and_end_at_six() -> None:
    numbers = [normal(3, node, 0) / SIGMA for node in range(20_000)]
    assert fmean(numbers) == pytest.approx(0, abs=0.03)
    assert pvariance(numbers) == pytest.approx(1, rel=0.04)
    assert max(map(abs, numbers)) <= 6


@given(st.integers(1, 1 << 40), st.integers(0, 2 * SIGMA), st.integers(-6 * SIGMA, 6 * SIGMA))
def test_a_spread_number_is_log_normal_and_fits_63_bits(middle: int, sigma: int, z: int) -> None:
    found = spread(middle, sigma, z)
    exact = middle * math.exp(sigma / SIGMA * z / SIGMA)
    assert 0 <= found < 1 << 62
    assert found == pytest.approx(exact, rel=1e-4, abs=2 * math.exp(max(0.0, sigma / SIGMA * z / SIGMA)))


def test_the_middle_of_spread_numbers_is_the_median() -> None:
    found = [spread(1000, SIGMA, normal(9, node, 0)) for node in range(10_000)]
    assert median(found) == pytest.approx(1000, rel=0.04)
    assert pvariance([math.log(max(1, each)) for each in found]) == pytest.approx(1, rel=0.05)


def test_places_and_nodes_and_keys_are_drawn_apart() -> None:
    seen = {words(key, node, place) for key in range(10) for node in range(20) for place in range(20)}
    assert len(seen) == 4000
