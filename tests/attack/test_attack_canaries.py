"""Verifiers that guess, and peers that plant something else than they were asked to: real audits on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import attack_run
import attack_world
import msgspec
import pytest
from attack_run import EVE, Run, ledger_of
from attack_world import AUDITED, LAYOUT, MEMBERS, REQUESTER, VERIFIERS, soaked, within

from farflung.core.backoff import Backoff
from farflung.core.commitments import BorderRoots
from farflung.core.crypto import SigningKey
from farflung.core.errors import PolicyError
from farflung.core.events import CanaryEndEvent, PerjuryEvent
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger import canaries
from farflung.ledger.transactions import Canary, JobPerjury, JobSlash, Progress, VerdictFinding
from farflung.net.io.connection import Connection
from farflung.peers.node import opening_deadlines
from farflung.peers.node.audit_lease import AuditLease
from farflung.peers.protocol import calls, messages
from farflung.peers.requester import audits
from farflung.peers.requester.audit_session import OPEN_SECONDS
from farflung.peers.requester.canaries import Canaries
from farflung.peers.requester.ledger_recorder import LedgerRecorder
from farflung.train.run_log import AuditsRecord
from farflung.train.sync_arithmetic import Sync
from farflung.verify.audit_accounts import rerun_tokens
from farflung.verify.audit_verdict import AuditConclusion, AuditFinding
from farflung.verify.blind_commitment import BlindCommitment, blind, nonce_of
from farflung.verify.commitment_check import plant
from farflung.verify.disqualified_verifiers import LAG, DisqualifiedVerifiers

replace = msgspec.structs.replace

NIL = Hash(bytes(32))
JACKPOT = 2
SPEC = replace(
    attack_world.SPEC,
    rounds=6,
    sync=replace(attack_world.SYNC, steps=4),
    audit=replace(AUDITED, segments=4, canaries=0.5, jackpot=JACKPOT),
)
TERMS = replace(attack_world.TERMS, spec=SPEC)
WORLD = {
    "SPEC": SPEC,
    "TERMS": TERMS,
    "SEGMENTS": SPEC.segments,
    "SYNCED": Sync.of(SPEC),
    "BOUND": Sync.of(SPEC).bound(LAYOUT),
}
GUESSER, LOOKER = VERIFIERS


class Guesser(AuditLease):
    """It trains nothing: it commits to a number of its own, and says that whatever it is shown holds."""

    orders: dict[tuple[int, PeerId, int], tuple[messages.AuditRequest, BlindCommitment]]

    async def run(self, asked: messages.AuditRequest) -> messages.AuditReply:
        node = asked.contribution.peer
        said = blind(self._key, self.job, asked.round, node, asked.segment, self._border(asked.segment))
        self.orders = getattr(self, "orders", {}) | {(asked.round, node, asked.segment): (asked, said)}
        return messages.AuditReply(said, None)

    async def judge(self, asked: messages.VerdictRequest) -> messages.VerdictReply:
        order, said = self.orders[asked.round, asked.peer, asked.segment]
        nonce = nonce_of(self._key, self.job, asked.round, asked.peer, asked.segment)
        verdict = self._verdict(order, AuditFinding(VerdictFinding.HOLDS, 300), said.digest)
        return messages.VerdictReply(verdict, self._border(asked.segment), nonce)

    def _border(self, segment: int) -> BorderRoots:
        return BorderRoots(0, segment + 1, 1, NIL, NIL, NIL)


def guess(run: Run) -> None:
    """The first verifier does not look."""
    judge = next(j for j in run.judges if j.key == GUESSER)
    judge.lease = Guesser(judge.workspace, judge.lease._account, attack_run.CHAIN)
    judge.shelf = judge.lease.objects


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """A network of four rounds of four segments; nobody honest is harmed in any of them."""
    for name, value in WORLD.items():
        for module in (attack_world, attack_run):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(calls, "REDIAL", Backoff.every(0.0))
    monkeypatch.setattr(audits, "TRY_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(opening_deadlines, "WITHHOLD_SECONDS", 5.0)

    def run(prepare: Callable[[Run], None], verifiers: Sequence[SigningKey] = VERIFIERS) -> Run:
        async def test() -> None:
            made.append(Run(tmp_path, verifiers))
            prepare(made[0])
            await made[0].go()
            made[0].check_honest()

        made: list[Run] = []
        within(60, test)
        return made[0]

    return run


def told(run: Run) -> list[tuple[int, Canary]]:
    """All canaries in the log, with their rounds."""
    return [(record.round, canary) for record in run.audited for canary in record.canaries]


def recorded(run: Run) -> tuple[Any, list[Any]]:
    """The ledger after two recorders, and what the first of them told."""
    ledger, events = ledger_of(), list[Any]()
    emitter = type("Emitter", (), {"emit": lambda _, event, **__: events.append(event)})()

    async def record() -> None:
        for _ in range(2):
            job: Any = run.job._replace(journal=emitter)
            await LedgerRecorder(ledger, job, len(run.judges)).catch_up()  # type: ignore[arg-type]

    asyncio.run(record())
    return ledger, events


# A verifier that guesses


def test_a_verifier_that_guesses_is_found_out_and_loses_its_stake_to_who_planted(scene: Any) -> None:
    run = scene(guess)
    said = [(round, c) for round, c in told(run) if c.verdict.verdict.verifier == GUESSER.public]
    assert said, "no coin fell so that it was tested"
    assert all(canaries.is_perjury(c) and canaries.fault(c, attack_run.CHAIN, TERMS.id) == "" for _, c in said)
    first = said[0][0]
    assert first + LAG < SPEC.rounds, "it was found out too late for this test"
    for record in run.audited:  # nobody asks it any more
        asked = {v.verdict.verifier for v in record.verdicts}
        asked |= {c.verdict.verdict.verifier for c in record.canaries}
        assert (GUESSER.public in asked) <= (record.round < first + LAG)
    ledger, events = recorded(run)
    (perjury,) = [op for op in ledger.submitted if isinstance(op, JobPerjury)]
    kinds = [(type(op), getattr(op, "round", -1)) for op in ledger.submitted]
    assert kinds.index((JobPerjury, -1)) > kinds.index((Progress, first + 1))  # what it said then may be needed
    planter = perjury.canary.verdict.verdict.node
    lease, stake = ledger.lease(GUESSER.public), ledger.lease(LOOKER.public).stake
    assert (lease.is_open, lease.slashed) == (False, stake)
    assert all(ledger.lease(key.public).is_open for key in (LOOKER, *MEMBERS))
    before = ledger_of()
    assert ledger.balance(planter) - before.balance(planter) == stake // 2
    assert ledger.node(GUESSER.public).burnt == stake - stake // 2
    assert not any(isinstance(op, JobSlash) for op in ledger.submitted)
    (lost,) = {(e.verifier, e.peer, e.slashed) for e in events if isinstance(e, PerjuryEvent)}
    assert lost == (GUESSER.public.hex(), planter.hex(), stake)


def test_a_verifier_that_was_found_out_earns_nothing_from_there_on(scene: Any) -> None:
    run = scene(guess)
    first = next(round for round, c in told(run) if c.verdict.verdict.verifier == GUESSER.public)
    ledger, _ = recorded(run)
    for op in [op for op in ledger.submitted if isinstance(op, Progress) and op.round >= first]:
        assert GUESSER.public not in dict(op.units)


def test_who_looks_finds_each_canary_and_is_paid_for_it_with_the_jackpot(scene: Any) -> None:
    run = scene(lambda run: None)
    assert len(told(run)) > 2
    assert {c.verdict.verdict.finding for _, c in told(run)} == {VerdictFinding.FALSE}
    assert len([e for e in run.events if isinstance(e, CanaryEndEvent)]) == len(told(run))
    ledger, events = recorded(run)
    assert not any(isinstance(op, JobPerjury) for op in ledger.submitted)
    assert not events
    for record in run.audited:
        (units,) = [dict(op.units) for op in ledger.submitted if getattr(op, "round", -1) == record.round]
        for key in VERIFIERS:
            said = [v.verdict for v in record.verdicts if v.verdict.verifier == key.public]
            tests = [c.verdict.verdict for c in record.canaries]
            tests = [v for v in tests if v.verifier == key.public]
            due = sum(rerun_tokens(SPEC, v, SPEC.round_tokens) for v in said)
            due += (1 + JACKPOT) * sum(rerun_tokens(SPEC, v, SPEC.round_tokens) for v in tests)
            assert units.get(key.public, 0) == due


def test_a_canary_decides_nothing_about_who_planted_it(scene: Any) -> None:
    run = scene(lambda run: None)
    assert {c.finding for c in run.concluded.values()} == {"holds"}
    assert run.out == []


@pytest.mark.whole
def test_the_same_run_again_has_the_same_canaries(scene: Any, tmp_path: Path) -> None:
    first = told(scene(guess))
    for path in tmp_path.iterdir():
        path.rename(tmp_path.parent / f"{tmp_path.name}-{path.name}-before")
    assert told(scene(guess)) == first


@pytest.mark.whole
def test_a_coordinator_and_peers_that_were_started_anew_have_the_same_canaries(
    scene: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was planted lies on the peer's disk, and the coin is nobody's memory."""
    first = told(scene(guess))
    for path in tmp_path.iterdir():
        path.rename(tmp_path.parent / f"{tmp_path.name}-{path.name}-before")
    runs: list[Run] = []
    remembered, forgotten = Canaries._remembered, list[tuple[int, PeerId]]()

    async def forgetful(self: Canaries, case: Any) -> Any:
        forgotten.extend(self._planted)
        self._planted.clear()
        for member in runs[0].members:
            member.lease._openings._known.clear()
        return await remembered(self, case)

    def prepare(run: Run) -> None:
        runs.append(run)
        guess(run)

    monkeypatch.setattr(Canaries, "_remembered", forgetful)
    assert told(scene(prepare)) == first
    assert forgotten


