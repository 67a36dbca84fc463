"""Defines the network card: what a seat says of its network to whoever joins, under the seat's signature.

network.card   nothing   SignedNetworkCard

The card is a seat's word and no part of the ledger: which relays there are and what they take, which versions of
farflung take part, what the faucet gives, what is usual. Nothing in it is trusted with money or with a result.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from farflung.core import limits
from farflung.core.codec import Head, Wire, decode, decode_head, encode
from farflung.core.crypto import NS_NETWORK_CARD, SigningKey, is_signed
from farflung.core.errors import ProtocolError, VerificationError
from farflung.core.ids import ID_BYTES, Hash, PeerId, Signature
from farflung.core.money import CREDIT
from farflung.core.release import UPGRADE, VERSION
from farflung.peers.network.invitation import Seat, is_name, is_place
from farflung.peers.process.config import ListenerConfig, Money, Port, RelayPrice

CARD: Final = "network.card"
FORMAT: Final = 2
_VERSION: Final = re.compile(r"[0-9A-Za-z.+!-]{1,32}")


class NetworkRelay(Wire, frozen=True):
    """A relay of the network. `price`: pico-credits a GiB, 0: it carries for nothing."""

    key: PeerId
    host: str
    port: int
    price: int


class FaucetTerms(Wire, frozen=True):
    """What a new account may ask for, in pico-credits: `grant` once, of `block_day` for its address block a day.

    `day` is the limit for everybody together. All are 0 where there is no faucet.
    """

    grant: int = 0
    block_day: int = 0
    day: int = 0


class NetworkCard(Wire, frozen=True):
    """`seat` says this at `issued` (seconds since 1970, by its clock). `seats`: itself first, and others it knows.

    `least`, `newest`: versions of farflung that take part; they and the format stay first, so that whoever cannot read
    the rest can say why. `formats`: of the jobs that the newest one takes. `foreign_modules`: jobs with Python code of
    their own are usual here. `message`: of the day, by the operator.
    """

    format: int
    least: str
    newest: str
    formats: tuple[int, ...]
    name: str
    chain: Hash
    seat: PeerId
    issued: int
    seats: tuple[Seat, ...]
    relays: tuple[NetworkRelay, ...]
    faucet: FaucetTerms
    foreign_modules: bool
    message: str


class SignedNetworkCard(Wire, frozen=True):
    """A card and its seat's signature under NS_NETWORK_CARD."""

    card: NetworkCard
    signature: Signature


class NetworkCardHead(Head, frozen=True):
    """The part of a card that is the same in every format."""

    format: int
    least: str
    newest: str


class SignedNetworkCardHead(Head, frozen=True):
    """The same, as it comes."""

    card: NetworkCardHead


class NetworkRelayConfig(ListenerConfig, frozen=True):
    """A relay as an operator lists it."""

    price: RelayPrice = 0


class FaucetConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table [network.faucet] of one validator's file; money in pico-credits."""

    key: SigningKey
    grant: Money = 10 * CREDIT
    block_day: Money = 160 * CREDIT
    day: Money = 2000 * CREDIT

    @property
    def terms(self) -> FaucetTerms:
        """The same, as the card says it."""
        return FaucetTerms(self.grant, self.block_day, self.day)


class NetworkConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table [network] of a validator's file: what its card says.

    `host`, `port`: where others reach this seat, where that is not where it listens. `name`: left out, the ledger's.
    `model_bytes`: of all models that are published here; 0: none is kept.
    """

    name: str = ""
    host: str = ""
    port: Port = 0
    relays: Annotated[tuple[NetworkRelayConfig, ...], msgspec.Meta(max_length=limits.NETWORK_RELAYS)] = ()
    least: str = VERSION
    foreign_modules: bool = False
    message: Annotated[str, msgspec.Meta(max_length=limits.NETWORK_MESSAGE_CHARACTERS)] = ""
    model_bytes: Annotated[int, msgspec.Meta(ge=0)] = 4 * limits.MODEL_BYTES
    faucet: FaucetConfig | None = None


def sign_card(key: SigningKey, card: NetworkCard) -> SignedNetworkCard:
    """The card under its seat's signature."""
    return SignedNetworkCard(card, key.sign(NS_NETWORK_CARD, encode(card)))


def read_card(data: bytes, seat: PeerId, chain: Hash) -> NetworkCard:
    """The card that a seat sent.

    Raises VerificationError FF-APP-526 (not signed by that seat for that chain), ProtocolError FF-APP-530 (its values),
    FF-APP-602 (of another format).
    """
    head = decode_head(data, SignedNetworkCardHead, limits.NETWORK_CARD_BYTES).card
    if head.format != FORMAT:
        raise _other_format(head)
    signed = decode(data, SignedNetworkCard, limits.NETWORK_CARD_BYTES)
    card = signed.card
    if card.seat != seat or card.chain != chain or not is_signed(seat, signed.signature, NS_NETWORK_CARD, encode(card)):
        raise VerificationError("FF-APP-526", "a network card is not signed by its seat for its chain")
    if fault := _fault_of(card):
        raise ProtocolError("FF-APP-530", "a network card cannot be used", cause=fault)
    return card


def _other_format(head: NetworkCardHead) -> ProtocolError:
    newest = head.newest if _VERSION.fullmatch(head.newest) else "of no version"
    return ProtocolError(
        "FF-APP-602",
        f"a network card is of format {head.format}, of farflung {newest}",
        cause=f"this is farflung {VERSION}, which reads format {FORMAT}",
        hint=UPGRADE,
    )


def _fault_of(card: NetworkCard) -> str:
    """What is wrong with a card's values, or nothing."""
    if len(card.seats) > limits.NETWORK_SEATS or len(card.relays) > limits.NETWORK_RELAYS:
        return f"it names {len(card.seats)} seats and {len(card.relays)} relays"
    is_message = len(card.message) <= limits.NETWORK_MESSAGE_CHARACTERS and card.message.isprintable()
    if not is_message or not is_name(card.name):
        return "its name or its message is out of bounds"
    places: tuple[Seat | NetworkRelay, ...] = (*card.seats, *card.relays)
    if any(len(each.key) != ID_BYTES or not is_place(each.host, each.port) for each in places):
        return "a seat or a relay in it has no place on a network"
    if not all(0 <= relay.price <= limits.RELAY_PRICE for relay in card.relays):
        return "a relay's price is out of range"
    if min(card.issued, *(getattr(card.faucet, name) for name in card.faucet.__struct_fields__)) < 0:
        return "a number is below 0"
    return "" if all(_VERSION.fullmatch(each) for each in (card.least, card.newest)) else "it names no version"


def version_order(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare two."""
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version)[:3])
