"""Receipt files that somebody altered: no change of a genuine file, however small, is trusted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from core_asks import scheduled
from ledger_parties import party_receipts
from msgspec.structs import replace

from farflung.core.codec import encode
from farflung.core.crypto import NS_SPEC, SigningKey, digest, local_key
from farflung.core.errors import VerificationError
from farflung.ledger import transactions
from farflung.ledger.block import LOGICAL_MS, Genesis
from farflung.ledger.chain import Chain
from farflung.ledger.receipt_file import MAGIC, ReceiptFile, check_receipt_file, read_receipt_file, write_receipt_file
from farflung.ledger.table_rows import KINDS, AccountRow

NOTARY, REQUESTER, NODE, OTHER = (local_key(3, name) for name in ("notary", "requester", "node", "other"))
JOB, ROOT = digest(NS_SPEC, b"job"), digest(NS_SPEC, b"root")
FLIPS = 400


def made(name: str = "attacked", notary: SigningKey = NOTARY) -> Chain:
    """A ledger on which two nodes were paid, 50 and 35 pico-credits."""
    keys = (notary, REQUESTER, NODE, OTHER)
    genesis = Genesis(name, 0, tuple((key.public, 10_000) for key in keys), (notary.public,))
    chain = Chain(genesis, notary)
    for key in (NODE, OTHER):
        record(chain, key, transactions.NodeRegister(ROOT, 5, 500, 9_000_000))
    offers = tuple(
        transactions.sign_offer(key, transactions.LeaseOffer(chain.id, JOB, key.public, 5, 100, 20, 8_000_000))
        for key in (NODE, OTHER)
    )
    record(chain, REQUESTER, transactions.JobCreate(JOB, 1000, 5, 1, 9_000_000), scheduled(JOB, offers))
    units = ((NODE.public, 10), (OTHER.public, 7))
    record(chain, REQUESTER, transactions.Progress(JOB, 0, ROOT, ROOT, units), transactions.JobFinish(JOB, ROOT, ROOT))
    record(chain, REQUESTER, transactions.JobSettle(JOB))
    return chain


def record(chain: Chain, key: SigningKey, *ops: transactions.Op) -> None:
    row = chain.state.find(AccountRow, key.public)
    assert row is not None
    signed = transactions.sign_tx(key, transactions.make_tx(chain.id, key.public, row.nonce, *ops))
    block, results = chain.propose([signed], chain.head.time + LOGICAL_MS)
    assert not hasattr(results[0], "code"), results
    chain.adopt(block)


@pytest.fixture(scope="module")
def chain() -> Chain:
    return made()


@pytest.fixture(scope="module")
def genuine(chain: Chain) -> bytes:
    data = write_receipt_file(chain.genesis, NODE.public, party_receipts(chain, NODE.public))
    assert believe(data, None) == believe(data, chain.id) == ""
    return data


def believe(data: bytes, genesis: Any) -> str:
    """The code with which a file is refused, empty where it is trusted."""
    try:
        check_receipt_file(read_receipt_file(data), genesis)
    except VerificationError as refusal:
        return refusal.code
    return ""


def altered(value: Any) -> list[Any]:
    """Values of the same type that differ from `value`: at least one for each field, item, number and name in it."""
    if isinstance(value, int):
        return [value + 1, value - 1, value ^ 1 << 40, 0] if value else [1, -1]
    if isinstance(value, str):
        return [*(name for name in KINDS if name != value), "", value + "x"]
    if isinstance(value, bytes):
        places = sorted({0, len(value) // 2, len(value) - 1}) if value else []
        flips = [value[:i] + bytes([value[i] ^ 1]) + value[i + 1 :] for i in places]
        return [*flips, value[:-1], value + b"\0", b"", bytes(len(value))]
    if isinstance(value, tuple):
        parts = [(*value[:i], new, *value[i + 1 :]) for i, old in enumerate(value) for new in altered(old)]
        return [*parts, value[1:], value[:-1], value[::-1], (*value, *value[-1:]), ()]
    assert isinstance(value, msgspec.Struct), type(value)
    names = value.__struct_fields__
    return [replace(value, **{name: new}) for name in names for new in altered(getattr(value, name))]


@pytest.mark.guarantee
def test_every_field_altered_is_refused_with_and_without_the_genesis(chain: Chain, genuine: bytes) -> None:
    file = read_receipt_file(genuine)
    forged = [MAGIC + encode(other) for other in altered(file) if other != file]
    assert len(forged) > 500
    without = {data: believe(data, None) for data in forged}
    assert [data for data, code in without.items() if not code] == []
    assert all(believe(data, chain.id) for data in forged)
    codes = set(without.values())
    assert codes >= {"FF-LEDG-071", "FF-LEDG-072", "FF-LEDG-074", "FF-LEDG-075", "FF-LEDG-085"}


def test_a_row_inside_a_receipt_cannot_be_rewritten(chain: Chain, genuine: bytes) -> None:
    """The row is bytes to the proof: here it is altered as what it means, and encoded again."""
    file = read_receipt_file(genuine)
    rows = check_receipt_file(file, chain.id)
    forged = [
        replace(receipt, row=encode(other))
        for receipt, row in zip(file.receipts, rows, strict=True)
        for other in altered(row)
        if other != row
    ]
    assert len(forged) > 100
    for receipt in forged:
        same = [receipt if (r.table == receipt.table) else r for r in file.receipts]
        assert believe(MAGIC + encode(replace(file, receipts=tuple(same))), None) == "FF-LEDG-075"


def test_no_single_bit_can_be_flipped(genuine: bytes) -> None:
    bits = 8 * len(genuine)
    places = sorted({bits * i // FLIPS + i % 8 for i in range(FLIPS)})
    assert len(places) > FLIPS * 9 // 10
    for place in places:
        if place < bits:
            data = bytearray(genuine)
            data[place // 8] ^= 1 << place % 8
            assert believe(bytes(data), None), f"bit {place} of {bits} may be flipped"


def test_nothing_may_be_appended_cut_off_or_put_before(genuine: bytes) -> None:
    for extra in (b"\0", b"\xc0", genuine, MAGIC):
        assert believe(genuine + extra, None) == "FF-LEDG-078"
    assert believe(b"\0" + genuine, None) == "FF-LEDG-077"
    for length in {*range(12), *range(0, len(genuine), 37), len(genuine) - 1}:
        assert believe(genuine[:length], None) in ("FF-LEDG-077", "FF-LEDG-078")


def test_a_receipt_of_another_chain_is_refused(chain: Chain, genuine: bytes) -> None:
    other = made("another")
    theirs = read_receipt_file(write_receipt_file(other.genesis, NODE.public, party_receipts(other, NODE.public)))
    ours = read_receipt_file(genuine)
    for place in range(len(ours.receipts)):
        mixed = list(ours.receipts)
        mixed[place] = theirs.receipts[place]
        assert believe(MAGIC + encode(replace(ours, receipts=tuple(mixed))), None) == "FF-LEDG-071"
    assert believe(MAGIC + encode(replace(theirs, genesis=ours.genesis)), None) == "FF-LEDG-071"
    assert believe(MAGIC + encode(theirs), chain.id) == "FF-LEDG-079"


def test_a_ledger_of_the_forgers_own_is_refused_by_who_knows_the_genesis(chain: Chain) -> None:
    """Without the genesis the forger's file holds in itself: that is what the verb warns of."""
    own = made(notary=local_key(3, "forger"))
    forged = write_receipt_file(own.genesis, NODE.public, party_receipts(own, NODE.public))
    assert believe(forged, None) == ""
    assert believe(forged, chain.id) == "FF-LEDG-079"
    renamed = replace(read_receipt_file(forged), genesis=chain.genesis)
    posed = tuple(replace(r, genesis=chain.id, header=replace(r.header, chain=chain.id)) for r in renamed.receipts)
    assert believe(MAGIC + encode(replace(renamed, receipts=posed)), chain.id) == "FF-LEDG-072"


def test_what_another_party_was_paid_cannot_be_passed_off_as_ones_own(chain: Chain, genuine: bytes) -> None:
    ours = read_receipt_file(genuine)
    theirs = read_receipt_file(write_receipt_file(chain.genesis, OTHER.public, party_receipts(chain, OTHER.public)))
    assert believe(MAGIC + encode(replace(ours, party=OTHER.public)), chain.id) == "FF-LEDG-085"
    for place, (mine, other) in enumerate(zip(ours.receipts, theirs.receipts, strict=True)):
        if mine != other:
            mixed = (*ours.receipts[:place], other, *ours.receipts[place + 1 :])
            assert believe(MAGIC + encode(replace(ours, receipts=mixed)), chain.id) == "FF-LEDG-085"
    both = ReceiptFile(chain.genesis, NODE.public, (), (*ours.receipts, theirs.receipts[-1]))
    assert believe(MAGIC + encode(both), chain.id) == "FF-LEDG-085"
