"""A requester that names its own verifiers takes neither the stake nor the recorded pay of an honest provider."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from attack_lease import PROPOSAL
from ledger_world import CAPS as OUTPUT
from ledger_world import JOB, NODES, OTHER_JOB, PARAMS, REQUESTER, ROOTS, TRACE, VERIFIERS, WINDOW, World
from msgspec.structs import replace

from farflung.core.crypto import digest
from farflung.core.errors import PolicyError
from farflung.core.ids import Hash
from farflung.job import proof_class
from farflung.job.spec import JobTerms
from farflung.ledger.exclusions import ExclusionRow
from farflung.ledger.transactions import JobFinish, JobSettle, LeaseRole, Verdict, VerdictFinding, sign_verdict
from farflung.peers.node.policy import LeasePolicy
from farflung.peers.requester.requester import Requester
from farflung.plan.state_vectors import owed_rate
from farflung.train.run_log import AuditsRecord, Contribution
from farflung.verify.audit_accounts import AuditAccounts

HONEST, (FIRST, SECOND) = NODES[0], VERIFIERS
FINDINGS = [(VerdictFinding.FALSE, 9000), (VerdictFinding.FALSE, 10**9), (VerdictFinding.WITHHELD, 0)]


def hired(job: Hash, **law: int) -> World:
    """The honest provider has earned 10 units in a job whose two verifiers are the requester's own accounts."""
    world = World(replace(PARAMS, **law))
    for key in (HONEST, FIRST, SECOND):
        assert world.do(key, world.register()) == "ok"
    audits = [world.offer(key, job, stake=0, units=20, role=LeaseRole.AUDIT) for key in (FIRST, SECOND)]
    offers = (world.offer(HONEST, job, stake=0), *audits)
    assert world.do(REQUESTER, world.create(job), world.schedule(*offers, job=job)) == "ok"
    assert world.do(REQUESTER, world.progress(0, (HONEST, 10), job=job)) == "ok"
    return world


@pytest.mark.guarantee
@pytest.mark.parametrize("dispute_ms", [0, 12_000])
@pytest.mark.parametrize("job", [JOB, OTHER_JOB])
@pytest.mark.parametrize("finding", FINDINGS)
def test_named_verifiers_convict_nobody(job: Hash, finding: tuple[VerdictFinding, int], dispute_ms: int) -> None:
    world = hired(job, dispute_ms=dispute_ms)
    before, stake = world.balance(HONEST), world.node(HONEST).stake
    for sender in (REQUESTER, FIRST):
        op = world.accuse(HONEST, FIRST, SECOND, job=job, finding=finding[0], excess=finding[1])
        assert world.do(sender, op) == "FF-LEDG-420"
    assert world.do(REQUESTER, JobFinish(job, ROOTS[0], OUTPUT), JobSettle(job)) == "ok"
    assert (world.balance(HONEST), world.node(HONEST).stake) == (before + 10 * 5, stake)
    assert not [*world.state.rows(ExclusionRow)]


@pytest.mark.guarantee
def test_named_verifiers_end_no_window() -> None:
    """In it a node claims what its voucher says and the requester has not recorded."""
    world = hired(JOB, window_ms=WINDOW)
    assert world.do(REQUESTER, JobFinish(JOB, ROOTS[0], OUTPUT)) == "ok"
    assert world.do(REQUESTER, world.attest(FIRST, SECOND)) == "FF-LEDG-421"
    assert world.do(REQUESTER, JobSettle(JOB)) == "FF-LEDG-229"
    assert world.do(HONEST, world.settle_many((HONEST, 30))) == "ok"
    world.send(after=WINDOW)
    assert world.do(REQUESTER, JobSettle(JOB)) == "ok"
    assert world.lease(HONEST).paid == 30 * 5


def named(**changes: Any) -> JobTerms:
    """Terms as a requester of a private job has them."""
    terms = PROPOSAL.terms
    spec = replace(terms.spec, audit=replace(terms.spec.audit, verifiers=("ab" * 32,)))
    spec = replace(spec, network=replace(spec.network, verifiers=1))
    plain: dict[str, Any] = {"spec": spec, "stake": 0, "unproven": proof_class.NAMED, "program": type(terms.program)()}
    return replace(terms, **{**plain, **changes})


@pytest.mark.parametrize(
    ("terms", "drawn_only", "code"),
    [
        (named(), False, ""),
        (named(), True, "FF-APP-681"),
        (PROPOSAL.terms, True, ""),
        (named(stake=7), False, "FF-APP-073"),  # it names them, and would have a stake slashed
        (named(unproven="no step was traced"), False, "FF-APP-073"),  # it does not say why its proof is weaker
        (named(unproven="", program=replace(PROPOSAL.terms.program, graph=digest("test/x"))), False, "FF-APP-073"),
    ],
)
def test_a_provider_sees_it_and_accepts_no_job_that_hides_it(terms: JobTerms, drawn_only: bool, code: str) -> None:
    proposal = replace(PROPOSAL, terms=terms, stake=terms.stake)
    policy = LeasePolicy(proposal.chain, proposal.role, 0, 10**12, 1 << 50, lambda: Hash(bytes(32)), True, drawn_only)
    if not code:
        policy.judge(terms.requester, proposal)
        return
    with pytest.raises(PolicyError) as refused:
        policy.judge(terms.requester, proposal)
    assert refused.value.code == code
    assert code != "FF-APP-073" or "names its verifiers" in refused.value.cause or "named" in refused.value.cause


@pytest.mark.parametrize(("upload", "is_taken"), [(0.0, True), (1.01, True), (0.99, False)])
def test_a_provider_takes_no_job_whose_states_its_line_cannot_open_in_time(upload: float, is_taken: bool) -> None:
    """`upload`: of what is needed; a line that nobody has measured is not judged."""
    needed = owed_rate(PROPOSAL.terms.spec, PROPOSAL.terms.layout)
    policy = LeasePolicy(PROPOSAL.chain, PROPOSAL.role, 0, 10**12, 1 << 50, lambda: Hash(bytes(32)))
    policy = policy._replace(upload=lambda: upload * needed)
    if is_taken:
        policy.judge(PROPOSAL.terms.requester, PROPOSAL)
        return
    with pytest.raises(PolicyError, match="FF-APP-693"):
        policy.judge(PROPOSAL.terms.requester, PROPOSAL)


def test_a_requester_asks_no_named_verifier_for_its_mark() -> None:
    holder, row = SimpleNamespace(_terms=named()), SimpleNamespace()  # nothing to ask anybody with
    assert asyncio.run(Requester._attest(holder, row)) is None  # type: ignore[arg-type]


def test_whom_named_verifiers_find_false_is_out_and_keeps_what_it_had_earned() -> None:
    cheat, keys, job = NODES[0].public, (FIRST, SECOND), named()
    said = [
        sign_verdict(
            key, Verdict(OTHER_JOB, OTHER_JOB, 1, cheat, 0, TRACE, key.public, VerdictFinding.FALSE, 9000, TRACE)
        )
        for key in keys
    ]
    accounts = AuditAccounts(job, 2)
    weight = job.spec.round_tokens
    made = [Contribution(cheat, weight, TRACE, TRACE, TRACE, TRACE, "none")]
    assert accounts.add(made, AuditsRecord(0, ()), made) == {cheat: weight}
    assert cheat not in accounts.add(made, AuditsRecord(1, tuple(said)), made)
    assert (accounts.out, accounts.guilty) == ({cheat}, {})  # nothing is put to the ledger
