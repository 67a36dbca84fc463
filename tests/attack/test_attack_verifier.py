"""A hostile requester, hostile peers and strangers at a verifier's door: a verdict or a code, and the lease goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from attack_lease import FACTS, FELLOW, GENESIS, PROPOSAL, Process, Scene
from attack_run import Member
from attack_world import (
    BOUND,
    JOB_KEY,
    LAYOUT,
    OPTIMIZER,
    REQUESTER,
    SEGMENTS,
    SPEC,
    TERMS,
    VERIFIERS,
    hostile_bodies,
    hostile_values,
    initial,
    start_order,
    within,
)

from farflung.core import limits
from farflung.core.backoff import Backoff
from farflung.core.codec import Wire, decode, encode
from farflung.core.ids import ZERO_HASH, Hash
from farflung.ledger.earnings_tally import OutputAttestation, PartySignature, is_signed_by
from farflung.ledger.table_rows import JobRow, JobState
from farflung.ledger.transactions import LeaseRole, SignedVerdict, VerdictFinding, is_verdict_signed
from farflung.peers.node import agent as role
from farflung.peers.node import audit_lease, opening_deadlines, output_attestation, voucher_bound
from farflung.peers.node.unpaid_work import RoundWork
from farflung.peers.node.workspace import JobWorkspace
from farflung.peers.program.graph_runs import JobGraph
from farflung.peers.protocol import messages as protocol_messages
from farflung.peers.transfer import objects
from farflung.store.sealed_objects import ObjectManifest, seal
from farflung.train import public_state, segments, worker_messages
from farflung.train.segments import BorderState
from farflung.verify.audit_accounts import rerun_tokens
from farflung.verify.audit_verdict import AuditFinding
from farflung.verify.blind_commitment import BlindCommitment, blind, is_blind, opens
from farflung.verify.canon.graph_requests import AccusationRequest, GraphFinding

replace = msgspec.structs.replace

V = VERIFIERS[0]
NIL = Hash(bytes(32))


@pytest.mark.parametrize("is_stranger", [False, True])
def test_a_verifier_that_was_started_again_marks_the_end_of_its_requesters_job_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stranger: bool
) -> None:
    """It holds no lease any more: without its mark everybody would wait for the whole window."""
    monkeypatch.setattr(output_attestation, "CLAIM_SECONDS", 0.0)
    root, output = Hash(b"r" * 32), Hash(b"o" * 32)
    ended = JobRow(TERMS.id, REQUESTER.public, 1, 1, 1, 1, JobState.OUTPUT, root=root, output=output)

    async def test() -> None:
        async with Scene(tmp_path, V, LeaseRole.AUDIT).open() as scene:
            scene.ledger.jobs[TERMS.id] = ended
            asked = protocol_messages.OutputAttestRequest(TERMS.id)
            if is_stranger:
                assert await scene.refused(scene.stranger, protocol_messages.ATTEST, asked) == "FF-APP-640"
                return
            data = await scene.call(scene.home, protocol_messages.ATTEST, encode(asked))
            mark = decode(data, PartySignature, limits.CONTROL_BYTES)
            assert mark.signer == V.public
            assert is_signed_by(mark, OutputAttestation(GENESIS.chain, TERMS.id, root, output))

    within(30, test)


class Audited(Scene):
    """A verifier in this process, and a provider whose round 0 it may be asked about."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, V, LeaseRole.AUDIT)
        self.peer = Member(FELLOW, folder / "peer")
        self.fellow = self.peer
        self.parties = (self.home, self.peer, self.verifier, self.stranger)
        self.shown: protocol_messages.SegmentRevealReply | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Audited]:
        async with super().open():
            yield self

    async def trained(self) -> protocol_messages.AuditRequest:
        """The peer's honest round, and an honest order to audit its segment 1."""
        places = {p.key.public: p.address for p in self.parties}
        self.peer.places = places
        order = start_order(self.home, 1, tuple(places.values()), initial())
        await self.peer.lease.start(order, JOB_KEY, self.peer.worker, REQUESTER.public)
        await self.peer.lease.train(protocol_messages.TrainRequest(TERMS.id, 0, 0))
        shown = await self.peer.lease.reveal(protocol_messages.RevealRequest(TERMS.id, 0, REQUESTER.public))
        packed = self.home.put(public_state.pack(initial(), LAYOUT))
        opened = await self.peer.lease.open(protocol_messages.SegmentOpenRequest(TERMS.id, 0, 1))
        c = shown.share.contribution
        return protocol_messages.AuditRequest(TERMS.id, 0, 1, c, ZERO_HASH, 1, initial().root(LAYOUT), packed, opened)

    async def ready(self) -> protocol_messages.AuditRequest:
        order = await self.trained()
        await self.begin()
        return order

    async def run(self, order: protocol_messages.AuditRequest) -> protocol_messages.AuditReply:
        return decode(
            await self.call(self.home, protocol_messages.AUDIT, encode(order)), protocol_messages.AuditReply, 10**6
        )

    async def judge(
        self, order: protocol_messages.AuditRequest, said: BlindCommitment, **changes: Any
    ) -> protocol_messages.VerdictReply:
        reveal = protocol_messages.SegmentRevealRequest(TERMS.id, 0, order.segment, order.contribution.trace, said)
        shown = self.peer.lease._openings.reveal(reveal, self.peer.lease._verifiers)
        request = protocol_messages.VerdictRequest(
            TERMS.id, 0, self.peer.key.public, order.segment, replace(shown, **changes)
        )
        return decode(
            await self.call(self.home, protocol_messages.JUDGE, encode(request)), protocol_messages.VerdictReply, 10**6
        )

    async def withheld(self, order: protocol_messages.AuditRequest) -> None:
        """It waits no longer than this for what nobody serves; the honest are waited for as ever."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(opening_deadlines, "WITHHOLD_SECONDS", 0.3)
            assert await self.finding(order) is VerdictFinding.WITHHELD

    async def finding(self, order: protocol_messages.AuditRequest) -> VerdictFinding:
        """What it says at once, without a run, when the peer itself opens what the order says it has opened."""
        honest = self.peer.obey

        async def obey(connection: Any, method: str, asked: Any) -> Any:
            return order.opened if method == protocol_messages.OPEN else await honest(connection, method, asked)

        if order.opened is not None:
            self.peer.obey = obey  # type: ignore[method-assign]
        answer = await self.run(order)
        self.peer.obey = honest  # type: ignore[method-assign]
        assert answer.blind is None
        assert answer.verdict is not None
        return about(answer.verdict, order)


def about(signed: SignedVerdict, order: protocol_messages.AuditRequest) -> VerdictFinding:
    said, c = signed.verdict, order.contribution
    assert is_verdict_signed(signed)
    assert (said.node, said.round, said.trace) == (c.peer, order.round, c.trace)
    assert (said.verifier, said.segment) == (V.public, order.segment)
    return said.finding


@pytest.fixture
def against(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Runs an attack; afterwards the verifier must do an honest audit."""
    monkeypatch.setattr(role, "capabilities", lambda *_: FACTS)
    monkeypatch.setattr(role, "start_worker", lambda *_: Process(V))
    monkeypatch.setattr(opening_deadlines, "WITHHOLD_SECONDS", 5.0)
    monkeypatch.setattr(opening_deadlines, "REDIAL", Backoff.every(0.05))

    def run(attack: Any) -> None:
        async def test() -> None:
            async with Audited(tmp_path).open() as scene:
                order = await scene.ready()
                await attack(scene, order)
                answer = await scene.run(order)
                assert answer.blind is not None
                judged = await scene.judge(order, answer.blind)
                assert about(judged.verdict, order) is VerdictFinding.HOLDS
                place = (TERMS.id, 0, order.contribution.peer, order.segment)
                assert is_blind(answer.blind, *place)
                assert opens(answer.blind, *place, judged.border, judged.nonce)
                assert judged.verdict.verdict.result == answer.blind.digest
                assert await scene.order(protocol_messages.END, protocol_messages.LeaseEndRequest(TERMS.id)) == "ok"
                assert list((scene.provider._folder / "store").iterdir()) == []
                assert not (scene.provider._folder / "private").exists()  # a verifier keeps no secrets

        within(20, test)

    return run


