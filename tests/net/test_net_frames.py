"""Frames survive any cutting, and everything else is refused."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.errors import ProtocolError
from farflung.net.frames import FRAGMENT_BYTES, HEAD_BYTES, SIGNALS, Frame, FrameReader, FrameType, encode

carrying = st.builds(
    Frame,
    st.sampled_from([each for each in FrameType if each not in SIGNALS]),
    st.integers(1, 2**32 - 1),
    st.binary(min_size=1, max_size=300),
    st.booleans(),
)
frames = st.lists(st.one_of(carrying, st.builds(Frame, st.sampled_from(sorted(SIGNALS)), st.just(0))))


@settings(max_examples=60)
@given(frames, st.lists(st.integers(1, 400)))
def test_any_cutting_gives_the_same_frames(sent: list[Frame], cuts: list[int]) -> None:
    data = b"".join(map(encode, sent))
    reader, got, at = FrameReader(), [], 0
    for size in [*cuts, len(data) + 1]:
        got += reader.feed(data[at : at + size])
        at += size
    assert got == sent
    assert reader.pending == 0


@settings(max_examples=60)
@given(frames, st.binary(min_size=1, max_size=200))
def test_strange_bytes_only_raise_protocol_errors(sent: list[Frame], data: bytes) -> None:
    reader = FrameReader()
    reader.feed(b"".join(map(encode, sent)))
    try:
        reader.feed(data)
    except ProtocolError:
        with pytest.raises(ProtocolError, match="FF-NET-010"):
            reader.feed(encode(Frame(FrameType.PING, 0)))
    assert reader.pending < limits.FRAME_BYTES + HEAD_BYTES


def test_each_rule_of_the_head_is_kept(subtests: pytest.Subtests) -> None:
    for kind, flags, stream, length in [
        (0, 1, 1, 1),
        (9, 1, 1, 1),
        (4, 2, 1, 1),
        (4, 255, 1, 1),
        (4, 1, 0, 1),
        (4, 1, 1, 0),
        (4, 1, 1, limits.FRAME_BYTES + 1),
        (8, 0, 1, 0xFFFFFFFF),
        (2, 1, 1, 0),
        (2, 1, 0, 1),
        (2, 0, 0, 0),
    ]:
        with subtests.test(kind=kind, flags=flags, stream=stream, length=length):
            with pytest.raises(ProtocolError, match="FF-NET-010"):
                FrameReader().feed(struct.pack(">BBII", kind, flags, stream, length))


def test_the_largest_frame_passes_and_a_fragment_fills_whole_records() -> None:
    frame = Frame(FrameType.DATA, 1, bytes(limits.FRAME_BYTES))
    assert FrameReader().feed(encode(frame)) == [frame]
    assert len(encode(Frame(FrameType.DATA, 1, bytes(FRAGMENT_BYTES)))) == limits.FRAME_BYTES


@pytest.mark.parametrize("size", [1, 100, 9_000, 16 * 1024, 100_000])
def test_a_large_frame_is_the_same_however_it_arrives_and_holds_no_more_than_twice_its_bytes(size: int) -> None:
    body = bytes(range(256)) * (limits.FRAME_BYTES // 256)
    sent = [
        Frame(FrameType.REQUEST, 1, body, is_last=False),
        Frame(FrameType.DATA, 1, body),
        Frame(FrameType.DATA, 1, b"x"),
    ]
    data = b"".join(map(encode, sent))
    reader = FrameReader()
    got = [frame for at in range(0, len(data), size) for frame in reader.feed(bytes(data[at : at + size]))]
    assert [b"".join((frame.body, *frame.rest)) for frame in got] == [frame.body for frame in sent]
    assert [frame.size for frame in got] == [frame.size for frame in sent]
    pieces = got[1].body, *got[1].rest
    held = sum(len(x.obj) if isinstance(x, memoryview) else len(x) for x in pieces)
    assert held <= 2 * len(body) or size > limits.FRAME_BYTES
    assert len(pieces) <= 2 * -(-len(body) // 8192) + 1
