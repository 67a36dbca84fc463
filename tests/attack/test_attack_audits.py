"""Members and verifiers that lie about work: what each comes to, and that the honest lose nothing by it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from attack_run import CHAIN, EVE, HONEST, ORDERS, PATIENCE, ROUND, Hostile, Judge, Run, Twist, ledger_of
from attack_world import (
    COURT,
    SEGMENTS,
    SPEC,
    STRANGER,
    TERMS,
    VERIFIERS,
    hostile_bodies,
    hostile_values,
    soaked,
    within,
)

from farflung.core import limits
from farflung.core.backoff import Backoff
from farflung.core.codec import decode, encode
from farflung.core.commitments import BorderRoots
from farflung.core.crypto import SigningKey, digest
from farflung.core.errors import FarflungError, NetworkError, PolicyError, VerificationError
from farflung.core.events import SlashEvent
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger.transactions import JobSlash, SignedVerdict, VerdictFinding, sign_verdict
from farflung.net.io.connection import Connection
from farflung.peers.node import audit_lease, opening_deadlines
from farflung.peers.protocol import calls, messages
from farflung.peers.requester import audit_session, audits
from farflung.peers.requester.audit_session import AuditCase
from farflung.peers.requester.ledger_recorder import LedgerRecorder
from farflung.store.sealed_objects import ObjectManifest
from farflung.train.contribution_trace import TraceLeaf
from farflung.train.run_log import AuditsRecord, Contribution
from farflung.verify.audit_accounts import AuditAccounts
from farflung.verify.audit_sample import AuditSample
from farflung.verify.audit_verdict import EXCESS_CAP
from farflung.verify.blind_commitment import BlindCommitment, blind
from farflung.verify.evidence import AuditEvidence, evidence_fault, evidence_hash
from farflung.verify.evidence import read as read_evidence

replace = msgspec.structs.replace

NIL = Hash(bytes(32))
DAMNED = (EVE.public, False)  # out, and may not come back


async def _a_few_times(ask: Callable[[], Awaitable[Any]], _seconds: float) -> Any:
    """A verifier's patience, in tries: a slow machine must not make the honest look guilty."""
    for _ in range(3):
        with contextlib.suppress(NetworkError, VerificationError):
            return await ask()
    raise opening_deadlines.WithheldError("FF-APP-088", "a committed state is withheld")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Runs a network that `prepare` has twisted; nobody honest is harmed in any of them."""
    monkeypatch.setattr(calls, "REDIAL", Backoff.every(0.0))
    monkeypatch.setattr(audits, "TRY_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(audits, "GIVE_UP_SECONDS", 10.0)
    monkeypatch.setattr(opening_deadlines, "patiently", _a_few_times)

    def run(prepare: Callable[[Run], None], verifiers: Sequence[SigningKey] = VERIFIERS) -> Run:
        async def test() -> None:
            made.append(Run(tmp_path, verifiers))
            prepare(made[0])
            await made[0].go()
            made[0].check_honest()

        made: list[Run] = []
        within(30, test)
        return made[0]

    return run


def twisted(**twists: Twist) -> Callable[[Run], None]:
    """A member that changes what it answers to open or unveil in round ROUND."""
    methods = {"open": messages.OPEN, "unveil": messages.UNVEIL, "train": messages.TRAIN}
    return lambda run: run.eve.twists.update({methods[name]: twist for name, twist in twists.items()})


def verdicts(run: Run) -> list[tuple[PeerId, VerdictFinding]]:
    """What was logged of the hostile member's round."""
    said = [v.verdict for v in run.audited[ROUND].verdicts if v.verdict.node == EVE.public]
    return [(v.verifier, v.finding) for v in said]


def evidence(run: Run) -> AuditEvidence:
    (path,) = run.evidence.iterdir()
    return read_evidence(path.read_bytes())


