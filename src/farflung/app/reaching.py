"""From an address to a connection: over the best path there is, and while there is none over a relay at once."""

from __future__ import annotations

from farflung.app.wire import Address
from farflung.net.io.connection import Connection
from farflung.net.io.roads import Roads


async def reach(roads: Roads, address: Address) -> Connection:
    """A standing connection to the peer, or a new one to the first place that answers. Raises FarflungError."""
    roads.learn(address.peer, address.places)
    return await roads.connection(address.peer)