def test_a_verifier_repeats_nothing_more_with_five_rounds_unpaid(against: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voucher_bound, "WAIT_SECONDS", 0.0)

    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        account = scene.provider.voucher_bound.account(TERMS, LeaseRole.AUDIT)
        answer = await scene.run(order)
        assert answer.blind is not None
        said = (await scene.judge(order, answer.blind)).verdict.verdict
        paid = rerun_tokens(SPEC, said, order.contribution.weight)
        assert account.work.owed == (RoundWork(order.round, paid),)  # it counts what it will be paid
        for round in range(1, limits.UNPAID_ROUNDS + 1):
            account.audited(round, 10)
        await scene.run(order)  # what it has done already it says again
        lease: Any = scene.provider._lease
        lease._held.clear()
        assert await scene.order(protocol_messages.AUDIT, order) == "FF-APP-710"
        scene.ledger.earned = 10**6

    against(attack)


def test_only_the_requester_orders_audits(against: Any) -> None:
    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        judge = protocol_messages.VerdictRequest(TERMS.id, 0, order.contribution.peer, 1, None)
        for party in (scene.peer, scene.verifier, scene.stranger):
            for method, message in {
                protocol_messages.AUDIT: order,
                protocol_messages.JUDGE: judge,
                protocol_messages.START: scene.start,
                protocol_messages.MEMBERS: protocol_messages.MembersUpdate(TERMS.id, ()),
                protocol_messages.OPEN: protocol_messages.SegmentOpenRequest(TERMS.id, 0, 1),
                protocol_messages.UNVEIL: protocol_messages.SegmentRevealRequest(
                    TERMS.id, 0, 1, NIL, BlindCommitment(V.public, NIL, NIL + NIL)
                ),  # type: ignore[arg-type]
                protocol_messages.END: protocol_messages.LeaseEndRequest(TERMS.id),
            }.items():
                is_providers = method in (protocol_messages.OPEN, protocol_messages.UNVEIL)
                expected = "FF-APP-043" if is_providers else "FF-APP-041"
                assert await scene.refused(party, method, message) == expected
            assert await scene.refused(party, objects.CHUNK, (order.snapshot.id, 0)) == "FF-APP-042"
        assert "RerunCommand" not in scene.process.worker.asked

    against(attack)


