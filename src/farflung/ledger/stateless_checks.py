"""Checks the form and the signature of a transaction, which needs no ledger state.

That is most of a transaction's cost and depends on nothing but its bytes, so it is said once, in any process, and
remembered by its stamp: id and signature together. A block's transactions that are stamped are not judged again. The
chain that a transaction names, its nonce, time and fee are never part of a stamp.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_TX, is_signed
from farflung.core.errors import ProtocolError
from farflung.core.ids import Hash
from farflung.ledger.transactions import SignedTx
from farflung.ledger.tx_checks import fault_within

Stamp = tuple[Hash, bytes]  # a transaction's id and its signature
Stamps = Container[Stamp]


class _AllStamps:
    """Holds every stamp."""

    def __contains__(self, stamp: object) -> bool:
        return True


UNJUDGED: Final[Stamps] = frozenset[Stamp]()
TRUSTED: Final[Stamps] = (
    _AllStamps()
)  # for replaying a block that is final: its committee judged it, and nobody does again


def is_sound(data: bytes) -> bool:
    """Whether these are the canonical bytes of a transaction of good form, signed by its sender."""
    try:
        signed = decode(data, SignedTx, limits.TX_BYTES)
    except ProtocolError:
        return False
    tx = signed.tx
    return not fault_within(signed) and is_signed(tx.sender, signed.signature, NS_TX, encode(tx))
