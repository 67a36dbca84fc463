"""Slashing and leases of verifiers: each rule has a test that fails when the rule is removed."""

from __future__ import annotations

import pytest
from ledger_world import (
    CAPS,
    EVIDENCE,
    JOB,
    NODES,
    OTHER_JOB,
    PARAMS,
    PROGRAM,
    REQUESTER,
    REST,
    RICH,
    ROOTS,
    START,
    VALIDATOR,
    VERIFIERS,
    World,
    genesis,
)
from msgspec.structs import replace

from farflung.core.canon.program import job_id
from farflung.core.crypto import SigningKey
from farflung.core.errors import VerificationError
from farflung.core.ids import ZERO_HASH, Hash
from farflung.ledger import transactions
from farflung.ledger.block import check_genesis
from farflung.ledger.disputes import DisputeRow
from farflung.ledger.params import LedgerParams
from farflung.ledger.state_transition import total_money
from farflung.ledger.table_rows import AccountRow, JobState, NodeState, lease_key
from farflung.ledger.transactions import LeaseRole, VerdictFinding

A, B, C = NODES
V, W = VERIFIERS


def refused(world: World, op: transactions.JobSlash, sender: SigningKey = REQUESTER) -> str:
    before = world.state
    code = world.do(sender, op)
    assert all(world.state.tables[name] == before.tables[name] for name in ("nodes", "jobs", "leases"))
    return code


def audited(job: Hash, *verifiers: SigningKey, params: LedgerParams = PARAMS) -> World:
    """A job in which A trains and these audit."""
    world = World(params)
    for key in (A, *verifiers):
        assert world.do(key, world.register()) == "ok"
    offers = [world.offer(key, job, units=20, role=LeaseRole.AUDIT) for key in verifiers]
    made = (world.create(job), world.schedule(world.offer(A, job), *offers, job=job))
    assert world.do(REQUESTER, *made) == "ok"
    return world


# What a slash does


def test_a_false_claim_costs_the_whole_stake_half_of_it_burnt():
    world = World().watched()
    assert world.do(REQUESTER, world.accuse(A)) == "ok"
    assert [world.balance(key) for key in (V, W)] == [RICH - 500 + 25] * 2
    node, lease, job = world.node(A), world.lease(A), world.job()
    assert (node.free, node.locked, node.leases, node.burnt, node.money) == (400, 0, 0, 50, 450)
    assert (lease.slashed, lease.evidence, lease.is_open, lease.paid) == (100, EVIDENCE, False, 0)
    assert (job.slashed, job.reserved, job.state) == (100, 800 - 300, JobState.RUNNING)


@pytest.mark.parametrize(("stake", "permille", "taken"), [(100, 100, 10), (99, 333, 32), (100, 500, 50)])
def test_withheld_work_costs_its_share_of_the_stake_and_nobody_earns_by_saying_so(
    stake: int, permille: int, taken: int
):
    """What is taken is rounded down and burnt whole: two verifiers that lie about a silence gain nothing."""
    world = World(replace(PARAMS, withheld_permille=permille)).watched()
    assert world.do(REQUESTER, world.schedule(world.offer(C, units=1, stake=stake))) == "ok"
    assert world.do(REQUESTER, world.accuse(C, finding=VerdictFinding.WITHHELD, excess=0)) == "ok"
    node, lease = world.node(C), world.lease(C)
    assert (lease.slashed, node.burnt) == (taken, taken)
    assert (node.free, node.locked) == (500 - taken, 0)
    assert [world.balance(key) for key in (V, W)] == [RICH - 500] * 2


def test_an_uneven_bounty_burns_the_remainder():
    world = World().watched()
    world.do(REQUESTER, world.schedule(world.offer(C, units=1, stake=103)))
    assert world.do(REQUESTER, world.accuse(C)) == "ok"
    assert [world.balance(key) for key in (V, W)] == [RICH - 500 + 25] * 2
    assert (world.lease(C).slashed, world.node(C).burnt) == (103, 53)


