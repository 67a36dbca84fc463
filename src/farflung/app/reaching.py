"""From an address to a connection: directly, or through one of the relays that the address names."""

from __future__ import annotations

from farflung.app.wire import Address
from farflung.core import limits
from farflung.core.errors import FarflungError, PolicyError
from farflung.net.endpoints import DIRECT
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint


async def reach(endpoint: Endpoint, address: Address) -> Connection:
    """A standing connection to the peer, or a new one to the first place that answers. Raises NetworkError."""
    failed: FarflungError = PolicyError("FF-APP-047", f"no address is known for {address.peer[:4].hex()}")
    for place in address.places[: limits.PLACES]:
        relay = place.relay if place.relay != DIRECT else None
        try:
            return await endpoint.dial(address.peer, place.host, place.port, relay=relay)
        except FarflungError as error:
            failed = error
    raise failed
