"""A run in one process: peers that train, one of whom may cheat, and verifiers that audit them by the protocol's rules.

No network, no ledger and no disk: engines as in a worker process, commitments, draw, opening, blind commitment, reveal,
verdicts and their conclusion, in the order in which the coordinator has them. `Play(seed).run()` tells who was found
what; every number follows from the seed but the bits of floating point, hence the draws below a rate of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace

from farflung.compress.merge import WeightedUpdate
from farflung.core.commitments import number
from farflung.core.crypto import SigningKey, digest, local_key
from farflung.core.errors import RunError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.tensor_layout import TensorLayout
from farflung.job import dataset
from farflung.job.spec import (
    AuditSpec,
    EvaluateSpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    ScheduleSpec,
    SyncSpec,
    Tolerance,
)
from farflung.ledger.rules.verifiers import quorum_of
from farflung.ledger.transactions import Verdict, VerdictFinding
from farflung.train import public_state, segments, worker_messages
from farflung.train.engine import WorkerEngine
from farflung.train.run_log import Commitment, Contribution, payload_hash
from farflung.train.sync_arithmetic import Sync
from farflung.verify import audit_sample, submission_checks
from farflung.verify import segment_audit as chair
from farflung.verify.audit_verdict import EXCESS_CAP, AuditFinding, conclusions, needs_another
from farflung.verify.blind_commitment import BlindCommitment, blind
from farflung.verify.commitment_check import commit, is_commitment, nonce_of, opens
from farflung.verify.segment_opening import OpenedSegment, needed, read_border, start_fault
from farflung.verify.tolerance import tolerance_of

JOB, CHAIN = digest("test/job/1"), digest("test/chain/1")
TEXT = b"def f(x):\n    return x + 1\n\nclass A:\n    y = [1, 2, 3]\n\n" * 30
SPEC = JobSpec(
    rounds=3,
    batch=4,
    model=ModelSpec(layers=1, width=16, heads=2, context=8),
    optimizer=OptimizerSpec(lr=1e-2),
    schedule=ScheduleSpec(warmup=2),
    sync=SyncSpec(steps=4, topk=32, chunk=256),
    evaluate=EvaluateSpec(tokens=64),
    audit=AuditSpec(segments=2, rate=1.0),
)
SHORT = replace(SPEC, rounds=2)  # a cheat begins in round 1
SEEDS = [*range(5), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(5, 20))]


@cache
def data() -> bytes:
    """The packed data set of every play."""
    tokens = np.frombuffer(TEXT, np.uint8)
    return dataset.pack(dataset.Dataset(tokens[:1500].copy(), tokens[1500:].copy()))


@cache
def tolerance(spec: JobSpec = SPEC, module: bytes = b"") -> Tolerance:
    """What the profile run measures on this machine; another seed makes another model of the same shapes."""
    engine = Worker(spec, local_key(0, "profile"), 0, module=module).engine
    start = engine.handle(worker_messages.InitializeCommand())
    profiled = engine.handle(worker_messages.ProfileCommand(start.snapshot))
    return tolerance_of(profiled.noise)


def loosened(limits: Tolerance, factor: int) -> Tolerance:
    """Tolerances times `factor`; noise tensors stay noise."""
    return Tolerance(tuple((name, tuple(x * factor for x in values)) for name, values in limits.limits))


class Worker:
    """A peer: its key, and the engine that its worker process would hold."""

    def __init__(
        self, spec: JobSpec, key: SigningKey, member: int, cheat: str = "none", threads: int = 1, module: bytes = b""
    ) -> None:
        self.key, self.member = key, member
        self.engine = WorkerEngine(lambda: 0.0)
        self.ask(worker_messages.SetupCommand(spec, data(), module, member, key.public, threads, cheat))

    def ask(self, request: worker_messages.Request) -> Any:
        """The reply to a request."""
        return self.engine.handle(request)


class Made(NamedTuple):
    """A peer's round: what it committed to and shows, and what it opens if it is drawn."""

    trained: worker_messages.TrainResult
    commitment: Commitment
    contribution: Contribution
    opened: worker_messages.OpenSegmentResult | None


class Ran(NamedTuple):
    """A verifier's own result, before it sees the claim."""

    audit: chair.SegmentAudit
    blind: BlindCommitment


@dataclass
class Setting:
    """Who plays: `cheat` is what the cheater does; `module`: the source of the job's model, empty: a built-in one."""

    cheat: str = "none"
    peers: int = 3
    verifiers: int = 2
    threads: Sequence[int] = (1,)
    spec: JobSpec = SPEC
    limits: Tolerance | None = None
    twisted: OptimizerSpec | None = None  # the cheater's own optimizer
    module: bytes = b""