def test_a_slashed_lease_is_neither_paid_nor_unlocked_by_any_end():
    for end in ("settle", "cancel", "clock"):
        world = World().watched()
        world.do(REQUESTER, world.progress(0, (A, 10), (B, 20), (V, 4)))
        world.do(REQUESTER, world.accuse(A))
        if end == "settle":
            assert world.do(REQUESTER, transactions.JobFinish(JOB, ROOTS[0], CAPS), transactions.JobSettle(JOB)) == "ok"
        elif end == "cancel":
            assert world.do(REQUESTER, transactions.JobCancel(JOB)) == "ok"
        else:
            world.send(after=START + 60_000 - world.state.time)
        assert (world.job().paid, world.job().refunded) == (5 * 24, 1000 - 5 * 24)
        assert (world.lease(A).units, world.lease(A).paid, world.lease(A).slashed) == (10, 0, 100)
        assert (world.node(A).free, world.node(A).locked, world.node(A).leases) == (400, 0, 0)
        assert (world.balance(A), world.balance(REQUESTER)) == (RICH - 500, RICH - 120)


def test_what_a_slashed_lease_reserved_pays_a_replacement():
    world = World().watched()
    assert world.do(REQUESTER, world.schedule(world.offer(C, units=60))) == "FF-LEDG-041"
    world.do(REQUESTER, world.accuse(A))
    assert world.do(REQUESTER, world.schedule(world.offer(C, units=101))) == "FF-LEDG-041"
    assert world.do(REQUESTER, world.schedule(world.offer(C, units=100))) == "ok"
    assert world.job().reserved == world.job().escrow


def test_a_slashed_node_gets_no_second_lease_in_the_job():
    world = World(replace(PARAMS, exclusion_ms=0)).watched()
    world.do(REQUESTER, world.accuse(A))
    assert world.do(REQUESTER, world.schedule(world.offer(A, units=1))) == "FF-LEDG-040"


def test_an_ended_lease_earns_nothing_more():
    world = World().watched()
    world.do(REQUESTER, world.accuse(A))
    assert world.do(REQUESTER, world.progress(0, (B, 1), (A, 1))) == "FF-LEDG-057"
    assert world.do(REQUESTER, world.progress(0, (A, 0))) == "FF-LEDG-057"
    assert world.do(REQUESTER, world.progress(0, (B, 1))) == "ok"


def test_a_lease_is_slashed_once():
    world = World().watched()
    world.do(REQUESTER, world.accuse(A))
    assert refused(world, world.accuse(A)) == "FF-LEDG-049"
    assert refused(world, world.accuse(A, round=1)) == "FF-LEDG-049"


def test_other_leases_of_the_node_stay_as_they_are():
    world = World().watched()
    world.do(REQUESTER, world.create(OTHER_JOB))
    world.do(REQUESTER, world.schedule(world.offer(A, OTHER_JOB, stake=70), job=OTHER_JOB))
    world.do(REQUESTER, world.accuse(A))
    node = world.node(A)
    assert (node.free, node.locked, node.leases, node.burnt) == (330, 70, 1, 50)
    assert world.lease(A, OTHER_JOB).is_open


@pytest.mark.parametrize("stake", [1, 2, 3, 99, 100, 101, 499])
def test_whoever_is_slashed_by_its_own_verifiers_loses_at_least_half(stake: int):
    """One owner holds the node, both verifiers and the requester: together they are poorer by half the stake."""
    world = World().watched()
    world.do(REQUESTER, world.schedule(world.offer(C, units=1, stake=stake)))
    owned = (REQUESTER, C, V, W)

    def wealth() -> int:
        held = sum(world.balance(key) for key in owned)
        return held + sum(world.node(key).stake for key in owned[1:]) + world.job().escrow

    before = wealth()
    assert world.do(REQUESTER, world.accuse(C)) == "ok"
    assert before - wealth() == world.node(C).burnt
    assert 2 * world.node(C).burnt >= stake


# Burnt money


def test_burnt_money_stays_in_the_row_of_a_node_that_leaves():
    world = World().watched()
    world.do(REQUESTER, world.accuse(A))
    assert world.do(A, transactions.NodeLeave()) == "ok"
    node = world.node(A)
    assert (node.free, node.burnt, node.money, node.state) == (0, 50, 50, NodeState.LEFT)
    assert world.balance(A) == RICH - 100


def test_burnt_money_backs_nothing_when_the_node_registers_again():
    world = World(replace(PARAMS, stake_min=300)).watched()
    world.do(REQUESTER, world.accuse(A))
    assert world.do(A, world.register(500)) == "ok"
    assert (world.node(A).free, world.node(A).burnt) == (500, 50)
    assert world.balance(A) == RICH - 600
    world.do(A, transactions.NodeLeave())
    assert world.do(A, world.register(299)) == "FF-LEDG-023"
    assert world.do(A, world.register(300)) == "ok"
    assert (world.node(A).free, world.node(A).burnt, world.balance(A)) == (300, 50, RICH - 400)


