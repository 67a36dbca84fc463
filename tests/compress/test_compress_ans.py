"""Streams of symbols: what is written is read, costs what the shares say, and nothing else is accepted."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress import ans, symbol_stream
from farflung.core.errors import ProtocolError

CASES = settings(max_examples=40)


def shares_of(symbols, weights, bits):
    """Starts and shares of symbols whose frequencies are `weights`, and the table."""
    sums = np.concatenate([[0], np.cumsum(weights)])
    table = np.arange(sums.size) + ((1 << bits) - len(weights)) * sums // sums[-1]
    return table[symbols].astype(np.uint32), np.diff(table)[symbols].astype(np.uint32), table


def read(data, count, table, bits, lanes):
    stream = ans.RansDecoder.of(memoryview(data), bits, lanes)
    found = []
    for at in range(0, count, lanes):
        own, slots = ans.slots(stream.states, stream.cursor, bits, min(lanes, count - at))
        symbols = np.searchsorted(table, slots, "right") - 1
        pair = (own, slots, table[symbols], np.diff(table)[symbols])
        if not ans.advance(stream.states, stream.words, stream.cursor, bits, pair):
            raise ans.broken("it ends too early")
        found.append(symbols)
    stream.close()
    return np.concatenate([np.empty(0, np.int64), *found])


@CASES
@given(
    st.integers(0, 300),
    st.lists(st.integers(1, 10_000), min_size=1, max_size=40),
    st.sampled_from([6, 14, 18]),
    st.sampled_from([1, 2, 16]),
    st.integers(0, 1 << 32),
)
def test_what_is_written_is_read_with_nothing_left(count, weights, bits, lanes, seed):
    symbols = np.random.default_rng(seed).integers(0, len(weights), count)
    starts, freqs, table = shares_of(symbols, weights, bits)
    data = ans.encode(starts, freqs, bits, lanes)
    assert read(data, count, table, bits, lanes).tolist() == symbols.tolist()


@pytest.mark.parametrize("bits", [14, 18])
def test_a_stream_costs_its_shares_and_two_bytes_a_lane(bits):
    random = np.random.default_rng(2)
    weights = np.array([1, 5, 25, 125, 625])
    symbols = random.choice(5, 8192, p=weights / weights.sum())
    starts, freqs, _ = shares_of(symbols, weights, bits)
    for lanes in (1, 8, 64):
        ideal = float((bits - np.log2(freqs)).sum())
        size = 8 * len(ans.encode(starts, freqs, bits, lanes))
        assert ideal <= size <= 1.001 * ideal + 40 * lanes


@pytest.mark.parametrize(("count", "lanes"), [(0, 1), (1, 1), (2047, 1), (2048, 2), (16_384, 16), (1 << 30, 256)])
def test_lanes_are_a_function_of_the_count(count, lanes):
    assert ans.lanes_of(count, 1024) == lanes


def sample():
    symbols = np.random.default_rng(4).integers(0, 5, 200)
    starts, freqs, table = shares_of(symbols, [1, 2, 3, 4, 90], 14)
    return symbols, table, ans.encode(starts, freqs, 14, 4)


def test_every_other_stream_is_another_list_or_refused():
    symbols, table, data = sample()
    for bit in range(0, 8 * len(data), 3):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = read(bytes(flipped), symbols.size, table, 14, 4)
        except ProtocolError as error:
            if error.code != "FF-COMP-018":
                raise
            continue
        assert found.tolist() != symbols.tolist()


@pytest.mark.parametrize("cut", [-2, -4, 2, 4])
def test_words_that_are_missing_or_left_are_refused(cut):
    symbols, table, data = sample()
    changed = data[:cut] if cut < 0 else data + bytes(cut)
    with pytest.raises(ProtocolError) as caught:
        read(changed, symbols.size, table, 14, 4)
    assert caught.value.code == "FF-COMP-018"


def test_a_state_below_the_range_is_refused():
    with pytest.raises(ProtocolError) as caught:
        ans.RansDecoder.of(memoryview(b"\xff\xff\xff\x00\x00"), 14, 1)
    assert caught.value.code == "FF-COMP-018"


def test_states_that_are_not_where_encoders_start_are_refused():
    stream = ans.RansDecoder.of(memoryview(b"\x01\x00\x00\x01\x00"), 14, 1)
    with pytest.raises(ProtocolError, match="broken stream") as caught:
        stream.close()
    assert caught.value.code == "FF-COMP-018"


@CASES
@given(st.integers(0, 1500), st.sampled_from([2, 4, 15, 255, 256]), st.integers(0, 1 << 32))
def test_symbols_of_values_come_back(count, alphabet, seed):
    random = np.random.default_rng(seed)
    symbols = random.choice(alphabet, count, p=random.dirichlet(np.full(alphabet, 0.3))).astype(np.uint8)
    assert np.array_equal(
        symbol_stream.decode(memoryview(symbol_stream.encode(symbols, alphabet)), count, alphabet), symbols
    )


@pytest.mark.parametrize("alphabet", [4, 15, 255])
def test_values_cost_their_entropy(alphabet):
    random = np.random.default_rng(6)
    share = np.exp(-0.5 * ((np.arange(alphabet) - alphabet / 2) / (alphabet / 6)) ** 2)
    share /= share.sum()
    symbols = random.choice(alphabet, 1 << 16, p=share).astype(np.uint8)
    entropy = -float((share * np.log2(share)).sum())
    assert 8 * len(symbol_stream.encode(symbols, alphabet)) <= 1.01 * entropy * symbols.size + 40 * 64


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16, 32])
def test_values_are_split_and_joined(bits):
    random = np.random.default_rng(7)
    symbols = random.integers(0, 1 << bits, 999, dtype=np.uint64).astype(
        {16: np.uint16, 32: np.uint32}.get(bits, np.uint8)
    )
    coded, rest = symbol_stream.split(symbols, bits)
    width = symbol_stream.symbol_bits(bits)
    raw = symbol_stream.pack_raw(coded, width)
    assert raw.size == symbol_stream.raw_bytes(999, width)
    assert raw.size + len(rest) == math.ceil(999 * bits / 8)
    joined = symbol_stream.join(symbol_stream.unpack_raw(raw, 999, width), memoryview(rest), bits)
    assert joined.dtype == symbols.dtype
    assert np.array_equal(joined, symbols)


def test_blocks_start_where_lanes_do():
    assert list(symbol_stream.blocks(9000)) == [
        (0, 256),
        (256, 512),
        (512, 1024),
        (1024, 2048),
        (2048, 4096),
        (4096, 8192),
        (8192, 9000),
    ]
    assert all(first % ans.LANES == 0 for first, _ in symbol_stream.blocks(1 << 20))
