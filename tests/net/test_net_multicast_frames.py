"""Frames of a group, sealed and opened: the rules alone, without a socket."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.crypto import local_key
from farflung.core.errors import FarflungError, ProtocolError, VerificationError
from farflung.core.ids import Hash
from farflung.net.multicast_frames import (
    FIRST,
    HEAD_BYTES,
    FrameOpener,
    FrameSealer,
    GroupFrameHead,
    GroupFrameKind,
    GroupMessage,
    read_head,
)
from farflung.net.multicast_groups import Roster, sign_roster

OWNER, A, B, C = (local_key(16, name) for name in ("owner", "a", "b", "c"))
NAME = Hash(bytes(32))
KEY, KEY_2 = bytes(range(32)), bytes(32)


def roster(epoch: int, *keys: object) -> Roster:
    members = tuple(key.public for key in keys or (A, B, C))  # type: ignore[attr-defined]
    return sign_roster(OWNER, NAME, epoch, members).roster


def opener(epoch: int = 1) -> FrameOpener:
    made = FrameOpener(B.public)
    made.enter(roster(epoch), KEY, 0.0)
    return made


def sealer(stream: int = 5, epoch: int = 1, key: bytes = KEY, who=A) -> FrameSealer:  # type: ignore[no-untyped-def]
    return FrameSealer(roster(epoch), key, who.public, stream)


def take(to: FrameOpener, frame: bytes, now: float = 0.0) -> GroupMessage | None:
    return to.take(frame[:HEAD_BYTES], frame[HEAD_BYTES:], now)


def body(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@given(st.lists(st.integers(1, 3 * limits.FAN_FRAME_BYTES), min_size=1, max_size=4))
@settings(max_examples=25)
def test_messages_come_out_as_they_went_in_and_in_order(sizes: list[int]) -> None:
    ours, theirs = sealer(), opener()
    sent = [body(size, seed) for seed, size in enumerate(sizes)]
    got = [take(theirs, frame) for message in sent for frame in ours.seal(message)]
    assert [m for m in got if m is not None] == [GroupMessage(A.public, message) for message in sent]
    assert theirs.lost == 0


def test_a_message_is_bounded_and_never_empty() -> None:
    assert len(list(sealer().seal(bytes(limits.BULK_BYTES)))) == limits.BULK_BYTES // limits.FAN_FRAME_BYTES
    for size in (0, limits.BULK_BYTES + 1):
        with pytest.raises(ProtocolError, match="FF-NET-134"):
            list(sealer().seal(bytes(size)))


def test_a_stream_ends_before_its_counter_could_come_twice() -> None:
    ours = sealer()
    ours._counter = limits.FAN_FRAMES - 1
    assert len(list(ours.seal(b"x"))) == 1
    with pytest.raises(ProtocolError, match="FF-NET-134"):
        list(ours.seal(b"x"))


@given(st.data())
@settings(max_examples=150)
def test_a_frame_with_any_bit_changed_is_refused_or_passed_over_and_never_heard(data: st.DataObject) -> None:
    (frame,) = sealer().seal(b"a payload of some length")
    changed = bytearray(frame)
    at = data.draw(st.integers(0, len(frame) - 1))
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    theirs = opener()
    try:
        heard = take(theirs, bytes(changed))
    except FarflungError as error:
        heard, code = None, error.code
    else:
        code = "of an epoch that there is not"
    assert heard is None
    assert code in ("FF-NET-132", "FF-NET-133") or theirs.lost == 1


@pytest.mark.parametrize("cut", [0, 1, 15, 16, 17, 23])
def test_a_truncated_frame_is_refused(cut: int) -> None:
    (frame,) = sealer().seal(bytes(24))
    with pytest.raises(VerificationError, match="FF-NET-133"):
        take(opener(), frame[: HEAD_BYTES + cut])


def test_a_replay_is_refused_and_nothing_more_is_taken_of_that_stream() -> None:
    ours, theirs = sealer(), opener()
    first, second, third = (next(ours.seal(word)) for word in (b"1", b"2", b"3"))
    assert take(theirs, first) == (A.public, b"1")
    with pytest.raises(VerificationError, match="replayed"):
        take(theirs, first)
    assert take(theirs, second) is take(theirs, third) is None
    assert take(theirs, next(sealer(stream=6).seal(b"anew"))) == (A.public, b"anew")


def test_frames_in_another_order_lose_what_came_late() -> None:
    ours, theirs = sealer(), opener()
    first, second = (next(ours.seal(word)) for word in (b"1", b"2"))
    assert take(theirs, second) == (A.public, b"2")
    assert theirs.lost == 1
    with pytest.raises(VerificationError, match="out of order"):
        take(theirs, first)


def test_a_message_of_which_a_frame_was_dropped_is_given_up_and_the_next_one_is_whole() -> None:
    long = body(3 * limits.FAN_FRAME_BYTES)
    for dropped in range(3):
        ours, theirs = sealer(), opener()
        frames = list(ours.seal(long))
        got = [take(theirs, frame) for at, frame in enumerate(frames) if at != dropped]
        assert got == [None, None]
        assert take(theirs, next(ours.seal(b"next"))) == (A.public, b"next")
        assert theirs.lost >= 1


def test_another_sender_number_another_epoch_or_another_group_opens_nothing() -> None:
    (frame,) = sealer().seal(b"x")
    head = read_head(frame)
    members = roster(1).members
    as_c = head._replace(sender=members.index(C.public)).encode() + frame[HEAD_BYTES:]
    with pytest.raises(VerificationError, match="FF-NET-133"):
        take(opener(), as_c)
    theirs = opener()
    theirs.enter(roster(2), KEY_2, 0.0)
    with pytest.raises(VerificationError, match="FF-NET-133"):
        take(theirs, head._replace(epoch=2).encode() + frame[HEAD_BYTES:])
    elsewhere = FrameOpener(B.public)
    name = Hash(bytes(31) + b"1")
    elsewhere.enter(sign_roster(OWNER, name, 1, roster(1).members).roster, KEY, 0.0)
    with pytest.raises(VerificationError, match="FF-NET-133"):
        take(elsewhere, frame)


def test_what_we_said_ourselves_or_nobody_said_is_refused() -> None:
    (own,) = sealer(who=B).seal(b"x")
    with pytest.raises(VerificationError, match="our own"):
        take(opener(), own)
    with pytest.raises(VerificationError, match="nobody"):
        take(opener(), read_head(own)._replace(sender=3).encode() + own[HEAD_BYTES:])


def test_the_key_of_an_earlier_epoch_counts_for_what_is_under_way_only() -> None:
    ours, theirs = sealer(), opener()
    one, two, three = (next(ours.seal(word)) for word in (b"1", b"2", b"3"))
    theirs.enter(roster(2), KEY_2, 100.0)
    assert take(theirs, one, 100.0) == (A.public, b"1")
    assert take(theirs, two, 99.9 + limits.FAN_OLD_SECONDS) == (A.public, b"2")
    assert take(theirs, three, 100.0 + limits.FAN_OLD_SECONDS) is None
    assert theirs.lost == 1
    theirs.enter(roster(3), KEY, 100.0)
    assert take(theirs, three, 100.0) is None  # two epochs ago


def test_who_was_removed_is_not_heard_under_the_old_key_either() -> None:
    theirs = opener()
    theirs.enter(roster(2, B, C), KEY_2, 0.0)
    with pytest.raises(VerificationError, match="not in the group"):
        take(theirs, next(sealer().seal(b"still here")))


def test_an_older_epoch_never_replaces_a_newer_one() -> None:
    theirs = opener(epoch=3)
    theirs.enter(roster(2), KEY_2, 0.0)
    assert take(theirs, next(sealer(epoch=3).seal(b"x"))) == (A.public, b"x")
    assert take(theirs, next(sealer(epoch=2, key=KEY_2).seal(b"x"))) is None


def test_streams_of_one_member_and_messages_without_end_are_bounded() -> None:
    theirs = opener()
    for stream in range(limits.FAN_STREAMS):
        assert take(theirs, next(sealer(stream=stream).seal(b"x"))) is not None
    with pytest.raises(VerificationError, match="too many streams"):
        take(theirs, next(sealer(stream=99).seal(b"x")))
    ours, theirs = sealer(), opener()
    piece = bytes(limits.FAN_FRAME_BYTES)
    for at in range(limits.BULK_BYTES // limits.FAN_FRAME_BYTES + 2):
        raw = GroupFrameHead(
            len(piece) + 16, GroupFrameKind.DATA, FIRST if not at else 0, ours._sender, 1, 5, at
        ).encode()
        nonce = ours._sender.to_bytes(4, "big") + at.to_bytes(8, "big")
        assert take(theirs, raw + ours._aead.encrypt(nonce, piece, roster(1).group + raw)) is None
        assert theirs._held() <= limits.BULK_BYTES
    assert theirs.lost == 1


def test_forged_streams_fill_nothing() -> None:
    theirs = opener()
    for stream in range(3 * limits.FAN_STREAMS):
        with pytest.raises(VerificationError, match="FF-NET-133"):
            take(theirs, next(sealer(stream=stream, key=KEY_2).seal(b"x")))
    assert take(theirs, next(sealer().seal(b"x"))) == (A.public, b"x")


@given(st.binary(min_size=HEAD_BYTES, max_size=HEAD_BYTES))
@settings(max_examples=300)
def test_a_head_is_bounded_before_anything_is_allocated(raw: bytes) -> None:
    try:
        head = read_head(raw)
    except ProtocolError:
        return
    assert head.size <= limits.FAN_FRAME_BYTES + 16
    assert head.encode() == raw


def test_sizes_over_the_bound_of_their_kind_are_malformed() -> None:
    for kind, size in (
        (GroupFrameKind.DATA, limits.FAN_FRAME_BYTES + 17),
        (GroupFrameKind.PING, 1),
        (GroupFrameKind.GAP, 1),
    ):
        with pytest.raises(ProtocolError, match="FF-NET-132"):
            read_head(GroupFrameHead(size, kind).encode())
