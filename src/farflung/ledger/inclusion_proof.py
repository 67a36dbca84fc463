"""Proves that a transaction is in a block: transaction -> path -> header's `txs` root -> header -> certificate.

It proves that the transaction was taken and who signed it. Whether its operations were refused stands under no root:
the rows say what became of it (ledger.receipt_checks), or executing the block again.
"""

from __future__ import annotations

from farflung.core import limits, merkle
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import ProtocolError, VerificationError
from farflung.core.ids import Hash
from farflung.ledger.block import Block, BlockHeader, check_certificate
from farflung.ledger.light_client import TrustedCommittee
from farflung.ledger.transactions import SignedTx
from farflung.ledger.votes import QuorumCertificate


class InclusionProof(Wire, frozen=True):
    """Transaction `index` of the `count` ones of the block of `header`; `tx` is its canonical signed form."""

    header: BlockHeader
    certificate: QuorumCertificate
    index: int
    count: int
    tx: bytes
    path: tuple[Hash, ...]


def prove_tx(block: Block, place: int) -> InclusionProof:
    """The proof for the transaction at `place`."""
    leaves = [encode(signed) for signed in block.txs]
    path = merkle.prove(leaves, place)
    return InclusionProof(block.header, block.certificate, place, len(leaves), leaves[place], path)


def check_inclusion(proof: InclusionProof, trust: TrustedCommittee) -> SignedTx:
    """The transaction that is proved to who trusts the committee of the header's epoch.

    A header with a NOTARIZE certificate is final only when a later one of its epoch is. Raises VerificationError:
    FF-LEDG-066 not certified, FF-LEDG-290 other chain or epoch, wrong path or unreadable.
    """
    if (proof.header.chain, proof.header.epoch) != (trust.chain, trust.epoch):
        raise _wrong("it is of another chain, or of another epoch")
    check_certificate(proof.header, proof.certificate, trust.committee)
    if not merkle.holds(proof.header.txs, proof.count, proof.index, proof.tx, proof.path):
        raise _wrong("the path does not lead from the transaction to the header")
    try:
        return decode(proof.tx, SignedTx, limits.TX_BYTES)
    except ProtocolError as error:
        raise _wrong(f"it cannot be read: {error.message}") from None


def _wrong(cause: str) -> VerificationError:
    return VerificationError(
        "FF-LEDG-290",
        "the proof of the transaction is not valid",
        cause=cause,
        hint="ask another source, and check that the genesis is the right one",
    )
