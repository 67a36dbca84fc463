"""The ledger hears of every judged round once, and of every guilty node once, whenever the coordinator died."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import sim_ledger
from sim_ledger import FREE, STAKE, Died, MemoryLedger

from farflung.core.canon.program import CanonicalProgram
from farflung.core.codec import encode
from farflung.core.crypto import SigningKey, digest, local_key
from farflung.core.errors import RunError
from farflung.core.events import SlashEvent
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.tensor_layout import TensorLayout, TensorSpec
from farflung.job.spec import AuditSpec, JobSpec, JobTerms, ModelSpec, SyncSpec
from farflung.ledger.params import HOUR_MS, LedgerParams
from farflung.ledger.table_rows import JobRow, JobState
from farflung.ledger.transactions import (
    JobCancel,
    JobDraw,
    JobLeave,
    JobSlash,
    Progress,
    SignedVerdict,
    Verdict,
    VerdictFinding,
    sign_verdict,
)
from farflung.peers.requester.audits import evidence_file
from farflung.peers.requester.job_context import JobContext
from farflung.peers.requester.ledger_recorder import LedgerRecorder
from farflung.peers.rundir.folder import RunFolder
from farflung.train.run_log import (
    AcceptSetRecord,
    AuditsRecord,
    CommitmentsRecord,
    Contribution,
    Record,
    RoundEndRecord,
    RunStartRecord,
    accepted_by_round,
    payload_hash,
)
from farflung.verify import evidence as evidence_files
from farflung.verify.commitment_check import commit, nonce_of
from farflung.verify.evidence import AuditEvidence
from farflung.verify.evidence import VerifierTestimony as Said
from farflung.watch import phrases
from farflung.watch.event_lines import lines
from farflung.watch.fold import RunTimeline

replace = msgspec.structs.replace

ROUNDS = 4
REQUESTER = local_key(9, "requester")
NODES = [local_key(9, "provider", i) for i in range(3)]
VERIFIERS = [local_key(9, "verifier", i) for i in range(2)]
GUILTY = NODES[1]
CAUGHT = 1  # the round in which its work is found false
MODEL, SYNC = ModelSpec(layers=1, width=4, heads=1, context=4), SyncSpec(steps=2)
SPEC = JobSpec(rounds=ROUNDS, batch=2, model=MODEL, sync=SYNC, audit=AuditSpec(segments=2, rate=1.0))
LAYOUT = TensorLayout((TensorSpec("t", (4,)),))
TERMS = JobTerms(SPEC, ZERO_HASH, ZERO_HASH, LAYOUT, REQUESTER.public, digest("test/root"))
GRAPH = CanonicalProgram(
    *(digest("test/graph"),) * 3, 1, 1, 1, 1, rows=1, context=1, places=1, round_steps=1, segments=1, step_tokens=1
)
PROVEN = replace(TERMS, program=GRAPH, unproven="")
UNAUDITED = replace(TERMS, spec=replace(SPEC, audit=AuditSpec(rate=0.0, probation=0)))
TOKENS = SPEC.round_tokens
SEGMENT_TOKENS = TOKENS // 2
UNITS = ROUNDS * TOKENS * len(NODES)
TRACE, RESULT = digest("test/trace"), digest("test/result")


def contribution(key: SigningKey, round: int, job: Hash = TERMS.id) -> Contribution:
    payload = payload_hash(key.public + bytes([round]))
    nonce = nonce_of(key, job, round)
    return Contribution(key.public, TOKENS, payload, payload, nonce, TRACE, "none")


class Story:
    """A run's log up to some place, and the ledger beside it; `findings` of both verifiers on the guilty node."""

    def __init__(
        self,
        folder: Path,
        findings: tuple[VerdictFinding, VerdictFinding] = (VerdictFinding.FALSE, VerdictFinding.FALSE),
        terms: JobTerms = TERMS,
        law: LedgerParams = FREE,
    ) -> None:
        self.terms, self.evidence, self._findings = terms, folder / "evidence", findings
        self.records: list[Record] = [RunStartRecord(terms.id, REQUESTER.public, terms.initial_root, ROUNDS)]
        self.ledger = MemoryLedger(REQUESTER, terms.id, ROUNDS, NODES, VERIFIERS, UNITS, law)
        self.events: list[Any] = []

    def emit(self, event: Any, **_: Any) -> None:
        self.events.append(event)

    def close(self, *rounds: int) -> None:
        for round in rounds:
            out = {GUILTY.public} if round > CAUGHT + 1 and self._is_guilty else set()
            taken = tuple(contribution(key, round, self.terms.id) for key in NODES if key.public not in out)
            self.records += [
                CommitmentsRecord(round, (), taken),
                AcceptSetRecord(round, taken),
                RoundEndRecord(round, digest("test/root", bytes([round])), ()),
            ]

    @property
    def _is_guilty(self) -> bool:
        return all(f in (VerdictFinding.FALSE, VerdictFinding.WITHHELD) for f in self._findings)

    def judge(self, *rounds: int) -> None:
        for round in rounds:
            said = self._verdicts(round)
            self.records.append(AuditsRecord(round, said))

    def _verdicts(self, round: int) -> tuple[SignedVerdict, ...]:
        if round != CAUGHT:
            return tuple(self._verdict(VERIFIERS[0], key, round, VerdictFinding.HOLDS) for key in NODES[:1])
        pairs = zip(sorted(VERIFIERS, key=lambda k: k.public), self._findings, strict=True)
        found = tuple(self._verdict(verifier, GUILTY, round, finding) for verifier, finding in pairs)
        self._write_evidence(found)
        return found

    def _verdict(self, verifier: SigningKey, node: SigningKey, round: int, finding: VerdictFinding) -> SignedVerdict:
        about = (self.ledger.chain, self.terms.id, round, node.public, 0, TRACE)
        excess = 3000 if finding is VerdictFinding.FALSE else 0
        return sign_verdict(verifier, Verdict(*about, verifier.public, finding, excess, RESULT))

    def _write_evidence(self, said: tuple[SignedVerdict, ...]) -> None:
        c = contribution(GUILTY, CAUGHT, self.terms.id)
        promise = commit(GUILTY, self.terms.id, CAUGHT, c.payload, c.weight, c.trace)
        testimonies = tuple(Said((), (), (), verdict) for verdict in said)
        evidence = AuditEvidence(self.terms.id, CAUGHT, c, (promise,), ZERO_HASH, 0, "", (), (), testimonies)
        self.evidence.mkdir(exist_ok=True)
        evidence_file(self.evidence, CAUGHT, GUILTY.public).write_bytes(evidence_files.write(encode(evidence)))

    @property
    def recorder(self) -> LedgerRecorder:
        """A new session's."""
        log = SimpleNamespace(records=self.records, accepted=accepted_by_round(self.records))
        folder, nothing = RunFolder(self.evidence.parent), cast(Any, None)
        job = JobContext(REQUESTER, self.ledger.chain, self.terms, folder, cast(Any, log), nothing, self)
        return LedgerRecorder(cast(Any, self.ledger), job, len(VERIFIERS))

    def record(self) -> None:
        asyncio.run(self.recorder.catch_up())

    def row(self) -> JobRow:
        row = asyncio.run(self.ledger.job(self.terms.id))
        assert row is not None
        return row

    @property
    def progress(self) -> list[Progress]:
        return [op for op in self.ledger.submitted if isinstance(op, Progress)]

    @property
    def slashes(self) -> list[JobSlash]:
        return [op for op in self.ledger.submitted if isinstance(op, JobSlash)]


