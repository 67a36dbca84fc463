"""What comes from elsewhere: any bytes give values or ProtocolError, in bounded memory, and nothing passes twice."""

import contextlib
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress.payload import HEADER_BYTES, About, Header, pack, unpack
from farflung.compress.registry import NAMES, make
from farflung.core.errors import PolicyError, ProtocolError, VerificationError
from farflung.core.ids import Hash, PeerId
from farflung.core.layout import Layout

ABOUT = About(3, 1, Hash(b"\x01" * 32), PeerId(b"\x02" * 32))
LAYOUT = Layout.of({"a": (21,), "b": (3,), "c": (2, 2)})
CODECS = [make(name, topk=3, chunk=9, error_decay=0.75) for name in NAMES]
CASES = settings(max_examples=60, deadline=None)
VALUES = np.random.default_rng(5).standard_normal(LAYOUT.size).astype(np.float32)


def label(codec):
    return codec.name


def payload_of(codec, layout=LAYOUT, about=ABOUT, values=VALUES):
    return codec.encode(None, values, layout, about)[1]


def framed(codec, body):
    return pack(Header(codec.id, LAYOUT.id, ABOUT), body)


def code_of(codec, payload, layout=LAYOUT, about=ABOUT):
    with pytest.raises(ProtocolError) as caught:
        codec.decode(payload, layout, about)
    return caught.value.code


@pytest.mark.parametrize("codec", CODECS, ids=label)
def test_a_payload_cut_anywhere_is_refused(codec):
    payload = payload_of(codec)
    for length in range(len(payload)):
        code_of(codec, payload[:length])
        if length >= HEADER_BYTES:  # and when its header tells the truth about the cut
            assert code_of(codec, framed(codec, payload[HEADER_BYTES:length])).startswith("FF-COMP-01")


@pytest.mark.parametrize("codec", CODECS, ids=label)
def test_a_payload_with_bytes_after_it_is_refused(codec):
    payload = payload_of(codec)
    for extra in (b"\0", b"\xff", bytes(8), bytes(1 << 16)):
        assert code_of(codec, payload + extra) in ("FF-COMP-002", "FF-COMP-010")
        assert code_of(codec, framed(codec, payload[HEADER_BYTES:] + extra)) in ("FF-COMP-002", "FF-COMP-011")


@pytest.mark.parametrize("codec", CODECS, ids=label)
def test_no_flipped_bit_says_the_same_as_the_payload(codec):
    payload = payload_of(codec)
    original = codec.decode(payload, LAYOUT, ABOUT)
    accepted = 0
    for bit in range(8 * len(payload)):
        flipped = bytearray(payload)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            decoded = codec.decode(bytes(flipped), LAYOUT, ABOUT)
        except ProtocolError:
            continue
        assert bit >= 8 * HEADER_BYTES
        assert np.isfinite(decoded).all()
        assert not np.array_equal(decoded, original)
        accepted += 1
    assert accepted > 0


@CASES
@given(st.binary(max_size=80), st.sampled_from(CODECS))
def test_any_body_gives_finite_values_or_a_protocol_error(body, codec):
    try:
        decoded = codec.decode(framed(codec, body), LAYOUT, ABOUT)
    except ProtocolError:
        return
    assert decoded.shape == (LAYOUT.size,)
    assert np.isfinite(decoded).all()


