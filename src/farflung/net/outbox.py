"""Decides which frame leaves next: signals, then control, then bulk.

Two lanes. Inside a lane messages leave one after another, replies before requests (they free places); between
lanes control overtakes at every frame. So the receiver needs to put together one message a lane at most.
A request starts only while places are free by the rules that the peer checks (limits.STREAMS_OPEN and
REQUEST_BYTES); bulk uses half of each, so that it cannot keep control waiting.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from farflung.core import limits
from farflung.net.frames import FRAGMENT_BYTES, Frame, Type, encode
from farflung.net.messages import Kind

_MESSAGE_COST: Final = 512  # bytes that a queued message counts beside its body: small ones are not free


@dataclass(slots=True)
class Message:
    """One message on its way out. `ticket` names a request of ours; `stream` is 0 until a request starts."""

    type: Type
    kind: Kind
    head: bytes
    body: memoryview
    stream: int = 0
    ticket: int = 0
    sent: int = 0  # bytes of the body that have left

    @property
    def is_request(self) -> bool:
        """Whether it takes one of the peer's places."""
        return self.type in (Type.REQUEST, Type.TELL)

    def fragment(self, limit: int = FRAGMENT_BYTES) -> Frame:
        """The next frame, of `limit` bytes at most; the head goes with the first."""
        head = b"" if self.sent else self.head
        piece = self.body[self.sent : self.sent + limit - len(head)]
        self.sent += len(piece)
        is_last = self.sent == len(self.body)
        if head:
            return Frame(self.type, self.stream, head, is_last, (piece,))
        return Frame(Type.DATA, self.stream, piece, is_last)


@dataclass(slots=True)
class _Lane:
    replies: deque[Message] = field(default_factory=deque)
    requests: deque[Message] = field(default_factory=deque)
    current: Message | None = None
    cost: int = 0  # of everything not wholly sent
    places: int = 0  # requests started and not answered
    bytes_placed: int = 0


def _cost(message: Message) -> int:
    return len(message.body) + _MESSAGE_COST


class Outbox:
    """The queue of one connection."""

    def __init__(self, first_stream: int) -> None:
        """`first_stream`: 1 for the dialer, 2 for the acceptor; ids of one end have one parity."""
        self._next_stream = first_stream
        self._signals: deque[Type] = deque()
        self._lanes = (_Lane(), _Lane())  # control, bulk

    @property
    def is_busy(self) -> bool:
        """Whether a message is queued or not wholly sent."""
        return any(lane.cost for lane in self._lanes)

    def has_room(self, kind: Kind) -> bool:
        """Whether another message of this kind may be queued now (limits.OUTGOING_BYTES a lane)."""
        return self._lanes[kind.is_bulk].cost < limits.OUTGOING_BYTES

    def signal(self, kind: Type) -> None:
        """Queues a signal, unless the same one is still waiting."""
        if kind not in self._signals:
            self._signals.append(kind)

    def put(self, message: Message) -> None:
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

    def free(self, kind: Kind, size: int) -> None:
        """A request of ours with a body of `size` bytes was answered: its place is free."""
        lane = self._lanes[kind.is_bulk]
        lane.places -= 1
        lane.bytes_placed -= size

    def next(self, limit: int = FRAGMENT_BYTES) -> tuple[Kind, bytes, Message | None] | None:
        """The next frame's kind and bytes, and the message if this is its first frame; None: nothing to send.

        `limit`: the frame's bytes at most; on a slow line control shall not wait for a large one.
        """
        if self._signals:
            return Kind.CONTROL, encode(Frame(self._signals.popleft(), 0)), None
        for lane in self._lanes:
            started = None
            if lane.current is None:
                lane.current = started = self._start(lane)
            if lane.current is not None:
                message = lane.current
                return message.kind, self._advance(lane, message, limit), started
        return None

    def _start(self, lane: _Lane) -> Message | None:
        if lane.replies:
            return lane.replies.popleft()
        if not lane.requests or not self._has_place(lane, len(lane.requests[0].body)):
            return None
        message = lane.requests.popleft()
        message.stream = self._next_stream
        self._next_stream += 2
        lane.places += 1
        lane.bytes_placed += len(message.body)
        return message

    def _has_place(self, lane: _Lane, size: int) -> bool:
        places = sum(each.places for each in self._lanes)
        total = sum(each.bytes_placed for each in self._lanes)
        share = 2 if lane is self._lanes[True] else 1
        return (
            places < limits.STREAMS_OPEN
            and total + size <= limits.REQUEST_BYTES
            and lane.places < limits.STREAMS_OPEN // share
            and lane.bytes_placed + size <= limits.REQUEST_BYTES // share
        )

    def _advance(self, lane: _Lane, message: Message, limit: int) -> bytes:
        frame = message.fragment(limit)
        if frame.is_last:
            lane.current = None
            lane.cost -= _cost(message)
        return encode(frame)