class Play:
    """One run. After `run`, `findings` holds (round, peer) → finding, `excesses` what each verdict measured."""

    def __init__(self, seed: int, setting: Setting | None = None) -> None:
        self.setting = setting or Setting()
        self.spec = replace(self.setting.spec, seed=seed)
        self.limits = self.setting.limits or tolerance(self.setting.spec, self.setting.module)
        count = self.setting.peers
        keys = sorted((local_key(seed, "peer", i) for i in range(count)), key=lambda key: key.public)
        self.cheater = keys[digest("test/cheater/1", bytes([seed]))[0] % count].public
        self.peers = {key.public: self.worker(key, i) for i, key in enumerate(keys)}
        self.verifiers = {key.public: key for key in (local_key(seed, "verifier", i) for i in range(2))}
        self.verifiers = dict(list(self.verifiers.items())[: self.setting.verifiers])
        bench = Worker(self.spec, local_key(seed, "bench"), count, module=self.setting.module)
        self.bench = bench  # both verifiers' engine
        self.public = self.bench.ask(worker_messages.InitializeCommand())
        self.sync, self.layout = Sync.of(self.spec), TensorLayout.of(dict(self.public.shapes))
        for peer in self.peers.values():
            peer.ask(worker_messages.LoadCommand(0, self.public.snapshot, b""))
        self.accepted: dict[PeerId, int] = dict.fromkeys(self.peers, 0)
        self.findings: dict[tuple[int, PeerId], VerdictFinding] = {}
        self.excesses: dict[tuple[int, PeerId], int] = {}
        self.flagged: dict[int, dict[PeerId, str]] = {}
        self.out: set[PeerId] = set()
        self.snapshot = self.public.snapshot

    def worker(self, key: SigningKey, member: int) -> Worker:
        """A peer as it was cast."""
        s, is_cheater = self.setting, key.public == self.cheater
        twisted = is_cheater and s.twisted is not None
        spec = replace(self.spec, optimizer=s.twisted) if twisted else self.spec
        threads = s.threads[member % len(s.threads)]
        return Worker(spec, key, member, s.cheat if is_cheater else "none", threads, s.module)

    @property
    def guilty(self) -> set[PeerId]:
        """Who was found false or withholding in any round."""
        return {p for (_, p), f in self.findings.items() if f in (VerdictFinding.FALSE, VerdictFinding.WITHHELD)}

    def run(self) -> Play:
        """All rounds; whom round r finds guilty is out from round r + 2 on."""
        late: list[set[PeerId]] = [set()]
        for round in range(self.spec.rounds):
            late.append(self.round(round))
            self.out |= late[-2]
        return self

    def round(self, round: int) -> set[PeerId]:
        """One round and its audits; returns whom they find guilty."""
        live = [peer for peer in self.peers if peer not in self.out]
        trained = {p: self.peers[p].ask(worker_messages.TrainCommand(round)) for p in live}
        promised = {p: self.committed(round, self.peers[p].key, trained[p]) for p in live}
        anchored = audit_sample.anchor(JOB, round, [promise for promise, _ in promised.values()])
        luck = audit_sample.beacon(anchored, digest("test/block/1", number(round)))
        assert all(is_commitment(x, JOB, round) and opens(c, x, JOB, round) for x, c in promised.values())
        before = self.snapshot
        state = public_state.unpack(before, self.layout)
        about = {p: self.sync.about(state, self.layout, p) for p in live}
        decoded = [
            WeightedUpdate(p, c.weight, self.sync.decode(about[p], self.layout, trained[p].payload))
            for p, (_, c) in promised.items()
        ]
        self.flagged[round] = submission_checks.flags(self.layout, decoded)
        known = [(p, self.accepted[p]) for p in live]
        count = self.spec.segments
        drawn = audit_sample.draw(self.spec.audit, count, luck, known, self.flagged[round])
        opened = {d.peer: self.peers[d.peer].ask(worker_messages.OpenSegmentCommand(round, d.segment)) for d in drawn}
        self.merge(round, live, trained)
        verdicts: list[Verdict] = []
        for d in drawn:
            made = Made(trained[d.peer], *promised[d.peer], opened[d.peer])
            verdicts += self.audited(round, d, made, luck, before)
        concluded = conclusions(verdicts, quorum_of(len(self.verifiers)), is_proven=True)
        self.findings |= {(round, node): c.finding for node, c in concluded.items()}
        return {node for node, c in concluded.items() if c.is_guilty}

    def committed(
        self, round: int, key: SigningKey, trained: worker_messages.TrainResult
    ) -> tuple[Commitment, Contribution]:
        """What a peer promises, and what it will show."""
        payload, root = payload_hash(trained.payload), trained.trace.root
        weight = self.spec.round_tokens
        promise = commit(key, JOB, round, payload, weight, root)
        nonce = nonce_of(key, JOB, round)
        return promise, Contribution(key.public, weight, payload, payload, nonce, root, "none")

    def merge(self, round: int, live: Sequence[PeerId], trained: dict[PeerId, worker_messages.TrainResult]) -> None:
        """Everybody merges what was accepted: all of it."""
        parts = tuple(worker_messages.AcceptedPayload(p, self.spec.round_tokens, trained[p].payload) for p in live)
        roots = {self.peers[p].ask(worker_messages.MergeCommand(round, parts)).root for p in live}
        assert len(roots) == 1
        state = self.sync.apply(public_state.unpack(self.snapshot, self.layout), self.layout, parts)
        self.snapshot = public_state.pack(state, self.layout)
        for p in live:
            self.accepted[p] += 1

    # Audits

    def audited(
        self, round: int, drawn: audit_sample.AuditSample, made: Made, luck: Hash, before: bytes
    ) -> list[Verdict]:
        """One contribution's verdicts: a second verifier is asked when the first one accuses."""
        verdicts: list[Verdict] = []
        for verifier in audit_sample.verifier_order(luck, drawn.peer, self.verifiers):
            found, result = self.examined(round, drawn.segment, made, before, self.verifiers[verifier])
            c = made.contribution
            about = (CHAIN, JOB, round, c.peer, drawn.segment, c.trace)
            verdicts.append(Verdict(*about, verifier, found.finding, found.excess, result))
            self.excesses[round, c.peer] = found.excess
            if not needs_another(verdicts, len(self.verifiers), is_proven=True):
                break
        return verdicts

    def examined(
        self, round: int, segment: int, made: Made, before: bytes, key: SigningKey
    ) -> tuple[AuditFinding, Hash]:
        """What one verifier finds, from the opening to the finding, and what it had committed to."""
        if made.opened is None:
            return AuditFinding(VerdictFinding.WITHHELD, 0), ZERO_HASH
        ran = self.rerun(round, segment, made, before, key)
        if ran is None:
            return AuditFinding(VerdictFinding.FALSE, EXCESS_CAP), ZERO_HASH
        leaves = made.trained.trace.opened(*needed(ran.audit.place.segment, ran.audit.place.segments))
        shown = chair.SegmentClaim(leaves, made.opened.end, made.opened.last)
        try:
            asked = worker_messages.ReencodeCommand(before, made.contribution.peer, shown.last)
            again: worker_messages.ReencodeResult | None = self.bench.ask(asked)
        except RunError:
            again = None
        return chair.judge(ran.audit, shown, again), ran.blind.digest

    def rerun(self, round: int, segment: int, made: Made, before: bytes, key: SigningKey) -> Ran | None:
        """The segment as it should have been, and the commitment to it; None when the start cannot be one."""
        assert made.opened is not None
        state = public_state.unpack(before, self.layout)
        params = segments.params_root(self.layout, state.params)
        place = OpenedSegment(self.spec, round, segment, made.contribution, params)
        (leaf,) = made.trained.trace.opened(segment)
        if start_fault(place, leaf):
            return None
        border, start = read_border(leaf), made.opened.start
        if not chair.is_start(place, self.layout, border, start):
            return None
        member = self.peers[made.contribution.peer].member
        try:
            mine = self.bench.ask(worker_messages.RerunCommand(before, member, segment, start))
        except RunError:
            return None
        audit = chair.begin(place, self.layout, self.limits, border, start, state.params, mine)
        return Ran(audit, blind(key, JOB, round, made.contribution.peer, segment, mine.border))


def play(seed: int, cheat: str = "none", **setting: Any) -> Play:
    """A run to its end."""
    return Play(seed, Setting(cheat, **setting)).run()


def assert_found_and_nobody_else(run: Play) -> None:
    """The cheater is found false in the first round in which it cheats; everybody else's work holds, in all rounds."""
    assert run.findings[1, run.cheater] is VerdictFinding.FALSE
    others = {place: f for place, f in run.findings.items() if place != (1, run.cheater)}
    assert set(others.values()) == {VerdictFinding.HOLDS}
    assert run.guilty == {run.cheater}


def is_measured(run: Play) -> bool:
    """Whether it was the distance that gave the cheater away, and nothing about the form of what it opened."""
    return 2000 < run.excesses[1, run.cheater] < EXCESS_CAP