@pytest.mark.guarantee
def test_the_clock_alone_returns_all_that_is_not_burnt():
    world = World().watched()
    world.do(REQUESTER, world.accuse(A))
    world.send(after=300_000)
    world.send()
    assert total_money(world.state) - sum(row.balance for row in world.state.rows(AccountRow)) == 50
    assert (world.balance(A), world.balance(B), world.balance(REQUESTER)) == (RICH - 100, RICH, RICH)


@pytest.mark.parametrize("permille", [0, 1000])
def test_the_share_for_withheld_work_is_within_its_bounds(permille: int):
    check_genesis(genesis(replace(PARAMS, withheld_permille=permille)))
    for beyond in (1001, -1):
        with pytest.raises(VerificationError, match="FF-LEDG-060"):
            check_genesis(genesis(replace(PARAMS, withheld_permille=beyond)))


# Who may accuse, whom, when


@pytest.mark.parametrize("key", [A, B, C, VALIDATOR])
def test_only_the_requester_or_a_verifier_of_the_job_accuses(key: SigningKey):
    world = World().watched()
    assert refused(world, world.accuse(A), key) == "FF-LEDG-048"


def test_a_verifier_accuses_on_its_own():
    world = World().watched()
    assert world.do(W, world.accuse(A)) == "ok"


@pytest.mark.parametrize("key", [C, V, REQUESTER])
def test_only_a_node_that_trains_in_the_job_is_accused(key: SigningKey):
    world = World().watched()
    assert refused(world, world.accuse(key)) == "FF-LEDG-049"


def test_an_unknown_job_accuses_nobody():
    world = World().watched()
    assert refused(world, replace(world.accuse(A), job=OTHER_JOB)) == "FF-LEDG-031"


def test_a_job_that_does_not_run_accuses_nobody():
    world = World().watched()
    world.do(REQUESTER, world.progress(0, (A, 1)))
    world.do(REQUESTER, transactions.JobFinish(JOB, ROOTS[0], CAPS))
    assert refused(world, world.accuse(A)) == "FF-LEDG-033"
    world.do(REQUESTER, transactions.JobSettle(JOB))
    assert refused(world, world.accuse(A)) == "FF-LEDG-033"
    assert refused(world, world.accuse(A), V) == "FF-LEDG-048"


# The verdicts


def test_a_verdict_must_be_signed_by_the_verifier_it_names():
    world = World().watched()
    op = world.accuse(A)
    forged = transactions.SignedVerdict(op.verdicts[1].verdict, op.verdicts[0].signature)
    assert refused(world, replace(op, verdicts=(op.verdicts[0], forged))) == "FF-LEDG-050"


@pytest.mark.parametrize("key", [B, C, REQUESTER])
def test_a_verdict_of_somebody_who_does_not_audit_here_is_refused(key: SigningKey):
    world = World().watched()
    assert refused(world, world.accuse(A, V, key)) == "FF-LEDG-050"
    assert refused(world, world.accuse(A, V, W, key)) == "FF-LEDG-050"


def test_a_verifier_of_another_job_has_no_say():
    world = World().running()
    world.do(V, world.register())
    world.do(REQUESTER, world.create(OTHER_JOB))
    offer = world.offer(V, OTHER_JOB, role=LeaseRole.AUDIT)
    assert world.do(REQUESTER, world.schedule(offer, job=OTHER_JOB)) == "ok"
    assert refused(world, world.accuse(A, V)) == "FF-LEDG-050"


def test_one_of_two_verifiers_is_not_enough():
    world = World().watched()
    assert refused(world, world.accuse(A, V)) == "FF-LEDG-051"
    assert refused(world, world.accuse(A, V, V)) == "FF-LEDG-051"
    assert refused(world, replace(world.accuse(A), verdicts=())) == "FF-LEDG-051"
    assert refused(World().running(), replace(world.accuse(A), verdicts=())) == "FF-LEDG-051"


def test_a_verifier_is_counted_and_paid_once():
    world = World().watched()
    assert refused(world, world.accuse(A, V, W, W)) == "FF-LEDG-051"


def test_the_only_verifier_of_a_job_is_enough():
    world = World().running()
    world.do(V, world.register())
    world.do(REQUESTER, world.schedule(world.offer(V, units=1, role=LeaseRole.AUDIT)))
    assert world.do(REQUESTER, world.accuse(A, V)) == "ok"
    assert (world.balance(V), world.node(A).burnt) == (RICH - 500 + 50, 50)


