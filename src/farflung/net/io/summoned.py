"""Follows a relay's word that somebody dials us there: goes to the relay to meet whoever it is."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Protocol

from farflung.core import limits
from farflung.core.ids import PeerId, short
from farflung.net.certificates import Credential
from farflung.net.counters import Counter
from farflung.net.endpoints import Place
from farflung.net.io.attachment import Attachment
from farflung.net.io.connection import Connection
from farflung.net.io.knock import knock, new_ticket
from farflung.net.io.listening import declined
from farflung.net.io.purse import Purse
from farflung.net.paths import Way
from farflung.net.tickets import Purpose, Summons


class Speaker(Protocol):
    """What is spoken from: an Endpoint. Asked anew each time, since a node key is renewed."""

    credential: Credential
    counter: Counter
    purse: Purse


class Summoned:
    """Those of one endpoint. `coming`: summons that are being followed."""

    def __init__(
        self,
        station: Speaker,
        arriving: Callable[..., Connection],
        admit: Callable[[PeerId], bool] | None,
        seconds: float,
    ) -> None:
        """`arriving` makes what takes an accepted socket over; who does not come within `seconds` is given up."""
        self._station, self._arriving, self._admit, self._seconds = station, arriving, admit, seconds
        self.coming = 0

    async def come(self, attachment: Attachment, summons: Summons) -> None:
        """Meets the dialer. Who it is, its handshake will prove; the relay may lie. Raises NetworkError FF-NET-076."""
        if self._admit is not None and not self._admit(summons.dialer):
            raise declined(f"{short(summons.dialer)} is not admitted")
        if self.coming >= limits.HALF_OPEN:
            raise declined("too many at once")
        relay, dialer, own = attachment.relay, summons.dialer, self._station
        tally = own.purse.tally(summons.toll, relay, attachment.place)
        ticket = new_ticket(own.credential, Purpose.ACCEPT, relay, dialer, summons.circuit)
        made = functools.partial(self._arriving, b"", Place(*attachment.place, relay), Way.RELAY, tally)
        self.coming += 1
        try:
            async with asyncio.timeout(self._seconds):
                await knock(own.credential, own.counter, ticket, attachment.place, made)
        except TimeoutError:
            raise declined("the relay does not answer") from None
        finally:
            self.coming -= 1
