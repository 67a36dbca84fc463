"""Transactions as they come over the wire."""

from __future__ import annotations

from ledger_world import JOB, NODES, World
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.ledger import transactions
from farflung.ledger.tx_checks import fault_of


def test_a_signed_transaction_reads_back():
    signed = World().sign(NODES[0], transactions.NodeLeave(), transactions.JobSettle(JOB))
    assert decode(encode(signed), transactions.SignedTx, limits.TX_BYTES) == signed
    assert fault_of(signed) == ""


def test_a_transaction_of_wrong_form_is_refused():
    signed = World().sign(NODES[0], transactions.NodeLeave())
    for wrong in (replace(signed, tx=replace(signed.tx, version=2)), replace(signed, signature=b"short")):
        assert fault_of(wrong)


def test_the_id_leaves_the_signature_out():
    signed = World().sign(NODES[0], transactions.NodeLeave())
    assert (
        transactions.tx_id(signed)
        == transactions.tx_id(signed.tx)
        == transactions.tx_id(replace(signed, signature=b"x"))
    )
    assert transactions.tx_id(replace(signed.tx, nonce=1)) != transactions.tx_id(signed)
