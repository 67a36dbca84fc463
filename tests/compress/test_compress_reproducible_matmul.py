"""Canonical products: close to the exact ones, and the same bits whatever order and library sum them."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress import reproducible_matmul
from farflung.compress.reproducible_matmul import (
    BITS,
    LIMB_BITS,
    LONG,
    SHORT,
    orthonormal,
    product,
    product_across,
    signs,
)

CASES = settings(max_examples=40)


def gaussian(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_product_is_within_its_bound_of_the_exact_one():
    left, right = gaussian(7, 300) * np.float32(1e-20), gaussian(300, 3, seed=1) * np.float32(1e15)
    found = product(left, right)
    wide = left.astype(np.longdouble) @ right.astype(np.longdouble)
    bound = 300 * 2.0**-BITS * float(abs(left).max()) * float(abs(right).max())
    assert np.abs(found - wide).max() <= bound
    assert np.abs(found - wide).max() > 0  # the bound is not idle


def test_no_sum_of_integers_can_leave_53_bits():
    """Both limits are reached: |X| may be 2^24 itself, since the largest element is rounded as well."""
    assert SHORT << 2 * BITS <= 1 << 53
    assert LONG << BITS + LIMB_BITS <= 1 << 53
    assert SHORT <= LONG


def test_product_of_24_bit_integers_is_exact_at_every_length():
    for inner in (1, 31, 32, 33, 1000, LONG, LONG + 1, 3 * LONG):
        random = np.random.default_rng(inner)
        top = (1 << BITS) - 1
        left = random.integers(-top, top + 1, (2, inner)).astype(np.float64)
        right = random.integers(-top, top + 1, (inner, 2)).astype(np.float64)
        left[0, 0], right[0, 0] = top, top
        exact = left.astype(object).astype(int).astype(object) @ right.astype(int).astype(object)
        found = product(left, right)
        limit = 2.0**-52 * (4 + inner // LONG)  # roundings after the exact sums
        assert all(
            abs(Fraction(found[i, j]) - exact[i, j]) <= limit * abs(exact).max() for i in range(2) for j in range(2)
        )


@CASES
@given(st.integers(1, 3 * 40), st.integers(0, 2**32))
def test_product_keeps_its_bits_when_summands_are_in_another_order(inner, seed):
    left, right = gaussian(5, inner, seed=seed), gaussian(inner, 3, seed=seed + 1)
    order = np.random.default_rng(seed).permutation(inner)
    assert product(left, right).tobytes() == product(left[:, order], right[order]).tobytes()


@pytest.mark.parametrize("inner", [1, 32, 33, 5000, LONG + 7])
def test_product_across_is_the_product_of_the_transpose(inner, monkeypatch):
    left, right = gaussian(inner, 3), gaussian(inner, 2, seed=1)
    expected = product(left.T, right).tobytes()
    assert product_across(left, right).tobytes() == expected
    monkeypatch.setattr(reproducible_matmul, "_ELEMENTS", 100)
    assert product_across(left, right).tobytes() == expected


def test_product_keeps_its_bits_for_views_transposes_and_blocks_of_rows(monkeypatch):
    left, right = gaussian(50, 400), gaussian(400, 4, seed=1)
    whole = product(left, right)
    assert product(np.asfortranarray(left), right).tobytes() == whole.tobytes()
    assert product(left.T.copy().T, np.asfortranarray(right)).tobytes() == whole.tobytes()
    monkeypatch.setattr(reproducible_matmul, "_ELEMENTS", 1200)
    assert product(left, right).tobytes() == whole.tobytes()


def test_plain_product_does_not_keep_its_bits():
    """The reason for all this: if this ever passes without canonical sums, they are not needed."""
    left, right = gaussian(50, 4000), gaussian(4000, 4, seed=1)
    order = np.random.default_rng(0).permutation(4000)
    assert not np.array_equal(left @ right, left[:, order] @ right[order])


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (5, 4), (400, 8), (70001, 3)])
def test_orthonormal_columns_span_the_same_space(shape):
    matrix = gaussian(*shape)
    basis = orthonormal(matrix).astype(np.float64)
    assert np.abs(basis.T @ basis - np.eye(shape[1])).max() < 1e-6
    rest = matrix - basis @ (basis.T @ matrix)
    assert np.abs(rest).max() < 1e-5 * np.abs(matrix).max()
    upper = basis.T @ matrix
    assert np.allclose(np.tril(upper, -1), 0, atol=1e-4)
    assert (np.diag(upper) > 0).all()


def test_orthonormal_columns_survive_nearly_parallel_ones():
    column = gaussian(1000, 1)
    matrix = np.concatenate([column, column + np.float32(1e-4) * gaussian(1000, 1, seed=1)], axis=1)
    basis = orthonormal(matrix).astype(np.float64)
    assert np.abs(basis.T @ basis - np.eye(2)).max() < 1e-6


@CASES
@given(st.integers(1, 9), st.integers(0, 2**32), st.sampled_from([0.0, 1e-38, 1e-7, 1.0, 1e30]), st.data())
def test_vanished_columns_are_replaced(rows, seed, scale, data):
    count = data.draw(st.integers(1, rows))
    rank = data.draw(st.integers(0, count))
    matrix = (gaussian(rows, rank, seed=seed) @ gaussian(rank, count, seed=seed + 1)) * np.float32(scale)
    basis = orthonormal(matrix.astype(np.float32))
    assert np.isfinite(basis).all()
    assert np.abs(basis.T.astype(np.float64) @ basis - np.eye(count)).max() < 1e-5


def test_zero_matrix_of_full_width_becomes_an_orthonormal_basis():
    for rows in range(1, 9):
        basis = orthonormal(np.zeros((rows, rows), np.float32)).astype(np.float64)
        assert np.abs(basis.T @ basis - np.eye(rows)).max() < 1e-6


def test_bits_are_pinned():
    """Small numbers on any machine: were they to change, peers of two releases would disagree."""
    left = (np.arange(-600, 600, dtype=np.float32) / np.float32(7)).reshape(6, 200)
    right = (np.arange(400, dtype=np.float32) / np.float32(3) - 50).reshape(200, 2)
    found = product(left, right)
    assert [x.hex() for x in found[0]] == PINNED_PRODUCT
    assert orthonormal(left.T[:5, :3].copy()).tobytes().hex() == PINNED_BASIS
    assert signs(bytes(32), 8, 1).tolist() == PINNED_SIGNS


PINNED_PRODUCT = ["-0x1.4c2e187586184p+17", "-0x1.557d6db764924p+17"]
PINNED_BASIS = (
    "0fbde5be85a221bfd044c3be095be5beda5ea1bedb16f43e04f9e4be7f9f"
    "8a3a0245c33efe96e4bed070a23e2fdc2abffa34e4bec92e223fa142433e"
)
PINNED_SIGNS = [1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0, -1.0]
