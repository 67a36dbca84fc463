"""Every change of a balance has its entry: amounts sum to the balance, what is held to what the rows hold."""

from __future__ import annotations

from collections import Counter

import pytest
from ledger_history import audited_batches, batches, history, perjured_batches
from ledger_sums import check_sums
from ledger_world import BOND, DISPUTE, JOB, NODES, OTHER_JOB, PARAMS, REQUESTER, VALIDATOR, VERIFIERS, World, genesis
from msgspec.structs import replace

from farflung.core.canon.program import CanonicalProgram
from farflung.core.ids import ZERO_HASH
from farflung.ledger import transactions
from farflung.ledger.account_statement import CLOCK, StatementEntry, StatementEntryKind, entries_of, explained, opening
from farflung.ledger.chain import Chain
from farflung.ledger.table_rows import AccountRow


def read(chain: Chain) -> list[StatementEntry]:
    return list(entries_of(chain.genesis, chain.blocks))


@pytest.mark.parametrize("made", [batches, audited_batches, perjured_batches])
def test_entries_of_a_whole_history_sum_to_what_every_row_holds(made) -> None:  # type: ignore[no-untyped-def]
    chain = history(made())
    check_sums(read(chain), chain.state)


def test_a_statement_tells_a_job_from_both_sides() -> None:
    entries = read(history())

    def told(key) -> list[tuple[str, int, int]]:  # type: ignore[no-untyped-def]
        return [(e.what.value, e.amount, e.held) for e in entries if e.account == key.public]

    assert told(REQUESTER) == [
        ("opening", 1_000_000, 0),
        ("escrow for a job", -1000, 1000),
        ("paid to trainer", 0, -50),
        ("paid to trainer", 0, -100),
        ("refund of a job", 850, -850),
    ]
    assert ("earned as trainer", 50, 0) in told(NODES[0])
    assert told(NODES[2])[-3:] == [
        ("deposit for a relay", -1000, 1000),
        ("paid to relay", 0, -68),
        ("deposit returned", 932, -932),
    ]
    assert ("earned as relay", 68, 0) in told(VALIDATOR)


def test_a_slashed_stake_and_its_bounties_are_entries() -> None:
    entries = [entry for entry in read(history(audited_batches())) if entry.about == JOB]
    (lost,) = (entry for entry in entries if entry.what == StatementEntryKind.SLASHED)
    assert (lost.account, lost.amount, lost.held) == (NODES[1].public, 0, -100)
    bounties = {entry.account: entry.amount for entry in entries if entry.what == StatementEntryKind.BOUNTY}
    assert bounties == {key.public: 25 for key in VERIFIERS}


def test_pay_that_is_burnt_is_an_entry_of_the_requester() -> None:
    opens_nothing = {"terms": ZERO_HASH, "program": CanonicalProgram()}
    made = [
        [(key, replace(op, **opens_nothing) if isinstance(op, transactions.JobSlash) else op) for key, op in batch]
        for batch in audited_batches()
    ]
    chain = history(made)
    entries = [entry for entry in read(chain) if entry.about == JOB]
    (burnt,) = (entry for entry in entries if entry.what == StatementEntryKind.PAY_BURNT)
    assert (burnt.account, burnt.amount, burnt.held) == (REQUESTER.public, 0, -20 * 5)
    check_sums(read(chain), chain.state)


def test_two_disputes_of_one_node_that_end_at_once_are_told_apart() -> None:
    """The stake of each lease says whether what it lost was for a lie."""
    world = World(replace(PARAMS, dispute_ms=DISPUTE, bond_min=BOND)).watched()
    world.do(REQUESTER, world.create(OTHER_JOB), world.progress(0, (NODES[0], 10)))
    offers = [world.offer(NODES[0], OTHER_JOB, stake=60)]
    offers += [world.offer(key, OTHER_JOB, stake=50, units=20, role=transactions.LeaseRole.AUDIT) for key in VERIFIERS]
    world.do(REQUESTER, world.schedule(*offers, job=OTHER_JOB), world.progress(0, (NODES[0], 10), job=OTHER_JOB))
    accusations = [world.accuse(NODES[0], job=job) for job in (JOB, OTHER_JOB)]
    assert world.do(REQUESTER, *accusations) == "ok"
    _, entries = explained(world.state, world.state.time + DISPUTE, [], VALIDATOR.public)
    told = Counter((entry.what, entry.amount, entry.held, entry.about) for entry in entries)
    expected = {(StatementEntryKind.SLASHED, 0, -100, JOB): 1, (StatementEntryKind.SLASHED, 0, -60, OTHER_JOB): 1}
    expected |= {(StatementEntryKind.BOUNTY, 25, 0, JOB): 2, (StatementEntryKind.BOUNTY, 15, 0, OTHER_JOB): 2}
    assert {key: told[key] for key in expected} == expected
    assert StatementEntryKind.UNEXPLAINED not in {entry.what for entry in entries}


def test_what_a_refused_transaction_began_is_no_entry_but_its_fee_is() -> None:
    chain = Chain(genesis(), VALIDATOR)
    world = World()
    ops = (transactions.Transfer(NODES[0].public, 5), transactions.Transfer(NODES[1].public, 10**9))
    block, _ = chain.propose([world.sign(REQUESTER, *ops, fee=3)], 9000)
    state, entries = explained(chain.state, block.header.time, block.txs, VALIDATOR.public)
    check_sums([*opening(chain.genesis), *entries], state)
    assert [(e.what, e.amount) for e in entries] == [(StatementEntryKind.FEE, -3), (StatementEntryKind.FEE_EARNED, 3)]


def test_what_the_clock_does_is_told_without_a_transaction() -> None:
    world = World().running()
    state, entries = explained(world.state, world.state.time + 80_000, [], VALIDATOR.public)
    assert {entry.place for entry in entries} == {CLOCK}
    assert [(e.account, e.what, e.amount) for e in entries] == [(REQUESTER.public, StatementEntryKind.REFUND, 1000)]
    assert state.find(AccountRow, REQUESTER.public) == AccountRow(REQUESTER.public, 1_000_000, 2)


def test_a_transfer_to_oneself_has_two_sides() -> None:
    chain = Chain(genesis(), VALIDATOR)
    block, _ = chain.propose([World().sign(REQUESTER, transactions.Transfer(REQUESTER.public, 5))], 9000)
    _, entries = explained(chain.state, block.header.time, block.txs, VALIDATOR.public)
    assert [e.amount for e in entries] == [-5, 5]
