"""Requests and replies over two multiplexers in memory: order, bounds, and every broken rule."""

import random
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.codec import encode as to_wire
from farflung.core.errors import NetworkError, PolicyError, ProtocolError
from farflung.net import messages
from farflung.net.frames import FRAGMENT_BYTES, Frame, FrameReader, FrameType
from farflung.net.messages import ErrorBody, MessageKind
from farflung.net.streams import Event, StreamErrorReply, StreamMultiplexer, StreamReply, StreamRequest, StreamWelcome
from farflung.net.tls import RECORD_BYTES as RECORD
from farflung.net.write_size import MOST_WRITTEN


def pair() -> tuple[StreamMultiplexer, StreamMultiplexer]:
    """A dialer and an acceptor that have said welcome."""
    dialer, acceptor = StreamMultiplexer(is_dialer=True), StreamMultiplexer(is_dialer=False)
    acceptor.welcome()
    assert carry(acceptor, dialer) == [StreamWelcome()]
    return dialer, acceptor


def carry(
    source: StreamMultiplexer, target: StreamMultiplexer, count: int = 1 << 30, limit: int = FRAGMENT_BYTES
) -> list[Event]:
    """Moves up to `count` frames one way; the events at the other end."""
    events: list[Event] = []
    reader = FrameReader()
    while count and (sent := source.next_frames(limit)) is not None:
        for frame in reader.feed(b"".join(sent[1])):
            kind, event = target.take(frame)
            assert kind is sent[0]
            events += [event] if event is not None else []
        count -= 1
    return events


def ask(stream: int, body: bytes = b"", *, total: int | None = None, kind: int = 0, is_last: bool = True) -> Frame:
    head = struct.pack(">BIB", kind, len(body) if total is None else total, 1) + b"m"
    return Frame(FrameType.REQUEST, stream, head + body, is_last)


def test_requests_are_answered_both_ways() -> None:
    dialer, acceptor = pair()
    for here, there in ((dialer, acceptor), (acceptor, dialer)):
        ticket = here.request("store.get", b"key", MessageKind.SYNC)
        (asked,) = carry(here, there)
        assert isinstance(asked, StreamRequest)
        assert (asked.method, asked.body, asked.kind, asked.wants_reply) == (
            "store.get",
            b"key",
            MessageKind.SYNC,
            True,
        )
        there.reply(asked, b"v" * 200_000)
        assert carry(there, here) == [StreamReply(ticket, b"v" * 200_000)]
        assert here.is_idle
        assert there.is_idle


def test_empty_bodies_pass() -> None:
    dialer, acceptor = pair()
    ticket = dialer.request("a", b"", MessageKind.CONTROL)
    (asked,) = carry(dialer, acceptor)
    assert isinstance(asked, StreamRequest)
    acceptor.reply(asked, b"")
    assert carry(acceptor, dialer) == [StreamReply(ticket, b"")]


