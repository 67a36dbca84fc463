"""Decides what each frame means: many requests, replies and one-way messages over one ordered byte stream.

Both ends may ask. An asking end numbers its requests itself: the dialer 1, 3, 5 ..., the acceptor 2, 4, 6 ..., each
exactly the next. The rules, from the receiver's side; breaking one is a ProtocolError and ends the connection:

    frame           allowed when                                                              otherwise
    WELCOME         once, first of all, from the acceptor to the dialer                       FF-NET-020
    PING            always (answered by PONG)
    PONG            we asked                                                                  FF-NET-023
    REQUEST, TELL   its stream is the asker's next; its lane is not inside another message    FF-NET-020
                    total <= Kind.limit; <= STREAMS_OPEN and REQUEST_BYTES unanswered         FF-NET-021, 022
    REPLY, ERROR    answers a request that is wholly sent and not yet answered                FF-NET-023
    DATA            continues the message that its lane is inside of                          FF-NET-020
    any fragment    keeps within the declared total, and FIN stands exactly at its end        FF-NET-025

A TELL is answered too, by an empty REPLY that nobody waits for: so one rule bounds both. Lanes: see `send_scheduler`.
Because places are freed when the answer leaves (receiver) and when it arrives (asker), the asker never holds fewer
than the receiver counts: an honest peer cannot break the bound by accident, and no credit messages are needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from farflung.core import limits
from farflung.core.errors import FarflungError, ProtocolError
from farflung.net import messages
from farflung.net.frames import FRAGMENT_BYTES, Frame, FrameType, Piece
from farflung.net.messages import MessageKind, RemoteError
from farflung.net.send_scheduler import OutgoingMessage, SendScheduler

__all__ = [
    "Event",
    "MessageKind",
    "RemoteError",
    "StreamErrorReply",
    "StreamMultiplexer",
    "StreamReply",
    "StreamRequest",
    "StreamWelcome",
]


@dataclass(frozen=True, slots=True)
class StreamWelcome:
    """The acceptor took us in."""


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """The peer asks (or tells, when `wants_reply` is False). Answer by `reply` or `fail` in both cases."""

    stream: int
    method: str
    kind: MessageKind
    wants_reply: bool
    body: bytes


@dataclass(frozen=True, slots=True)
class StreamReply:
    """The reply to the request `ticket`."""

    ticket: int
    body: bytes


@dataclass(frozen=True, slots=True)
class StreamErrorReply:
    """The request `ticket` ended in an error at the peer."""

    ticket: int
    error: RemoteError


Event = StreamWelcome | StreamRequest | StreamReply | StreamErrorReply


@dataclass(frozen=True, slots=True)
class _OpenRequest:
    """A request under way. `ticket` 0: nobody waits for the answer."""

    ticket: int
    kind: MessageKind
    size: int


@dataclass(slots=True)
class _PartialMessage:
    """A message being put together."""

    type: FrameType
    stream: int
    kind: MessageKind
    total: int
    method: str = ""
    open: _OpenRequest | None = None  # the request it answers
    size: int = 0
    pieces: list[Piece] = field(default_factory=list)


def _broken(code: str, message: str, cause: str) -> ProtocolError:
    return ProtocolError(code, message, cause=cause, hint="the peer runs other software or is hostile")


def _disorder(cause: str) -> ProtocolError:
    return _broken("FF-NET-020", "a frame came out of order", cause)


def _check_total(kind: MessageKind, total: int) -> None:
    if total > kind.limit:
        cause = f"{total} bytes of {kind.name}, the limit is {kind.limit}"
        raise _broken("FF-NET-021", "a message is over its limit", cause)


class StreamMultiplexer:
    """One end of one connection: requests in and out, without any waiting."""

    def __init__(self, *, is_dialer: bool) -> None:
        self._outbox = SendScheduler(1 if is_dialer else 2)
        self._next_theirs = 2 if is_dialer else 1
        self._tickets = 0
        self._asked: dict[int, _OpenRequest] = {}  # ours, wholly or partly sent, not answered
        self._serving: dict[int, StreamRequest] = {}  # theirs, not answered
        self._serving_bytes = 0
        self._partials: dict[bool, _PartialMessage] = {}  # by lane: is it bulk?
        self._awaits_pong = False
        self.is_welcome = not is_dialer

    # What we send

    def request(self, method: str, body: bytes, kind: MessageKind) -> int:
        """Queues a request; its ticket comes back in Answered or Refused. Raises NetworkError FF-NET-030."""
        self._tickets += 1
        self._put(FrameType.REQUEST, method, body, kind, self._tickets)
        return self._tickets

    def tell(self, method: str, body: bytes, kind: MessageKind) -> None:
        """Queues a message that wants no answer. Raises NetworkError FF-NET-030."""
        self._put(FrameType.TELL, method, body, kind, 0)

    def abandon(self, ticket: int) -> None:
        """Nobody waits for this request any more: not sent if it has not started, else its answer is dropped."""
        if self._outbox.withdraw(ticket):
            return
        for stream, request in self._asked.items():
            if request.ticket == ticket:
                self._asked[stream] = _OpenRequest(0, request.kind, request.size)
                return

    def reply(self, asked: StreamRequest, body: bytes) -> None:
        """Answers. Raises NetworkError FF-NET-030 for a body over the limit; then `fail` is still possible."""
        messages.check_length(asked.kind, len(body))
        self._answer(FrameType.REPLY, asked, body if asked.wants_reply else b"")

    def fail(self, asked: StreamRequest, error: FarflungError) -> None:
        """Answers with an error (to a TELL: with the empty reply)."""
        if asked.wants_reply:
            self._answer(FrameType.ERROR, asked, messages.write_error(error))
        else:
            self._answer(FrameType.REPLY, asked, b"")

    def welcome(self) -> None:
        """The acceptor takes the dialer in."""
        self._outbox.signal(FrameType.WELCOME)

    def ping(self) -> None:
        """Asks for a sign of life, unless an answer is still due."""
        if not self._awaits_pong:
            self._awaits_pong = True
            self._outbox.signal(FrameType.PING)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way in either direction."""
        return not (self._asked or self._serving or self._partials or self._outbox.is_busy)

    def has_room(self, kind: MessageKind) -> bool:
        """Whether another message of this kind may be queued without growing over the bound."""
        return self._outbox.has_room(kind)

    def next_frames(self, limit: int = FRAGMENT_BYTES) -> tuple[MessageKind, list[Piece]] | None:
        """What to send next, in pieces, and what it is for; None: nothing may be sent now. `limit`: bytes at most."""
        sent = self._outbox.next(limit)
        if sent is None:
            return None
        kind, pieces, started = sent
        for message in started:
            self._started(message)
        return kind, pieces

    def _put(self, type_: FrameType, method: str, body: bytes, kind: MessageKind, ticket: int) -> None:
        head = messages.ask_head(method, kind, len(body))
        self._outbox.put(OutgoingMessage(type_, kind, head, memoryview(body), ticket=ticket))

    def _answer(self, type_: FrameType, asked: StreamRequest, body: bytes) -> None:
        head = messages.answer_head(len(body))
        self._outbox.put(OutgoingMessage(type_, asked.kind, head, memoryview(body), stream=asked.stream))

    def _started(self, message: OutgoingMessage) -> None:
        """A message's first frame leaves: requests take a place at the peer, answers free one here."""
        if message.is_request:
            self._asked[message.stream] = _OpenRequest(message.ticket, message.kind, len(message.body))
        else:
            asked = self._serving.pop(message.stream)
            self._serving_bytes -= len(asked.body)

    # What we receive

    def take(self, frame: Frame) -> tuple[MessageKind, Event | None]:
        """What the frame's bytes were for, and what it completes. Raises ProtocolError (see the table)."""
        if not self.is_welcome and frame.type is not FrameType.WELCOME:
            raise _disorder("the acceptor speaks before it welcomes")
        if frame.type in (FrameType.WELCOME, FrameType.PING, FrameType.PONG):
            return MessageKind.CONTROL, self._signal(frame.type)
        if frame.type is FrameType.DATA:
            partial = self._continued(frame.stream)
            return partial.kind, self._add(partial, (frame.body, *frame.rest), frame.is_last)
        if frame.type in (FrameType.REQUEST, FrameType.TELL):
            partial, piece = self._begun_request(frame)
        else:
            partial, piece = self._begun_answer(frame)
        return partial.kind, self._add(partial, (piece,), frame.is_last)

    def _signal(self, type_: FrameType) -> StreamWelcome | None:
        if type_ is FrameType.WELCOME:
            if self.is_welcome:
                raise _disorder("a second or misdirected WELCOME")
            self.is_welcome = True
            return StreamWelcome()
        if type_ is FrameType.PING:
            self._outbox.signal(FrameType.PONG)
        elif not self._awaits_pong:
            raise _broken("FF-NET-023", "an answer that nobody asked for", "PONG without PING")
        else:
            self._awaits_pong = False
        return None

    def _continued(self, stream: int) -> _PartialMessage:
        for partial in self._partials.values():
            if partial.stream == stream:
                return partial
        raise _disorder(f"stream {stream} is not inside a message")

    def _begun_request(self, frame: Frame) -> tuple[_PartialMessage, bytes]:
        if frame.stream != self._next_theirs:
            raise _disorder(f"stream {frame.stream} is not the next: unknown or used before")
        kind, total, method, piece = messages.read_ask(bytes(frame.body))
        _check_total(kind, total)
        if len(self._serving) >= limits.STREAMS_OPEN or self._serving_bytes + total > limits.REQUEST_BYTES:
            raise _broken("FF-NET-022", "too many requests under way", f"{len(self._serving)} unanswered")
        self._next_theirs += 2
        return self._begin(_PartialMessage(frame.type, frame.stream, kind, total, method)), piece

    def _begun_answer(self, frame: Frame) -> tuple[_PartialMessage, bytes]:
        request = self._asked.pop(frame.stream, None)
        if request is None or self._outbox.is_sending(frame.stream):
            raise _broken("FF-NET-023", "an answer that nobody asked for", f"to stream {frame.stream}")
        total, piece = messages.read_answer(bytes(frame.body))
        if frame.type is FrameType.ERROR and (total > limits.ERROR_BYTES or not frame.is_last):
            raise _broken("FF-NET-021", "a message is over its limit", f"an error of {total} bytes")
        _check_total(request.kind, total)
        self._outbox.free(request.kind, request.size)
        return self._begin(_PartialMessage(frame.type, frame.stream, request.kind, total, open=request)), piece

    def _begin(self, partial: _PartialMessage) -> _PartialMessage:
        if partial.kind.is_bulk in self._partials:
            raise _disorder("a message begins inside another one of its lane")
        self._partials[partial.kind.is_bulk] = partial
        return partial

    def _add(self, partial: _PartialMessage, pieces: tuple[Piece, ...], is_last: bool) -> Event | None:
        partial.pieces += pieces
        partial.size += sum(map(len, pieces))
        if partial.size > partial.total or is_last != (partial.size == partial.total):
            cause = f"{partial.size} of {partial.total} bytes, {'last' if is_last else 'not last'}"
            raise _broken("FF-NET-025", "a message does not keep to its declared length", cause)
        if not is_last:
            return None
        del self._partials[partial.kind.is_bulk]
        return self._completed(partial, b"".join(partial.pieces))

    def _completed(self, partial: _PartialMessage, body: bytes) -> Event | None:
        if partial.open is None:
            wants_reply = partial.type is FrameType.REQUEST
            asked = StreamRequest(partial.stream, partial.method, partial.kind, wants_reply, body)
            self._serving[partial.stream] = asked
            self._serving_bytes += len(body)
            return asked
        if partial.type is FrameType.ERROR:
            error = messages.read_error(body)
            return StreamErrorReply(partial.open.ticket, error) if partial.open.ticket else None
        return StreamReply(partial.open.ticket, body) if partial.open.ticket else None