def test_two_of_three_verifiers_are_enough():
    world = World().watched()
    world.do(REQUESTER, world.schedule(world.offer(C, units=1, role=LeaseRole.AUDIT)))
    assert refused(world, world.accuse(A, C)) == "FF-LEDG-051"
    assert world.do(REQUESTER, world.accuse(A, C, W)) == "ok"
    assert (world.balance(V), world.balance(W)) == (RICH - 500, RICH - 500 + 25)


@pytest.mark.parametrize("change", [{"chain": ROOTS[1]}, {"job": OTHER_JOB}, {"node": B.public}])
def test_a_verdict_on_something_else_is_refused(change: dict[str, object]):
    world = World().watched()
    odd = world.verdict(W, A, **change)
    op = replace(world.accuse(A), verdicts=(world.verdict(V, A), odd))
    assert refused(world, op) == "FF-LEDG-052"
    both = replace(op, verdicts=(world.verdict(V, A, **change), odd))
    assert refused(world, both) == "FF-LEDG-052"


@pytest.mark.parametrize(
    "change", [{"round": 1}, {"segment": 2}, {"trace": ROOTS[1]}, {"finding": VerdictFinding.WITHHELD}]
)
def test_verdicts_that_differ_are_refused(change: dict[str, object]):
    world = World().watched()
    verdicts = (world.verdict(V, A), world.verdict(W, A, **change))
    assert refused(world, replace(world.accuse(A), verdicts=verdicts)) == "FF-LEDG-053"


def test_verifiers_may_measure_a_different_excess():
    world = World().watched()
    verdicts = (world.verdict(V, A), world.verdict(W, A, excess=9000, result=ROOTS[3]))
    assert world.do(REQUESTER, replace(world.accuse(A), verdicts=verdicts)) == "ok"


@pytest.mark.parametrize(
    "change",
    [
        {"finding": VerdictFinding.HOLDS},
        {"finding": VerdictFinding.UNPAID},
        {"finding": VerdictFinding.UNPAID, "excess": 9000},
        {"excess": 2000},
        {"excess": 0},
    ],
)
def test_what_lies_within_twice_the_tolerance_is_not_punished(change: dict[str, object]):
    world = World().watched()
    assert refused(world, world.accuse(A, **change)) == "FF-LEDG-054"
    other = (world.verdict(V, A, **{"finding": VerdictFinding.FALSE, **change}), world.verdict(W, A))
    expected = "FF-LEDG-053" if "finding" in change else "FF-LEDG-054"
    assert refused(world, replace(world.accuse(A), verdicts=other)) == expected


# Jobs with a graph, and without


@pytest.mark.parametrize(
    "finding", [(VerdictFinding.FALSE, 9000), (VerdictFinding.FALSE, 10**9), (VerdictFinding.WITHHELD, 0)]
)
@pytest.mark.parametrize("job", [JOB, OTHER_JOB])
@pytest.mark.parametrize(
    ("signers", "proven", "unproven"),
    [
        ((V,), "FF-LEDG-051", "FF-LEDG-051"),
        ((V, W), "ok", "ok"),
        ((V, V), "FF-LEDG-051", "FF-LEDG-051"),
        ((V, REQUESTER), "FF-LEDG-392", "FF-LEDG-392"),
        ((REQUESTER,), "FF-LEDG-392", "FF-LEDG-392"),
        ((W, V, REQUESTER), "FF-LEDG-392", "FF-LEDG-392"),
    ],
)
def test_who_convicts_where_several_audit(
    signers: tuple[SigningKey, ...], proven: str, unproven: str, job: Hash, finding: tuple[VerdictFinding, int]
):
    world = audited(job, V, W, REQUESTER)
    kind, excess = finding
    op = world.accuse(A, *signers, job=job, finding=kind, excess=excess)
    assert world.do(REQUESTER, op) == (proven if job == JOB else unproven)
    assert world.lease(A, job).is_open == (len(signers) != 2 or W not in signers)


@pytest.mark.parametrize(
    "finding", [(VerdictFinding.FALSE, 9000), (VerdictFinding.FALSE, 10**9), (VerdictFinding.WITHHELD, 0)]
)
@pytest.mark.parametrize(("job", "code"), [(JOB, "ok"), (OTHER_JOB, "FF-LEDG-051")])
@pytest.mark.parametrize("dispute_ms", [0, 12_000])
def test_the_only_verifier_convicts_where_the_job_has_a_graph_alone(
    job: Hash, code: str, finding: tuple[VerdictFinding, int], dispute_ms: int
):
    world = audited(job, V, params=replace(PARAMS, dispute_ms=dispute_ms))
    kind, excess = finding
    op = world.accuse(A, V, job=job, finding=kind, excess=excess)
    assert world.do(V, op) == code
    assert (world.state.find(DisputeRow, lease_key(job, A.public)) is not None) == (code == "ok" and dispute_ms > 0)
    assert world.lease(A, job).is_open == (code != "ok")


