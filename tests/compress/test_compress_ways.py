"""The second way to code values: many at a time in dense payloads, in the light of those before them in sparse ones."""

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress import ans, context_model, payload_body, symbol_stream
from farflung.compress.payload import HEADER_BYTES, ContributionKey, PayloadHeader, pack
from farflung.compress.registry import make
from farflung.core.errors import ProtocolError
from farflung.core.ids import Hash, PeerId
from farflung.core.tensor_layout import TensorLayout

ABOUT = ContributionKey(3, 1, Hash(b"\x01" * 32), PeerId(b"\x02" * 32))
COUNT = 9_001
LAYOUT = TensorLayout.of({"w": (COUNT,)})
BOTH = payload_body.VALUES | payload_body.SECOND


def codec_of(kind, bits, topk=256):
    return make(kind, value_bits=bits, topk=topk, chunk=1024, transform="raw", rank=1, error_decay=0.9)


def values_of(size=COUNT):
    """Normal values, of which a stretch in ten is ten times as large."""
    random = np.random.default_rng(8)
    return (random.standard_normal(size) * np.where(np.arange(size) // 100 % 10, 1, 10)).astype(np.float32)


def framed(codec, body):
    return pack(PayloadHeader(codec.form, LAYOUT.id, ABOUT), bytes(body))


def code_of(codec, body):
    with pytest.raises(ProtocolError) as caught:
        codec.decode(framed(codec, body), LAYOUT, ABOUT)
    return caught.value.code


@pytest.fixture
def many(monkeypatch):
    """Few values are many."""
    monkeypatch.setattr(symbol_stream, "MANY", 1000)


def both_ways(monkeypatch, codec, values):
    """The payload with values one at a time, and with many at a time."""
    one = codec.encode(None, values, LAYOUT, ABOUT)[1]
    monkeypatch.setattr(symbol_stream, "MANY", 1000)
    return one, codec.encode(None, values, LAYOUT, ABOUT)[1]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_many_values_at_a_time_say_the_same_in_about_as_many_bytes(monkeypatch, bits):
    codec = codec_of("dense", bits)
    one, more = both_ways(monkeypatch, codec, values_of())
    assert (one[HEADER_BYTES], more[HEADER_BYTES]) == (payload_body.VALUES, BOTH)
    said = codec.decode(more, LAYOUT, ABOUT).tobytes()
    monkeypatch.undo()
    assert said == codec.decode(one, LAYOUT, ABOUT).tobytes()
    assert len(more) < 1.06 * len(one)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_what_cannot_be_coded_shorter_goes_as_it_is(many, bits):
    top = {1: 1, 2: 3, 4: 14, 8: 254}[bits]
    codec, values = codec_of("dense", bits), np.random.default_rng(1).integers(0, top + 1, COUNT) - top / 2
    payload = codec.encode(None, values.astype(np.float32), LAYOUT, ABOUT)[1]
    assert len(payload) <= codec.bound(LAYOUT)
    assert np.isfinite(codec.decode(payload, LAYOUT, ABOUT)).all()
    if bits in (1, 8):
        assert payload[HEADER_BYTES] == 0
        assert len(payload) == codec.bound(LAYOUT)


def test_only_dense_sections_of_many_values_take_many_at_a_time():
    assert symbol_stream.MANY == 1 << 19
    form = codec_of("dense", 2).form
    assert [payload_body._is_many(count, form) for count in (symbol_stream.MANY - 1, symbol_stream.MANY)] == [
        False,
        True,
    ]
    assert not payload_body._is_many(symbol_stream.MANY, codec_of("topk", 2).form)
    assert not payload_body._is_many(symbol_stream.MANY, codec_of("dense", 16).form)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_other_way_than_the_count_asks_for_is_refused(many, monkeypatch, bits):
    codec = codec_of("dense", bits)
    body = bytearray(codec.encode(None, values_of(), LAYOUT, ABOUT)[1][HEADER_BYTES:])
    for flags in (payload_body.VALUES, payload_body.SECOND, BOTH | payload_body.SUPPORTS, 8 | BOTH):
        body[0] = flags
        assert code_of(codec, body) == "FF-COMP-019"
    body[0] = BOTH
    monkeypatch.undo()
    assert code_of(codec, body) == "FF-COMP-019"


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_padding_of_many_values_is_refused(many, bits):
    codec = codec_of("dense", bits)
    payload = codec.encode(None, values_of(), LAYOUT, ABOUT)[1]
    assert COUNT * bits % 8 or bits == 8
    coded, rest = symbol_stream.halve(np.zeros(COUNT, np.uint8), bits)
    for place in range(2 if bits == 8 else 1):
        halves = [coded.copy(), np.frombuffer(rest, np.uint8).copy()]
        halves[place][-1] |= 128
        with pytest.raises(ProtocolError) as caught:
            symbol_stream.whole(halves[0], memoryview(halves[1].tobytes()), COUNT, bits)
        assert caught.value.code == "FF-COMP-012"
    if bits == 8:
        broken = bytearray(payload[HEADER_BYTES:])
        broken[-1] |= 128
        assert code_of(codec, broken) == "FF-COMP-012"


@pytest.mark.parametrize(("kind", "bits"), [("dense", 2), ("dense", 4), ("dense", 8), ("topk", 2)])
def test_no_broken_payload_of_the_second_way_says_the_same_or_what_is_not_finite(many, kind, bits):
    codec, random = codec_of(kind, bits), np.random.default_rng(4)
    payload = codec.encode(None, values_of(), LAYOUT, ABOUT)[1]
    body = payload[HEADER_BYTES:]
    assert body[0] & BOTH == BOTH
    original = codec.decode(payload, LAYOUT, ABOUT).tobytes()
    refused = 0
    for number in range(24):
        broken = bytearray(body)
        if number % 3 == 0:
            broken[random.integers(1, len(body))] ^= 1 << random.integers(8)
        elif number % 3 == 1:
            del broken[random.integers(1, len(body)) :]
        else:
            at = random.integers(1, len(body) - 8)
            broken[at : at + 8] = random.bytes(8)
        try:
            decoded = codec.decode(framed(codec, broken), LAYOUT, ABOUT)
        except ProtocolError:
            refused += 1
            continue
        assert np.isfinite(decoded).all()
        assert decoded.tobytes() != original
    assert refused >= 8


@given(st.integers(0, 5000), st.lists(st.integers(1, 50), min_size=4, max_size=4), st.integers(0, 1 << 32))
@settings(max_examples=40)
def test_symbols_in_context_come_back(count, weights, seed):
    shares = np.array(weights) / sum(weights)
    symbols = np.random.default_rng(seed).choice(4, count, p=shares).astype(np.uint8)
    data = context_model.encode(symbols)
    assert np.array_equal(context_model.decode(memoryview(data), count), symbols)
    if count:
        with contextlib.suppress(ProtocolError):
            changed = context_model.decode(memoryview(b"\xff" + data[1:]), count)
            assert data[0] == 255 or not np.array_equal(changed, symbols)


@pytest.mark.parametrize(("count", "lanes"), [(0, 1), (1, 1), (10, 4), (12, 4), (2049, 2)])
def test_a_lane_has_a_stretch_of_the_values(count, lanes):
    order = context_model.order(count, lanes)
    assert sorted(order.tolist()) == list(range(count))
    stretches = [order[lane::lanes] for lane in range(lanes)]
    assert np.concatenate(stretches).tolist() == list(range(count))
    assert max(map(len, stretches)) - min(map(len, stretches)) <= 1


def test_large_values_that_come_together_cost_less():
    random = np.random.default_rng(3)
    large = np.repeat(random.integers(0, 2, 400), 40)
    symbols = np.where(large, random.choice([0, 3], large.size), random.choice([1, 2], large.size))
    coded = symbols.astype(np.uint8)
    assert len(context_model.encode(coded)) < 0.7 * len(symbol_stream.encode(coded, 4))


def test_a_sparse_payload_takes_the_shorter_way(monkeypatch):
    """Where large values come alone, contexts are only learnt in vain."""
    codec, random = codec_of("topk", 2, 1024), np.random.default_rng(2)
    together, alone = values_of(), random.choice([1.0, 1.0, 1.0, -1.0, 4.0], COUNT).astype(np.float32)
    for values, way in ((together, BOTH), (alone, payload_body.VALUES)):
        payload = codec.encode(None, values, LAYOUT, ABOUT)[1]
        assert payload[HEADER_BYTES] & BOTH == way
        with monkeypatch.context() as patch:
            patch.setattr(context_model, "encode", lambda coded: bytes(1 << 20))
            other = codec.encode(None, values, LAYOUT, ABOUT)[1]
        assert (len(payload) < len(other)) == (way == BOTH)
        assert codec.decode(payload, LAYOUT, ABOUT).tobytes() == codec.decode(other, LAYOUT, ABOUT).tobytes()


def test_contexts_of_other_values_than_two_bits_are_refused():
    for bits in (1, 4, 8, 16, 32):
        codec = codec_of("topk", bits)
        body = bytearray(codec.encode(None, values_of(), LAYOUT, ABOUT)[1][HEADER_BYTES:])
        body[0] |= BOTH
        assert code_of(codec, body) == "FF-COMP-019"


def test_contexts_that_are_longer_than_the_plain_form_are_refused(monkeypatch):
    codec = codec_of("topk", 2, 1024)
    values = np.random.default_rng(5).choice([-2.0, -1.0, 1.0, 2.0], COUNT).astype(np.float32)
    payload = codec.encode(None, values, LAYOUT, ABOUT)[1]
    assert not payload[HEADER_BYTES] & payload_body.VALUES
    stream = context_model.encode(
        symbol_stream.unpack_raw(np.frombuffer(payload[-((COUNT + 3) // 4) :], np.uint8), COUNT, 2)
    )
    words = (len(stream) - ans.STATE_BYTES * symbol_stream.lanes_of(COUNT)) // 2
    body = bytearray(payload[HEADER_BYTES : -((COUNT + 3) // 4)] + struct.pack("<I", words) + stream)
    body[0] |= BOTH
    monkeypatch.setattr(payload_body, "bound", lambda *_: 1 << 20)
    assert code_of(codec, body) == "FF-COMP-019"