@pytest.mark.parametrize("known", range(ROUNDS + 1))
def test_whatever_the_ledger_knew_it_knows_all_closed_rounds_after(tmp_path: Path, known: int) -> None:
    story = Story(tmp_path, terms=UNAUDITED)
    story.close(*range(known))
    story.record()
    assert [op.round for op in story.progress] == list(range(known))
    story.close(*range(known, ROUNDS))
    for _ in range(2):
        story.record()
        assert [op.round for op in story.progress] == list(range(ROUNDS))
    assert story.row().round == ROUNDS


def test_a_round_is_recorded_when_it_is_judged_and_not_before(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.close(0, 1)
    story.record()
    assert story.progress == []
    story.judge(0)
    story.record()
    assert [op.round for op in story.progress] == [0]
    story.judge(1)
    story.close(2, 3)
    story.record()
    assert [op.round for op in story.progress] == [0, 1]


def test_who_waits_for_a_round_waits_until_the_ledger_has_it_also_in_a_session_that_resumes(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.close(0, 1, 2)
    story.judge(0)
    story.record()

    async def test() -> None:
        recorder = story.recorder
        waits = {round: asyncio.create_task(recorder.recorded(round)) for round in range(3)}
        assert await _done(waits) == []
        await recorder.catch_up()  # what an earlier session has recorded counts
        assert await _done(waits) == [0]
        story.judge(1)
        await recorder.catch_up()
        assert await _done(waits) == [0, 1]
        story.judge(2)
        await recorder.catch_up()
        assert await _done(waits) == [0, 1, 2]
        await recorder.recorded(-4)

    asyncio.run(test())


async def _done(waits: dict[int, asyncio.Task[None]]) -> list[int]:
    await asyncio.sleep(0)
    return [round for round, wait in waits.items() if wait.done()]


def test_what_a_round_earned_is_what_its_audit_left(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.close(*range(ROUNDS))
    story.judge(*range(ROUNDS))
    story.record()
    fine, verifiers = {NODES[0].public: TOKENS, NODES[2].public: TOKENS}, [v.public for v in VERIFIERS]
    honest = {**fine, NODES[1].public: TOKENS, verifiers[0]: SEGMENT_TOKENS}
    both = {**fine, **dict.fromkeys(verifiers, SEGMENT_TOKENS)}
    without = {**fine, verifiers[0]: SEGMENT_TOKENS}
    assert [dict(op.units) for op in story.progress] == [honest, both, without, without]


@pytest.mark.parametrize("finding", [VerdictFinding.FALSE, VerdictFinding.WITHHELD])
def test_a_guilty_node_loses_its_stake_once_whatever_crash_happens(tmp_path: Path, finding: VerdictFinding) -> None:
    undisturbed = Story(tmp_path, (finding, finding))
    undisturbed.close(*range(ROUNDS))
    undisturbed.judge(*range(ROUNDS))
    undisturbed.record()
    total = len(undisturbed.ledger.submitted)
    assert (total, len(undisturbed.slashes)) == (ROUNDS + 1, 1)
    deaths = [("die_before", n) for n in range(total)] + [("die_after", n + 1) for n in range(total)]
    for attribute, place in deaths:
        story = Story(tmp_path, (finding, finding))
        story.close(*range(ROUNDS))
        story.judge(*range(ROUNDS))
        setattr(story.ledger, attribute, place)
        with pytest.raises(Died):
            story.record()
        setattr(story.ledger, attribute, None)
        for _ in range(2):
            story.record()
        assert story.ledger.submitted == undisturbed.ledger.submitted, (attribute, place)
        lease = story.ledger.lease(GUILTY.public)
        assert (lease.slashed, lease.is_open) == (undisturbed.ledger.lease(GUILTY.public).slashed, False)
    assert undisturbed.ledger.lease(GUILTY.public).slashed > 0


@pytest.mark.parametrize(("terms", "bounty"), [(TERMS, 0), (PROVEN, STAKE // 2)])
def test_a_false_claim_costs_the_whole_stake_and_earns_its_half_where_a_graph_shows_it(
    terms: JobTerms, bounty: int, tmp_path: Path
) -> None:
    story = Story(tmp_path, terms=terms)
    before = [story.ledger.balance(v.public) for v in VERIFIERS]
    story.close(*range(3))
    story.judge(0, 1)
    story.record()
    assert story.ledger.lease(GUILTY.public).slashed == STAKE
    assert [story.ledger.balance(v.public) for v in VERIFIERS] == [x + bounty // 2 for x in before]
    assert story.ledger.node(GUILTY.public).burnt == STAKE - bounty
    (caught,) = [event for event in story.events if isinstance(event, SlashEvent)]
    assert (caught.slashed, caught.bounty, caught.burnt) == (STAKE, bounty, STAKE - bounty)
    assert caught.evidence == story.ledger.lease(GUILTY.public).evidence.hex()
    assert caught.pending == 0


def test_a_stake_that_a_dispute_holds_is_told_as_pending_and_not_as_slashed(tmp_path: Path) -> None:
    story = Story(tmp_path, law=replace(FREE, dispute_ms=10_000))
    story.close(*range(3))
    story.judge(0, 1)
    story.record()
    (caught,) = [event for event in story.events if isinstance(event, SlashEvent)]
    assert (caught.slashed, caught.bounty, caught.burnt, caught.pending) == (0, 0, 0, STAKE)
    assert phrases.caught_price(caught) == f"{phrases.shown_credits(STAKE)} of its stake wait for a dispute"
    told = " ".join(" ".join(lines(caught, RunTimeline())).split())
    assert "wait for a dispute" in told
    assert "burnt" not in told
    assert all(story.ledger.lease(n.public).is_open for n in NODES if n is not GUILTY)


@pytest.mark.parametrize(
    "findings",
    [
        (VerdictFinding.FALSE, VerdictFinding.HOLDS),
        (VerdictFinding.HOLDS, VerdictFinding.FALSE),
        (VerdictFinding.FALSE, VerdictFinding.UNPAID),
        (VerdictFinding.FALSE, VerdictFinding.WITHHELD),
        (VerdictFinding.UNPAID, VerdictFinding.UNPAID),
    ],
)
def test_nobody_is_slashed_whom_both_verifiers_do_not_accuse_alike(
    tmp_path: Path, findings: tuple[VerdictFinding, VerdictFinding]
) -> None:
    story = Story(tmp_path, findings)
    story.close(*range(ROUNDS))
    story.judge(*range(ROUNDS))
    story.record()
    assert story.slashes == []
    assert story.ledger.lease(GUILTY.public).is_open
    first = sorted(v.public for v in VERIFIERS)
    units = dict(story.progress[CAUGHT].units)
    assert (GUILTY.public in units) is (VerdictFinding.HOLDS in findings)
    for verifier, finding in zip(first, findings, strict=True):
        is_liar = VerdictFinding.HOLDS in findings and finding is VerdictFinding.FALSE
        assert (verifier in units) is not is_liar


def test_work_that_the_ledger_would_not_pay_is_an_error_and_not_a_silence(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.close(0, 1, 2)
    story.judge(0)
    story.record()
    story.ledger.apply(REQUESTER, JobCancel(TERMS.id))
    assert story.row().state is JobState.CANCELLED
    story.record()  # what it had taken is paid
    story.judge(1)
    with pytest.raises(RunError, match="FF-APP-068"):
        story.record()


def test_a_refusal_reaches_the_coordinator_while_training_goes_on(tmp_path: Path) -> None:
    async def scenario() -> list[Any]:
        told: list[Any] = []
        story = Story(tmp_path)
        story.close(0, 1)
        story.judge(0)
        story.ledger.apply(REQUESTER, JobCancel(TERMS.id))
        recorder = story.recorder
        recorder.wake()
        await recorder.run(told.append)
        return told

    (error,) = asyncio.run(scenario())
    assert error.code == "FF-APP-068"


def test_a_job_that_the_ledger_does_not_know_is_an_error(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.close(0, 1)
    story.judge(0)

    async def unknown(_: Hash) -> None:
        return None

    story.ledger.job = unknown  # type: ignore[assignment]
    with pytest.raises(RunError, match="FF-APP-068"):
        story.record()


def test_evidence_is_named_by_its_hash_and_is_of_the_guilty_peer(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.close(*range(3))
    story.judge(0, 1)
    story.record()
    (slash,) = story.slashes
    assert slash.node == PeerId(GUILTY.public)
    assert slash.evidence == story.ledger.lease(GUILTY.public).evidence != ZERO_HASH
    assert {v.verdict.verifier for v in slash.verdicts} == {v.public for v in VERIFIERS}


def test_what_is_recorded_is_vouched_for_once_without_who_is_guilty(tmp_path: Path) -> None:
    story, handed = Story(tmp_path), list[tuple[int, dict[PeerId, int]]]()
    story.close(*range(ROUNDS))
    story.judge(0)
    recorder = story.recorder
    recorder._hand = lambda chain, epoch, earned: handed.append((epoch, dict(earned)))
    asyncio.run(recorder.catch_up())
    story.judge(*range(1, ROUNDS))
    for _ in range(2):
        asyncio.run(recorder.catch_up())
    recorded: dict[PeerId, int] = {}
    for op in story.progress:
        for node, units in op.units:
            recorded[node] = recorded.get(node, 0) + units
    del recorded[GUILTY.public]
    assert [epoch for epoch, _ in handed] == [0, ROUNDS - 1]
    assert handed[0][1][GUILTY.public] == TOKENS
    assert handed[1][1] == recorded


def test_a_requester_that_comes_back_records_its_rounds_without_who_left_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim_ledger, "LATER", 3 * HOUR_MS)
    story = Story(tmp_path)
    story.close(0)
    story.judge(0)
    story.record()
    left, chain = NODES[-1], story.ledger._chain
    for _ in range(2):  # an hour of silence, counted from the end of the last round's hour
        block, _ = chain.propose([], chain.head.time + HOUR_MS)
        chain.adopt(block)
    story.ledger.apply(left, JobLeave(TERMS.id))
    units = story.ledger.lease(left.public).units
    story.close(1, 2)
    story.judge(1, 2)
    story.record()
    rows = {node.public: story.ledger.lease(node.public) for node in NODES}
    assert rows[left.public].units == units == rows[left.public].paid // rows[left.public].unit_price
    assert rows[NODES[0].public].units > units


def test_who_works_on_after_its_notice_is_neither_recorded_nor_vouched_for_and_others_are(tmp_path: Path) -> None:
    story, handed = Story(tmp_path), list[dict[PeerId, int]]()
    leaver = NODES[-1]
    story.ledger.apply(REQUESTER, JobDraw(TERMS.id, 0, RESULT))
    story.ledger.apply(leaver, JobLeave(TERMS.id))  # a notice: rounds 0 to 2 are its last
    story.close(*range(ROUNDS))
    story.judge(*range(ROUNDS))
    recorder = story.recorder
    recorder._hand = lambda chain, epoch, earned: handed.append(dict(earned))
    asyncio.run(recorder.catch_up())
    named = [dict(op.units) for op in story.progress]
    assert [leaver.public in units for units in named] == [number < 3 for number in range(ROUNDS)]
    assert all(NODES[0].public in units for units in named)
    recorded = sum(units.get(leaver.public, 0) for units in named)
    assert handed[-1][leaver.public] == recorded == story.ledger.lease(leaver.public).units
