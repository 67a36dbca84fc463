"""Verifies answers for a reader: accepts only canonical bytes whose proof leads to the genesis that it knows."""

from __future__ import annotations

import base64
import binascii
from typing import Any, TypeVar

from farflung.app.explorer.sources import LedgerSource
from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.errors import ProtocolError, VerificationError
from farflung.core.ids import Hash
from farflung.ledger import light_client
from farflung.ledger.block import Block, BlockHeader, Genesis, check_certificate, read_block, txs_root
from farflung.ledger.inclusion_proof import InclusionProof, check_inclusion
from farflung.ledger.row_receipt import LedgerReceipt
from farflung.ledger.state_transition import genesis_header
from farflung.ledger.table_rows import Row
from farflung.ledger.transactions import SignedTx, tx_id
from farflung.ledger.votes import QuorumCertificate
from farflung.peers.ledger_http.handlers import Form

R = TypeVar("R", bound=Row)


class ProofChecker:
    """Reads answers, and gives only what their proofs prove."""

    def __init__(self, source: LedgerSource, chain: Hash | None) -> None:
        """`chain`: the genesis hash that the reader knows; None: the source's word is taken for it.

        Raises VerificationError FF-APP-282 for the ledger of another genesis, FF-LEDG-060 for one that is unusable.
        """
        chain = chain or source.known
        self.source, self.is_known = source, chain is not None
        said = source.get("/v1/genesis")
        self.genesis = _read(said, "genesis", Genesis, limits.TX_BYTES)
        if chain is not None and self.genesis.chain != chain:
            raise VerificationError(
                "FF-APP-282",
                f"{source.name} is another ledger",
                cause=f"its genesis is {self.genesis.chain.hex()}",
                hint="ask a validator of the ledger that you mean",
            )
        self._trusts = [light_client.trust_in(self.genesis)]

    def trust(self, epoch: int) -> light_client.TrustedCommittee:
        """Who certifies an epoch: reached from the genesis by one proved row an epoch."""
        if epoch < 0:
            raise self._another(f"a block of epoch {epoch}")
        while len(self._trusts) <= epoch:
            said = self.source.get(f"/v1/steps?from={len(self._trusts) - 1}")["steps"]
            for form in said[: epoch + 1 - len(self._trusts)]:
                receipt = _read(form, "receipt", LedgerReceipt, limits.TX_BYTES)
                self._trusts.append(light_client.follow(self._trusts[-1], receipt))
            if not said:
                raise self._another(f"a block of epoch {epoch}, but not its committee")
        return self._trusts[epoch]

    def row(self, form: Form, kind: type[R], key: bytes | None = None) -> R:
        """The row that an answer proves. Raises VerificationError FF-APP-283 for another row than was asked for."""
        receipt = _read(form, "receipt", LedgerReceipt, limits.TX_BYTES)
        row = light_client.check(self.trust(receipt.header.epoch), receipt)
        if not isinstance(row, kind) or (key is not None and row.key != key):
            raise self._another("another row than was asked for")
        return row

    def header(self, form: Form) -> tuple[BlockHeader, QuorumCertificate]:
        """The certified header of an answer; that of height 0 follows from genesis."""
        header = _read(form, "header", BlockHeader, limits.TX_BYTES)
        certificate: QuorumCertificate = _read(form, "certificate", QuorumCertificate, limits.TX_BYTES)
        if header != genesis_header(self.genesis):
            self._check(header, certificate)
        return header, certificate

    def _check(self, header: BlockHeader, certificate: QuorumCertificate) -> None:
        if header.chain != self.genesis.chain:
            raise self._another("a block of another chain")
        check_certificate(header, certificate, self.trust(header.epoch).committee)

    def block(self, form: Form, height: int) -> Block:
        """The whole block of an answer."""
        block = read_block(_bytes(form["canonical"]))
        if (block.header.height, block.header.txs) != (height, txs_root(block.txs)):
            raise self._another("another block than was asked for")
        self._check(block.header, block.certificate)
        return block

    def tx(self, form: Form, name: str) -> tuple[SignedTx, InclusionProof]:
        """The transaction of an answer, and where it is."""
        proof = _read(form, "inclusion", InclusionProof, 2 * limits.TX_BYTES)
        signed = check_inclusion(proof, self.trust(proof.header.epoch))
        if tx_id(signed).hex() != name:
            raise self._another("another transaction than was asked for")
        return signed, proof

    def _another(self, what: str) -> VerificationError:
        return VerificationError(
            "FF-APP-283",
            f"{self.source.name} shows {what}",
            cause="its proof holds, and proves something else",
            hint="ask another source",
        )


def _bytes(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise _unproved("its proof is no base64") from None


def _read(form: Form, name: str, kind: Any, limit: int) -> Any:
    """One part of a proof. Raises VerificationError FF-APP-284."""
    try:
        return decode(_bytes(form["proof"][name]), kind, limit)
    except (KeyError, TypeError, ProtocolError) as error:
        raise _unproved(f"the {name} of its proof cannot be read: {error}") from None


def _unproved(cause: str) -> VerificationError:
    return VerificationError(
        "FF-APP-284",
        "an answer comes without a proof",
        cause=cause[:200],
        hint="ask another source, or one of this version of farflung",
    )
