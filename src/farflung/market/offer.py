"""What a provider offers: its capabilities, hashed into its node's row on the ledger, and its ask.

Capabilities are declared, and re-measured by whoever hires (`host.io.probe`): a false one loses the lease.
"""

from __future__ import annotations

import msgspec

from farflung.core.codec import encode
from farflung.core.crypto import NS_CAPABILITIES, digest
from farflung.core.ids import Hash, PeerId
from farflung.core.money import Credits
from farflung.plan.machine import Capabilities

__all__ = ["Capabilities", "Listing", "caps_hash"]


def caps_hash(capabilities: Capabilities) -> Hash:
    """What the ledger keeps of capabilities."""
    return digest(NS_CAPABILITIES, encode(capabilities))


class Listing(msgspec.Struct, frozen=True):
    """A standing ask, joined from the ledger (peer, ask, stake) and the directory (capabilities, endpoint).

    Whose it is is its peer: on the ledger a node is an account, each account is paid for itself, and no row names
    another owner. So no cap on owners can hold here; in the auction an ask names its owner (market.asks).
    """

    peer: PeerId
    unit_price: Credits
    stake_free: Credits
    capabilities: Capabilities
    endpoint: bytes = b""  # opaque to the market