def test_a_verifier_neither_trains_nor_takes_objects(against: Any) -> None:
    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        for method, message in {
            protocol_messages.TRAIN: protocol_messages.TrainRequest(TERMS.id, 0, 0),
            protocol_messages.MERGE: protocol_messages.MergeRequest(TERMS.id, 0, ()),
            protocol_messages.OPEN: protocol_messages.SegmentOpenRequest(TERMS.id, 0, 1),
        }.items():
            assert await scene.order(method, message) == "FF-APP-043"
        assert await scene.order(objects.BEGIN, seal(JOB_KEY, b"x")[0]) == "FF-APP-039"
        assert await scene.order(protocol_messages.PROPOSE, PROPOSAL) == "FF-APP-085"  # to train
        assert await scene.refused(scene.stranger, protocol_messages.PROPOSE, scene.proposal) == "FF-APP-094"

    against(attack)


def test_an_order_that_does_not_fit_is_refused_and_accuses_nobody(against: Any) -> None:
    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        wrong = {
            "FF-TRAIN-073": [replace(order, root=NIL), replace(order, root=Hash(b""))],
            "FF-TRAIN-072": [replace(order, round=1)],
            "FF-APP-057": [
                *(replace(order, round=r) for r in (-1, SPEC.rounds, 1 << 40, (1 << 63) - 1)),
                *(replace(order, segment=s) for s in (-1, SEGMENTS, 1 << 40, -(1 << 63))),
                replace(order, job=NIL),
            ],
            "FF-APP-034": [replace(order, snapshot=seal(JOB_KEY, b"nowhere")[0])],
            "FF-TRAIN-070": [replace(order, snapshot=scene.home.put(b"no public state"))],
            "FF-STOR-001": [replace(order, snapshot=ObjectManifest(NIL, 10, ()))],
            "FF-STOR-005": [
                replace(order, snapshot=scene.home.put(public_state.pack(initial(), LAYOUT), b"\x08" * 32))
            ],
        }
        for code, orders in wrong.items():
            for bad in orders:
                assert await scene.order(protocol_messages.AUDIT, bad) == code
        assert "RerunCommand" not in scene.process.worker.asked

    against(attack)


