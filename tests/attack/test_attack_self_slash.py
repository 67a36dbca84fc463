"""A worker that has itself accused by friends, verifiers that copy each other's word, and one that keeps silent."""

from __future__ import annotations

from fractions import Fraction

import pytest
from ledger_world import BOND, DISPUTE, JOB, NODES, PARAMS, REQUESTER, ROOTS, VALIDATOR, VERIFIERS, World
from msgspec.structs import replace

from farflung.core.crypto import SigningKey, digest
from farflung.core.ids import PeerId
from farflung.job.spec import JobSpec
from farflung.ledger import transactions
from farflung.ledger.disputes import DisputeAnswer, JuryVote
from farflung.ledger.params import LedgerParams
from farflung.peers.rundir.genesis import stake_of
from farflung.verify import audit_sample
from farflung.verify.economics import silence_of

A, B, _ = NODES
V, W = VERIFIERS


def wealth(world: World, *owned: SigningKey) -> int:
    """All that one owner of these keys has: what is free, staked, or in a job's escrow."""
    stakes = (world.node(key).stake for key in owned if key != REQUESTER)
    escrow = world.job().escrow if REQUESTER in owned else 0
    return sum(world.balance(key) for key in owned) + sum(stakes) + escrow


# Through a friend


@pytest.mark.parametrize("friends", [(V, W), (V,), ()])
@pytest.mark.parametrize("finding", [transactions.VerdictFinding.FALSE, transactions.VerdictFinding.WITHHELD])
def test_a_worker_that_its_friends_accuse_is_poorer_by_half_of_the_stake_at_least(
    friends: tuple[SigningKey, ...], finding: transactions.VerdictFinding
) -> None:
    world = World().watched()
    before = wealth(world, A, *friends)
    excess = 0 if finding is transactions.VerdictFinding.WITHHELD else 9000
    assert world.do(REQUESTER, world.accuse(A, finding=finding, excess=excess)) == "ok"
    stake = 100
    bounty = 0 if finding is transactions.VerdictFinding.WITHHELD else stake // 4 * len(friends)
    taken = stake // 2 if finding is transactions.VerdictFinding.WITHHELD else stake
    assert before - wealth(world, A, *friends) == taken - bounty >= stake // 2


@pytest.mark.parametrize("finding", [transactions.VerdictFinding.FALSE, transactions.VerdictFinding.WITHHELD])
def test_nor_does_it_gain_where_it_denies_and_a_jury_finds_it_guilty(finding: transactions.VerdictFinding) -> None:
    world = World(replace(PARAMS, dispute_ms=DISPUTE, bond_min=BOND)).watched()
    before = wealth(world, A, V, W)
    excess = 0 if finding is transactions.VerdictFinding.WITHHELD else 9000
    assert world.do(REQUESTER, world.accuse(A, finding=finding, excess=excess)) == "ok"
    assert world.do(A, DisputeAnswer(JOB, BOND, ROOTS[1])) == "ok"
    assert world.do(VALIDATOR, JuryVote(JOB, A.public, True)) == "ok"
    least = 50 + BOND if finding is transactions.VerdictFinding.WITHHELD else (100 + BOND) // 2
    assert before - wealth(world, A, V, W) >= least


# Copied verdicts


def test_a_verdict_that_is_copied_is_one_voice_or_none() -> None:
    """Twice the same; another's under one's own name; one's own under another's; of another round, job or node."""
    world = World().watched()
    said, claim = world.verdict(V, A), world.accuse(A).claim
    stolen = transactions.SignedVerdict(replace(said.verdict, verifier=W.public), said.signature)
    signed_by_one = transactions.sign_verdict(V, replace(said.verdict, verifier=W.public))
    for copied, code in (
        (said, "FF-LEDG-051"),
        (stolen, "FF-LEDG-050"),
        (signed_by_one, "FF-LEDG-050"),
        (world.verdict(W, A, round=1), "FF-LEDG-053"),
        (world.verdict(W, A, job=digest("test/other/1")), "FF-LEDG-052"),
        (world.verdict(W, B), "FF-LEDG-052"),
    ):
        op = transactions.JobSlash(JOB, A.public, claim, (said, copied), ROOTS[0])
        assert world.do(V, op) == code
    assert world.lease(A).is_open


# Silence


def test_whoever_cheats_always_and_shows_nothing_when_drawn_earns_less_than_by_honest_work() -> None:
    """By the draw itself and the law's numbers, over 4,000 rounds that one is on its own for; it stakes anew each time.

    Honest work earns nothing here: it costs all that it is paid, which is the kindest case for a cheater.
    """
    spec, rounds, paid, lost = JobSpec(), 4000, 0, 0
    job, peer = digest("test/job/1"), PeerId(bytes(32))
    pay = Fraction(stake_of(spec), 20)
    silence = silence_of(LedgerParams().withheld_permille) * stake_of(spec)
    for round in range(rounds):
        luck = audit_sample.beacon(audit_sample.anchor(job, round, ()), job)
        if audit_sample.draw(spec.audit, spec.segments, luck, [(peer, spec.audit.probation)]):
            lost += 1
        else:
            paid += 1
    assert abs(lost - rounds * spec.audit.rate) < 4 * (rounds * spec.audit.rate * 0.9) ** 0.5
    assert paid * pay - lost * silence < 0
    tenth = Fraction(1, 10) * stake_of(spec)  # what it was: then it paid
    assert paid * pay - lost * tenth > 0