def test_only_the_jobs_own_program_opens_it():
    world = audited(OTHER_JOB, V)
    op = world.accuse(A, V, job=OTHER_JOB)
    foreign = replace(PROGRAM, seed=2)
    blank = replace(PROGRAM, graph=ZERO_HASH)
    assert refused(world, replace(op, terms=REST, program=PROGRAM)) == "FF-LEDG-391"
    assert refused(world, replace(op, terms=REST, program=blank)) == "FF-LEDG-051"
    proven = audited(JOB, V)
    assert refused(proven, replace(proven.accuse(A, V), program=foreign)) == "FF-LEDG-391"
    assert refused(proven, replace(proven.accuse(A, V), terms=ROOTS[0])) == "FF-LEDG-391"
    assert refused(proven, replace(proven.accuse(A, V), terms=ZERO_HASH, program=blank)) == "FF-LEDG-051"
    unsound = replace(PROGRAM, rows=0)
    odd = audited(job_id(REST, unsound), V)
    op = replace(odd.accuse(A, V, job=job_id(REST, unsound)), terms=REST, program=unsound)
    assert refused(odd, op) == "FF-LEDG-391"


def test_nobody_earns_by_a_slash_without_a_graph():
    world = audited(OTHER_JOB, V, W)
    assert world.do(REQUESTER, world.accuse(A, job=OTHER_JOB)) == "ok"
    assert [world.balance(key) for key in (V, W)] == [RICH - 500] * 2
    assert (world.lease(A, OTHER_JOB).slashed, world.node(A).burnt) == (100, 100)


# The claim


@pytest.mark.parametrize("field", ["payload", "weight", "nonce", "signature"])
def test_nobody_is_punished_for_what_it_did_not_say(field: str):
    world = World().watched()
    op = world.accuse(A)
    wrong = {"payload": ROOTS[1], "weight": 513, "nonce": ROOTS[1], "signature": world.claim(B).signature}
    claim = replace(op.claim, **{field: wrong[field]})
    assert refused(world, replace(op, claim=claim)) == "FF-LEDG-055"


@pytest.mark.parametrize("change", [{"round": 1}, {"trace": ROOTS[1]}])
def test_verdicts_on_a_claim_that_was_not_made_are_refused(change: dict[str, object]):
    world = World().watched()
    op = replace(world.accuse(A, **change), claim=world.claim(A))
    assert refused(world, op) == "FF-LEDG-055"


def test_a_slash_names_its_evidence():
    world = World().watched()
    assert refused(world, replace(world.accuse(A), evidence=ZERO_HASH)) == "FF-LEDG-056"


# Leases of verifiers


def test_a_verifiers_lease_has_its_role_and_is_paid_for_what_it_trained_again():
    world = World().watched()
    assert (world.lease(V).role, world.lease(A).role) == (LeaseRole.AUDIT, LeaseRole.TRAIN)
    assert world.do(REQUESTER, world.progress(0, (A, 3), (V, 20))) == "ok"
    assert world.do(REQUESTER, world.progress(1, (V, 1))) == "FF-LEDG-045"
    assert world.do(REQUESTER, transactions.JobFinish(JOB, ROOTS[0], CAPS), transactions.JobSettle(JOB)) == "ok"
    assert (world.lease(V).paid, world.balance(V)) == (100, RICH - 500 + 100)


@pytest.mark.parametrize("role", LeaseRole)
def test_nobody_trains_and_audits_in_one_job(role: LeaseRole):
    world = World().watched()
    key = V if role == LeaseRole.TRAIN else A
    assert world.do(REQUESTER, world.schedule(world.offer(key, units=1, role=role))) == "FF-LEDG-040"


def test_the_role_is_under_the_nodes_signature():
    world = World().running()
    offer = world.offer(C, role=LeaseRole.TRAIN)
    other = transactions.SignedLeaseOffer(replace(offer.offer, role=LeaseRole.AUDIT), offer.signature)
    assert world.do(REQUESTER, world.schedule(other)) == "FF-LEDG-035"