# What a verifier can learn


@pytest.mark.slow
def test_both_orders_look_alike_and_each_verifier_is_asked_in_its_turn(scene: Any) -> None:
    """The draw's order can be computed by everybody: were another one asked, it would know why."""
    run = scene(lambda run: None)
    orders = [(j, o) for j in run.judges for method, o, _ in j.said if method == messages.AUDIT]
    for round, canary in told(run):
        said = canary.verdict.verdict
        judge, test = next((j, o) for j, o in orders if o.contribution.trace == said.trace)
        again = [o for j, o in orders if (o.round, o.contribution.peer, j) == (round, said.node, judge)]
        truth = next(o for o in again if o.contribution.trace == canary.plant.trace)
        assert again.index(test) < again.index(truth)  # it is the first one of the audit that follows, too
        alike = replace(test, contribution=truth.contribution, opened=truth.opened)
        assert alike == truth
        same = replace(test.contribution, trace=truth.contribution.trace, nonce=truth.contribution.nonce)
        assert same == truth.contribution
        assert (test.opened.state, test.opened.before) == (truth.opened.state, truth.opened.before)


@pytest.mark.slow
def test_a_peer_answers_a_verifier_under_the_trace_that_it_names_and_says_of_no_other(scene: Any) -> None:
    run = scene(lambda run: None)
    round, canary = told(run)[-1]
    said = canary.verdict.verdict
    peer = next(m for m in run.members if m.key.public == said.node)
    ask = messages.SegmentOpenRequest(TERMS.id, round, said.segment)
    for trace in (said.trace, canary.plant.trace):
        opened = peer.lease.repeat(replace(ask, trace=trace))
        known = peer.lease._openings.find(round, said.segment, is_planted=trace == said.trace)
        assert known.opened == opened
    for trace in (ZERO_HASH, NIL, Hash(b"\x01" * 32)):
        with pytest.raises(PolicyError, match="FF-APP-084"):
            peer.lease.repeat(replace(ask, trace=trace))


