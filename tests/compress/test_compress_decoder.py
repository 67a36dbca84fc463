"""What comes from elsewhere: any bytes give values or ProtocolError, in bounded memory, and nothing passes twice."""

import contextlib
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress import payload_body
from farflung.compress.payload import HEADER_BYTES, CodecParameters, ContributionKey, PayloadHeader, pack, unpack
from farflung.compress.registry import make
from farflung.core.errors import PolicyError, ProtocolError, VerificationError
from farflung.core.ids import Hash, PeerId
from farflung.core.tensor_layout import TensorLayout

ABOUT = ContributionKey(3, 1, Hash(b"\x01" * 32), PeerId(b"\x02" * 32))
LAYOUT = TensorLayout.of({"a": (21,), "b": (3,), "c": (2, 2)})
CASES = settings(max_examples=60)
VALUES = np.random.default_rng(5).standard_normal(LAYOUT.size).astype(np.float32)


def codec_of(kind, bits=2, transform="raw", topk=3, chunk=9):
    return make(kind, value_bits=bits, topk=topk, chunk=chunk, transform=transform, rank=4, error_decay=0.75)


CODECS = [codec_of("dense", 32), codec_of("dense", 2), codec_of("topk", 2), codec_of("topk", 8)]


def label(codec):
    return "-".join(map(str, codec.form[:5]))


def payload_of(codec, layout=LAYOUT, about=ABOUT, values=VALUES):
    return codec.encode(None, values, layout, about)[1]


def framed(codec, body, layout=LAYOUT):
    return pack(PayloadHeader(codec.form, layout.id, ABOUT), body)


def code_of(codec, payload, layout=LAYOUT, about=ABOUT):
    with pytest.raises(ProtocolError) as caught:
        codec.decode(payload, layout, about)
    return caught.value.code


def coded_case(kind="topk", bits=2, transform="raw"):
    """A codec, a layout and values whose supports and values are shorter in the coded forms."""
    layout = TensorLayout.of({"w": (16, 32), "v": (256,), "b": (40,)})
    values = np.full(layout.size, 2.0**-9, np.float32)
    values[40 : 40 + 256 : 7] = np.arange(37) - 11.5
    values[296:] = 0.25
    values[296 + 64 : 296 + 96] = 1.0
    return codec_of(kind, bits, transform, 128, 256), layout, values


CODED = [
    coded_case(kind, bits, transform)
    for kind in ("dense", "topk")
    for bits, transform in ((2, "raw"), (4, "auto"), (8, "raw"), (16, "raw"), (32, "raw"))
]


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


