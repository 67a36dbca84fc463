"""Receipts: every row can be proved, and no altered proof is trusted."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_history import disputed_batches, governed_batches, history
from ledger_world import JOB, NODES, REQUESTER, ROOTS, SLOW_PARAMS, START, VALIDATOR, genesis
from msgspec.structs import replace

from farflung.core import limits, merkle
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_SPEC, digest, local_key
from farflung.core.errors import PolicyError, ProtocolError, VerificationError
from farflung.ledger import light_client
from farflung.ledger.block import entry_path, state_root, vote_for
from farflung.ledger.chain import Chain
from farflung.ledger.light_client import TrustedCommittee
from farflung.ledger.receipt_checks import LedgerReceipt, check_receipt, prove, read_row
from farflung.ledger.table_rows import KINDS, AccountRow, JobRow, LeaseRow, NodeRow, Row, lease_key
from farflung.ledger.validators import count_key
from farflung.ledger.votes import NO_CERTIFICATE, VoteKind, certificate_of, is_quorum, sign_vote

LEASE = lease_key(JOB, NODES[0].public)


@pytest.fixture(scope="module")
def chain() -> Chain:
    return history()


def test_every_row_of_every_table_is_proved(chain: Chain):
    chains = (chain, history(disputed_batches(), SLOW_PARAMS), history(governed_batches()))
    for name in KINDS:
        rows = [(source, row) for source in chains for row in source.state.tables[name].rows]
        assert rows, f"the histories have no row in {name}"
        for source, row in rows:
            receipt = decode(encode(prove(source, name, row.key)), LedgerReceipt, limits.CONTROL_BYTES)
            assert check_receipt(receipt, source.genesis) == row


def test_a_receipt_says_what_a_node_earned(chain: Chain):
    row = check_receipt(prove(chain, "leases", LEASE), genesis())
    assert isinstance(row, LeaseRow)
    assert (row.units, row.paid, row.is_open) == (10, 50, False)


def test_a_receipt_is_small(chain: Chain):
    assert len(encode(prove(chain, "leases", LEASE))) < 1500


ROWS = 1 << 20


def large_receipt(chain: Chain, row: Row, seats: int) -> tuple[LedgerReceipt, TrustedCommittee]:
    """Of a table of a million rows, by real signatures of so many seats: all of the tree that a path shows is there."""
    keys = [local_key(7, "seat", index) for index in range(seats)]
    path = tuple(digest(NS_SPEC, bytes([step])) for step in range(20))
    root = merkle.root_over(ROWS, 700_001, encode(row), path)
    assert root is not None
    place = list(KINDS).index(row.TABLE)
    entries = [(name, ROWS, root if name == row.TABLE else held) for name, _, held in chain.state.entries]
    header = replace(chain.head, height=2**31, epoch=5000, time=2**41, state=state_root(entries))
    vote = vote_for(header, 2**31, VoteKind.FINALIZE)
    enough = next(count for count in range(seats + 1) if is_quorum(count, seats))
    votes = [sign_vote(key, seat, vote) for seat, key in enumerate(keys[:enough])]
    above = b"".join(entry_path(entries, place))
    receipt = LedgerReceipt(
        chain.id,
        header,
        certificate_of(votes, seats),
        row.TABLE,
        ROWS,
        root,
        above,
        700_001,
        encode(row),
        b"".join(path),
    )
    members = tuple(key.public for key in keys)
    return receipt, TrustedCommittee(chain.id, 5000, header.parent, members, START)


@pytest.mark.parametrize(("seats", "most"), [(4, 1500), (100, 6000)])
def test_a_receipt_of_a_million_rows_is_small_whoever_certifies(chain: Chain, seats: int, most: int):
    rows: list[Row] = [
        AccountRow(REQUESTER.public, 2**50, 2**40),
        *chain.state.rows(JobRow),
        *chain.state.rows(LeaseRow),
        *chain.state.rows(NodeRow),
    ]
    for row in rows:
        receipt, trust = large_receipt(chain, row, seats)
        assert light_client.check(trust, decode(encode(receipt), LedgerReceipt, limits.CONTROL_BYTES)) == row
        assert len(encode(receipt)) <= most


def test_receipts_of_genesis_need_no_certificate():
    receipt = prove(Chain(genesis()), "accounts", REQUESTER.public)
    assert check_receipt(receipt, genesis())
    with pytest.raises(VerificationError, match="FF-LEDG-072"):
        check_receipt(replace(receipt, header=replace(receipt.header, time=START + 1)), genesis())


@pytest.mark.parametrize("key", [b"", bytes(32), VALIDATOR.public + b"x"])
@pytest.mark.parametrize("table", ["accounts", "nodes", "nonsense", ""])
def test_what_is_not_recorded_is_not_proved(chain: Chain, table: str, key: bytes):
    with pytest.raises(PolicyError, match="FF-LEDG-070"):
        prove(chain, table, key)


def variants(value: Any) -> list[Any]:
    """Values of the same type that differ from `value`, one for each part of it."""
    if isinstance(value, int):
        return [value + 1, value - 1, 0] if value else [1, -1]
    if isinstance(value, str):
        return [*(name for name in KINDS if name != value), "", "x"]
    if isinstance(value, bytes):
        flips = [value[:i] + bytes([value[i] ^ 1]) + value[i + 1 :] for i in (0, len(value) // 2, -1 % len(value))]
        return [*flips, value[:-1], value + b"\0", b""]
    if isinstance(value, tuple):
        parts = [(*value[:i], new, *value[i + 1 :]) for i, old in enumerate(value) for new in variants(old)]
        return [*parts, value[1:], value[:-1], (*value, *value[-1:]), ()]
    fields = value.__struct_fields__
    return [replace(value, **{name: new}) for name in fields for new in variants(getattr(value, name))]


def test_every_field_altered_is_refused(chain: Chain):
    receipt = prove(chain, "leases", LEASE)
    forged = [encode(other) for other in variants(receipt) if other != receipt]
    assert len(forged) > 100
    refused = [believe(data) for data in forged]
    assert "believed" not in refused
    assert set(refused) >= {"FF-LEDG-071", "FF-LEDG-072", "FF-LEDG-074", "FF-LEDG-075"}


def believe(data: bytes) -> str:
    """The code with which a receipt from the wire is refused."""
    try:
        check_receipt(decode(data, LedgerReceipt, limits.CONTROL_BYTES), genesis())
    except (ProtocolError, VerificationError) as error:
        return error.code
    return "believed"


def codes(receipt: LedgerReceipt, **change: Any) -> str:
    with pytest.raises(VerificationError) as caught:
        check_receipt(replace(receipt, **change), genesis())
    return caught.value.code


def test_each_check_of_a_receipt_has_its_own_code(chain: Chain):
    receipt = prove(chain, "leases", LEASE)
    assert codes(receipt, genesis=ROOTS[0]) == "FF-LEDG-071"
    assert codes(receipt, certificate=NO_CERTIFICATE) == "FF-LEDG-072"
    assert codes(receipt, table="jobs") == "FF-LEDG-073"
    assert codes(receipt, count=receipt.count + 1) == "FF-LEDG-073"
    assert codes(receipt, root=ROOTS[0]) == "FF-LEDG-073"
    assert codes(receipt, table_path=b"") == "FF-LEDG-073"
    assert codes(receipt, table="nonsense") == "FF-LEDG-074"
    assert codes(receipt, path=b"") == "FF-LEDG-075"
    assert codes(receipt, path=receipt.path[:-1]) == "FF-LEDG-075"


def test_a_certified_row_that_cannot_be_read_is_refused():
    """The committee itself may certify rubbish: the reader still gets an error of ours."""
    held = prove(Chain(genesis(), VALIDATOR), "accounts", REQUESTER.public)
    for rubbish in (b"", b"\xc1", encode((1, 2)), bytes(2 * limits.KIB)):
        with pytest.raises(VerificationError, match="FF-LEDG-076"):
            read_row(replace(held, row=rubbish))
    with pytest.raises(VerificationError, match="FF-LEDG-074"):
        read_row(replace(held, table="nonsense"))


def test_a_receipt_of_a_chain_with_other_validators_is_refused(chain: Chain):
    receipt = prove(chain, "leases", LEASE)
    other = replace(genesis(), validators=(NODES[0].public,))
    renamed = replace(receipt, genesis=other.chain, header=replace(receipt.header, chain=other.chain))
    with pytest.raises(VerificationError, match="FF-LEDG-072"):
        check_receipt(renamed, other)


@pytest.mark.parametrize(("age", "is_known"), [(0, True), (21, True), (22, False)])
def test_who_slept_longer_than_stakes_are_bonded_goes_on_from_nothing(age: int, is_known: bool):
    day, period = 86_400_000, 21 * 86_400_000
    if is_known:
        light_client.check_age(START, START + age * day, period)
        return
    with pytest.raises(PolicyError, match="FF-LEDG-254"):
        light_client.check_age(START, START + age * day, period)


def test_a_row_that_is_no_next_committee_leads_nowhere(chain: Chain):
    trust = light_client.trust_in(genesis())
    for table, key in (("committees", count_key(0)), ("leases", LEASE)):
        with pytest.raises(VerificationError, match="FF-LEDG-253"):
            light_client.follow(trust, prove(chain, table, key))
