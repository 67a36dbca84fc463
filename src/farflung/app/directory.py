"""The directory: where a node listens now and what its machine is, said and signed by the node itself."""

from __future__ import annotations

from farflung.core.codec import Wire, encode
from farflung.core.crypto import NS_ENDPOINT, SigningKey, is_signed
from farflung.core.errors import VerificationError
from farflung.core.ids import PeerId, Signature
from farflung.market.offer import Capabilities
from farflung.net.endpoints import EndpointRecord

PUBLISH = "directory.publish"
LIST = "directory.list"


class Advertisement(Wire, frozen=True):
    """One node's volatile facts. The ledger holds the binding ones: price, stake, a hash of the capabilities."""

    endpoint: EndpointRecord
    capabilities: Capabilities
    signature: Signature


def advertise(key: SigningKey, endpoint: EndpointRecord, capabilities: Capabilities) -> Advertisement:
    """A signed advertisement."""
    return Advertisement(endpoint, capabilities, key.sign(NS_ENDPOINT, encode((endpoint, capabilities))))


def check_advertisement(advertisement: Advertisement, peer: PeerId) -> None:
    """Raises VerificationError FF-APP-032 unless the peer speaks of itself and signed it."""
    said = encode((advertisement.endpoint, advertisement.capabilities))
    is_own = advertisement.endpoint.peer == peer
    if not is_own or not is_signed(peer, advertisement.signature, NS_ENDPOINT, said):
        raise VerificationError("FF-APP-032", "an advertisement is not signed by the node that it names")


class Listing(Wire, frozen=True):
    """All advertisements that a directory holds."""

    advertisements: tuple[Advertisement, ...]