def caught(run: Run, finding: VerdictFinding) -> None:
    """Both verifiers say so, it is out for good, the evidence holds, and the ledger takes its stake once."""
    both = sorted(key.public for key in VERIFIERS)
    assert verdicts(run) == [(verifier, finding) for verifier in both]
    assert run.out == [DAMNED]
    found = evidence(run)
    assert (found.contribution.peer, found.round) == (EVE.public, ROUND)
    assert evidence_fault(found, SPEC) == ""
    asyncio.run(_slashed(run, found))


async def _slashed(run: Run, found: AuditEvidence) -> None:
    ledger, events = ledger_of(), list[Any]()
    emitter = type("Emitter", (), {"emit": lambda _, event, **__: events.append(event)})()
    recorder = LedgerRecorder(ledger, run.job._replace(journal=emitter), len(VERIFIERS))  # type: ignore[arg-type]
    for _ in range(2):
        await recorder.catch_up()
    assert [op.node for op in ledger.submitted if isinstance(op, JobSlash)] == [EVE.public]
    lease = ledger.lease(EVE.public)
    assert (lease.is_open, lease.evidence) == (False, evidence_hash(found))
    assert lease.slashed > 0
    assert all(ledger.lease(key.public).is_open for key in (*HONEST, *VERIFIERS))
    assert [event.peer for event in events if isinstance(event, SlashEvent)] == [EVE.public.hex()]


def stands(run: Run) -> None:
    """The claim is good, whoever said what."""
    assert run.concluded[ROUND, EVE.public.hex()].finding == "holds"
    assert run.out == run.left == []
    assert not run.evidence.exists()


# A member that does not open what it had committed to


def refusing(_eve: Hostile, _order: Any, _said: Any) -> Any:
    raise PolicyError("FF-APP-041", "no")


def babbling(_eve: Hostile, _order: Any, _said: Any) -> Any:
    return "what?"


