"""Follows a relay's callback request: connects to the relay to meet the peer that dials this one there."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Protocol

from farflung.core import limits
from farflung.core.ids import PeerId, short
from farflung.net.certificates import Credential
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.connection import Connection
from farflung.net.io.listen_errors import declined
from farflung.net.io.relay_dialer import dial_by_relay, new_ticket
from farflung.net.io.relay_payer import RelayPayer
from farflung.net.io.relay_registration import RelayRegistration
from farflung.net.paths import PathType
from farflung.net.relay_tickets import CallbackRequest, TicketPurpose


class CallbackSource(Protocol):
    """What is spoken from: an Endpoint. Asked anew each time, since a node key is renewed."""

    credential: Credential
    counter: ByteCounter
    payer: RelayPayer


class RelayCallback:
    """Those of one endpoint. `coming`: requests that are being followed."""

    def __init__(
        self,
        endpoint: CallbackSource,
        arriving: Callable[..., Connection],
        admit: Callable[[PeerId], bool] | None,
        seconds: float,
    ) -> None:
        """`arriving` makes what takes an accepted socket over; who does not come within `seconds` is given up."""
        self._endpoint, self._arriving, self._admit, self._seconds = endpoint, arriving, admit, seconds
        self.coming = 0

    async def come(self, attachment: RelayRegistration, request: CallbackRequest) -> None:
        """Meets the dialer. Who it is, its handshake will prove; the relay may lie. Raises NetworkError FF-NET-076."""
        if self._admit is not None and not self._admit(request.dialer):
            raise declined(f"{short(request.dialer)} is not admitted")
        if self.coming >= limits.HALF_OPEN:
            raise declined("too many at once")
        relay, dialer, own = attachment.relay, request.dialer, self._endpoint
        tally = own.payer.tally(request.toll, relay, attachment.place)
        ticket = new_ticket(own.credential, TicketPurpose.ACCEPT, relay, dialer, request.circuit)
        made = functools.partial(self._arriving, b"", EndpointAddress(*attachment.place, relay), PathType.RELAY, tally)
        self.coming += 1
        try:
            async with asyncio.timeout(self._seconds):
                await dial_by_relay(own.credential, own.counter, ticket, attachment.place, made)
        except TimeoutError:
            raise declined("the relay does not answer") from None
        finally:
            self.coming -= 1