def test_a_message_leaves_without_a_copy_of_it_and_is_joined_once_where_it_arrives() -> None:
    """Besides what TLS copies: so a tensor's memory is read where it lies, and what came is one buffer."""
    dialer, acceptor = pair()
    body = random.Random(1).randbytes(limits.BULK_BYTES)
    dialer.request("put", body, MessageKind.SYNC)
    records, made = list[bytes](), 0
    while True:
        tracemalloc.start()
        sent = dialer.next_frames(MOST_WRITTEN)
        made = max(made, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        if sent is None:
            break
        records += [bytes(piece)[at : at + RECORD] for piece in sent[1] for at in range(0, len(piece), RECORD)]
    assert made < 0.5 * MOST_WRITTEN

    reader = FrameReader()
    tracemalloc.start()
    try:
        events = [event for each in records for frame in reader.feed(each) if (event := acceptor.take(frame)[1])]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (asked,) = events
    assert isinstance(asked, StreamRequest)
    assert asked.body == body
    assert len(body) <= most < 1.25 * len(body)


def test_an_error_travels_with_code_cause_and_hint_and_cannot_move_the_cursor() -> None:
    dialer, acceptor = pair()
    ticket = dialer.request("a", b"", MessageKind.CONTROL)
    (asked,) = carry(dialer, acceptor)
    assert isinstance(asked, StreamRequest)
    acceptor.fail(asked, PolicyError("FF-HOST-007", "no\x1b[2J" + "€" * 3000, cause="full", hint="wait"))
    (refused,) = carry(acceptor, dialer)
    assert isinstance(refused, StreamErrorReply)
    error = refused.error
    assert refused.ticket == ticket
    assert isinstance(error, NetworkError)
    assert (error.code, error.cause, error.hint) == ("FF-HOST-007", "full", "wait")
    assert error.message.startswith("no?[2J€")


@pytest.mark.parametrize("code", ["", "x", "FF-NET-1", "FF-NET-0999", "\x1b[2J"])
def test_an_error_without_an_error_code_is_refused(code: str) -> None:
    dialer, _ = pair()
    dialer.request("a", b"", MessageKind.CONTROL)
    dialer.next_frames()
    body = to_wire(ErrorBody(code, "", "", "", ""))
    with pytest.raises(ProtocolError, match="FF-NET-024"):
        dialer.take(Frame(FrameType.ERROR, 1, messages.answer_head(len(body)) + body))


def test_a_tell_is_acknowledged_and_its_errors_stay_there() -> None:
    dialer, acceptor = pair()
    dialer.tell("note", b"x", MessageKind.CONTROL)
    (asked,) = carry(dialer, acceptor)
    assert isinstance(asked, StreamRequest)
    assert not asked.wants_reply
    acceptor.fail(asked, PolicyError("FF-HOST-007", "no"))
    assert carry(acceptor, dialer) == []
    assert dialer.is_idle


def test_control_overtakes_bulk_in_both_directions() -> None:
    dialer, acceptor = pair()
    bulk = dialer.request("put", bytes(1_500_000), MessageKind.SYNC)
    assert carry(dialer, acceptor, 3) == []
    dialer.request("now", b"", MessageKind.CONTROL)
    (first,) = carry(dialer, acceptor, 1)
    assert isinstance(first, StreamRequest)
    assert first.method == "now"
    (second,) = carry(dialer, acceptor)
    assert isinstance(second, StreamRequest)
    acceptor.reply(second, bytes(1_500_000))
    carry(acceptor, dialer, 1)
    acceptor.reply(first, b"")
    assert [e.ticket for e in carry(acceptor, dialer) if isinstance(e, StreamReply)] == [2, bulk]


def test_local_messages_over_the_limit_are_refused_before_they_are_queued() -> None:
    dialer, acceptor = pair()
    for kind in MessageKind:
        with pytest.raises(NetworkError, match="FF-NET-030"):
            dialer.request("a", bytes(kind.limit + 1), kind)
    for method in ("", "A", "1a", "a b", "ä", "a" * 65, "a\n"):
        with pytest.raises(NetworkError, match="FF-NET-030"):
            dialer.request(method, b"", MessageKind.CONTROL)
    dialer.request("a", b"", MessageKind.SYNC)
    (asked,) = carry(dialer, acceptor)
    assert isinstance(asked, StreamRequest)
    with pytest.raises(NetworkError, match="FF-NET-030"):
        acceptor.reply(asked, bytes(limits.BULK_BYTES + 1))
    acceptor.fail(asked, PolicyError("FF-HOST-007", "no"))
    assert len(carry(acceptor, dialer)) == 1


def test_no_more_requests_leave_than_the_peer_allows() -> None:
    dialer, acceptor = pair()
    for _ in range(limits.STREAMS_OPEN + 10):
        dialer.request("a", b"", MessageKind.CONTROL)
    asked = carry(dialer, acceptor)
    assert len(asked) == limits.STREAMS_OPEN
    for each in asked[:4]:
        assert isinstance(each, StreamRequest)
        acceptor.reply(each, b"")
    carry(acceptor, dialer)
    assert len(carry(dialer, acceptor)) == 4


def test_bulk_requests_leave_places_and_bytes_for_control() -> None:
    dialer, acceptor = pair()
    for _ in range(limits.STREAMS_OPEN):
        dialer.request("a", b"", MessageKind.SYNC)
    assert len(carry(dialer, acceptor)) == limits.STREAMS_OPEN // 2
    dialer.request("b", b"", MessageKind.CONTROL)
    assert len(carry(dialer, acceptor)) == 1


def test_bytes_under_way_are_bounded() -> None:
    dialer, acceptor = pair()
    body = bytes(limits.BULK_BYTES)
    for _ in range(20):
        dialer.request("a", body, MessageKind.SYNC)
    assert len(carry(dialer, acceptor)) == limits.REQUEST_BYTES // 2 // limits.BULK_BYTES


def test_both_lanes_together_keep_the_bounds() -> None:
    dialer, acceptor = pair()
    for _ in range(limits.STREAMS_OPEN // 2):
        dialer.request("a", b"", MessageKind.SYNC)
    assert len(carry(dialer, acceptor)) == limits.STREAMS_OPEN // 2
    for _ in range(limits.STREAMS_OPEN):
        dialer.request("a", b"", MessageKind.CONTROL)
    assert len(carry(dialer, acceptor)) == limits.STREAMS_OPEN // 2
    dialer, acceptor = pair()
    for kind, size in ((MessageKind.SYNC, limits.BULK_BYTES), (MessageKind.CONTROL, limits.CONTROL_BYTES)):
        for _ in range(20):
            dialer.request("a", bytes(size), kind)
    asked = [each for each in carry(dialer, acceptor) if isinstance(each, StreamRequest)]
    assert sum(len(each.body) for each in asked) == limits.REQUEST_BYTES


def test_room_ends_and_comes_back_lane_by_lane() -> None:
    dialer, acceptor = pair()
    while dialer.has_room(MessageKind.SYNC):
        dialer.request("a", bytes(limits.MIB), MessageKind.SYNC)
    assert dialer.has_room(MessageKind.CONTROL)
    carry(dialer, acceptor)
    assert dialer.has_room(MessageKind.SYNC)


def test_an_abandoned_request_is_not_sent_or_its_answer_is_dropped() -> None:
    dialer, acceptor = pair()
    first, second = (dialer.request("a", b"", MessageKind.CONTROL) for _ in range(2))
    dialer.abandon(second)
    (asked,) = carry(dialer, acceptor)
    assert isinstance(asked, StreamRequest)
    dialer.abandon(first)
    acceptor.reply(asked, b"late")
    assert carry(acceptor, dialer) == []
    assert dialer.is_idle


def test_ping_is_answered_once_and_never_twice_under_way() -> None:
    dialer, acceptor = pair()
    dialer.ping()
    dialer.ping()
    assert dialer.next_frames() is not None
    dialer.ping()
    assert dialer.next_frames() is None
    for _ in range(5):
        acceptor.take(Frame(FrameType.PING, 0))
    assert carry(acceptor, dialer) == []
    with pytest.raises(ProtocolError, match="FF-NET-023"):
        dialer.take(Frame(FrameType.PONG, 0))


def broken(code: str, *frames: Frame, acceptor: StreamMultiplexer | None = None) -> None:
    """The last frame, and only the last, breaks a rule at an acceptor."""
    target = acceptor or pair()[1]
    for frame in frames[:-1]:
        target.take(frame)
    with pytest.raises(ProtocolError, match=code):
        target.take(frames[-1])


def test_streams_are_used_once_and_in_turn() -> None:
    broken("FF-NET-020", ask(1), ask(1))  # replayed
    broken("FF-NET-020", ask(3))  # skipped
    broken("FF-NET-020", ask(2))  # the acceptor's own
    broken("FF-NET-020", Frame(FrameType.DATA, 1, b"x"))  # nothing open
    broken("FF-NET-020", ask(1), Frame(FrameType.DATA, 1, b"x"))  # complete
    broken("FF-NET-020", ask(1, total=9, is_last=False), Frame(FrameType.DATA, 3, b"x", False))


def test_one_message_a_lane_at_a_time() -> None:
    broken("FF-NET-020", ask(1, total=9, is_last=False), ask(3))
    target = pair()[1]
    target.take(ask(1, total=9, kind=1, is_last=False))
    assert target.take(ask(3))[1] is not None  # the other lane


def test_lengths_are_declared_bounded_and_kept() -> None:
    broken("FF-NET-021", ask(1, total=limits.CONTROL_BYTES + 1, is_last=False))
    broken("FF-NET-021", ask(1, total=limits.BULK_BYTES + 1, kind=1, is_last=False))
    broken("FF-NET-021", ask(1, total=0xFFFFFFFF, is_last=False))
    broken("FF-NET-025", ask(1, b"abc", total=2))
    broken("FF-NET-025", ask(1, b"abc", total=4))
    broken("FF-NET-025", ask(1, b"abc", is_last=False))
    broken("FF-NET-025", ask(1, total=4, is_last=False), Frame(FrameType.DATA, 1, b"abcde", False))
    broken("FF-NET-025", ask(1, total=4, is_last=False), Frame(FrameType.DATA, 1, b"abcd", False))


def test_heads_are_checked() -> None:
    for body in (b"", b"\0", struct.pack(">BIB", 4, 0, 1) + b"m", struct.pack(">BIB", 0, 0, 2) + b"m"):
        broken("FF-NET-024", Frame(FrameType.REQUEST, 1, body))
    for name in (b"", b"\xff", b"A", b"a b", b"a" * 65):
        broken("FF-NET-024", Frame(FrameType.REQUEST, 1, struct.pack(">BIB", 0, 0, len(name)) + name))


def test_requests_under_way_are_bounded_by_count_and_bytes() -> None:
    broken("FF-NET-022", *(ask(1 + 2 * i) for i in range(limits.STREAMS_OPEN + 1)))
    target, stream = pair()[1], 1
    for _ in range(limits.REQUEST_BYTES // limits.CONTROL_BYTES):
        target.take(ask(stream, total=limits.CONTROL_BYTES, is_last=False))
        left, piece = limits.CONTROL_BYTES, bytes(limits.FRAME_BYTES)
        while left:
            left -= len(piece)
            target.take(Frame(FrameType.DATA, stream, piece, not left))
        stream += 2
    broken("FF-NET-022", ask(stream, b"x"), acceptor=target)


def test_a_place_is_free_only_when_the_answer_leaves() -> None:
    target = pair()[1]
    for i in range(limits.STREAMS_OPEN):
        asked = target.take(ask(1 + 2 * i))[1]
        assert isinstance(asked, StreamRequest)
        target.reply(asked, b"")  # queued; a peer that does not read gains nothing by it
    broken("FF-NET-022", ask(1 + 2 * limits.STREAMS_OPEN), acceptor=target)


def test_answers_that_nobody_asked_for_are_refused() -> None:
    answer = messages.answer_head(0)
    broken("FF-NET-023", Frame(FrameType.REPLY, 2, answer))
    broken("FF-NET-023", Frame(FrameType.ERROR, 1, answer))
    broken("FF-NET-023", Frame(FrameType.PONG, 0))
    _, target = pair()
    target.request("a", b"", MessageKind.CONTROL)
    broken("FF-NET-023", Frame(FrameType.REPLY, 2, answer), acceptor=target)  # queued, not sent
    target.next_frames()
    broken("FF-NET-023", Frame(FrameType.REPLY, 2, answer), Frame(FrameType.REPLY, 2, answer), acceptor=target)


def test_an_answer_to_half_a_request_is_refused() -> None:
    _, target = pair()
    target.request("a", bytes(200_000), MessageKind.CONTROL)
    target.next_frames()
    broken("FF-NET-023", Frame(FrameType.REPLY, 2, messages.answer_head(0)), acceptor=target)


def test_answers_keep_the_limit_of_their_kind() -> None:
    for kind, total in ((MessageKind.SYNC, limits.BULK_BYTES), (MessageKind.CONTROL, limits.CONTROL_BYTES)):
        _, target = pair()
        target.request("a", b"", kind)
        target.next_frames()
        broken("FF-NET-021", Frame(FrameType.REPLY, 2, messages.answer_head(total + 1), False), acceptor=target)
    _, target = pair()
    target.request("a", b"", MessageKind.CONTROL)
    target.next_frames()
    big = Frame(FrameType.ERROR, 2, messages.answer_head(limits.ERROR_BYTES + 1), False)
    broken("FF-NET-021", big, acceptor=target)


def test_welcome_comes_first_and_once_and_from_the_acceptor() -> None:
    broken("FF-NET-020", Frame(FrameType.WELCOME, 0))
    with pytest.raises(ProtocolError, match="FF-NET-020"):
        StreamMultiplexer(is_dialer=True).take(Frame(FrameType.PING, 0))
    dialer, _ = pair()
    with pytest.raises(ProtocolError, match="FF-NET-020"):
        dialer.take(Frame(FrameType.WELCOME, 0))


@settings(max_examples=60)
@given(st.lists(st.builds(Frame, st.sampled_from(FrameType), st.integers(0, 6), st.binary(max_size=12), st.booleans())))
def test_strange_frames_only_raise_protocol_errors(frames: list[Frame]) -> None:
    _, target = pair()
    target.request("a", b"", MessageKind.CONTROL)
    target.next_frames()
    try:
        for frame in frames:
            target.take(frame)
            target.next_frames()
    except ProtocolError:
        pass


sizes = st.sampled_from([0, 1, 1000, 65_526, 65_536, 200_000])


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(MessageKind), sizes, sizes), max_size=12), st.integers(0, 2**32))
def test_every_call_is_answered_once_in_whatever_order(calls: list[tuple[MessageKind, int, int]], seed: int) -> None:
    rng = random.Random(seed)
    ends = pair()
    wanted: list[dict[int, int]] = [{}, {}]
    for kind, size, answer in calls:
        side = rng.randrange(2)
        wanted[side][ends[side].request(f"a{answer}", bytes(size), kind)] = answer
    open_: list[list[StreamRequest]] = [[], []]  # asked of each end
    idle = 0
    while idle < 50:
        side = rng.randrange(2)
        if open_[side] and rng.random() < 0.5:
            asked = open_[side].pop(rng.randrange(len(open_[side])))
            ends[side].reply(asked, bytes(int(asked.method[1:])))
        events = carry(ends[side], ends[1 - side], rng.randrange(1, 4))
        idle = 0 if events or any(open_) else idle + 1
        for event in events:
            if isinstance(event, StreamRequest):
                open_[1 - side].append(event)
            elif isinstance(event, StreamReply):
                assert wanted[1 - side].pop(event.ticket) == len(event.body)
    assert wanted == [{}, {}]
    assert ends[0].is_idle
    assert ends[1].is_idle
