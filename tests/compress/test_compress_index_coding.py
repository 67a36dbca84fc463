"""Supports as symbols: every one comes back, shares are the document's, and costs stay near the floor."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress import ans, index_coding
from farflung.compress.index_coding import ChunkRange
from farflung.core.errors import ProtocolError

CASES = settings(max_examples=30)


def encoded(indices, piece):
    starts, freqs = index_coding.shares(indices, *piece)
    lanes = index_coding.lanes_of(indices.size)
    return ans.encode(starts, freqs, index_coding.BITS, lanes), starts, freqs


def decoded(data, piece, count):
    stream = ans.RansDecoder.of(memoryview(data), index_coding.BITS, index_coding.lanes_of(count))
    indices, status = index_coding.places(stream.states, stream.words, stream.cursor, *piece)
    if status:
        raise index_coding.broken(status)
    stream.close()
    return indices


def random_support(random, piece, share=None):
    chosen = []
    for start in range(0, piece.size, piece.chunk):
        length = min(piece.chunk, piece.size - start)
        p = None if share is None else share[start : start + length] / share[start : start + length].sum()
        chosen.append(start + np.sort(random.choice(length, min(piece.topk, length), replace=False, p=p)))
    return np.concatenate(chosen)


def oracle(indices, piece):
    """The document's page on coded supports, one number at a time: (start, share) of every symbol."""
    logs, powers = (table.tolist() for table in index_coding.tables())
    whole, usual = 1 << 18, min(piece.width, piece.chunk, 4096)
    guess, w = [], 1 << 16
    for _ in range(min(piece.topk, usual) + 1):
        guess.append(1 + (w >> 10))
        w = w * piece.topk * usual // (piece.topk * usual + piece.chunk)
    seen = {True: list(guess), False: list(guess)}
    weights, wanted, symbols = {}, set(indices.tolist()), []
    start, number = 0, 0
    while start < piece.size:
        stop = min(piece.size, start + max(1, 4096 // piece.chunk) * [1, 1, 2, 4, 8][min(number, 4)] * piece.chunk)
        segments = segments_of(piece, start, stop)
        held = [[i for i in range(a, b) if i in wanted] for a, b in segments]
        for (a, b), own in zip(segments, held, strict=True):
            if b % piece.chunk and b != piece.size:
                table = seen[b - a == usual]
                low, high = (
                    count + (whole - len(table)) * sum(table[:count]) // sum(table)
                    for count in (len(own), len(own) + 1)
                )
                symbols.append((low, high - low))

        def weight(i, weights=weights):
            return weights.get((piece.origin + i) % piece.width, 1)

        for turn in range(max(map(len, held))):
            for (a, e), own in zip(segments, held, strict=True):
                if len(own) <= turn:
                    continue
                r = len(own) - turn
                p = own[turn - 1] + 1 if turn else a
                n = e - r - p + 1
                if n == 1:
                    continue

                def f(j, p=p, e=e, r=r, n=n):
                    if j == e - r + 1:
                        return whole
                    above, total = sum(map(weight, range(j, e))), sum(map(weight, range(p, e)))
                    t = r * logs[(above << 14) // total]
                    rest = powers[(t >> 10) % (1 << 14)] >> min(t >> 24, 63)
                    return j - p + ((whole - n) * ((1 << 30) - rest) >> 30)

                symbols.append((f(own[turn]), f(own[turn] + 1) - f(own[turn])))
        for (a, b), own in zip(segments, held, strict=True):
            seen[b - a == usual][len(own)] += 32
        for i in itertools.chain(*held):
            column = (piece.origin + i) % piece.width
            weights[column] = weights.get(column, 1) + 2
        weights = {column: min(value, 4095) for column, value in weights.items()}
        start, number = stop, number + 1
    return symbols


def segments_of(piece, start, stop):
    """First and last element (exclusive) of each."""
    is_long = min(piece.width, piece.chunk) > 4096
    cuts = [
        i
        for i in range(start + 1, stop)
        if i % piece.chunk == 0 or (piece.origin + i) % piece.width == 0 or (is_long and i % piece.chunk % 4096 == 0)
    ]
    return list(itertools.pairwise([start, *cuts, stop]))


@st.composite
def pieces(draw):
    chunk = draw(st.integers(1, 24))
    origin = draw(st.integers(0, 5)) * chunk
    width = draw(st.sampled_from([1, 2, 7, 16, 33, 100, index_coding.EVEN]))
    return ChunkRange(origin, draw(st.integers(1, 90)), chunk, draw(st.integers(1, chunk)), width)


@CASES
@given(pieces(), st.integers(0, 1 << 32))
def test_symbols_are_those_of_the_slow_oracle_and_come_back(piece, seed):
    random = np.random.default_rng(seed)
    indices = random_support(random, piece, random.lognormal(0, 2, piece.size))
    data, starts, freqs = encoded(indices, piece)
    assert list(zip(starts.tolist(), freqs.tolist(), strict=True)) == oracle(indices, piece)
    assert np.array_equal(decoded(data, piece, indices.size), indices)


def test_long_pieces_come_back(subtests):
    for width in [64, 300, 5000, index_coding.EVEN]:
        for chunk, topk in [(4096, 64), (1024, 300), (9000, 20)]:
            with subtests.test(width=width, chunk=chunk, topk=topk):
                piece = ChunkRange(chunk, 40_000, chunk, topk, width)
                indices = random_support(np.random.default_rng(3), piece)
                assert np.array_equal(decoded(encoded(indices, piece)[0], piece, indices.size), indices)


def test_groups_and_long_segments_are_those_of_the_slow_oracle():
    for piece in (
        ChunkRange(0, 50_000, 4096, 9, 128),
        ChunkRange(0, 24_000, 9000, 12, 20_000),
        ChunkRange(1024, 9000, 1024, 5, 300),
        ChunkRange(0, 20_000, 9000, 12, 300),
    ):
        indices = random_support(np.random.default_rng(5), piece)
        _, starts, freqs = encoded(indices, piece)
        assert list(zip(starts.tolist(), freqs.tolist(), strict=True)) == oracle(indices, piece)


def test_what_is_always_chosen_costs_nothing():
    piece = ChunkRange(0, 4096, 64, 64, 64)
    assert len(encoded(np.arange(4096), piece)[1]) == 0


@pytest.mark.parametrize(("topk", "width"), [(1, index_coding.EVEN), (64, 128), (64, index_coding.EVEN), (256, 128)])
def test_a_uniform_support_costs_at_most_two_percent_above_its_floor(topk, width):
    piece = ChunkRange(0, 128 * 4096, 4096, topk, width)
    indices = random_support(np.random.default_rng(6), piece)
    _, _, freqs = encoded(indices, piece)
    bits = index_coding.cost(freqs) / 2**24
    assert abs(bits / float((18 - np.log2(freqs)).sum()) - 1) < 1e-4
    floor = 128 * math.log2(math.comb(4096, topk))
    assert bits <= (1.005 if width == index_coding.EVEN else 1.02) * floor


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_and_columns_that_differ_are_cheap(axis):
    random = np.random.default_rng(7)
    piece = ChunkRange(0, 2048 * 128, 4096, 64, 128)
    scale = random.lognormal(0, 1, 128 if axis else 2048)
    share = np.tile(scale, 2048) if axis else np.repeat(scale, 128)
    indices = random_support(random, piece, share)
    assert index_coding.cost(encoded(indices, piece)[2]) / 2**24 <= (7.0, 7.25)[axis == 0] * indices.size


def test_states_cost_less_than_a_twentieth_of_a_bit_an_index():
    piece = ChunkRange(0, 256 * 4096, 4096, 64, 128)
    indices = random_support(np.random.default_rng(8), piece)
    data, _, freqs = encoded(indices, piece)
    assert 8 * len(data) <= index_coding.cost(freqs) / 2**24 + 0.05 * indices.size


def test_counts_that_a_chunk_does_not_have_are_refused():
    """Five indices in each segment of a chunk that sends five of them."""
    piece = ChunkRange(0, 64, 64, 5, 16)
    table = index_coding._table(index_coding._guess(piece)[0])
    counts = np.full(3, 5)
    data = ans.encode(table[counts].astype(np.uint32), np.diff(table)[counts].astype(np.uint32), index_coding.BITS, 1)
    with pytest.raises(ProtocolError) as caught:
        decoded(data, piece, 5)
    assert caught.value.code == "FF-COMP-014"


def test_a_stream_that_ends_too_early_is_refused():
    piece = ChunkRange(0, 40_000, 4096, 64, 128)
    indices = random_support(np.random.default_rng(9), piece)
    data = encoded(indices, piece)[0]
    with pytest.raises(ProtocolError) as caught:
        decoded(data[: 5 + len(data) // 4 * 2], piece, indices.size)
    assert caught.value.code == "FF-COMP-018"
