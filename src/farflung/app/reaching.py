"""From an address to a connection: directly, or through the relay that the address names."""

from __future__ import annotations

from farflung.app.wire import Address
from farflung.ledger.rows import NOBODY
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint


async def reach(endpoint: Endpoint, address: Address) -> Connection:
    """A standing connection to the peer, or a new one. Raises NetworkError."""
    relay = address.relay if address.relay != NOBODY else None
    return await endpoint.dial(address.peer, address.host, address.port, relay=relay)
