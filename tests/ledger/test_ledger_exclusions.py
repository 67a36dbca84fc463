"""Who was found out holds no further lease for a while; the row says why, and a jury that had no part may end that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from ledger_world import (
    BOND,
    DISPUTE,
    EVIDENCE,
    JOB,
    NODES,
    OTHER_JOB,
    PARAMS,
    REQUESTER,
    RICH,
    ROOTS,
    STRANGER,
    VALIDATOR,
    VERIFIERS,
    World,
)
from msgspec.structs import replace

from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger import queries, transactions
from farflung.ledger.chain import Chain
from farflung.ledger.disputes import DisputeAnswer, JuryVote
from farflung.ledger.exclusions import Appeal, AppealVote, ExclusionFault, ExclusionRow, HostTampered
from farflung.ledger.params import LedgerParams
from farflung.ledger.state_transition import total_money
from farflung.ledger.table_rows import AccountRow

A, B, C = NODES
V, W = VERIFIERS
LENT = RICH - 500
OUT, HEARING = 20_000, 9_000
LAW = replace(PARAMS, exclusion_ms=OUT, appeal_ms=HEARING, bond_min=BOND)
SLOW = replace(LAW, dispute_ms=DISPUTE)
ASKS = Appeal(BOND, ROOTS[1])
GUILTY, INNOCENT = AppealVote(A.public, True), AppealVote(A.public, False)
SEATS = (VALIDATOR, STRANGER, C)  # three seats, whose owners had no part in the job


def row(world: World, key: SigningKey = A) -> ExclusionRow:
    found = world.state.find(ExclusionRow, key.public)
    assert found is not None
    return found


def found_out(law: LedgerParams = LAW, jury: tuple[SigningKey, ...] = (VALIDATOR,)) -> World:
    """A has lied in JOB, and a second job waits for offers."""
    world = World(law, validators=jury).watched()
    assert world.do(REQUESTER, world.accuse(A)) == "ok"
    assert world.do(REQUESTER, world.create(OTHER_JOB)) == "ok"
    return world


def hire(
    world: World,
    key: SigningKey = A,
    job: Hash = OTHER_JOB,
    role: transactions.LeaseRole = transactions.LeaseRole.TRAIN,
) -> str:
    offer = world.offer(key, job, expires=world.state.time + 9_000, units=10, role=role)
    return world.do(REQUESTER, world.schedule(offer, job=job))


def heard(jury: tuple[SigningKey, ...] = (VALIDATOR,)) -> World:
    """A has appealed."""
    world = found_out(jury=jury)
    assert world.do(A, ASKS) == "ok"
    return world


# Exclusion


@pytest.mark.parametrize("role", transactions.LeaseRole)
def test_who_lied_holds_no_further_lease_and_the_refusal_names_the_evidence(role: transactions.LeaseRole):
    world = found_out()
    offer = world.offer(A, OTHER_JOB, expires=world.state.time + 9_000, role=role)
    outcome = world.send(world.sign(REQUESTER, world.schedule(offer, job=OTHER_JOB)))[0]
    assert outcome.code == "FF-LEDG-365"
    assert EVIDENCE.hex() in outcome.message
    assert (row(world).job, row(world).fault, row(world).evidence) == (JOB, ExclusionFault.FALSE, EVIDENCE)
    assert hire(world, C) == "ok"


def test_an_exclusion_ends_by_the_clock():
    world = found_out()
    world.send(after=row(world).until - world.state.time - 2000)
    assert hire(world) == "FF-LEDG-365"
    assert hire(world) == "ok"


def test_excluded_nodes_are_not_among_those_that_may_be_hired():
    world = found_out()

    def listed() -> list[PeerId]:
        said = queries.reply(cast(Chain, SimpleNamespace(state=world.state)), queries.GetNodes())
        assert isinstance(said, queries.NodesReply)
        return [node.node for node in said.nodes]

    assert A.public not in listed()
    assert B.public in listed()
    world.send(after=row(world).until - world.state.time)
    assert A.public in listed()


def test_silence_excludes_the_second_time_and_counts_from_zero_after_that():
    world = World(LAW).watched()
    jobs = [JOB, *ROOTS[4:7]]
    for number, job in enumerate(jobs):
        if number:
            world.do(REQUESTER, world.create(job, escrow=900))
            for key in (A, V, W):
                role = transactions.LeaseRole.TRAIN if key is A else transactions.LeaseRole.AUDIT
                assert hire(world, key, job, role) == "ok"
        said = world.accuse(A, job=job, finding=transactions.VerdictFinding.WITHHELD, excess=0)
        assert world.do(REQUESTER, said) == "ok"
        is_out = number % 2 == 1
        assert (row(world).until > world.state.time, row(world).faults) == (is_out, int(not is_out))
        if is_out:
            assert (row(world).fault, row(world).job) == (ExclusionFault.WITHHELD, job)
            world.send(after=OUT)


def test_open_leases_of_an_excluded_node_are_worked_out_and_paid():
    world = World(LAW).watched()
    world.do(REQUESTER, world.create(OTHER_JOB))
    assert hire(world) == "ok"
    world.do(REQUESTER, world.accuse(A))
    assert world.do(REQUESTER, world.progress(0, (A, 5), job=OTHER_JOB)) == "ok"
    world.do(REQUESTER, transactions.JobCancel(OTHER_JOB))
    assert world.lease(A, OTHER_JOB).paid == 25


def test_a_ledger_without_exclusion_keeps_no_row():
    world = found_out(replace(LAW, exclusion_ms=0))
    assert world.state.find(ExclusionRow, A.public) is None
    assert hire(world) == "ok"


def test_leaving_and_registering_again_ends_no_exclusion():
    world = found_out()
    assert world.do(A, transactions.NodeLeave()) == "ok"
    assert world.do(A, world.register()) == "ok"
    assert hire(world) == "FF-LEDG-365"


def test_accusers_that_a_jury_contradicts_are_out_and_the_accused_is_not():
    world = found_out(SLOW)
    assert hire(world) == "ok", "until it is decided, nobody is out"
    world.do(A, DisputeAnswer(JOB, BOND, ROOTS[1]))
    world.do(VALIDATOR, JuryVote(JOB, A.public, False))
    assert world.state.find(ExclusionRow, A.public) is None
    assert hire(world, V, role=transactions.LeaseRole.AUDIT) == "FF-LEDG-365"
    assert (row(world, V).evidence, row(world, V).is_final) == (ROOTS[1], True)
    assert world.do(V, ASKS) == "FF-LEDG-368"


def test_a_jury_decides_once():
    world = found_out(SLOW)
    world.do(A, DisputeAnswer(JOB, BOND, ROOTS[1]))
    world.do(VALIDATOR, JuryVote(JOB, A.public, True))
    assert row(world).is_final
    assert world.do(A, ASKS) == "FF-LEDG-368"


def test_who_missed_the_time_for_an_answer_may_appeal():
    world = found_out(SLOW)
    world.send(after=DISPUTE)
    assert (row(world).fault, row(world).is_final) == (ExclusionFault.FALSE, False)
    assert world.do(A, ASKS) == "ok"


# A host that reports itself


def test_a_tampered_host_is_out_and_loses_no_stake():
    world = World(LAW).running()
    world.do(REQUESTER, world.create(OTHER_JOB))
    assert world.do(A, HostTampered(JOB, ROOTS[2])) == "ok"
    assert (row(world).fault, row(world).evidence, world.node(A).stake) == (ExclusionFault.TAMPERED, ROOTS[2], 500)
    assert hire(world) == "FF-LEDG-365"
    assert world.lease(A).is_open, "what it did before is paid, and can still be found false"


@pytest.mark.parametrize(
    ("key", "job", "evidence"), [(C, JOB, ROOTS[2]), (A, OTHER_JOB, ROOTS[2]), (A, JOB, ZERO_HASH)]
)
def test_only_who_works_in_a_job_reports_its_host(key: SigningKey, job: Hash, evidence: Hash):
    assert World(LAW).running().do(key, HostTampered(job, evidence)) == "FF-LEDG-366"


def test_nobody_reports_of_a_job_that_is_over():
    world = World(LAW).running()
    world.do(REQUESTER, transactions.JobCancel(JOB))
    assert world.do(A, HostTampered(JOB, ROOTS[2])) == "FF-LEDG-366"


def test_a_report_saves_nobody_from_a_slash():
    world = World(LAW).watched()
    world.do(A, HostTampered(JOB, ROOTS[2]))
    assert world.do(REQUESTER, world.accuse(A)) == "ok"
    assert (world.lease(A).slashed, row(world).fault) == (100, ExclusionFault.FALSE)


# Appeals


def test_an_appeal_has_a_bond_and_evidence_and_is_for_who_is_out():
    world = found_out()
    assert world.do(B, ASKS) == "FF-LEDG-367"
    assert world.do(A, replace(ASKS, bond=BOND - 1)) == "FF-LEDG-369"
    assert world.do(A, replace(ASKS, evidence=ZERO_HASH)) == "FF-LEDG-369"
    assert world.do(A, replace(ASKS, bond=RICH)) == "FF-LEDG-010"
    assert world.do(A, ASKS) == "ok"
    assert (row(world).money, world.balance(A)) == (BOND, LENT - BOND)
    assert world.do(A, ASKS) == "FF-LEDG-367"
    world.send(after=OUT)
    assert world.do(A, ASKS) == "FF-LEDG-367", "nothing is left to appeal against"


def test_who_is_found_innocent_again_is_in_and_has_its_bond_back():
    world = heard()
    assert hire(world) == "FF-LEDG-365"
    assert world.do(VALIDATOR, INNOCENT) == "ok"
    assert (row(world).until, row(world).money, world.balance(A)) == (0, 0, LENT)
    assert row(world).innocent == (VALIDATOR.public,)
    assert hire(world) == "ok"


def test_a_second_finding_costs_the_bond_half_of_it_for_who_executed_again():
    world = found_out(jury=SEATS)
    assert world.do(A, replace(ASKS, bond=13)) == "ok"
    before = {key: world.balance(key) for key in SEATS}
    burnt = world.node(A).burnt
    assert [world.do(key, GUILTY) for key in SEATS] == ["ok"] * 3
    assert [world.balance(key) - before[key] for key in SEATS] == [2, 2, 2]
    assert (world.node(A).burnt - burnt, world.balance(A)) == (7, LENT - 13)
    assert (row(world).is_final, row(world).until > world.state.time) == (True, True)
    assert world.do(A, ASKS) == "FF-LEDG-368"


def test_what_no_jury_decides_stays_and_costs_nothing():
    world = heard(jury=SEATS)
    world.do(VALIDATOR, INNOCENT)
    world.do(C, GUILTY)
    world.send(after=row(world).deadline - world.state.time)
    assert (world.balance(A), row(world).money, row(world).deadline) == (LENT, 0, 0)
    assert world.do(STRANGER, INNOCENT) == "FF-LEDG-370"
    assert hire(world) == "FF-LEDG-365"
    assert world.do(A, ASKS) == "ok", "it may ask again while it is out"
    assert (row(world).guilty, row(world).innocent) == ((), ())


def test_more_than_two_thirds_of_the_jury_decide():
    world = heard(jury=SEATS)
    assert [world.do(key, INNOCENT) for key in SEATS[:2]] == ["ok"] * 2
    assert row(world).until > world.state.time
    assert world.do(C, INNOCENT) == "ok"
    assert row(world).until == 0


@pytest.mark.parametrize("juror", [REQUESTER, A, B, V])
def test_who_paid_for_the_job_worked_or_accused_there_is_no_juror(juror: SigningKey):
    world = heard(jury=(VALIDATOR, juror))
    assert world.do(juror, INNOCENT) == "FF-LEDG-371"
    assert world.do(VALIDATOR, INNOCENT) == "ok"
    assert row(world).until == 0, "the one seat that is left decides"


def test_a_juror_votes_once_and_only_while_an_appeal_is_pending():
    assert found_out().do(VALIDATOR, GUILTY) == "FF-LEDG-370"
    world = heard(jury=SEATS)
    assert world.do(VALIDATOR, GUILTY) == "ok"
    assert world.do(VALIDATOR, INNOCENT) == "FF-LEDG-372"
    assert world.do(W, INNOCENT) == "FF-LEDG-371"


def test_a_new_fault_ends_an_appeal_and_gives_its_bond_back():
    world = World(LAW).watched()
    world.do(REQUESTER, world.create(OTHER_JOB))
    for key in (A, V, W):
        role = transactions.LeaseRole.TRAIN if key is A else transactions.LeaseRole.AUDIT
        assert hire(world, key, role=role) == "ok"
    world.do(REQUESTER, world.accuse(A))
    assert world.do(A, ASKS) == "ok"
    assert world.do(REQUESTER, world.accuse(A, job=OTHER_JOB)) == "ok"
    assert (row(world).job, row(world).deadline, row(world).money) == (OTHER_JOB, 0, 0)
    assert world.balance(A) == LENT
    assert world.do(VALIDATOR, INNOCENT) == "FF-LEDG-370"


def test_the_clock_alone_returns_the_bond_of_an_appeal():
    world = heard()
    world.send(after=90_000)
    world.send(after=90_000)
    held = sum(account.balance for account in world.state.rows(AccountRow))
    assert total_money(world.state) - held == world.node(A).burnt == 50


def test_a_row_is_small_even_when_a_hundred_seats_voted():
    """4 KiB is what a snapshot takes for a row."""
    seats = tuple(PeerId(bytes([255, number]) * 16) for number in range(100))
    large = ExclusionRow(
        A.public,
        JOB,
        ExclusionFault.FALSE,
        JOB,
        2**63 - 1,
        2**63 - 1,
        True,
        JOB,
        2**63 - 1,
        2**63 - 1,
        seats[:50],
        seats[50:],
    )
    assert len(encode(large)) <= 4096


def test_what_an_offer_attests_stands_in_its_lease():
    world = World(LAW)
    world.do(A, world.register())
    world.do(REQUESTER, world.create())
    offer = replace(world.offer(A).offer, attests=ROOTS[3])
    assert world.do(REQUESTER, world.schedule(transactions.sign_offer(A, offer))) == "ok"
    assert world.lease(A).attests == ROOTS[3]
