"""Defines the directory, in which each node publishes its current address and machine under its own signature."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import NS_ENDPOINT, SigningKey, is_signed
from farflung.core.errors import FarflungError, NetworkError, VerificationError
from farflung.core.ids import PeerId, Signature
from farflung.ledger.transactions import LeaseRole
from farflung.market.provider_offer import Capabilities
from farflung.net.endpoint_records import EndpointAddress, EndpointRecord, check_time, check_values, issue
from farflung.net.io.connection import Connection

PUBLISH = "directory.publish"
LIST = "directory.list"
LOOK_SECONDS: Final = 2.0  # between looks whether the directory still knows this node
TELL_SECONDS: Final = limits.RECORD_SECONDS / 3  # between records
_TRIES: Final = 50


class Advertisement(Wire, frozen=True):
    """One node's volatile facts. The ledger holds the binding ones: price, stake, a hash of the capabilities."""

    endpoint: EndpointRecord
    capabilities: Capabilities
    role: LeaseRole
    signature: Signature


def advertise(
    key: SigningKey, endpoint: EndpointRecord, capabilities: Capabilities, role: LeaseRole = LeaseRole.TRAIN
) -> Advertisement:
    """A signed advertisement."""
    said = encode((endpoint, capabilities, role))
    return Advertisement(endpoint, capabilities, role, key.sign(NS_ENDPOINT, said))


def check_advertisement(advertisement: Advertisement, peer: PeerId, now: float) -> None:
    """Raises VerificationError FF-APP-032 unless the peer speaks of itself and signed it, ProtocolError FF-NET-060
    when it names no place, 110 when it has expired, 111 when it is of the future. `now`: seconds since 1970.
    """
    check_values(advertisement.endpoint)
    check_time(advertisement.endpoint, now)
    said = encode((advertisement.endpoint, advertisement.capabilities, advertisement.role))
    is_own = advertisement.endpoint.peer == peer
    if not is_own or not is_signed(peer, advertisement.signature, NS_ENDPOINT, said):
        raise VerificationError("FF-APP-032", "an advertisement is not signed by the node that it names")


class DirectoryListing(Wire, frozen=True):
    """All advertisements that a directory holds."""

    advertisements: tuple[Advertisement, ...]


def read_directory(path: Path, size: int, now: float) -> tuple[Advertisement, ...]:
    """What a directory held when it was written last: those whose node signed them and that have not expired.

    The file is a convenience: without it, or when it is damaged, every node is unlisted until it publishes again.
    """
    with contextlib.suppress(OSError, FarflungError):
        return tuple(sound(decode(path.read_bytes(), DirectoryListing, size), now))
    return ()


def sound(listing: DirectoryListing, now: float) -> Iterator[Advertisement]:
    """Those that can be trusted at `now` (seconds since 1970): one bad advertisement takes no other with it."""
    for advertisement in listing.advertisements:
        with contextlib.suppress(FarflungError):
            check_advertisement(advertisement, advertisement.endpoint.peer, now)
            yield advertisement


class DirectoryPublisher:
    """One node's place in the directory: told anew before it expires, and when the directory may have forgotten it."""

    def __init__(
        self,
        key: SigningKey,
        places: tuple[EndpointAddress, ...],
        capabilities: Capabilities,
        role: LeaseRole,
        reach: Callable[[], Awaitable[Connection]],
    ) -> None:
        """`reach` gives a connection to the validator."""
        self._key, self._places, self._facts, self._role = key, places, capabilities, role
        self._reach = reach

    def move(self, places: tuple[EndpointAddress, ...]) -> None:
        """From now on it is found there: `stay` tells so at its next look."""
        self._places = places

    async def publish(self) -> None:
        """Publishes once, now; a ledger that restarts is waited for. Raises NetworkError FF-APP-093."""
        cause = ""
        for _ in range(_TRIES):
            try:
                await self._tell(await self._reach())
                return
            except NetworkError as error:
                cause = str(error)[:300]
            await asyncio.sleep(5 * LOOK_SECONDS / _TRIES)
        raise NetworkError("FF-APP-093", "the directory cannot be reached", cause=cause, hint="is the ledger running?")

    async def stay(self) -> None:
        """Keeps the record known and fresh until it is cancelled."""
        known: Connection | None = None
        told, places = 0.0, self._places
        while True:
            with contextlib.suppress(NetworkError):
                ledger = await self._reach()
                is_fresh = ledger is known and told <= time.time() < told + TELL_SECONDS
                if not is_fresh or places is not self._places:
                    places = self._places
                    await self._tell(ledger)
                    known, told = ledger, time.time()
            await asyncio.sleep(LOOK_SECONDS)

    async def _tell(self, ledger: Connection) -> None:
        record = issue(self._key.public, self._places, time.time())
        await ledger.call(PUBLISH, encode(advertise(self._key, record, self._facts, self._role)))
