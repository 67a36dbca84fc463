"""Decides what leaves next: signals, then control, then bulk.

Two lanes. Inside a lane messages leave one after another, replies before requests (they free places); between
lanes control overtakes whenever more is asked for. So the receiver needs to put together one message a lane at most.
A request starts only while places are free by the rules that the peer checks (limits.STREAMS_OPEN and
REQUEST_BYTES); bulk uses half of each, so that it cannot keep control waiting.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from farflung.core import limits
from farflung.net.frames import FRAGMENT_BYTES, HEAD_BYTES, Frame, FrameType, Piece, encode, head
from farflung.net.messages import MessageKind
from farflung.net.tls import RECORD_BYTES

_FIRST_BYTES: Final = RECORD_BYTES - HEAD_BYTES  # of a frame's body, in its first TLS record
_MESSAGE_COST: Final = 512  # bytes that a queued message counts beside its body: small ones are not free


@dataclass(slots=True)
class OutgoingMessage:
    """One message on its way out. `ticket` names a request of ours; `stream` is 0 until a request starts."""

    type: FrameType
    kind: MessageKind
    head: bytes
    body: memoryview
    stream: int = 0
    ticket: int = 0
    sent: int = 0  # bytes of the body that have left

    @property
    def is_request(self) -> bool:
        """Whether it takes one of the peer's places."""
        return self.type in (FrameType.REQUEST, FrameType.TELL)

    def cut(self, room: int, pieces: list[Piece]) -> int:
        """Adds the next frames to `pieces`, one at least; what is left of `room` is less than a frame, or they end it.

        No piece crosses the end of a TLS record of its frame, and what is behind a frame's first record is not copied.
        """
        body, at, end = self.body, self.sent, len(self.body)
        type_, before = (FrameType.DATA, b"") if at else (self.type, self.head)
        while True:
            ahead = len(before)
            to = min(end, at + min(FRAGMENT_BYTES, room) - ahead)
            first = min(to, at + _FIRST_BYTES - ahead)
            start = head(type_, to == end, self.stream, ahead + to - at)
            pieces.append(b"".join((start, before, body[at:first])))
            if first < to:
                pieces.append(body[first:to])
            room -= HEAD_BYTES + ahead + to - at
            at = to
            if at == end or room < FRAGMENT_BYTES:
                self.sent = at
                return room
            type_, before = FrameType.DATA, b""


@dataclass(slots=True)
class _SendLane:
    replies: deque[OutgoingMessage] = field(default_factory=deque)
    requests: deque[OutgoingMessage] = field(default_factory=deque)
    current: OutgoingMessage | None = None
    cost: int = 0  # of everything not wholly sent
    places: int = 0  # requests started and not answered
    bytes_placed: int = 0


def _cost(message: OutgoingMessage) -> int:
    return len(message.body) + _MESSAGE_COST


class SendScheduler:
    """The queue of one connection."""

    def __init__(self, first_stream: int) -> None:
        """`first_stream`: 1 for the dialer, 2 for the acceptor; ids of one end have one parity."""
        self._next_stream = first_stream
        self._signals: deque[FrameType] = deque()
        self._lanes = (_SendLane(), _SendLane())  # control, bulk

    @property
    def is_busy(self) -> bool:
        """Whether a message is queued or not wholly sent."""
        return any(lane.cost for lane in self._lanes)

    def has_room(self, kind: MessageKind) -> bool:
        """Whether another message of this kind may be queued now (limits.OUTGOING_BYTES a lane)."""
        return self._lanes[kind.is_bulk].cost < limits.OUTGOING_BYTES

    def signal(self, kind: FrameType) -> None:
        """Queues a signal, unless the same one is still waiting."""
        if kind not in self._signals:
            self._signals.append(kind)

    def put(self, message: OutgoingMessage) -> None:
        """Queues a message."""
        lane = self._lanes[message.kind.is_bulk]
        (lane.requests if message.is_request else lane.replies).append(message)
        lane.cost += _cost(message)

    def withdraw(self, ticket: int) -> bool:
        """Drops a request that has not started; False if it has."""
        for lane in self._lanes:
            for message in lane.requests:
                if message.ticket == ticket:
                    lane.requests.remove(message)
                    lane.cost -= _cost(message)
                    return True
        return False

    def is_sending(self, stream: int) -> bool:
        """Whether a request of ours on this stream has started and not wholly left."""
        return any(
            lane.current is not None and lane.current.is_request and lane.current.stream == stream
            for lane in self._lanes
        )

    def free(self, kind: MessageKind, size: int) -> None:
        """A request of ours with a body of `size` bytes was answered: its place is free."""
        lane = self._lanes[kind.is_bulk]
        lane.places -= 1
        lane.bytes_placed -= size

    def next(self, limit: int = FRAGMENT_BYTES) -> tuple[MessageKind, list[Piece], list[OutgoingMessage]] | None:
        """What leaves next: its kind, frames in pieces, and the messages that begin in it; None: nothing to send.

        A frame of `limit` bytes at most, so that control does not wait for a large one on a slow line; further whole
        frames of the same kind where they fit.
        """
        if self._signals:
            return MessageKind.CONTROL, [encode(Frame(self._signals.popleft(), 0))], []
        for lane in self._lanes:
            if (message := lane.current or self._start(lane)) is not None:
                return message.kind, *self._fill(lane, message, limit)
        return None

    def _fill(self, lane: _SendLane, first: OutgoingMessage, room: int) -> tuple[list[Piece], list[OutgoingMessage]]:
        pieces: list[Piece] = []
        started = [] if lane.current is first else [first]
        message: OutgoingMessage | None = first
        while message is not None:
            room = message.cut(room, pieces)
            is_over = message.sent == len(message.body)
            lane.current = None if is_over else message
            if is_over:
                lane.cost -= _cost(message)
            message = self._start(lane, first.kind) if is_over and room >= FRAGMENT_BYTES else None
            if message is not None:
                started.append(message)
        return pieces, started

    def _start(self, lane: _SendLane, kind: MessageKind | None = None) -> OutgoingMessage | None:
        """The lane's next message, if it is of this `kind`."""
        queue = lane.replies or lane.requests
        if not queue or (kind is not None and queue[0].kind is not kind):
            return None
        if queue is lane.replies:
            return queue.popleft()
        if not self._has_place(lane, len(queue[0].body)):
            return None
        message = queue.popleft()
        message.stream = self._next_stream
        self._next_stream += 2
        lane.places += 1
        lane.bytes_placed += len(message.body)
        return message

    def _has_place(self, lane: _SendLane, size: int) -> bool:
        places = sum(each.places for each in self._lanes)
        total = sum(each.bytes_placed for each in self._lanes)
        share = 2 if lane is self._lanes[True] else 1
        return (
            places < limits.STREAMS_OPEN
            and total + size <= limits.REQUEST_BYTES
            and lane.places < limits.STREAMS_OPEN // share
            and lane.bytes_placed + size <= limits.REQUEST_BYTES // share
        )