def silent(code: str) -> Any:
    """A line on which nobody is reached."""

    async def dial(_peer: Any) -> Any:
        raise opening_deadlines.NetworkError(code, "nobody there")

    return dial


def test_a_verifier_that_reaches_nobody_accuses_nobody(against: Any) -> None:
    """Its own line is dead: the coordinator hears a code, and asks another verifier."""

    async def attack(scene: Scene, order: protocol_messages.AuditRequest) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(opening_deadlines, "WITHHOLD_SECONDS", 0.3)
            patched.setattr(scene.provider._lease._debts, "_dial", silent("FF-NET-043"))  # type: ignore[union-attr]
            assert await scene.order(protocol_messages.AUDIT, replace(order, opened=None)) == "FF-APP-098"

    against(attack)


def test_a_peer_that_is_away_while_the_requester_answers_has_withheld(against: Any) -> None:
    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        debts = scene.provider._lease._debts  # type: ignore[union-attr]
        honest = debts._dial

        async def dial(peer: Any) -> Any:
            return await (silent("FF-NET-043") if peer == FELLOW.public else honest)(peer)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(debts, "_dial", dial)
            await scene.withheld(replace(order, opened=None))

    against(attack)


@pytest.mark.parametrize(("others", "is_accused"), [(1, False), (0, True)])
def test_a_dead_relay_accuses_only_a_peer_that_alone_has_chosen_it(against: Any, others: int, is_accused: bool) -> None:
    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        debts = scene.provider._lease._debts  # type: ignore[union-attr]
        honest = debts._dial

        async def dial(peer: Any) -> Any:
            return await (silent("FF-NET-070") if peer == FELLOW.public else honest)(peer)

        behind = [FELLOW.public, *(key.public for key in VERIFIERS[:others])]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(debts, "_dial", dial)
            patched.setattr(debts, "_relays", dict.fromkeys(behind, frozenset({Hash(b"r" * 32)})))
            patched.setattr(opening_deadlines, "WITHHOLD_SECONDS", 0.3)
            answer = await scene.order(protocol_messages.AUDIT, replace(order, opened=None))
            assert answer == ("ok" if is_accused else "FF-APP-098")

    against(attack)


