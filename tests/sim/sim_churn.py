"""A network in virtual time whose members are slow, die, return, hang or lie; the shell is as thin as it can be.

What is real: the core (train.rounds), the coordinator's clock (peers.requester.round_timing), pacing, the log.
What stands for it: public state is a chain of hashes over accept sets, private state the tuple of the rounds that
it went through.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from farflung.core.crypto import SigningKey, digest
from farflung.core.ids import Hash, PeerId
from farflung.job.spec import AuditSpec, ChurnSpec, JobSpec, ModelSpec, SyncSpec
from farflung.peers.requester.round_timing import RoundClock
from farflung.train import rounds
from farflung.train.rounds import RoundPhase
from farflung.train.run_log import (
    AcceptSetRecord,
    CommitmentsRecord,
    Contribution,
    Record,
    RoundEndRecord,
    RoundStartRecord,
    RunEndRecord,
    RunStartRecord,
)
from farflung.verify.commitment_check import commit, nonce_of, sign_root

JOB = digest("test/job/1")
TRACE = digest("test/trace/1")
START = digest("test/root/0")
COORDINATOR = SigningKey(b"\x77" * 32)
KEYS = sorted((SigningKey(bytes([i + 1]) * 32) for i in range(5)), key=lambda key: key.public)
PEERS = [key.public for key in KEYS]
STEP = 8 * 64  # tokens
NEVER = 1e12


def job(rounds: int = 6, **churn: object) -> JobSpec:
    """Twenty steps a round at most, two segments, no audits."""
    spec = ChurnSpec(**{"quorum": 0.6, "grace": 0.5} | churn)  # type: ignore[arg-type]
    sync, audit = SyncSpec(steps=20), AuditSpec(segments=2, rate=0.0, probation=0)
    return JobSpec(rounds=rounds, batch=8, model=ModelSpec(context=64), sync=sync, audit=audit, churn=spec)


def after(root: Hash, accepted: tuple[Contribution, ...]) -> Hash:
    """Public state after a merge."""
    return digest("test/merged/1", root, *(c.payload + c.weight.to_bytes(8, "little") for c in accepted))


@dataclass
class Member:
    """One peer. `speed`: seconds a step; `silent_in`: where it never answers; `weighs`: times its true weight."""

    key: SigningKey
    speed: float = 1.0
    silent_in: frozenset[RoundPhase] = frozenset()
    weighs: int = 1
    merging: float = 0.0  # seconds
    round: int = 0
    root: Hash = START
    private: tuple[int, ...] = ()
    made: tuple[int, int] | None = None  # round, weight
    dropped: int = -1
    life: int = 0  # counts its deaths
    told: dict[PeerId, int] = field(default_factory=dict)

    @property
    def peer(self) -> PeerId:
        return self.key.public

    def contribution(self, round: int, weight: int) -> Contribution:
        payload = digest("test/payload/1", self.peer, round.to_bytes(8, "little"))
        nonce = nonce_of(self.key, JOB, round)
        return Contribution(self.peer, weight, payload, payload, nonce, TRACE, "bwrap")

    def merge(self, round: int, accepted: tuple[Contribution, ...]) -> None:
        """As peers.node.training_lease does: what weighs too much is not merged, and a round without it did not
        happen.
        """
        assert round == self.round
        assert all(c.weight <= self.told.get(c.peer, 20 * STEP) for c in accepted)
        if any(c.peer == self.peer for c in accepted):
            self.private = (*self.private, round)
        self.made = None
        self.round, self.root = round + 1, after(self.root, accepted)


class Network:
    """`run` is one session of the coordinator; members live on between two."""

    def __init__(self, seed: int, spec: JobSpec, *, jitter: float = 0.02) -> None:
        self.random, self.spec, self.jitter = random.Random(seed), spec, jitter
        self.members = {key.public: Member(key) for key in KEYS}
        self.log: list[Record] = []
        self.now = 0.0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.ended: RunEndRecord | None = None
        self.lost: set[PeerId] = set()
        self.effects: list[tuple[float, rounds.Effect]] = []
        self.at: dict[tuple[str, int], float] = {}  # when each record was written
        self.windows: list[tuple[int, RoundPhase, float, float]] = []  # opened at, seconds

    def fresh(self) -> rounds.CoordinatorState:
        spec = self.spec
        counts = (spec.rounds, spec.sync.steps, spec.sync.topk, spec.round_tokens)
        return rounds.CoordinatorState(JOB, *counts, tuple(PEERS), quorum=spec.churn.quorum)

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        if seconds < NEVER:
            heapq.heappush(self.queue, (self.now + seconds, self.random.getrandbits(62), work))

    def post(self, event: rounds.Event, seconds: float = 0.0) -> None:
        self.later(seconds, lambda: self.step(event))

    def run(self, plans: list[tuple[float, Callable[[], None]]] | None = None, die_after: int = 10**9) -> None:
        """One session; the coordinator dies before the effect number `die_after` is carried out."""
        if not self.log:
            self.log.append(RunStartRecord(JOB, COORDINATOR.public, START, self.spec.rounds))
        self.queue, self.asked, self.aside = [], {}, set[PeerId]()
        self.budget, self.is_dead = die_after, False
        self.state = rounds.replay(self.fresh(), self.log)
        self.clock = RoundClock(self.spec, lambda: self.now)
        self.held = {m.peer: m.round for m in self.members.values()}
        missing = [p for p in PEERS if self.log and p not in self.state.members]
        self.post(rounds.BeginInput())
        for peer in missing:  # brought back, as peers.requester.members does
            self.post(rounds.MemberJoinInput(peer), self.jitter)
        for seconds, plan in plans or []:
            self.later(seconds, plan)
        while self.queue and self.ended is None and not self.is_dead:
            self.now, _, work = heapq.heappop(self.queue)
            work()

    def step(self, event: rounds.Event) -> None:
        self.state, effects = rounds.step(self.state, event)
        for effect in effects:
            if self.budget == 0:
                self.is_dead = True
                return
            self.budget -= 1
            self.effects.append((self.now, effect))
            self.carry_out(effect)
        self.clock.see(self.state)

    def carry_out(self, effect: rounds.Effect) -> None:
        match effect:
            case rounds.WriteRecord(record):
                self.log.append(record)
                self.at[type(record).__name__, getattr(record, "round", -1)] = self.now
            case rounds.RequestTraining(round, peer):
                self.ask(round, peer, RoundPhase.TRAIN, ())
            case rounds.RequestBeacon(round):
                block = digest("test/block/1", round.to_bytes(8, "little"))
                self.post(rounds.BeaconInput(round, block), self.jitter)
            case rounds.RequestReveal(round, peer):
                self.ask(round, peer, RoundPhase.REVEAL, ())
            case rounds.RequestMerge(round, peer, accepted):
                self.ask(round, peer, RoundPhase.MERGE, accepted)
            case rounds.MergeLocally(round, accepted):
                if self.spec.churn.adaptive:
                    self.post(self.clock.pace(self.state))
                self.post(rounds.OwnRootInput(round, after(self.state.root, accepted)), self.jitter)
            case rounds.OpenWindow(round, phase):
                self.windows.append((round, phase, self.now, self.clock.grace()))
                self.post(rounds.WindowEndInput(round, phase), self.clock.grace())
            case rounds.SkipMember(round, peer, phase):
                self.pass_over(round, peer, phase)
            case rounds.EndRun(finished):
                self.ended = finished

    def ask(self, round: int, peer: PeerId, phase: RoundPhase, accepted: tuple[Contribution, ...]) -> None:
        member = self.members[peer]
        place = (round, phase, member.life)
        self.asked[peer] = place
        assigned = dict(self.state.assigned)

        def work() -> None:
            self.catch_up(member, round)
            if phase is RoundPhase.TRAIN:
                member.told = assigned
            seconds = self.takes(member, phase, assigned.get(peer, 0))
            self.later(seconds, lambda: self.answer(member, place, assigned, accepted))

        self.later(self.random.uniform(0, self.jitter), work)

    def takes(self, member: Member, phase: RoundPhase, weight: int) -> float:
        if phase in member.silent_in:
            return NEVER
        line = self.random.uniform(0, self.jitter)
        if phase is RoundPhase.MERGE:
            return line + member.merging
        return line + (member.speed * weight / STEP if phase is RoundPhase.TRAIN else 0.0)

    def catch_up(self, member: Member, round: int) -> None:
        for record in self.log:
            if isinstance(record, AcceptSetRecord) and member.round <= record.round < round:
                member.told = {}
                member.merge(record.round, record.contributions)

    def answer(
        self,
        member: Member,
        place: tuple[int, RoundPhase, int],
        assigned: dict[PeerId, int],
        accepted: tuple[Contribution, ...],
    ) -> None:
        round, phase, life = place
        if self.asked.get(member.peer) != place or life != member.life:
            return  # dropped, or dead since
        weight = assigned[member.peer] * member.weighs
        told = member.contribution(round, weight)
        if phase is RoundPhase.TRAIN:
            member.made = (round, weight)
            promise = commit(member.key, JOB, round, told.payload, weight, TRACE)
            self.arrived(member, rounds.CommitmentInput(round, promise, told))
        elif phase is RoundPhase.REVEAL:
            self.arrived(member, rounds.ContributionInput(round, told))
        else:
            if member.round == round:
                member.merge(round, accepted)
            root = member.root
            if member.peer in self.aside:
                self.back(member.peer)
                return
            signature = sign_root(member.key, JOB, round, root)
            self.arrived(member, rounds.MemberRootInput(round, member.peer, root, signature))

    def arrived(self, member: Member, event: rounds.Event) -> None:
        self.clock.arrived(self.state, member.peer)
        self.step(event)

    def pass_over(self, round: int, peer: PeerId, phase: RoundPhase) -> None:
        self.aside.add(peer)
        if phase is RoundPhase.TRAIN:
            self.clock.passed_over(self.state, peer)
        if phase is RoundPhase.MERGE:
            return  # it answers when it has merged
        member = self.members[peer]
        self.asked.pop(peer, None)
        if phase in member.silent_in:
            return

        def drop() -> None:
            member.made, member.dropped = None, round
            self.back(peer)

        self.later(self.random.uniform(0, self.jitter), drop)

    def back(self, peer: PeerId) -> None:
        self.aside.discard(peer)
        self.step(rounds.MemberJoinInput(peer))

    def die(self, peer: PeerId, away: float) -> None:
        """Its process ends; it is noticed; after `away` seconds it is back, with public state and what it had kept."""
        member = self.members[peer]
        member.life += 1
        self.lost.add(peer)
        self.aside.discard(peer)
        self.post(rounds.MemberLossInput(peer), 0.05)

        def come() -> None:
            self.catch_up(member, self.state.round)
            self.post(rounds.MemberJoinInput(peer))

        self.later(away, come)

    def records(self, kind: type) -> list[Record]:
        return [record for record in self.log if isinstance(record, kind)]


def check(network: Network) -> None:
    """What holds of every log, and of every member at the end, whatever happened."""
    spec, root = network.spec, START
    assigned: dict[PeerId, int] = {}
    accepted: tuple[Contribution, ...] = ()
    committed: set[PeerId] = set()
    through: dict[PeerId, tuple[int, ...]] = dict.fromkeys(PEERS, ())
    roots = {0: START}
    for record in network.log:
        match record:
            case RoundStartRecord(round, members, steps, _):
                assigned = {m.peer: m.weight for m in members}
                assert spec.segments <= steps <= spec.sync.steps
                assert all(STEP * spec.segments <= w <= STEP * steps and w % STEP == 0 for w in assigned.values())
            case CommitmentsRecord(round, commitments):
                committed = {c.peer for c in commitments}
                assert committed <= set(assigned)
            case AcceptSetRecord(round, accepted):
                assert accepted
                assert {c.peer for c in accepted} <= committed
                assert all(0 < c.weight <= assigned[c.peer] for c in accepted)
                for c in accepted:
                    through[c.peer] = (*through[c.peer], round)
            case RoundEndRecord(round, closed, signatures):
                root = after(root, accepted)
                assert closed == root
                assert {peer for peer, _ in signatures} <= {c.peer for c in accepted}
                roots[round + 1] = root
    replayed = rounds.replay(network.fresh(), network.log)
    assert replayed.root == root
    for member in network.members.values():
        network.catch_up(member, replayed.round)
        assert member.root == roots[member.round] == root
        assert member.private == through[member.peer], "what was not accepted did not happen"