@CASES
@given(st.data(), st.sampled_from(CODECS))
def test_a_body_with_some_bytes_replaced_gives_finite_values_or_a_protocol_error(data, codec):
    body = bytearray(payload_of(codec)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        assert np.isfinite(codec.decode(framed(codec, bytes(body)), LAYOUT, ABOUT)).all()


@CASES
@given(st.binary(max_size=300), st.sampled_from(CODECS))
def test_any_bytes_at_all_are_refused(data, codec):
    code_of(codec, data)


@pytest.mark.parametrize("codec", CODECS, ids=label)
def test_a_payload_is_good_for_one_place_only(codec):
    payload = payload_of(codec)
    other = b"\x09" * 32
    assert code_of(codec, payload, about=ABOUT._replace(round=4)) == "FF-COMP-007"
    assert code_of(codec, payload, about=ABOUT._replace(phase=0)) == "FF-COMP-007"
    assert code_of(codec, payload, about=ABOUT._replace(base_root=Hash(other))) == "FF-COMP-008"
    assert code_of(codec, payload, about=ABOUT._replace(peer=PeerId(other))) == "FF-COMP-009"
    renamed = Layout.of({"a": (21,), "b": (3,), "d": (2, 2)})
    assert code_of(codec, payload, layout=renamed) == "FF-COMP-006"


@pytest.mark.parametrize(
    ("at", "code"),
    [
        (0, "FF-COMP-003"),
        (4, "FF-COMP-003"),
        (5, "FF-COMP-005"),
        (6, "FF-COMP-007"),
        (7, "FF-COMP-004"),
        (8, "FF-COMP-007"),
        (12, "FF-COMP-006"),
        (44, "FF-COMP-008"),
        (76, "FF-COMP-009"),
        (108, "FF-COMP-010"),
        (115, "FF-COMP-010"),
    ],
)
def test_each_field_of_the_header_is_checked(at, code):
    payload = bytearray(payload_of(CODECS[0]))
    payload[at] ^= 0x40
    assert code_of(CODECS[0], bytes(payload)) == code


def test_a_codec_does_not_read_another_codecs_payload():
    for codec in CODECS:
        for other in CODECS:
            if codec is not other:
                assert code_of(codec, payload_of(other)) in ("FF-COMP-002", "FF-COMP-005")


def test_a_length_that_lies_allocates_nothing():
    sparse = CODECS[2]
    body = bytearray(payload_of(sparse)[HEADER_BYTES:])
    tracemalloc.start()
    for length in (0, 1, 1 << 16, 1 << 31, (1 << 32) - 1):
        body[4:8] = struct.pack("<I", length)
        code_of(sparse, framed(sparse, bytes(body)))
    code_of(sparse, bytes(200_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_unary_plane_longer_than_any_support_needs_is_refused_by_its_length():
    sparse = CODECS[2]
    body = bytearray(payload_of(sparse)[HEADER_BYTES:])
    # 9 gaps over 12 skipped elements with r = 0: at most 21 bits in the first slab
    for length in (1, 4):
        body[4:8] = struct.pack("<I", length)
        with pytest.raises(ProtocolError, match="a unary plane of") as caught:
            sparse.decode(framed(sparse, bytes(body)), LAYOUT, ABOUT)
        assert caught.value.code == "FF-COMP-013"


def test_nan_and_infinity_in_an_exact_payload_are_refused():
    dense = CODECS[0]
    body = bytearray(payload_of(dense)[HEADER_BYTES:])
    for bad in (np.nan, np.inf, -np.inf):
        body[8:12] = struct.pack("<f", bad)
        assert code_of(dense, framed(dense, bytes(body))) == "FF-COMP-017"


def test_an_index_in_the_padding_of_the_last_chunk_is_refused():
    layout = Layout.of({"w": (3,)})
    codec = make("topk_2bit", topk=1, chunk=8, error_decay=0.0)
    for gap in range(6):
        unary = np.packbits(np.eye(1, gap + 1, gap, dtype=np.uint8)[0], bitorder="little").tobytes()
        body = struct.pack("<eeI", 1.0, 1.0, len(unary)) + unary + b"\0\0"
        payload = pack(Header(codec.id, layout.id, ABOUT), body)
        if gap < 3:
            assert codec.decode(payload, layout, ABOUT).tolist() == [float(i == gap) for i in range(3)]
        else:
            assert code_of(codec, payload, layout=layout) == "FF-COMP-014"


def test_an_index_in_the_next_chunk_is_refused():
    layout = Layout.of({"w": (8,)})
    codec = make("topk_2bit", topk=1, chunk=4, error_decay=0.0)
    for gaps, good in ([(3, 3), True], [(4, 0), False], [(0, 4), False]):
        unary = np.packbits(
            np.concatenate([np.eye(1, g + 1, g, dtype=np.uint8)[0] for g in gaps]), bitorder="little"
        )
        body = struct.pack("<eeI", 1.0, 1.0, unary.size) + unary.tobytes() + b"\0\0"
        payload = pack(Header(codec.id, layout.id, ABOUT), body)
        if good:
            assert codec.decode(payload, layout, ABOUT).tolist() == [0, 0, 0, 1] * 2
        else:
            assert code_of(codec, payload, layout=layout) == "FF-COMP-014"


def test_the_frame_is_read_without_a_copy_and_only_as_long_as_allowed():
    frame = pack(Header(9, LAYOUT.id, ABOUT), b"body")
    place = {"layout_id": LAYOUT.id, "codec_id": 9, **ABOUT._asdict()}
    assert bytes(unpack(frame, **place, body_limit=4)) == b"body"
    with pytest.raises(ProtocolError) as caught:
        unpack(frame, **place, body_limit=3)
    assert caught.value.code == "FF-COMP-002"


@pytest.mark.parametrize("change", [{"round": 1 << 32}, {"round": -1}, {"phase": 256}, {"peer": b"short"}])
def test_a_header_that_does_not_fit_is_never_written(change):
    with pytest.raises(VerificationError) as caught:
        pack(Header(1, LAYOUT.id, ABOUT._replace(**change)), b"")
    assert caught.value.code == "FF-COMP-022"


def test_a_frame_above_the_table_of_bounds_is_never_written(monkeypatch):
    monkeypatch.setattr("farflung.core.limits.PAYLOAD_BYTES", 120)
    with pytest.raises(PolicyError) as caught:
        pack(Header(1, LAYOUT.id, ABOUT), bytes(5))
    assert caught.value.code == "FF-COMP-023"
