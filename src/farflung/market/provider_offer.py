"""Defines a provider's offer: its capabilities, hashed into its node's row on the ledger, and its ask.

Capabilities are a node's own word. What is in its row is a hash of those that no run changes (system, cores,
version of torch): measured ones enter no root. Hiring leaves out who advertises others than its row names.
"""

from __future__ import annotations

import msgspec

from farflung.core.codec import encode
from farflung.core.crypto import NS_CAPABILITIES, digest
from farflung.core.ids import Hash, PeerId
from farflung.core.money import Credits
from farflung.plan.machine import Capabilities

__all__ = ["Capabilities", "OfferListing", "caps_hash", "lasting"]


def caps_hash(capabilities: Capabilities) -> Hash:
    """What the ledger keeps of capabilities."""
    return digest(NS_CAPABILITIES, encode(capabilities))


def lasting(capabilities: Capabilities) -> Capabilities:
    """What no measurement changes: what a node's row holds the hash of."""
    return msgspec.structs.replace(capabilities, flops=0, disk_bytes=0, memory_bytes=0)


class OfferListing(msgspec.Struct, frozen=True):
    """A standing ask, joined from the ledger (peer, ask, stake) and the directory (capabilities, endpoint).

    `owner`: the account that signed for the node in its advertisement; where there is none, the node is an owner of
    its own. No row of the ledger names an owner.
    """

    peer: PeerId
    unit_price: Credits
    stake_free: Credits
    capabilities: Capabilities
    endpoint: bytes = b""  # opaque to the market
    owner: PeerId | None = None

    @property
    def whose(self) -> PeerId:
        """The owner's key."""
        return self.owner or self.peer
