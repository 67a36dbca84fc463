"""Keeps a spare connection of each registered peer at its relay, so that dialers need not wait for a callback.

    peer    opens one, shows a SPARE ticket and waits ── JOINED ──> it is the acceptor's connection; the next is opened
                                                       ── limits.SPARE_SECONDS ──> the next is opened beside it
    relay   keeps the newest of each attached key; gives it to the first dialer, if it is still there, says nothing and
            is not over its time; else the peer is summoned, as it is without a spare

A spare saves the callback and the peer's TCP handshake: one and a half round trips between peer and relay.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Final

from farflung.core import limits
from farflung.core.errors import NetworkError
from farflung.core.ids import PeerId
from farflung.net.certificates import Credential, Identity
from farflung.net.counters import ByteCounter
from farflung.net.io.connection import Connection
from farflung.net.io.relay_dialer import RelayDial, new_ticket, visit
from farflung.net.io.relay_payer import RelayPayer
from farflung.net.relay_receipts import ReceiptTally
from farflung.net.relay_tickets import NOBODY, TicketPurpose

_PAUSE_SECONDS: Final = 1.0  # after a spare that broke
_PART_SECONDS: Final = 1.0


class SpareConnections:
    """The spares that peers keep at one relay: one for a key at most."""

    def __init__(self, clock: Callable[[], float], counts: Callable[[Identity], bool]) -> None:
        """`clock` gives seconds; `counts` says whether a node key is good."""
        self._clock, self._counts = clock, counts
        self._kept: dict[PeerId, tuple[float, socket.socket, Identity]] = {}

    def keep(self, peer: PeerId, spare: socket.socket, identity: Identity) -> None:
        """Owns the socket from now on; the one before it is closed. `identity` has shown the ticket."""
        self.drop(peer)
        self._kept[peer] = self._clock() + limits.SPARE_SECONDS + limits.CIRCUIT_SECONDS, spare, identity

    def take(self, peer: PeerId) -> tuple[socket.socket, Identity] | None:
        """A spare that can be joined: the caller's from now on. None: there is none, or it is no good."""
        kept = self._kept.pop(peer, None)
        if kept is None:
            return None
        until, spare, identity = kept
        if self._clock() < until and self._counts(identity) and _is_silent(spare):
            return spare, identity
        spare.close()
        return None

    def drop(self, peer: PeerId) -> None:
        """Closes what this key has here."""
        if (kept := self._kept.pop(peer, None)) is not None:
            kept[1].close()

    def close(self) -> None:
        """Closes all."""
        for peer in list(self._kept):
            self.drop(peer)


def _is_silent(spare: socket.socket) -> bool:
    """Whether it stands, and nothing was said on it: who waits to be dialled has nothing to say."""
    try:
        spare.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


async def part(stranger: socket.socket) -> None:
    """Closes a socket so that the word before it arrives.

    Closed with bytes unread it would be reset, and the word be lost: so a handshake's worth is read, for a second.
    """
    loop, left = asyncio.get_running_loop(), limits.HANDSHAKE_BYTES
    try:
        with contextlib.suppress(OSError, TimeoutError):
            stranger.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(_PART_SECONDS):
                while left > 0 and (piece := await loop.sock_recv(stranger, left)):
                    left -= len(piece)
    finally:
        stranger.close()


async def keep_spare(
    own: Callable[[], Credential],
    counter: ByteCounter,
    relay: PeerId,
    place: tuple[str, int],
    make: Callable[[ReceiptTally | None], Connection],
    payer: RelayPayer,
) -> None:
    """Keeps a spare at the relay until it is cancelled. `own`: today's node key; `make` builds what is joined, which
    counts in the `payer` under the pass that the relay names.
    """
    made = lambda toll: make(payer.tally(toll, relay, place))  # noqa: E731
    held: list[RelayDial] = []  # the newest last; the relay may still join the one before
    try:
        while True:
            held = [one for one in held[-1:] if not one.answered.done()]
            try:
                ticket = new_ticket(own(), TicketPurpose.SPARE, relay, NOBODY)
                held.append(await visit(own(), counter, ticket, place, made))
            except NetworkError:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            await asyncio.wait({held[-1].answered}, timeout=limits.SPARE_SECONDS)
            if not _is_joined(held[-1]):
                await asyncio.sleep(_PAUSE_SECONDS)
    finally:
        for one in held:
            if not _is_joined(one):
                one.give_up()


def _is_joined(spare: RelayDial) -> bool:
    """Also false of one that waits."""
    answered = spare.answered
    is_done = answered.done() and not answered.cancelled() and answered.exception() is None
    return is_done and isinstance(answered.result(), Connection)
