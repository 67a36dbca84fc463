"""Looks for one peer: reads its record in a ledger's directory, and tests whether it answers a call."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from farflung.app.netcheck.relay import RelayAddress, addresses
from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_ADVERTISEMENT, SigningKey, is_signed
from farflung.core.errors import FarflungError, PolicyError
from farflung.core.ids import PeerId, short
from farflung.host.net_readings import PeerReading
from farflung.ledger import queries
from farflung.ledger.table_rows import NodeRow
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import DIRECT, EndpointAddress, EndpointRecord, check_values
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.quorum_read import QUERY
from farflung.peers.protocol.directory import LIST, Advertisement, DirectoryListing, read_advertisement

ASK_SECONDS: Final = 4.0
DIAL_SECONDS: Final = 6.0  # a relay waits 5 s for the peer to come


async def meet(
    key: SigningKey, ledger: RelayAddress, peer: PeerId, clock: Callable[[], float] = time.time
) -> PeerReading:
    """The peer's record, and the first of its places that answers; in 15 seconds at most."""
    seen = PeerReading(peer.hex(), ledger.place)
    endpoint = Endpoint(key, _serves_nothing, ByteCounter(), handshake_seconds=DIAL_SECONDS)
    try:
        async with asyncio.timeout(2 * ASK_SECONDS):
            seen, record = await _ask(endpoint, ledger, seen, peer, clock)
        if record is not None:
            seen = await _dial(endpoint, record, seen)
    except TimeoutError:
        seen = msgspec.structs.replace(seen, failed="FF-NET-047", why="it does not answer in time")
    finally:
        await endpoint.close()
    return seen


async def _serves_nothing(connection: Connection, method: str, body: bytes) -> bytes:
    raise PolicyError("FF-APP-181", "a check serves nothing", hint="nothing: it was looking, and is gone")


async def _ask(
    endpoint: Endpoint, ledger: RelayAddress, seen: PeerReading, peer: PeerId, clock: Callable[[], float]
) -> tuple[PeerReading, EndpointRecord | None]:
    assert ledger.key is not None
    try:
        found = await addresses(ledger.host, ledger.port)
        connection = await endpoint.dial(ledger.key, str(found[0][4][0]), ledger.port)
        told = await connection.call(LIST, b"", timeout=ASK_SECONDS)
        listing = decode(told, DirectoryListing, limits.CONTROL_BYTES)
    except FarflungError as error:
        return msgspec.structs.replace(seen, failed=error.code, why=error.cause or error.message), None
    except (OSError, UnicodeError) as error:
        return msgspec.structs.replace(seen, failed="FF-NET-043", why=f"{ledger.host} has no address: {error}"), None
    seen = msgspec.structs.replace(seen, is_registered=await _is_registered(connection, peer))
    own = next((each for each in _readable(listing) if each.endpoint.peer == peer), None)
    if own is None:
        return seen, None
    if not _is_own(own):
        return msgspec.structs.replace(seen, is_listed=True, is_signed=False), None
    record, now = own.endpoint, clock()
    seen = msgspec.structs.replace(
        seen,
        is_listed=True,
        left=record.expires - now,
        ahead=record.issued - now,
        places=tuple(_place(place) for place in record.places),
    )
    return seen, record


def _readable(listing: DirectoryListing) -> Iterator[Advertisement]:
    for each in listing.advertisements:
        with contextlib.suppress(FarflungError):
            yield read_advertisement(each)


async def _is_registered(connection: Connection, peer: PeerId) -> bool | None:
    try:
        told = await connection.call(QUERY, encode(queries.GetReceipt(NodeRow.TABLE, peer)), timeout=ASK_SECONDS)
        answer = queries.read_reply(told)
    except FarflungError:
        return None
    return answer.receipt is not None if isinstance(answer, queries.ReceiptReply) else None


def _is_own(advertisement: Advertisement) -> bool:
    record = advertisement.endpoint
    try:
        check_values(record)
    except FarflungError:
        return False
    return is_signed(record.peer, advertisement.signature, NS_ADVERTISEMENT, advertisement.said)


def _place(place: EndpointAddress) -> str:
    return f"{place.host}:{place.port}" + ("" if place.relay == DIRECT else f", relay {short(place.relay)}")


async def _dial(endpoint: Endpoint, record: EndpointRecord, seen: PeerReading) -> PeerReading:
    start = time.monotonic()
    for place in record.places[: limits.PLACES]:
        if time.monotonic() - start > DIAL_SECONDS:
            break
        relay = None if place.relay == DIRECT else place.relay
        seen = msgspec.structs.replace(seen, over=_place(place), is_relayed=relay is not None)
        begun = time.monotonic()
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await endpoint.dial(record.peer, place.host, place.port, relay=relay)
        except TimeoutError:
            seen = msgspec.structs.replace(seen, code="FF-NET-044", cause="nothing came in time")
        except FarflungError as error:
            seen = msgspec.structs.replace(seen, code=error.code, cause=error.cause or error.message)
        else:
            return msgspec.structs.replace(seen, is_met=True, seconds=time.monotonic() - begun, code="", cause="")
    return seen
