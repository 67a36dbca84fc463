"""How much is written at once: bytes on the wire do not depend on it, and control never waits long for it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.net import messages
from farflung.net.frames import FRAGMENT_BYTES, FrameReader, FrameType
from farflung.net.messages import MessageKind
from farflung.net.send_scheduler import OutgoingMessage, SendScheduler
from farflung.net.tls import wire_size
from farflung.net.write_size import LEAST_HELD, MOST_HELD, MOST_WRITTEN, WriteSizer

GIGABIT = 1e9 / 8


def put(
    outbox: SendScheduler, size: int, kind: MessageKind, type_: FrameType = FrameType.TELL, stream: int = 0
) -> None:
    body = memoryview(bytes(range(251)) * (size // 251 + 1))[:size]
    head = messages.ask_head("put", kind, size) if type_ is FrameType.TELL else messages.answer_head(size)
    outbox.put(OutgoingMessage(type_, kind, head, body, stream=stream))


def left(outbox: SendScheduler, limit: int) -> list[tuple[MessageKind, list[bytes]]]:
    """All that leaves, portion by portion."""
    found = []
    while (sent := outbox.next(limit)) is not None:
        found.append((sent[0], [bytes(piece) for piece in sent[1]]))
    return found


queues = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 500, 16_000, 65_526, 65_527, 200_000, 1 << 20]),
        st.sampled_from(MessageKind),
        st.sampled_from([FrameType.TELL, FrameType.REPLY]),
    ),
    max_size=8,
)


@settings(max_examples=60)
@given(queues, st.integers(1, 6))
def test_the_same_bytes_leave_in_portions_as_frame_by_frame(
    queue: list[tuple[int, MessageKind, FrameType]], frames: int
) -> None:
    seen = []
    for limit in (FRAGMENT_BYTES, frames * limits.FRAME_BYTES):
        outbox = SendScheduler(1)
        for at, (size, kind, type_) in enumerate(queue):
            put(outbox, size, kind, type_, 2 + 2 * at)
        portions = left(outbox, limit)
        assert not outbox.is_busy
        assert all(sum(map(len, pieces)) <= max(limit, limits.FRAME_BYTES) for _, pieces in portions)
        seen += [b"".join(b"".join(pieces) for which, pieces in portions if which is kind) for kind in MessageKind]
        for _, pieces in portions:  # counted as the receiver counts them: by frames
            whole = FrameReader().feed(b"".join(pieces))
            assert sum(wire_size(len(piece)) for piece in pieces) == sum(wire_size(each.size) for each in whole)
    assert seen[: len(MessageKind)] == seen[len(MessageKind) :]


def test_a_portion_is_as_many_whole_frames_as_fit() -> None:
    outbox = SendScheduler(1)
    put(outbox, 1 << 20, MessageKind.SYNC)
    put(outbox, 1 << 20, MessageKind.SYNC)
    sizes = [sum(map(len, pieces)) for _, pieces in left(outbox, MOST_WRITTEN)]
    assert sizes[:8] == [MOST_WRITTEN] * 8
    assert len(sizes) == 17  # the end of the first goes with the beginning of the second
    assert sum(sizes) > 2 << 20


def test_small_messages_of_one_kind_leave_together_and_kinds_apart() -> None:
    outbox = SendScheduler(1)
    for kind in (MessageKind.CONTROL, MessageKind.CONTROL, MessageKind.SYNC, MessageKind.SYNC, MessageKind.AUDIT):
        put(outbox, 100, kind)
    assert [kind for kind, _ in left(outbox, MOST_WRITTEN)] == [
        MessageKind.CONTROL,
        MessageKind.SYNC,
        MessageKind.AUDIT,
    ]


def test_on_a_slow_line_a_portion_is_a_part_of_a_frame() -> None:
    outbox = SendScheduler(1)
    put(outbox, 100_000, MessageKind.SYNC)
    put(outbox, 100, MessageKind.SYNC)
    sizes = [sum(map(len, pieces)) for _, pieces in left(outbox, 4096)]
    assert max(sizes) <= 4096 + 10
    assert len(sizes) == 26


def test_control_overtakes_bulk_between_two_portions() -> None:
    outbox = SendScheduler(1)
    put(outbox, 1 << 20, MessageKind.SYNC)
    assert outbox.next(MOST_WRITTEN) is not None
    put(outbox, 10, MessageKind.CONTROL)
    outbox.signal(FrameType.PING)
    kinds = [kind for kind, _ in left(outbox, MOST_WRITTEN)]
    assert kinds[:2] == [MessageKind.CONTROL, MessageKind.CONTROL]
    assert set(kinds[2:]) == {MessageKind.SYNC}


def fed(portions: WriteSizer, rate: float, seconds: float = 0.1, looks: int = 3) -> None:
    at = 1000.0
    for _ in range(looks):
        portions.filled(at)
        portions.took(int(rate * seconds))
        at += seconds
    portions.filled(at)


def test_a_connection_begins_small_and_a_fast_one_gets_large_portions() -> None:
    portions = WriteSizer()
    assert (portions.written, portions.held) == (FRAGMENT_BYTES, LEAST_HELD)
    fed(portions, 10 * GIGABIT)
    assert (portions.written, portions.held) == (MOST_WRITTEN, MOST_HELD)
    fed(portions, 0.1 * GIGABIT)
    assert (portions.written, portions.held) == (FRAGMENT_BYTES, LEAST_HELD)


@given(st.floats(0, 1e12), st.floats(0, 1e3), st.integers(1, 4))
def test_beyond_the_least_nothing_is_more_than_leaves_within_milliseconds(
    rate: float, seconds: float, looks: int
) -> None:
    portions = WriteSizer()
    fed(portions, rate, seconds, looks)
    assert FRAGMENT_BYTES <= portions.written <= MOST_WRITTEN
    assert LEAST_HELD <= portions.held <= MOST_HELD
    if seconds > 1e-3:
        assert portions.written <= max(FRAGMENT_BYTES, 0.00101 * rate)
        assert portions.held <= max(LEAST_HELD, 0.00401 * rate)


def test_time_in_which_there_was_nothing_to_send_makes_no_connection_fast() -> None:
    portions = WriteSizer()
    portions.filled(1.0)
    portions.took(10 * limits.MIB)
    portions.filled(61.0)
    assert (portions.written, portions.held) == (FRAGMENT_BYTES, LEAST_HELD)