# Peers that do not plant what they are asked to


def refusing(*_: Any) -> Any:
    raise PolicyError("FF-APP-041", "no")


def _changed(**how: Any) -> Callable[..., Any]:
    return lambda _eve, _order, said: replace(said, plant=replace(said.plant, **how))


def _true_end(eve: Any, order: Any, said: messages.CanaryOpenReply) -> messages.CanaryOpenReply:
    """What would rob who looks: the border that is compared with is the false one, and the end is true."""
    trace = eve.lease._result.trace
    source = canaries.source_of(order.segment, SPEC.segments)
    borders = list(trace.borders)
    borders[source] = replace(borders[source], params=borders[order.segment + 1].params)
    made = plant(EVE, TERMS.id, order.round, replace(trace, borders=tuple(borders)), order.segment)
    return replace(said, plant=made)


@pytest.mark.whole
@pytest.mark.parametrize(
    "twist",
    soaked(
        [
            refusing,
            lambda *_: "what?",
            _true_end,
            _changed(nonce=NIL),
            _changed(trace=NIL),
            _changed(leaves=()),
            lambda _e, _o, said: replace(said, opened=replace(said.opened, start=replace(said.opened.start, path=()))),
        ],
        ["refuses", "babbles", "true end", "another nonce", "another trace", "no leaves", "no start"],
        "refuses, true end, another trace",
    ),
)
def test_who_plants_nothing_or_something_else_has_its_audit_without_a_canary(scene: Any, twist: Any) -> None:
    def prepare(run: Run) -> None:
        honest = run.eve.obey

        async def obey(connection: Any, method: str, order: Any) -> Any:
            said = await honest(connection, method, order)
            return twist(run.eve, order, said) if method == messages.PLANT else said

        run.eve.obey = obey  # type: ignore[method-assign]

    run = scene(prepare)
    assert EVE.public not in {c.verdict.verdict.node for _, c in told(run)}
    assert {c.finding for c in run.concluded.values()} == {"holds"}
    assert {c.verdict.verdict.finding for _, c in told(run)} <= {VerdictFinding.FALSE}