@pytest.mark.parametrize("case", CODED, ids=lambda case: label(case[0]))
def test_no_flipped_bit_of_a_coded_payload_says_the_same(case):
    codec, layout, values = case
    payload = payload_of(codec, layout, values=values)
    flags = payload_body.VALUES | (payload_body.SUPPORTS if codec.name == "topk" else 0)
    if (codec.name, codec.value_bits) == ("topk", 2):
        flags |= payload_body.SECOND
    assert (codec.name == "dense" and codec.value_bits >= 16) or payload[HEADER_BYTES] == flags
    original = codec.decode(payload, layout, ABOUT).tobytes()
    for bit in random_bits(payload, 100):
        flipped = bytearray(payload)
        flipped[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(ProtocolError):
            assert codec.decode(bytes(flipped), layout, ABOUT).tobytes() != original


def random_bits(payload, count):
    return np.random.default_rng(3).integers(8 * HEADER_BYTES, 8 * len(payload), count).tolist()


@pytest.mark.slow
def test_ten_thousand_broken_payloads_give_finite_values_or_a_protocol_error():
    """Valid payloads of every codec, changed: bytes replaced, cut, doubled, swapped, or all of the body random."""
    random = np.random.default_rng(11)
    small = [(codec, LAYOUT, payload_of(codec)) for codec in CODECS]
    coded = [(codec, layout, payload_of(codec, layout, values=values)) for codec, layout, values in CODED]
    refused = 0
    for number in range(10_000):
        cases = small if number % 4 else coded
        codec, layout, payload = cases[number // 4 % len(cases)]
        body = broken_body(random, payload[HEADER_BYTES:])
        try:
            decoded = codec.decode(framed(codec, body, layout), layout, ABOUT)
        except ProtocolError:
            refused += 1
            continue
        assert decoded.shape == (layout.size,)
        assert np.isfinite(decoded).all()
    assert 5_000 < refused < 10_000


def broken_body(random, body):
    body = bytearray(body)
    kind = random.integers(6)
    first, last = sorted(random.integers(0, len(body) + 1, 2).tolist())
    if kind == 0:
        return bytes(body[:first])
    if kind == 1:
        return bytes(body[:first] + body[last:])
    if kind == 2:
        return bytes(body[:last] + body[first:])
    if kind == 3:
        return random.bytes(len(body))
    if kind == 4:
        body[first:last] = random.bytes(last - first)
        return bytes(body)
    for _ in range(random.integers(1, 4)):
        body[random.integers(0, min(len(body), 40 if random.integers(2) else len(body)))] = random.integers(256)
    return bytes(body)


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
    renamed = TensorLayout.of({"a": (21,), "b": (3,), "d": (2, 2)})
    assert code_of(codec, payload, layout=renamed) == "FF-COMP-006"


def test_each_field_of_the_header_is_checked(subtests):
    for at, code in [
        (0, "FF-COMP-003"),
        (4, "FF-COMP-003"),
        (5, "FF-COMP-005"),
        (6, "FF-COMP-005"),
        (7, "FF-COMP-005"),
        (8, "FF-COMP-005"),
        (12, "FF-COMP-005"),
        (16, "FF-COMP-005"),
        (18, "FF-COMP-007"),
        (19, "FF-COMP-004"),
        (20, "FF-COMP-007"),
        (24, "FF-COMP-006"),
        (56, "FF-COMP-008"),
        (88, "FF-COMP-009"),
        (120, "FF-COMP-010"),
        (127, "FF-COMP-010"),
    ]:
        with subtests.test(at=at, code=code):
            payload = bytearray(payload_of(CODECS[0]))
            payload[at] ^= 0x40
            assert code_of(CODECS[0], bytes(payload)) == code


def test_a_codec_does_not_read_another_codecs_payload():
    codecs = [*CODECS, codec_of("topk", 2, topk=4), codec_of("topk", 2, chunk=8)]
    for codec in codecs:
        for other in codecs:
            if codec is not other:
                assert code_of(codec, payload_of(other)) in ("FF-COMP-002", "FF-COMP-005")


def test_a_length_that_lies_allocates_nothing():
    codec, layout, values = coded_case()
    body = bytearray(payload_of(codec, layout, values=values)[HEADER_BYTES:])
    at = 1 + 4 * 3 + 1  # flags, levels of three slabs, one bit for each of three pieces
    assert struct.unpack_from("<I", body, at)[0] < len(body)
    tracemalloc.start()
    for length in (0, 1, 1 << 16, 1 << 31, (1 << 32) - 1):
        body[at : at + 4] = struct.pack("<I", length)
        code_of(codec, framed(codec, bytes(body), layout), layout)
    code_of(codec, bytes(200_000), layout)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 21


def test_a_unary_plane_longer_than_any_support_needs_is_refused_by_its_length():
    sparse = CODECS[2]
    body = bytearray(payload_of(sparse)[HEADER_BYTES:])
    assert body[0] == 0
    # 9 gaps over 12 and 3 gaps over 4 skipped elements with r = 0: at most 28 bits
    for length in (1, 5):
        body[9:13] = struct.pack("<I", length)
        with pytest.raises(ProtocolError, match="a unary plane of") as caught:
            sparse.decode(framed(sparse, bytes(body)), LAYOUT, ABOUT)
        assert caught.value.code == "FF-COMP-013"


def test_nan_and_infinity_in_an_exact_payload_are_refused():
    dense = CODECS[0]
    body = bytearray(payload_of(dense)[HEADER_BYTES:])
    for bad in (np.nan, np.inf, -np.inf):
        body[8:12] = struct.pack("<f", bad)
        assert code_of(dense, framed(dense, bytes(body))) == "FF-COMP-017"


def plain(codec, layout, gaps, symbols):
    """A payload of two bits a value, one level for all, in the plain codings (r = 0)."""
    unary = np.packbits(np.concatenate([np.eye(1, g + 1, g, dtype=np.uint8)[0] for g in gaps]), bitorder="little")
    values = np.packbits(np.array([[s & 1, s >> 1] for s in symbols], np.uint8).reshape(-1), bitorder="little")
    body = struct.pack("<BeeI", 0, 1.0, 1.0, unary.size) + unary.tobytes() + values.tobytes()
    return framed(codec, body, layout)


def test_an_index_in_the_padding_of_the_last_chunk_is_refused():
    layout = TensorLayout.of({"w": (3,)})
    codec = codec_of("topk", topk=1, chunk=8)
    for gap in range(6):
        payload = plain(codec, layout, [gap], [2])
        if gap < 3:
            assert codec.decode(payload, layout, ABOUT).tolist() == [float(i == gap) for i in range(3)]
        else:
            assert code_of(codec, payload, layout=layout) == "FF-COMP-014"


def test_an_index_in_the_next_chunk_is_refused():
    layout = TensorLayout.of({"w": (8,)})
    codec = codec_of("topk", topk=1, chunk=4)
    for gaps, good in ([(3, 3), True], [(4, 0), False], [(0, 4), False]):
        payload = plain(codec, layout, gaps, [2, 2])
        if good:
            assert codec.decode(payload, layout, ABOUT).tolist() == [0, 0, 0, 1] * 2
        else:
            assert code_of(codec, payload, layout=layout) == "FF-COMP-014"


@pytest.mark.parametrize("flags", [4, 128, 255])
@pytest.mark.parametrize("codec", CODECS[1:], ids=label)
def test_a_coding_that_is_not_defined_is_refused(codec, flags):
    body = bytearray(payload_of(codec)[HEADER_BYTES:])
    body[0] |= flags
    assert code_of(codec, framed(codec, bytes(body))) == "FF-COMP-019"


def test_a_slab_without_a_full_chunk_is_never_transformed():
    codec, layout, values = CODED[1]
    body = bytearray(payload_of(codec, layout, values=values)[HEADER_BYTES:])
    assert not body[1] & 1  # tensor b
    body[1] |= 1
    assert code_of(codec, framed(codec, bytes(body), layout), layout) == "FF-COMP-019"


def test_a_dense_payload_with_coded_supports_is_refused():
    body = bytearray(payload_of(CODECS[1])[HEADER_BYTES:])
    body[0] |= payload_body.SUPPORTS
    assert code_of(CODECS[1], framed(CODECS[1], bytes(body))) == "FF-COMP-019"


def test_codings_that_are_longer_than_the_plain_ones_are_refused(monkeypatch):
    sparse, dense = codec_of("topk", 32), codec_of("dense", 2)
    with monkeypatch.context() as patch:
        patch.setattr(payload_body, "_plain_bytes", lambda *_: 1 << 20)
        supports = payload_of(sparse)
    with monkeypatch.context() as patch:
        patch.setattr(payload_body, "_write_stream", lambda stream, lanes: Shortest(write_stream(stream, lanes)))
        values = payload_of(dense)
    assert supports[HEADER_BYTES] & payload_body.SUPPORTS
    assert values[HEADER_BYTES] & payload_body.VALUES
    monkeypatch.setattr(payload_body, "bound", lambda *_: 1 << 20)
    assert code_of(sparse, supports) == "FF-COMP-019"
    assert code_of(dense, values) == "FF-COMP-019"


write_stream = payload_body._write_stream


class Shortest(bytes):
    """Bytes that say they are none."""

    def __len__(self):
        return 0


def test_the_frame_is_read_without_a_copy_and_only_as_long_as_allowed():
    form = CodecParameters("topk", 2, "raw", 4096, 64)
    frame = pack(PayloadHeader(form, LAYOUT.id, ABOUT), b"body")
    place = {"layout_id": LAYOUT.id, "form": form, **ABOUT._asdict()}
    assert bytes(unpack(frame, **place, body_limit=4)) == b"body"
    with pytest.raises(ProtocolError) as caught:
        unpack(frame, **place, body_limit=3)
    assert caught.value.code == "FF-COMP-002"


@pytest.mark.parametrize("change", [{"round": 1 << 32}, {"round": -1}, {"phase": 256}, {"peer": b"short"}])
def test_a_header_that_does_not_fit_is_never_written(change):
    with pytest.raises(VerificationError) as caught:
        pack(PayloadHeader(CodecParameters("dense"), LAYOUT.id, ABOUT._replace(**change)), b"")
    assert caught.value.code == "FF-COMP-022"


def test_a_frame_above_the_table_of_bounds_is_never_written(monkeypatch):
    monkeypatch.setattr("farflung.core.limits.PAYLOAD_BYTES", 132)
    with pytest.raises(PolicyError) as caught:
        pack(PayloadHeader(CodecParameters("dense"), LAYOUT.id, ABOUT), bytes(5))
    assert caught.value.code == "FF-COMP-023"
