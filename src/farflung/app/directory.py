"""The directory: where a node listens now and what its machine is, said and signed by the node itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import NS_ENDPOINT, SigningKey, is_signed
from farflung.core.errors import FarflungError, VerificationError
from farflung.core.ids import PeerId, Signature
from farflung.ledger.tx import Role
from farflung.market.offer import Capabilities
from farflung.net.endpoints import EndpointRecord, check_values

PUBLISH = "directory.publish"
LIST = "directory.list"


class Advertisement(Wire, frozen=True):
    """One node's volatile facts. The ledger holds the binding ones: price, stake, a hash of the capabilities."""

    endpoint: EndpointRecord
    capabilities: Capabilities
    role: Role
    signature: Signature


def advertise(
    key: SigningKey, endpoint: EndpointRecord, capabilities: Capabilities, role: Role = Role.TRAIN
) -> Advertisement:
    """A signed advertisement."""
    said = encode((endpoint, capabilities, role))
    return Advertisement(endpoint, capabilities, role, key.sign(NS_ENDPOINT, said))


def check_advertisement(advertisement: Advertisement, peer: PeerId) -> None:
    """Raises VerificationError FF-APP-032 unless the peer speaks of itself and signed it, ProtocolError FF-NET-060
    when it names no place.
    """
    check_values(advertisement.endpoint)
    said = encode((advertisement.endpoint, advertisement.capabilities, advertisement.role))
    is_own = advertisement.endpoint.peer == peer
    if not is_own or not is_signed(peer, advertisement.signature, NS_ENDPOINT, said):
        raise VerificationError("FF-APP-032", "an advertisement is not signed by the node that it names")


class Listing(Wire, frozen=True):
    """All advertisements that a directory holds."""

    advertisements: tuple[Advertisement, ...]


def read_directory(path: Path, size: int) -> tuple[Advertisement, ...]:
    """What a directory held when it was written last: those advertisements whose node signed them.

    The file is a convenience: without it, or when it is damaged, every node is unlisted until it publishes again.
    """
    with contextlib.suppress(OSError, FarflungError):
        return tuple(sound(decode(path.read_bytes(), Listing, size)))
    return ()


def sound(listing: Listing) -> Iterator[Advertisement]:
    """Those that can be believed: one bad advertisement takes no other with it."""
    for advertisement in listing.advertisements:
        with contextlib.suppress(FarflungError):
            check_advertisement(advertisement, advertisement.endpoint.peer)
            yield advertisement
