"""A receipt file: what a party is given, and what keeps a file from being one."""

from __future__ import annotations

import pytest
from ledger_history import audited_batches, history, signed
from ledger_parties import party_receipts
from ledger_world import EVIDENCE, JOB, NODES, OTHER_JOB, REQUESTER, STRANGER, VALIDATOR, VERIFIERS, genesis
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import VerificationError
from farflung.ledger import transactions
from farflung.ledger.block import LOGICAL_MS
from farflung.ledger.chain import Chain
from farflung.ledger.receipt_checks import prove
from farflung.ledger.receipt_file import MAGIC, ReceiptFile, check_receipt_file, read_receipt_file, write_receipt_file
from farflung.ledger.table_rows import JobRow, LeaseRow, channel_key, epoch_key, lease_key
from farflung.ledger.transactions import LeaseRole

A, B, C = NODES
V, W = VERIFIERS


@pytest.fixture(scope="module")
def chain() -> Chain:
    return history(audited_batches())


def file_of(chain: Chain, key: SigningKey) -> ReceiptFile:
    return read_receipt_file(write_receipt_file(genesis(), key.public, party_receipts(chain, key.public)))


def refused(file: ReceiptFile, code: str = "FF-LEDG-085") -> str:
    with pytest.raises(VerificationError) as caught:
        check_receipt_file(file, genesis().chain)
    assert caught.value.code == code
    return caught.value.cause


@pytest.mark.parametrize(
    ("key", "tables"),
    [
        (A, ["accounts", "nodes", "jobs", "leases"]),
        (V, ["accounts", "nodes", "jobs", "leases"]),
        (REQUESTER, ["accounts", "jobs"]),
    ],
)
def test_a_party_is_given_its_rows(chain: Chain, key: SigningKey, tables: list[str]):
    file = file_of(chain, key)
    rows = check_receipt_file(file, genesis().chain)
    assert [row.TABLE for row in rows] == tables
    assert rows == check_receipt_file(file, None)
    assert all(chain.state.tables[row.TABLE].row(row.key) == row for row in rows)


def test_a_file_shows_what_was_earned_and_what_was_lost(chain: Chain):
    leases = {}
    for key in (A, B, V):
        rows = check_receipt_file(file_of(chain, key), genesis().chain)
        leases[key] = next(row for row in rows if isinstance(row, LeaseRow))
    assert [(leases[key].role, leases[key].paid, leases[key].slashed) for key in (A, B, V)] == [
        (LeaseRole.TRAIN, 50, 0),
        (LeaseRole.TRAIN, 0, 100),
        (LeaseRole.AUDIT, 25, 0),
    ]
    assert leases[B].evidence == EVIDENCE


def test_receipts_may_be_handed_in_in_any_order(chain: Chain):
    receipts = party_receipts(chain, A.public)
    assert write_receipt_file(genesis(), A.public, receipts[::-1]) == write_receipt_file(genesis(), A.public, receipts)


def test_who_is_no_party_of_a_job_or_a_channel_is_given_no_file(chain: Chain):
    with pytest.raises(VerificationError, match="FF-LEDG-085"):
        write_receipt_file(genesis(), STRANGER.public, party_receipts(chain, STRANGER.public))
    account = prove(chain, "accounts", C.public)
    with pytest.raises(VerificationError, match="FF-LEDG-085"):
        write_receipt_file(genesis(), C.public, [account])


def test_a_file_of_another_genesis_is_refused(chain: Chain):
    file = file_of(chain, A)
    with pytest.raises(VerificationError, match="FF-LEDG-079"):
        check_receipt_file(file, genesis(name="other").chain)
    refused(replace(file, genesis=genesis(name="other")), "FF-LEDG-079")
    with pytest.raises(VerificationError, match="FF-LEDG-071"):
        check_receipt_file(replace(file, genesis=genesis(name="other")), None)
    with pytest.raises(VerificationError, match="FF-LEDG-060"):
        check_receipt_file(replace(file, genesis=replace(genesis(), validators=())), None)


def test_rows_of_one_block_stand_in_their_order(chain: Chain):
    file = file_of(chain, A)
    later = history(audited_batches())
    block, _ = later.propose([], later.head.time + LOGICAL_MS)
    later.adopt(block)
    newer = file_of(later, A)
    assert "of one block" in refused(replace(file, receipts=(*file.receipts[:3], *newer.receipts[3:])))
    assert "order" in refused(replace(file, receipts=file.receipts[::-1]))
    assert "twice" in refused(replace(file, receipts=(*file.receipts, file.receipts[-1])))
    assert "one block" in refused(replace(file, receipts=()))


@pytest.mark.parametrize("missing", range(4))
def test_no_row_may_be_missing(chain: Chain, missing: int):
    file = file_of(chain, A)
    refused(replace(file, receipts=file.receipts[:missing] + file.receipts[missing + 1 :]))


def test_a_lease_without_its_job_is_refused_even_beside_another_job():
    chain = history(audited_batches())
    create = transactions.JobCreate(OTHER_JOB, 10, 1, 1, chain.head.time + 9_000)
    block, _ = chain.propose([signed(chain, A, create)], chain.head.time + LOGICAL_MS)
    chain.adopt(block)
    file = file_of(chain, A)
    rows = check_receipt_file(file, genesis().chain)
    assert [row.key for row in rows if isinstance(row, JobRow)] == [JOB, OTHER_JOB]
    kept = tuple(r for r, row in zip(file.receipts, rows, strict=True) if row.key != JOB)
    assert "does not hold the job" in refused(replace(file, receipts=kept))


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("accounts", B.public),
        ("nodes", B.public),
        ("leases", lease_key(JOB, B.public)),
        ("epochs", epoch_key(JOB, 0)),
        ("channels", channel_key(C.public, VALIDATOR.public)),
    ],
)
def test_a_row_of_somebody_else_is_refused(chain: Chain, table: str, key: bytes):
    receipts = (*party_receipts(chain, A.public), prove(chain, table, key))
    with pytest.raises(VerificationError, match="somebody else"):
        write_receipt_file(genesis(), A.public, receipts)


def test_a_job_of_somebody_else_is_refused(chain: Chain):
    job = prove(chain, JobRow.TABLE, JOB)
    account = prove(chain, "accounts", C.public)
    assert "somebody else" in refused(ReceiptFile(genesis(), C.public, (), (account, job)))
    node = prove(chain, "nodes", C.public)
    assert "somebody else" in refused(ReceiptFile(genesis(), C.public, (), (account, node)))
    assert "does not hold the job" in refused(ReceiptFile(genesis(), C.public, (), (account,)))


@pytest.mark.parametrize("data", [b"", b"FFRECPT", b"FFRECPT\x02" + bytes(50), b"\x93" + bytes(99), b"%PDF"])
def test_what_is_not_a_receipt_file_is_said(data: bytes):
    with pytest.raises(VerificationError, match="FF-LEDG-077"):
        read_receipt_file(data)


def test_a_damaged_or_oversized_file_is_said(chain: Chain):
    data = write_receipt_file(genesis(), A.public, party_receipts(chain, A.public))
    for broken in (data[:-1], data + b"\0", MAGIC, MAGIC + encode((1, 2, 3))):
        with pytest.raises(VerificationError, match="FF-LEDG-078"):
            read_receipt_file(broken)
    with pytest.raises(VerificationError, match="the limit is"):
        read_receipt_file(data + bytes(limits.RECEIPT_FILE_BYTES))
