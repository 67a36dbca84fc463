"""Honest work of other environment classes, audited as in a run: who would be accused?

For each seed a small job is profiled and its limits are fixed, as a requester does before the first round. Peers of all
classes (train.noise_profile) then train it, and a verifier of the base class repeats every segment of every round,
whatever the draw would have been, encodes again and judges. No process, no network: the functions that verifiers call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from farflung.core.crypto import digest, local_key
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
from farflung.ledger.transactions import VerdictFinding
from farflung.train import noise_profile, public_state, worker_messages
from farflung.train.engine import WorkerEngine
from farflung.train.public_state import PublicState
from farflung.train.round_work import RoundWorker
from farflung.train.run_log import Contribution, payload_hash
from farflung.verify import segment_audit as chair
from farflung.verify.audit_verdict import EXCESS_CAP, AuditFinding
from farflung.verify.segment_opening import OpenedSegment, needed, read_border
from farflung.verify.tolerance import tolerance_of

SPEC = JobSpec(
    rounds=5,
    batch=4,
    model=ModelSpec(layers=1, width=16, heads=2, context=8),
    optimizer=OptimizerSpec(lr=1e-2),
    schedule=ScheduleSpec(warmup=2),
    sync=SyncSpec(steps=4, topk=32, chunk=256),
    evaluate=EvaluateSpec(tokens=64),
    audit=AuditSpec(segments=4),
)
CLASSES = [name for name in noise_profile.CLASSES if name != "base"]
EACH = SPEC.rounds * SPEC.segments * len(CLASSES)  # segments of one seed
TEXT = 4096  # tokens of training data
NONCE = digest("bench/nonce/1")


class Audited(NamedTuple):
    """One segment: the peer's class, what was found, and whether its bits were other ones than the verifier's."""

    kind: str
    found: AuditFinding
    differs: bool


def audited(count: int) -> Iterator[Audited]:
    """At least `count` honest segments, seed by seed."""
    for seed in range(-(-count // EACH)):
        yield from _Job(seed).run()


def data(seed: int) -> bytes:
    """A packed data set of printable characters, with the repetitions that text has."""
    draw = np.random.default_rng(seed)
    words = [draw.integers(97, 123, draw.integers(2, 8), np.uint8) for _ in range(64)]
    chosen = np.concatenate([words[i] for i in draw.integers(0, len(words), 2 * TEXT)])
    return dataset.pack(dataset.Dataset(chosen[:TEXT].copy(), chosen[TEXT : TEXT + 512].copy()))


class _Peer:
    """One worker: its engine, in an environment class."""

    def __init__(self, spec: JobSpec, packed: bytes, member: int, kind: str) -> None:
        self.key, self.member, self.kind = local_key(spec.seed, "peer", member), member, kind
        self.environment = noise_profile.CLASSES[kind]
        self.engine = WorkerEngine(lambda: 0.0)
        threads = self.environment.threads
        self.ask(worker_messages.SetupCommand(spec, packed, b"", member, self.key.public, threads))
        if self.environment.is_off:
            self._put_off(spec.seed + 1)  # other signs than those that the profile run drew

    def _put_off(self, seed: int) -> None:
        """Gradients at weights that are off by a rounding: machines that this one is not."""
        job = self.engine._job
        assert job is not None
        self.engine._work = RoundWorker(replace(job, model=noise_profile.PerturbedWeightsModel(job.model, seed)))

    def ask(self, request: worker_messages.Request) -> Any:
        """The reply, computed in the peer's class."""
        with noise_profile.environment(self.environment):
            return self.engine.handle(request)


class _Job:
    """One seed's job."""

    def __init__(self, seed: int) -> None:
        self.spec = msgspec.structs.replace(SPEC, seed=seed)
        packed = data(seed)
        self.bench = _Peer(self.spec, packed, len(CLASSES), "base")
        public = self.bench.ask(worker_messages.InitializeCommand())
        self.snapshot, self.layout = public.snapshot, TensorLayout.of(dict(public.shapes))
        profiled = self.bench.ask(worker_messages.ProfileCommand(public.snapshot))
        self.tolerance: Tolerance = tolerance_of(profiled.noise)
        self.peers = [_Peer(self.spec, packed, i, kind) for i, kind in enumerate(CLASSES)]
        for peer in (self.bench, *self.peers):
            peer.ask(worker_messages.LoadCommand(0, self.snapshot, b""))

    def run(self) -> Iterator[Audited]:
        """Every segment of every round of every peer."""
        for round in range(self.spec.rounds):
            made = [peer.ask(worker_messages.TrainCommand(round)) for peer in self.peers]
            state = public_state.unpack(self.snapshot, self.layout)
            for peer, trained in zip(self.peers, made, strict=True):
                last = peer.ask(worker_messages.OpenSegmentCommand(round, 0)).last
                again = self.bench.ask(worker_messages.ReencodeCommand(self.snapshot, peer.key.public, last))
                for segment in range(self.spec.segments):
                    yield self.audit(state, peer, trained, segment, again)
            weight = self.spec.round_tokens
            pairs = zip(self.peers, made, strict=True)
            parts = tuple(worker_messages.AcceptedPayload(p.key.public, weight, t.payload) for p, t in pairs)
            for peer in (self.bench, *self.peers):
                peer.ask(worker_messages.MergeCommand(round, parts))
            assert self.bench.engine._public is not None
            self.snapshot = public_state.pack(self.bench.engine._public, self.layout)

    def audit(
        self,
        state: PublicState,
        peer: _Peer,
        trained: worker_messages.TrainResult,
        segment: int,
        again: worker_messages.ReencodeResult,
    ) -> Audited:
        """What the verifier finds. `again`: its encoding of the peer's round, the same for all segments."""
        opened = peer.ask(worker_messages.OpenSegmentCommand(state.round, segment))
        payload, trace, weight = payload_hash(trained.payload), trained.trace, self.spec.round_tokens
        contribution = Contribution(peer.key.public, weight, payload, payload, NONCE, trace.root, "none")
        params = trace.borders[0].params
        place = OpenedSegment(self.spec, state.round, segment, contribution, params)
        mine = self.bench.ask(worker_messages.RerunCommand(self.snapshot, peer.member, segment, opened.start))
        border = read_border(trace.opened(segment)[0])
        is_start = chair.is_start(place, self.layout, border, opened.start)
        audit = chair.begin(place, self.layout, self.tolerance, border, opened.start, state.params, mine)
        shown = chair.SegmentClaim(trace.opened(*needed(segment, place.segments)), opened.end, opened.last)
        found = chair.judge(audit, shown, again) if is_start else AuditFinding(VerdictFinding.FALSE, EXCESS_CAP)
        return Audited(peer.kind, found, not chair.is_same(mine.border, trace.borders[segment + 1]))