@pytest.mark.slow
def test_a_peer_that_hangs_over_a_plant_has_its_audit_without_a_canary(
    scene: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there: were it said to be gone, or to withhold, a canary would decide something about it."""
    call = Connection.call

    async def hanging(connection: Connection, asked: str, body: bytes, **about: Any) -> bytes:
        if asked == messages.PLANT:
            assert about["timeout"] == OPEN_SECONDS
            about["timeout"] = 0.2 if connection.peer == EVE.public else about["timeout"]
        return await call(connection, asked, body, **about)

    def prepare(run: Run) -> None:
        honest = run.eve.obey

        async def obey(connection: Any, method: str, order: Any) -> Any:
            if method == messages.PLANT:
                await asyncio.Event().wait()
            return await honest(connection, method, order)

        run.eve.obey = obey  # type: ignore[method-assign]

    monkeypatch.setattr(Connection, "call", hanging)
    run = scene(prepare)
    assert EVE.public not in {c.verdict.verdict.node for _, c in told(run)}
    assert {c.finding for c in run.concluded.values()} == {"holds"}
    assert run.out == []


@pytest.mark.slow
def test_who_is_caught_lying_itself_has_nobodys_stake(scene: Any) -> None:
    """Its commitment was false, so what it planted may have been true, and who found it good right."""
    run = scene(guess)
    round, canary = next((r, c) for r, c in told(run) if canaries.is_perjury(c))
    node, record = canary.verdict.verdict.node, run.audited[round]
    for finding, is_found in ((VerdictFinding.FALSE, False), (VerdictFinding.HOLDS, True)):
        disqualified = DisqualifiedVerifiers()
        disqualified.note(AuditsRecord(round, record.verdicts, (canary,)), {node: AuditConclusion(finding, (), ())})
        assert (GUESSER.public in disqualified.found) == is_found


# The coin


def test_the_coin_is_the_requesters_secret_and_falls_as_often_as_the_terms_say() -> None:
    def coins(key: SigningKey) -> list[bool]:
        nothing = cast(Any, None)
        job = cast(Any, SimpleNamespace(key=key, terms=TERMS, journal=nothing))
        one = Canaries(job, nothing, nothing)
        return [one.is_due(round, m.public) for round in range(400) for m in MEMBERS]

    mine = coins(REQUESTER)
    assert mine == coins(REQUESTER)
    assert mine != coins(EVE)
    assert 0.45 < sum(mine) / len(mine) < 0.55
