"""Turns an address into a connection: over the best path there is, and while there is none over a relay at once."""

from __future__ import annotations

from farflung.net.io.connection import Connection
from farflung.net.io.path_manager import PathManager
from farflung.peers.protocol.messages import PeerAddress


async def reach(roads: PathManager, address: PeerAddress) -> Connection:
    """A standing connection to the peer, or a new one to the first place that answers. Raises FarflungError."""
    roads.learn(address.peer, address.places)
    return await roads.connection(address.peer)