class Hanging:
    """Never answers an audit. It alone is waited for no more than a moment: slow is not hanging."""

    def __init__(self, eve: Hostile, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._obey, self._method, self._call = eve.obey, method, Connection.call
        self.bounds: list[float | None] = []  # for how long it would have been waited for
        eve.obey = self.obey  # type: ignore[method-assign]

        async def call(connection: Connection, asked: str, body: bytes, **about: Any) -> bytes:
            if asked == method and connection.peer == EVE.public and self._hangs(body):
                self.bounds.append(about.get("timeout"))
                about["timeout"] = 0.2
            return await self._call(connection, asked, body, **about)

        monkeypatch.setattr(Connection, "call", call)

    def _hangs(self, body: bytes) -> bool:
        return decode(body, ORDERS[self._method], limits.CONTROL_BYTES).round == ROUND

    async def obey(self, connection: Any, method: str, order: Any) -> Any:
        if method == self._method and order.round == ROUND:
            await asyncio.Event().wait()
        return await self._obey(connection, method, order)


@pytest.mark.whole
@pytest.mark.parametrize("twist", [refusing, babbling, None], ids=["refuses", "babbles", "hangs"])
def test_a_member_that_does_not_open_has_withheld_what_it_committed_to(
    scene: Any, monkeypatch: pytest.MonkeyPatch, twist: Twist | None
) -> None:
    """It is there and refuses: were it merely left out, nobody who is drawn would ever open."""

    hanging: list[Hanging] = []

    def prepare(run: Run) -> None:
        if twist is None:
            hanging.append(Hanging(run.eve, messages.OPEN, monkeypatch))
        else:
            twisted(open=twist)(run)

    caught(scene(prepare), VerdictFinding.WITHHELD)
    assert all(audits.OPEN_SECONDS in each.bounds for each in hanging)  # by the coordinator


def test_verifiers_are_waited_for_as_long_as_the_plan_says(scene: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds, call = list[Any](), Connection.call

    async def noted(connection: Connection, asked: str, body: bytes, **about: Any) -> bytes:
        bounds.extend([about.get("timeout")] if asked in (messages.AUDIT, messages.JUDGE) else [])
        return await call(connection, asked, body, **about)

    monkeypatch.setattr(Connection, "call", noted)
    scene(lambda run: None)
    assert set(bounds) == {PATIENCE}


@pytest.mark.whole
@pytest.mark.parametrize("how", ["refuses", "hangs"])
def test_a_member_that_shows_no_end_to_anybody_has_withheld_it(
    scene: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    hanging: list[Hanging] = []

    def prepare(run: Run) -> None:
        if how == "hangs":
            hanging.append(Hanging(run.eve, messages.UNVEIL, monkeypatch))
        else:
            twisted(unveil=refusing)(run)

    caught(scene(prepare), VerdictFinding.WITHHELD)
    assert all(audits.OPEN_SECONDS in each.bounds for each in hanging)  # by the coordinator


def test_a_member_that_babbles_for_an_end_has_withheld_it(scene: Any) -> None:
    caught(scene(twisted(unveil=babbling)), VerdictFinding.WITHHELD)


def test_a_start_that_nobody_can_fetch_is_withheld(scene: Any) -> None:
    def away(_eve: Hostile, _order: Any, said: messages.SegmentOpenReply) -> messages.SegmentOpenReply:
        return replace(said, state=ObjectManifest(NIL, 10, (NIL,)))

    caught(scene(twisted(open=away)), VerdictFinding.WITHHELD)


@pytest.mark.slow
@pytest.mark.parametrize(
    "state",
    soaked(
        [
            ObjectManifest(NIL, 10, ()),
            ObjectManifest(NIL, -1, ()),
            ObjectManifest(NIL, 1 << 62, ()),
            ObjectManifest(Hash(b""), 0, ()),
        ],
        ["no chunks", "negative", "giant", "no hash"],
        "giant, no hash",
    ),
)
def test_a_start_that_is_no_object_is_withheld(scene: Any, state: ObjectManifest) -> None:
    caught(scene(twisted(open=lambda _e, _o, said: replace(said, state=state))), VerdictFinding.WITHHELD)


# A member that opens something else


@pytest.mark.whole
@pytest.mark.parametrize(
    "twist",
    soaked(
        [
            lambda eve, _, said: replace(said, start=replace(said.start, index=said.start.index ^ 1)),
            lambda eve, _, said: replace(said, start=replace(said.start, path=said.start.path[:-1])),
            lambda eve, _, said: replace(said, start=replace(said.start, path=())),
            lambda eve, _, said: replace(said, start=replace(said.start, data=b"")),
            lambda eve, _, said: replace(said, start=replace(said.start, data=said.start.data[:-1] + b"?")),
            lambda eve, _, said: replace(said, state=eve.put(b"no state at all")),
            lambda eve, _, said: replace(said, start=eve.lease._result.trace.opened(said.start.index ^ 1)[0]),
        ],
        ["index", "cut path", "no path", "no data", "another trace", "another state", "another border"],
        "index, no path, another state, another border",
    ),
)
def test_a_member_that_opens_something_else_is_caught(scene: Any, twist: Twist) -> None:
    caught(scene(twisted(open=twist)), VerdictFinding.FALSE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "twist",
    soaked(
        [
            lambda eve, _, said: replace(said, leaves=()),
            lambda eve, _, said: replace(said, leaves=said.leaves[::-1]),
            lambda eve, _, said: replace(said, leaves=said.leaves * 2),
            lambda eve, _, said: replace(
                said, leaves=tuple(replace(leaf, data=leaf.data[:-1] + b"?") for leaf in said.leaves)
            ),
        ],
        ["none", "reversed", "twice", "another trace"],
        "none, another trace",
    ),
)
def test_a_member_that_shows_other_leaves_is_caught(scene: Any, twist: Twist) -> None:
    caught(scene(twisted(unveil=twist)), VerdictFinding.FALSE)


# What is too large to be passed on, logged or kept


HUGE = bytes(limits.OPENING_BYTES)


def test_an_opening_that_is_too_large_to_be_passed_on_is_none(scene: Any) -> None:
    """The order that brings it to a verifier would not fit in a message: nobody could ever judge the peer."""

    def bloated(_eve: Hostile, _order: Any, said: messages.SegmentOpenReply) -> messages.SegmentOpenReply:
        return replace(said, start=replace(said.start, data=HUGE))

    caught(scene(twisted(open=bloated)), VerdictFinding.WITHHELD)


def test_an_end_that_is_too_large_to_be_passed_on_is_none(scene: Any) -> None:
    def bloated(_eve: Hostile, _order: Any, said: messages.SegmentRevealReply) -> messages.SegmentRevealReply:
        return replace(said, leaves=(replace(said.leaves[0], data=HUGE), *said.leaves[1:]))

    caught(scene(twisted(unveil=bloated)), VerdictFinding.WITHHELD)


def test_evidence_that_its_reader_would_not_take_is_cut_down() -> None:
    """Whoever was found guilty would keep its stake, and the run could not be resumed."""
    leaf = TraceLeaf(0, HUGE, ())
    state = ObjectManifest(NIL, 1, (NIL,) * 50_000)
    c = Contribution(EVE.public, 1, NIL, NIL, NIL, NIL, "none")
    small = AuditEvidence(TERMS.id, 0, c, (), ZERO_HASH, 0, "", (leaf,), (state,), ())
    assert decode(audit_session.encoded(small), AuditEvidence, limits.CONTROL_BYTES) == small
    for states, leaves, kept in (((state,) * 3, (leaf,) * 3, (leaf,) * 3), ((state,) * 3, (leaf,) * 5, ())):
        told = audit_session.encoded(replace(small, states=states, leaves=leaves))
        assert decode(told, AuditEvidence, limits.CONTROL_BYTES) == replace(small, states=(), leaves=kept)


def test_evidence_is_written_as_its_reader_takes_it(scene: Any) -> None:
    run = scene(lambda _: None)
    judge = next(j for j in run.judges if any(m == messages.AUDIT for m, *_ in j.said))
    order = next(order for m, order, _ in judge.said if m == messages.AUDIT)
    c = order.contribution
    case = AuditCase(order.round, c, AuditSample(c.peer, order.segment))
    state = ObjectManifest(NIL, 1, (NIL,) * 150_000)
    run.audits._store(case, replace(order, opened=replace(order.opened, state=state)), [])
    found = evidence(run)
    assert (found.contribution, found.states) == (c, ())
    assert [leaf.index for leaf in found.leaves] == [order.segment]


def does_other_work(run: Run) -> None:
    train = run.eve.worker._trained

    def lazy(round: int) -> Any:
        run.eve.worker.member = 7 if round == ROUND else 2
        return train(round)

    run.eve.worker._trained = lazy  # type: ignore[method-assign]


def test_a_member_that_does_other_work_than_its_own_is_caught(scene: Any) -> None:
    """It trains on somebody else's data, and is honest about what came out."""
    run = scene(does_other_work)
    caught(run, VerdictFinding.FALSE)
    assert run.concluded[ROUND, EVE.public.hex()].excess > 2


def test_who_is_out_is_not_paid_for_that_round_and_later_ones(scene: Any) -> None:
    run = scene(twisted(open=lambda _e, _o, said: replace(said, start=replace(said.start, path=()))))
    tally = AuditAccounts(TERMS, len(VERIFIERS))
    units = [
        tally.add(run.log.accepted[record.round], record, run.log.promised[record.round]) for record in run.audited
    ]
    assert [EVE.public in earned for earned in units] == [True, False, False]
    assert all({key.public for key in HONEST} <= earned.keys() for earned in units)


# Verifiers


class First:
    """Bends what the first verifier of the hostile member's work says, and no other's."""

    def __init__(self, run: Run, method: str, bend: Callable[[Judge, Any, Any], Any]) -> None:
        self.liar: PeerId | None = None
        self._bend = bend
        for judge in run.judges:
            judge.twists[method] = self.twist

    def twist(self, judge: Judge, order: Any, said: Any) -> Any:
        self.liar = self.liar or judge.key.public
        return self._bend(judge, order, said) if judge.key.public == self.liar else said


def other(judge: Judge) -> Any:
    return next(key for key in VERIFIERS if key.public != judge.key.public)


def resigned(judge: Judge, signed: SignedVerdict, **changes: Any) -> SignedVerdict:
    return sign_verdict(judge.key, replace(signed.verdict, **changes))


def judged(**changes: Any) -> Callable[[Judge, Any, Any], Any]:
    return lambda judge, _, said: replace(said, verdict=resigned(judge, said.verdict, **changes))


def shortcut(finding: VerdictFinding) -> Callable[[Judge, Any, Any], Any]:
    """A verdict in the place of a run."""

    def bend(judge: Judge, order: messages.AuditRequest, _said: Any) -> messages.AuditReply:
        return messages.AuditReply(None, judge.lease._verdict(order, audit_lease.AuditFinding(finding, 0), ZERO_HASH))

    return bend


def hung_up(_judge: Judge, _order: Any, _said: Any) -> Any:
    raise FarflungError("FF-APP-049", "the worker is gone")


BORDER_OF_ANOTHER = digest("test/another border")


@pytest.mark.whole
@pytest.mark.parametrize(
    ("method", "bend"),
    soaked(
        [
            (
                messages.AUDIT,
                lambda j, o, said: replace(
                    said,
                    blind=blind(
                        other(j),
                        TERMS.id,
                        o.round,
                        EVE.public,
                        o.segment,
                        j.lease._held[o.round, EVE.public, o.segment].audit.mine.border,
                    ),
                ),
            ),
            (messages.AUDIT, lambda j, o, said: replace(said, blind=replace(said.blind, verifier=other(j).public))),
            (messages.AUDIT, lambda j, o, said: replace(said, blind=replace(said.blind, digest=NIL))),
            (messages.AUDIT, lambda j, o, said: messages.AuditReply(None, None)),
            (messages.AUDIT, shortcut(VerdictFinding.HOLDS)),
            (messages.AUDIT, shortcut(VerdictFinding.UNPAID)),
            (messages.AUDIT, hung_up),
            (messages.AUDIT, lambda j, o, said: "what?"),
            (messages.JUDGE, lambda j, o, said: replace(said, nonce=NIL)),
            (messages.JUDGE, lambda j, o, said: replace(said, border=replace(said.border, params=BORDER_OF_ANOTHER))),
            (messages.JUDGE, lambda j, o, said: replace(said, nonce=Hash(HUGE))),
            (messages.JUDGE, judged(finding=VerdictFinding.FALSE, excess=2000)),
            (messages.JUDGE, judged(finding=VerdictFinding.FALSE, excess=EXCESS_CAP + 1)),
            (messages.JUDGE, judged(finding=VerdictFinding.UNPAID, excess=2001)),
            (messages.JUDGE, judged(finding=VerdictFinding.WITHHELD, excess=1)),
            (messages.JUDGE, judged(excess=-1)),
            (messages.JUDGE, judged(node=HONEST[0].public)),
            (messages.JUDGE, judged(result=NIL)),
            (messages.JUDGE, judged(round=ROUND - 1)),
            (messages.JUDGE, judged(trace=NIL)),
            (messages.JUDGE, judged(job=NIL)),
            (messages.JUDGE, judged(chain=NIL)),
            (messages.JUDGE, lambda j, o, said: judged(segment=SEGMENTS - 1 - o.segment)(j, o, said)),
            (messages.JUDGE, lambda j, o, said: judged(verifier=other(j).public)(j, o, said)),
            (messages.JUDGE, lambda j, o, said: replace(said, verdict=replace(said.verdict, signature=bytes(64)))),
            (messages.JUDGE, lambda j, o, said: replace(said, verdict=sign_verdict(STRANGER, said.verdict.verdict))),
            (messages.JUDGE, hung_up),
            (messages.JUDGE, lambda j, o, said: "what?"),
        ],
        [
            "another's blind",
            "another's name",
            "another digest",
            "nothing",
            "holds without a run",
            "unpaid without a run",
            "dies in the run",
            "babbles after the run",
            "another nonce",
            "another result",
            "a giant nonce",
            "false within what is not punished",
            "false beyond any distance",
            "unpaid beyond its bound",
            "withheld by a distance",
            "a negative distance",
            "another node",
            "another result in the verdict",
            "another round",
            "another trace",
            "another job",
            "another chain",
            "another segment",
            "another verifier",
            "unsigned",
            "signed by a stranger",
            "dies before judging",
            "babbles",
        ],
        "another's blind, another digest, nothing, holds without a run, dies in the run, another nonce, "
        "a giant nonce, false beyond any distance, unpaid beyond its bound, another node, another trace, another job, "
        "unsigned, babbles",
    ),
)
def test_a_verifier_that_does_not_keep_to_the_protocol_is_passed_over(
    scene: Any, method: str, bend: Callable[[Judge, Any, Any], Any]
) -> None:
    firsts: list[First] = []
    run = scene(lambda run: firsts.append(First(run, method, bend)))
    assert firsts[0].liar is not None
    stands(run)
    assert verdicts(run) == [(other_than(firsts[0].liar), VerdictFinding.HOLDS)]
    assert run.rehired  # it is asked for again, in case it had only died


def other_than(verifier: PeerId) -> PeerId:
    return next(key.public for key in VERIFIERS if key.public != verifier)


@pytest.mark.parametrize("is_run", [True, False])
def test_a_lone_false_accusation_falls_back_on_the_accuser(scene: Any, is_run: bool) -> None:
    firsts: list[First] = []

    def prepare(run: Run) -> None:
        accuse = judged(finding=VerdictFinding.FALSE, excess=10**6) if is_run else shortcut(VerdictFinding.WITHHELD)
        firsts.append(First(run, messages.JUDGE if is_run else messages.AUDIT, accuse))

    run = scene(prepare)
    liar = firsts[0].liar
    assert liar is not None
    stands(run)
    accusation = VerdictFinding.FALSE if is_run else VerdictFinding.WITHHELD
    assert sorted(verdicts(run)) == sorted([(liar, accusation), (other_than(liar), VerdictFinding.HOLDS)])
    tally = AuditAccounts(TERMS, len(VERIFIERS))
    earned = [tally.add(run.log.accepted[r.round], r, run.log.promised[r.round]) for r in run.audited]
    assert EVE.public in earned[ROUND]
    assert tally.discredited == {liar}
    honest = [v.verdict for v in run.audited[ROUND].verdicts if v.verdict.node != EVE.public]
    segment = SPEC.round_tokens // SEGMENTS
    due = segment * sum(v.verifier == liar for v in honest)
    assert earned[ROUND].get(liar, 0) == due  # nothing for the lie
    assert run.audits._discredited == {liar}  # asked last from now on


def guessed(judge: Judge, order: Any, said: Any) -> Any:
    """It commits to something that it has not computed, and opens exactly that."""
    about = (TERMS.id, order.round, EVE.public, order.segment)
    return replace(said, blind=blind(judge.key, *about, GUESS))


def good_anyway(judge: Judge, order: Any, said: Any) -> Any:
    about = (TERMS.id, order.round, EVE.public, order.segment)
    verdict = resigned(
        judge, said.verdict, finding=VerdictFinding.HOLDS, excess=0, result=blind(judge.key, *about, GUESS).digest
    )
    return replace(said, border=GUESS, verdict=verdict)


GUESS = BorderRoots(ROUND, 1, 1, BORDER_OF_ANOTHER, BORDER_OF_ANOTHER, NIL)


def test_a_verifier_that_guesses_that_work_holds_earns_nothing(scene: Any) -> None:
    """It trained nothing again, and says what is nearly always true. A second one had exactly what was claimed."""
    firsts: list[First] = []

    def prepare(run: Run) -> None:
        firsts.append(First(run, messages.AUDIT, guessed))
        for judge in run.judges:
            judge.twists[messages.JUDGE] = lambda judge, order, said: (
                good_anyway(judge, order, said) if judge.key.public == firsts[0].liar else said
            )

    run = scene(prepare)
    liar = firsts[0].liar
    assert liar is not None
    stands(run)
    assert verdicts(run) == [(other_than(liar), VerdictFinding.HOLDS)]
    honest = {v.verdict.node for v in run.audited[ROUND].verdicts}
    assert honest == {key.public for key in (EVE, *HONEST)}


# Three verifiers


def outvoted(run: Run, liar: PeerId, said: VerdictFinding, finding: VerdictFinding) -> None:
    """Two of three say the same of the hostile member's round; the third is not paid for it, and asked last."""
    found = dict(verdicts(run))
    assert found.pop(liar) is said
    assert set(found.values()) == {finding}
    assert len(found) == 2
    assert run.audits._discredited == {liar}
    tally = AuditAccounts(TERMS, len(COURT))
    earned = [tally.add(run.log.accepted[r.round], r, run.log.promised[r.round]) for r in run.audited]
    assert tally.discredited == {liar}
    others = [v.verdict for v in run.audited[ROUND].verdicts if v.verdict.node != EVE.public]
    due = SPEC.round_tokens // SEGMENTS * sum(v.verifier == liar for v in others)
    assert earned[ROUND].get(liar, 0) == due
    assert (EVE.public in earned[ROUND]) is (finding is VerdictFinding.HOLDS)


def test_a_lazy_verifier_that_guesses_that_false_work_holds_is_outvoted_by_two_that_look(scene: Any) -> None:
    firsts: list[First] = []

    def prepare(run: Run) -> None:
        does_other_work(run)
        firsts.append(First(run, messages.AUDIT, guessed))
        for judge in run.judges:
            judge.twists[messages.JUDGE] = lambda judge, order, said: (
                good_anyway(judge, order, said) if judge.key.public == firsts[0].liar else said
            )

    run = scene(prepare, COURT)
    liar = firsts[0].liar
    assert liar is not None
    assert run.out == [DAMNED]
    outvoted(run, liar, VerdictFinding.HOLDS, VerdictFinding.FALSE)
    assert evidence_fault(evidence(run), SPEC) == ""


class Second:
    """Bends what the second verifier says that judges the hostile member's work, and no other's."""

    def __init__(self, run: Run, bend: Callable[[Judge, Any, Any], Any]) -> None:
        self.asked: list[PeerId] = []
        self._bend = bend
        for judge in run.judges:
            judge.twists[messages.JUDGE] = self.twist

    def twist(self, judge: Judge, order: Any, said: Any) -> Any:
        self.asked += [judge.key.public] if judge.key.public not in self.asked else []
        return self._bend(judge, order, said) if self.asked[1:2] == [judge.key.public] else said


def test_a_colluding_verifier_that_denies_a_true_accusation_saves_nobody_where_there_is_a_third(scene: Any) -> None:
    seconds: list[Second] = []

    def prepare(run: Run) -> None:
        does_other_work(run)
        seconds.append(Second(run, judged(finding=VerdictFinding.HOLDS, excess=0)))

    run = scene(prepare, COURT)
    assert len(seconds[0].asked) == 3
    assert run.out == [DAMNED]
    assert evidence_fault(evidence(run), SPEC) == ""
    outvoted(run, seconds[0].asked[1], VerdictFinding.HOLDS, VerdictFinding.FALSE)


def test_a_colluding_verifier_of_two_that_denies_it_saves_its_friend(scene: Any) -> None:
    """Why a job has three by default."""

    def prepare(run: Run) -> None:
        does_other_work(run)
        Second(run, judged(finding=VerdictFinding.HOLDS, excess=0))

    stands(scene(prepare))


def test_a_lone_false_accusation_is_denied_by_two_of_three(scene: Any) -> None:
    firsts: list[First] = []
    run = scene(
        lambda run: firsts.append(First(run, messages.JUDGE, judged(finding=VerdictFinding.FALSE, excess=10**6))), COURT
    )
    assert firsts[0].liar is not None
    stands(run)
    outvoted(run, firsts[0].liar, VerdictFinding.FALSE, VerdictFinding.HOLDS)


def test_a_verifier_whose_result_is_too_large_to_be_kept_is_passed_over(scene: Any) -> None:
    """It committed to it, and opens it: only its size is wrong. Evidence with it could not be read again."""
    giant = replace(GUESS, params=Hash(bytes(limits.MIB)))
    firsts: list[First] = []

    def about(judge: Judge, order: Any) -> BlindCommitment:
        return blind(judge.key, TERMS.id, order.round, EVE.public, order.segment, giant)

    def bloated(judge: Judge, order: Any, said: Any) -> Any:
        if judge.key.public != firsts[0].liar:
            return said
        verdict = resigned(judge, said.verdict, result=about(judge, order).digest)
        return replace(said, border=giant, verdict=verdict)

    def prepare(run: Run) -> None:
        promise = First(run, messages.AUDIT, lambda j, o, said: replace(said, blind=about(j, o)))
        firsts.append(promise)
        for judge in run.judges:
            judge.twists[messages.JUDGE] = bloated

    run = scene(prepare)
    liar = firsts[0].liar
    assert liar is not None
    assert verdicts(run) == [(other_than(liar), VerdictFinding.HOLDS)]
    assert run.rehired == [liar]  # as one that may have died


def test_verifiers_of_other_machines_are_both_paid_for_work_that_holds(scene: Any) -> None:
    """Nobody had exactly what was claimed, and both measured it: neither is taken for one that guesses."""

    def prepare(run: Run) -> None:
        for judge in run.judges:
            judge.twists[messages.AUDIT] = guessed
            judge.twists[messages.JUDGE] = good_anyway

    run = scene(prepare)
    stands(run)
    both = sorted(key.public for key in VERIFIERS)
    assert verdicts(run) == [(verifier, VerdictFinding.HOLDS) for verifier in both]


# Replies


class Canned:
    """A connection whose peer answers with these bytes."""

    def __init__(self, replies: dict[str, bytes]) -> None:
        self._replies = replies

    async def call(self, method: str, _body: bytes, **_: Any) -> bytes:
        return self._replies[method]


@pytest.mark.slow
@pytest.mark.parametrize("method", [messages.OPEN, messages.UNVEIL, messages.AUDIT, messages.JUDGE])
def test_no_reply_to_an_audit_makes_the_coordinator_stumble(scene: Any, method: str) -> None:
    """Every reply, malformed in many ways: a refusal of that reply, no answer, or one that the others can judge."""
    run = scene(lambda _: None)
    judge = next(j for j in run.judges if any(m == messages.JUDGE for m, *_ in j.said))
    order = next(order for m, order, _ in judge.said if m == messages.AUDIT)
    about = (order.round, order.contribution.peer)
    answer = next(s for m, o, s in judge.said if m == messages.AUDIT and o == order)
    reveal, said = next((o, s) for m, o, s in judge.said if m == messages.JUDGE and (o.round, o.peer) == about)
    real = {messages.OPEN: order.opened, messages.UNVEIL: reveal.revealed, messages.AUDIT: answer, messages.JUDGE: said}
    told = {name: encode(value) for name, value in real.items()}
    case = AuditCase(order.round, order.contribution, AuditSample(order.contribution.peer, order.segment))

    async def asked(body: bytes) -> str:
        async def dial(_peer: PeerId) -> Any:
            return Canned({**told, method: body})

        one = run.audits
        one._members, one._session._dial = cast(Any, SimpleNamespace(dial=dial)), dial
        one._opened = {}
        one._job = run.job._replace(journal=cast(Any, SimpleNamespace(emit=lambda *_, **__: None)))
        try:
            if method == messages.OPEN:
                await one.open(*about)
            else:
                await one._session.ask(judge.key.public, case, order)
        except FarflungError as error:
            return error.code
        return "ok"

    async def test() -> None:
        assert await asked(told[method]) == "ok"
        bodies = [*hostile_bodies(told[method], 1, 8), *hostile_values(real[method])]
        codes = [await asked(body) for body in bodies if len(body) < limits.CONTROL_BYTES]
        assert len(codes) > 30
        assert not [code for code in codes if code.endswith("-099")]

    within(20, test)


def test_the_chain_of_the_verdicts_is_the_ledgers() -> None:
    assert ledger_of().chain == CHAIN
    assert AuditsRecord(0, ()).verdicts == ()
