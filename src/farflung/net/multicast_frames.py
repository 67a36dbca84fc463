"""Defines the sealed frames of a multicast group, which a relay can neither read nor change unnoticed.

    frame = length of body (4) | kind (1) | flags (1) | sender (2) | epoch (8) | stream (8) | counter (8) | body

    kind     from      body
    DATA     member    a piece of a message, sealed; the relay gives it to all others as it is
    GAP      relay     none; `counter` frames were not given to this member
    ROSTER   member    SignedRoster of a newer epoch; the relay answers ROSTER without a body once it counts
    PING     both      none; the relay gives it back

`sender` is the place in the roster of `epoch`. Whenever a member connects it draws a stream, whose frames count from 0.
A message is one or more frames of a stream: flags 1 = its first, 2 = its last.

Sealing: AES-256-GCM under a key for this stream alone, BLAKE3(group key; epoch, sender, stream); the nonce is the
sender's number and the counter, the associated data the group and the frame's head. So no pair of key and nonce comes
twice, as long as a stream has at most limits.FAN_FRAMES frames and nobody draws one number of 2^64 twice in an epoch.

A receiver takes a frame whose counter is higher than all it has opened of that stream. A jump means that frames were
lost: the message they belonged to is given up. Lower is a replay or another order, and refused as altered frames are;
after a refusal nothing more of that stream is taken. Whoever belongs to a group has its key: what one member sends in
another's name is stopped by the relay, who compares the sender with the connection, and in nobody's interest, since
every object that comes this way is checked by its hash.

Sources: NIST SP 800-38D, section 8.2.1 (deterministic nonces), and its bound of 2^32 invocations.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from farflung.core import limits
from farflung.core.crypto import NS_STREAM_KEY, derive
from farflung.core.errors import ProtocolError, VerificationError
from farflung.core.ids import PeerId, short
from farflung.net.multicast_groups import Roster

FIRST, LAST = 1, 2
TAG_BYTES: Final = 16
_HEAD: Final = struct.Struct(">IBBHQQQ")
HEAD_BYTES: Final = _HEAD.size


class GroupFrameKind(enum.IntEnum):
    """What a frame is for."""

    DATA = 0
    GAP = 1
    ROSTER = 2
    PING = 3


_MOST: Final = {
    GroupFrameKind.DATA: limits.FAN_FRAME_BYTES + TAG_BYTES,
    GroupFrameKind.GAP: 0,
    GroupFrameKind.ROSTER: limits.FAN_JOIN_BYTES,
    GroupFrameKind.PING: 0,
}


class GroupFrameHead(NamedTuple):
    """A frame but for its body of `size` bytes."""

    size: int
    kind: GroupFrameKind
    flags: int = 0
    sender: int = 0
    epoch: int = 0
    stream: int = 0
    counter: int = 0

    def encode(self) -> bytes:
        """Its HEAD_BYTES."""
        return _HEAD.pack(*self)


def read_head(data: bytes | bytearray | memoryview) -> GroupFrameHead:
    """The head in the first HEAD_BYTES of `data`. Raises ProtocolError FF-NET-132."""
    size, kind, flags, *numbers = _HEAD.unpack_from(data)
    if kind not in _MOST or size > _MOST[GroupFrameKind(kind)] or flags > (FIRST | LAST):
        raise ProtocolError("FF-NET-132", "malformed frame of a group", cause=f"kind {kind}, {size} bytes")
    return GroupFrameHead(size, GroupFrameKind(kind), flags, *numbers)


def missing_of(view: memoryview) -> int:
    """Bytes to the end of the frame, or of its head, that begins `view`. Raises ProtocolError FF-NET-132."""
    size = HEAD_BYTES if len(view) < HEAD_BYTES else HEAD_BYTES + read_head(view).size
    return size - len(view)


def _stream_key(key: bytes, head: GroupFrameHead) -> AESGCM:
    words = head.epoch.to_bytes(8, "big"), head.sender.to_bytes(2, "big"), head.stream.to_bytes(8, "big")
    return AESGCM(derive(NS_STREAM_KEY, key, *words))


def _nonce(head: GroupFrameHead) -> bytes:
    return head.sender.to_bytes(4, "big") + head.counter.to_bytes(8, "big")


class FrameSealer:
    """One member's stream in one epoch."""

    def __init__(self, roster: Roster, key: bytes, me: PeerId, stream: int) -> None:
        """`stream`: 64 random bits, drawn for this object alone. `me` is in the roster."""
        self._group, self._epoch = roster.group, roster.epoch
        self._sender, self._stream, self._counter = roster.members.index(me), stream, 0
        self._aead = _stream_key(
            key, GroupFrameHead(0, GroupFrameKind.DATA, 0, self._sender, self._epoch, self._stream)
        )

    def seal(self, message: bytes) -> Iterator[bytes]:
        """The frames of a message of 1 to limits.BULK_BYTES bytes. Raises ProtocolError FF-NET-134."""
        view, step = memoryview(message), limits.FAN_FRAME_BYTES
        frames = -(-len(view) // step)
        if not 0 < len(view) <= limits.BULK_BYTES or self._counter + frames > limits.FAN_FRAMES:
            raise ProtocolError("FF-NET-134", "a stream of a group cannot take this message")
        for start in range(0, len(view), step):
            piece = view[start : start + step]
            flags = (FIRST if not start else 0) | (LAST if start + step >= len(view) else 0)
            size = len(piece) + TAG_BYTES
            numbers = self._sender, self._epoch, self._stream, self._counter
            head = GroupFrameHead(size, GroupFrameKind.DATA, flags, *numbers)
            self._counter += 1
            raw = head.encode()
            yield raw + self._aead.encrypt(_nonce(head), piece, self._group + raw)


class GroupMessage(NamedTuple):
    """A whole message, and who sent it."""

    sender: PeerId
    data: bytes


@dataclass(slots=True)
class _SenderStream:
    aead: AESGCM
    following: int = 0  # the lowest counter that may come
    is_refused: bool = False
    parts: bytearray | None = None  # of the message under way; None: between two, or it is given up


@dataclass(slots=True)
class _GroupEpoch:
    roster: Roster
    key: bytes
    until: float | None = None  # None: the newest
    streams: dict[tuple[int, int], _SenderStream] = field(default_factory=dict)


class FrameOpener:
    """What a member takes of the others.

    `lost`: messages, or parts of them, that did not come. `opened`: when the last frame was opened.
    """

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._epochs: dict[int, _GroupEpoch] = {}
        self.lost = 0
        self.opened = 0.0

    def enter(self, roster: Roster, key: bytes, now: float) -> None:
        """From `now` on this is the newest epoch; the one before counts for what is under way only."""
        if self._epochs and roster.epoch <= max(self._epochs):
            return
        for epoch in sorted(self._epochs)[:-1]:
            del self._epochs[epoch]
        for known in self._epochs.values():
            known.until = now + limits.FAN_OLD_SECONDS
        self._epochs[roster.epoch] = _GroupEpoch(roster, key)

    def take(self, raw: bytes | memoryview, body: bytes | memoryview, now: float) -> GroupMessage | None:
        """A DATA frame, head and body; the message that it ends. Raises VerificationError FF-NET-133.

        A frame of an epoch that is over, or of nobody who is in the group now, is passed over.
        """
        head = read_head(raw)
        epoch = self._epochs.get(head.epoch)
        if epoch is None or (epoch.until is not None and now >= epoch.until):
            self.lost += 1
            return None
        sender = self._sender(epoch, head)
        stream = self._stream(epoch, head, sender)
        if stream.is_refused:
            return None
        if head.counter < stream.following:
            raise self._spoilt(stream, sender, "replayed, or out of order")
        try:
            plain = stream.aead.decrypt(_nonce(head), body, epoch.roster.group + bytes(raw))
        except InvalidTag:
            raise self._spoilt(stream, sender, "altered, or sealed by nobody in the group") from None
        self.opened = now
        epoch.streams[head.sender, head.stream] = stream  # not before: who forges fills nothing
        return self._add(stream, head, sender, plain)

    def _spoilt(self, stream: _SenderStream, sender: PeerId, cause: str) -> VerificationError:
        stream.is_refused, stream.parts = True, None
        self.lost += 1
        return _refused(sender, cause)

    def _sender(self, epoch: _GroupEpoch, head: GroupFrameHead) -> PeerId:
        members = epoch.roster.members
        newest = self._epochs[max(self._epochs)].roster.members
        if head.sender >= len(members) or members[head.sender] == self._me:
            raise _refused(self._me, "in the name of nobody, or in our own")
        if members[head.sender] not in newest:
            raise _refused(members[head.sender], "it is not in the group any more")
        return members[head.sender]

    @staticmethod
    def _stream(epoch: _GroupEpoch, head: GroupFrameHead, sender: PeerId) -> _SenderStream:
        known = epoch.streams.get((head.sender, head.stream))
        if known is None and sum(n == head.sender for n, _ in epoch.streams) >= limits.FAN_STREAMS:
            raise _refused(sender, "it has begun too many streams")
        return known or _SenderStream(_stream_key(epoch.key, head))

    def _add(self, stream: _SenderStream, head: GroupFrameHead, sender: PeerId, plain: bytes) -> GroupMessage | None:
        if head.counter > stream.following:
            self.lost += 1
            stream.parts = None
        stream.following = head.counter + 1
        if head.flags & FIRST:
            stream.parts = bytearray()
        if stream.parts is None:
            return None
        if len(stream.parts) + len(plain) > limits.BULK_BYTES or self._held() > limits.FAN_HELD_BYTES:
            self.lost += 1
            stream.parts = None
            return None
        stream.parts += plain
        if not head.flags & LAST:
            return None
        whole, stream.parts = bytes(stream.parts), None
        return GroupMessage(sender, whole)

    def _held(self) -> int:
        return sum(len(s.parts or b"") for epoch in self._epochs.values() for s in epoch.streams.values())


def _refused(sender: PeerId, cause: str) -> VerificationError:
    return VerificationError(
        "FF-NET-133",
        "a group's frame is refused",
        cause=f"said to be of {short(sender)}: {cause}",
        hint="nothing: what it belonged to comes over another way; if it goes on, use another relay",
    )
