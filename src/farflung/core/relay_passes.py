"""Defines the bytes of relay passes and receipts, which payer, parties, relay and ledger all read alike.

A payer signs a *pass*: these parties may send through that relay at my cost, so many bytes, until then. Each party
signs *receipts*: so many bytes of mine went in, so many came out to me, since the pass began. Both count upwards and
only the last of each counts. What the relay may bill follows from the receipts alone:

    billed = min(quota, lost + sum over parties m of min(received by m, sent by all others together))

For two parties that is min(a sent, b received) + min(b sent, a received): the smaller of what the two ends say. In a
fan-out the upload counts once for each member that received it. Nobody's own word raises the bill: who received
must agree with who sent. `lost` is the payer's own: what it makes good of bytes that the relay carried and that nobody
can sign for any more, because a circuit broke or a party is gone. Price: whole pico-credits a GiB, rounded down over
all that was ever billed (`cost`), so that settling in small pieces brings nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from farflung.core import limits
from farflung.core.codec import Wire, encode
from farflung.core.crypto import NS_RECEIPT, NS_TOLL, SigningKey, is_signed
from farflung.core.ids import ID_BYTES, Hash, PeerId, Signature

GIB: Final = 1 << 30
_INTEGERS: Final = range(1 << 63)
_SERIALS: Final = _INTEGERS[:-1]  # the ledger counts one further


class RelayPass(Wire, frozen=True):
    """`holders` may send `quota` bytes in all through `relay`, paid from the payer's channel with it.

    `opening`: how often payer and relay have opened their channel on the ledger `chain`. `serial` names the pass
    there; the payer may sign it again with more quota, more holders and a later end. `rate`: bytes a second that one
    circuit may forward, 0: as the relay likes. `begins`, `expires`: seconds since 1970. `lost`: bytes of the quota that
    the payer pays for though no two ends have signed for them.
    """

    chain: Hash
    payer: PeerId
    relay: PeerId
    opening: int
    serial: int
    holders: tuple[PeerId, ...]
    quota: int
    rate: int
    begins: int
    expires: int
    lost: int = 0


class SignedRelayPass(Wire, frozen=True):
    """A pass and its payer's signature under NS_TOLL."""

    toll: RelayPass
    signature: Signature


class RelayReceipt(Wire, frozen=True):
    """What `party` has sent into and received from the relay under one pass, in bytes since the pass began."""

    chain: Hash
    payer: PeerId
    relay: PeerId
    opening: int
    serial: int
    party: PeerId
    sent: int
    received: int


class SignedRelayReceipt(Wire, frozen=True):
    """A receipt and a signature under NS_RECEIPT: its party's, or that of the node key `signer` that speaks for it."""

    receipt: RelayReceipt
    signer: PeerId
    signature: Signature


def sign_pass(key: SigningKey, relay_pass: RelayPass) -> SignedRelayPass:
    """The pass under its payer's signature."""
    return SignedRelayPass(relay_pass, key.sign(NS_TOLL, encode(relay_pass)))


def is_pass_signed(signed: SignedRelayPass) -> bool:
    """Whether the payer that the pass names signed it."""
    return is_signed(signed.toll.payer, signed.signature, NS_TOLL, encode(signed.toll))


def sign_receipt(key: SigningKey, receipt: RelayReceipt) -> SignedRelayReceipt:
    """The receipt under the signature of its party, or of its party's node key."""
    return SignedRelayReceipt(receipt, key.public, key.sign(NS_RECEIPT, encode(receipt)))


def is_receipt_signed(signed: SignedRelayReceipt, *signers: PeerId) -> bool:
    """Whether one of these keys signed it: the party's own, or a node key that the caller knows to speak for it."""
    is_known = signed.signer in signers
    return is_known and is_signed(signed.signer, signed.signature, NS_RECEIPT, encode(signed.receipt))


def is_well_formed(relay_pass: RelayPass) -> bool:
    """Whether sizes and ranges are right: 2 to limits.PASS_HOLDERS holders in ascending order, none twice,
    and not the relay itself, which would sign for itself."""
    keys = (relay_pass.chain, relay_pass.payer, relay_pass.relay, *relay_pass.holders)
    numbers = (
        relay_pass.opening,
        relay_pass.quota,
        relay_pass.rate,
        relay_pass.begins,
        relay_pass.expires,
        relay_pass.lost,
    )
    return (
        2 <= len(relay_pass.holders) <= limits.PASS_HOLDERS
        and all(len(key) == ID_BYTES for key in keys)
        and list(relay_pass.holders) == sorted(set(relay_pass.holders) - {relay_pass.relay})
        and all(number in _INTEGERS for number in numbers)
        and relay_pass.serial in _SERIALS
        and max(relay_pass.quota, relay_pass.lost) <= limits.PASS_BYTES
    )


def is_of(receipt: RelayReceipt, relay_pass: RelayPass) -> bool:
    """Whether a receipt counts under this pass: same ledger, payer, relay, opening and serial, a holder's, in range."""
    same = (relay_pass.chain, relay_pass.payer, relay_pass.relay, relay_pass.opening, relay_pass.serial)
    said = (receipt.chain, receipt.payer, receipt.relay, receipt.opening, receipt.serial)
    is_in_range = all(0 <= size <= limits.PASS_BYTES for size in (receipt.sent, receipt.received))
    return said == same and receipt.party in relay_pass.holders and is_in_range


def billed(quota: int, last: Mapping[PeerId, tuple[int, int]], lost: int = 0) -> int:
    """Bytes that may be billed, given what each party (sent, received) says at last and what the payer makes good."""
    sent = sum(said for said, _ in last.values())
    return min(quota, lost + sum(min(got, sent - own) for own, got in last.values()))


def cost(size: int, price: int) -> int:
    """Pico-credits for `size` bytes at `price` a GiB, rounded down."""
    return size * price // GIB


def worth(money: int, price: int) -> int:
    """Bytes that `money` pico-credits pay for at `price` a GiB: the most whose `cost` is no higher."""
    return ((money + 1) * GIB - 1) // price if price else limits.PASS_BYTES