def test_the_time_of_a_debt_follows_the_jobs_sizes_and_not_what_a_peer_says(
    against: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An opening counts as the largest state there is, a state as what it is; a larger one is withheld at once."""
    sizes: list[int] = []
    allowance = opening_deadlines.allowance
    monkeypatch.setattr(opening_deadlines, "allowance", lambda size: sizes.append(size) or allowance(size))

    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        assert (await scene.run(order)).blind is not None
        assert order.opened is not None
        assert sizes == [order.opened.state.size]
        scene.provider._lease._held.clear()  # type: ignore[union-attr]
        sizes.clear()
        assert (await scene.run(replace(order, opened=None))).blind is not None
        largest = scene.provider._lease._largest_state()  # type: ignore[union-attr]
        assert sizes == [largest, order.opened.state.size]
        assert order.opened.state.size <= largest
        sizes.clear()
        endless = replace(order.opened, state=replace(order.opened.state, size=1 << 40))
        await scene.withheld(replace(order, opened=endless))
        assert max(sizes) == largest

    against(attack)


def test_a_peer_whose_address_nobody_has_told_is_not_accused(against: Any) -> None:
    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        known = dict(scene.provider._addresses)
        del scene.provider._addresses[FELLOW.public]
        fellow = scene.provider.endpoint.connection(FELLOW.public)
        assert fellow is None  # nothing stands that could be used instead
        assert await scene.order(protocol_messages.AUDIT, replace(order, opened=None)) == "FF-APP-047"
        scene.provider._addresses = known

    against(attack)


def test_a_state_is_not_withheld_by_a_peer_whose_address_nobody_has_told(against: Any) -> None:
    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        worker = scene.process.worker

        def elsewhere(reply: worker_messages.RerunResult) -> worker_messages.RerunResult:
            return replace(reply, border=replace(reply.border, params=NIL))

        worker.bends[worker_messages.RerunCommand] = elsewhere  # so that the claimed end must be fetched
        said = (await scene.run(order)).blind
        assert said is not None
        known = scene.provider._addresses.pop(FELLOW.public)
        reveal = protocol_messages.SegmentRevealRequest(TERMS.id, 0, order.segment, order.contribution.trace, said)
        shown = scene.peer.lease._openings.reveal(reveal, scene.peer.lease._verifiers)
        asked = protocol_messages.VerdictRequest(TERMS.id, 0, FELLOW.public, order.segment, shown)
        assert await scene.order(protocol_messages.JUDGE, asked) == "FF-APP-047"
        scene.provider._addresses[FELLOW.public] = known
        worker.bends.clear()
        scene.provider._lease._held.clear()  # type: ignore[union-attr]

    against(attack)


@pytest.mark.parametrize("code", ["FF-TRAIN-050", "FF-TRAIN-090", "FF-TRAIN-091", "FF-CORE-050", "FF-HOST-001"])
def test_a_verifiers_own_broken_worker_is_no_peers_fault(against: Any, code: str) -> None:
    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        worker = scene.process.worker

        def fail(_reply: Any) -> Any:
            raise audit_lease.RunError(code, "something here does not work")

        for message in (worker_messages.RerunCommand, worker_messages.ReencodeCommand):
            worker.bends[message] = fail
            if message is worker_messages.RerunCommand:
                assert await scene.order(protocol_messages.AUDIT, order) == code
            else:
                said = (await scene.run(order)).blind
                assert said is not None
                asked = protocol_messages.VerdictRequest(TERMS.id, 0, order.contribution.peer, order.segment, None)
                assert await scene.order(protocol_messages.JUDGE, asked) == code
            del worker.bends[message]

    against(attack)


@pytest.mark.parametrize("code", audit_lease.BLAMED)
def test_a_state_that_no_work_can_go_on_from_is_false(against: Any, code: str) -> None:
    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        def fail(_reply: Any) -> Any:
            raise audit_lease.RunError(code, "this state is none")

        scene.process.worker.bends[worker_messages.RerunCommand] = fail
        assert await scene.finding(order) is VerdictFinding.FALSE
        scene.process.worker.bends.clear()

    against(attack)


def test_a_verifier_holds_no_more_audits_than_two_rounds_can_have(against: Any) -> None:
    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        lease = scene.provider._lease
        assert isinstance(lease, audit_lease.AuditLease)
        assert await scene.order(protocol_messages.AUDIT, order) == "ok"
        (held,) = lease._held.values()
        most = audit_lease.ROUNDS_HELD * SPEC.network.providers
        lease._held = {(0, Hash(bytes([i]) * 32), 0): held for i in range(5 * most)}  # type: ignore[misc]
        assert await scene.order(protocol_messages.AUDIT, order) == "ok"
        assert len(lease._held) == most
        assert (0, order.contribution.peer, order.segment) in lease._held

    against(attack)


def test_a_judgement_without_a_run_is_refused(against: Any) -> None:
    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        peer = order.contribution.peer
        judge = protocol_messages.VerdictRequest(TERMS.id, 0, peer, 1, None)
        assert await scene.order(protocol_messages.JUDGE, judge) == "FF-APP-087"
        assert (await scene.run(order)).blind is not None
        for other in (
            replace(judge, round=1),
            replace(judge, segment=0),
            replace(judge, peer=NIL),
            replace(judge, round=-1),
        ):
            assert await scene.order(protocol_messages.JUDGE, other) == "FF-APP-087"
        assert await scene.order(protocol_messages.JUDGE, replace(judge, job=NIL)) == "FF-APP-057"

    against(attack)


def test_an_opened_start_that_is_not_under_the_trace_is_false_and_no_error(against: Any) -> None:
    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        opened = order.opened
        assert opened is not None
        start = opened.start
        other = scene.peer.worker.trace_of(b"another").opened(1)[0]
        small = BorderState(0, 1, initial().params, (), None)
        wrong = [
            replace(opened, start=replace(start, index=0)),
            replace(opened, start=replace(start, index=-1)),
            replace(opened, start=replace(start, index=(1 << 64) - 1)),
            replace(opened, start=replace(start, path=())),
            replace(opened, start=replace(start, path=(NIL,) * 1000)),
            replace(opened, start=replace(start, data=b"")),
            replace(opened, start=other),
            replace(opened, state=scene.peer.put(b"no state")),
            replace(opened, state=scene.peer.put(b"")),
            replace(opened, state=scene.peer.put(segments.pack(small, OPTIMIZER, LAYOUT))),
            replace(opened, state=scene.peer.put(segments.pack(replaced(0.5), OPTIMIZER, LAYOUT))),
        ]
        for bad in wrong:
            assert await scene.finding(replace(order, opened=bad)) is VerdictFinding.FALSE
        assert "RerunCommand" not in scene.process.worker.asked

    against(attack)


def test_a_coordinator_that_passes_on_something_else_frames_nobody(against: Any) -> None:
    """What it says was opened does not hold: the verifier hears the peer itself."""

    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        opened = order.opened
        assert opened is not None
        for bad in (
            replace(opened, start=replace(opened.start, path=())),
            replace(opened, state=scene.peer.put(b"no state")),
            replace(opened, state=ObjectManifest(NIL, 1 << 62, (NIL,))),
        ):
            assert (await scene.run(replace(order, opened=bad))).blind is not None

    against(attack)


def replaced(value: float) -> BorderState:
    """A whole state that nobody had committed to."""
    vector = (initial().params * 0 + value).astype("float32")
    return BorderState(0, 1, vector, (vector, vector), None)


@pytest.mark.whole
def test_a_state_that_is_not_served_or_cannot_be_one_is_withheld(against: Any) -> None:
    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        opened = order.opened
        assert opened is not None
        content, size, chunks = opened.state.content, opened.state.size, opened.state.chunks
        wrong = [
            ObjectManifest(content, 4 * LAYOUT.size * 4 + 2048, chunks),  # larger than any state
            ObjectManifest(content, 1 << 62, chunks),
            ObjectManifest(content, -1, chunks),
            ObjectManifest(content, size, ()),
            ObjectManifest(Hash(b""), size, chunks),
            ObjectManifest(content, size, (NIL,)),
            seal(JOB_KEY, b"nowhere")[0],
            scene.peer.put(b"sealed under another key", b"\x08" * 32),
        ]
        for bad in wrong:
            await scene.withheld(replace(order, opened=replace(opened, state=bad)))
        assert "RerunCommand" not in scene.process.worker.asked

    against(attack)


def test_a_giant_state_is_not_even_asked_for(against: Any) -> None:
    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        opened = order.opened
        assert opened is not None
        asked = list[str]()
        handle = scene.peer.lease.objects.serve
        scene.peer.shelf.serve = lambda p, m, b: asked.append(m) or handle(p, m, b)  # type: ignore
        giant = scene.peer.put(bytes(4 * LAYOUT.size * 4 + 2048))
        await scene.withheld(replace(order, opened=replace(opened, state=giant)))
        assert asked == []

    against(attack)


@pytest.mark.whole
@pytest.mark.parametrize("reply", [None, b"", b"\xc1", b"\x91" * 5000, "unsealed"])
def test_a_peer_that_answers_a_verifier_with_nothing_of_use_withholds(against: Any, reply: Any) -> None:
    """The coordinator got no opening: the verifier asks for itself."""

    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        honest = scene.peer.obey

        async def obey(connection: Any, method: str, asked: Any) -> Any:
            if reply is None:
                raise audit_lease.PolicyError("FF-APP-041", "no")
            return reply

        scene.peer.obey = obey  # type: ignore[method-assign]
        await scene.withheld(replace(order, opened=None))
        answer = await scene.run(order)
        assert answer.blind is not None
        request = protocol_messages.VerdictRequest(TERMS.id, 0, order.contribution.peer, 1, None)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(opening_deadlines, "WITHHOLD_SECONDS", 0.3)
            data = await scene.call(scene.home, protocol_messages.JUDGE, encode(request))
        judged = decode(data, protocol_messages.VerdictReply, 10**6)
        assert about(judged.verdict, order) is VerdictFinding.WITHHELD
        scene.peer.obey = honest  # type: ignore[method-assign]
        request = replace(request, revealed=None)
        judged = decode(
            await scene.call(scene.home, protocol_messages.JUDGE, encode(request)),
            protocol_messages.VerdictReply,
            10**6,
        )
        assert about(judged.verdict, order) is VerdictFinding.HOLDS  # it asks again, and gets it

    against(attack)


def test_an_end_that_is_not_under_the_trace_is_false(against: Any) -> None:
    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        answer = await scene.run(order)
        assert answer.blind is not None
        reveal = protocol_messages.SegmentRevealRequest(TERMS.id, 0, 1, order.contribution.trace, answer.blind)
        honest = scene.peer.lease._openings.reveal(reveal, scene.peer.lease._verifiers)
        indices = [leaf.index for leaf in honest.leaves]
        obey_honestly = scene.peer.obey

        async def obey(connection: Any, method: str, asked: Any) -> Any:
            is_lie = method == protocol_messages.UNVEIL and scene.shown is not None
            return scene.shown if is_lie else await obey_honestly(connection, method, asked)

        scene.peer.obey = obey  # type: ignore[method-assign]
        for leaves in (
            (),
            honest.leaves[1:],
            honest.leaves[::-1],
            honest.leaves * 100,
            scene.peer.worker.trace_of(b"another").opened(*indices),
        ):
            judged = await scene.judge(order, answer.blind, leaves=leaves)
            # The coordinator's word: the peer says otherwise.
            assert about(judged.verdict, order) is VerdictFinding.HOLDS
            scene.shown = replace(honest, leaves=leaves)
            judged = await scene.judge(order, answer.blind, leaves=leaves)
            assert about(judged.verdict, order) is VerdictFinding.FALSE
            scene.shown = None

    against(attack)


@pytest.mark.parametrize(("has_graph", "signed"), [(True, VerdictFinding.UNPAID), (False, VerdictFinding.FALSE)])
def test_an_accusation_is_signed_only_where_the_jobs_graph_makes_it_too(
    against: Any, has_graph: bool, signed: VerdictFinding
) -> None:
    """The verifier's own worker departs from work that is honest; the graph (attack_hidden_state) finds nothing."""

    parts: Any = SimpleNamespace(spec=SPEC)
    graph = JobGraph(parts, LAYOUT, TERMS.tolerance, b"", b"")

    async def found(request: AccusationRequest, _needed: int, _folder: Path) -> GraphFinding:
        assert (request.round, request.seat, request.first, request.steps) == (0, 1, 1, 1)
        return GraphFinding(is_false=False)

    async def held(_: JobWorkspace) -> JobGraph | None:
        return graph if has_graph else None

    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        answer = await scene.run(order)
        assert answer.blind is not None
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(audit_lease.chair, "judge", lambda *_: AuditFinding(VerdictFinding.FALSE, 9000))
            patched.setattr(JobWorkspace, "graph", held)
            patched.setattr(audit_lease, "check_memory", lambda *_: None)
            patched.setattr(audit_lease.graph_runs, "finding", found)
            judged = await scene.judge(order, answer.blind)
        assert about(judged.verdict, order) is signed

    against(attack)


def test_a_peer_that_came_fresh_owes_no_end_of_the_round_before(against: Any) -> None:
    """Its private state was lost: it says so in border 0, which everybody may see, and trains from nothing."""

    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        opened = await scene.peer.lease.open(protocol_messages.SegmentOpenRequest(TERMS.id, 0, 0))
        assert opened.before == ()
        fresh = replace(order, segment=0, opened=opened, before=Hash(b"\x01" * 32))
        answer = await scene.run(fresh)
        assert answer.verdict is None
        assert answer.blind is not None
        judged = await scene.judge(fresh, answer.blind)
        assert about(judged.verdict, fresh) is VerdictFinding.HOLDS

    against(attack)


@pytest.mark.slow
def test_no_body_makes_a_verifier_stumble(against: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def attack(scene: Audited, order: protocol_messages.AuditRequest) -> None:
        answer = await scene.run(order)
        assert answer.blind is not None
        reveal = protocol_messages.SegmentRevealRequest(TERMS.id, 0, 1, order.contribution.trace, answer.blind)
        shown = scene.peer.lease._openings.reveal(reveal, scene.peer.lease._verifiers)
        said = blind(V, TERMS.id, 0, scene.peer.key.public, 1, order_border(scene))
        messages = {
            protocol_messages.AUDIT: order,
            protocol_messages.JUDGE: protocol_messages.VerdictRequest(TERMS.id, 0, order.contribution.peer, 1, shown),
            protocol_messages.START: scene.start,
            protocol_messages.MEMBERS: protocol_messages.MembersUpdate(NIL, scene.start.members),
            protocol_messages.UNVEIL: protocol_messages.SegmentRevealRequest(
                TERMS.id, 0, 1, order.contribution.trace, said
            ),
        }
        monkeypatch.setattr(opening_deadlines, "WITHHOLD_SECONDS", 0.1)
        for party in (scene.home, scene.stranger):
            for seed, (method, message) in enumerate(messages.items()):
                for body in hostile_bodies(encode(message), seed, 4):
                    await scene.refused(party, method, body)
        assert await scene.order(protocol_messages.START, scene.start) == "ok"  # it knows the true addresses again
        for message_method, message in messages.items():
            for body in hostile_values(message) if isinstance(message, Wire) else ():
                if len(body) < 10**5:
                    await scene.refused(scene.home, message_method, body)
        assert await scene.order(protocol_messages.START, scene.start) == "ok"
        monkeypatch.setattr(opening_deadlines, "WITHHOLD_SECONDS", 5.0)

    against(attack)


def order_border(scene: Audited) -> Any:
    return scene.peer.worker.trace_of(b"").borders[1]


def test_the_bound_of_a_payload_is_no_state() -> None:
    assert 4 * LAYOUT.size * 4 + 2048 > BOUND
