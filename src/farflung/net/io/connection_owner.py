"""Defines the interface that a connection needs from its endpoint."""

from __future__ import annotations

from typing import Protocol, TypeVar

from farflung.core.ids import PeerId
from farflung.net.io.rate_limiter import LinePacer
from farflung.net.messages import MessageKind
from farflung.net.streams import StreamRequest

ConnectionT = TypeVar("ConnectionT", contravariant=True)


class ConnectionHost(Protocol[ConnectionT]):
    """What a connection asks of its endpoint."""

    buffer: bytearray  # for reading; used within one callback only
    pacer: LinePacer | None  # of all that this process sends to other machines; None: as fast as it goes

    def has_place(self, peer: PeerId, kind: MessageKind) -> bool:
        """Whether another request of this key may start."""

    def work(self, connection: ConnectionT, asked: StreamRequest) -> None:
        """Starts the handler of a request; it ends in `answer` or `refuse`."""

    def proved(self, connection: ConnectionT) -> None:
        """The peer's key is proved; raises NetworkError to refuse it."""

    def lost(self, connection: ConnectionT) -> None:
        """The connection is gone."""
