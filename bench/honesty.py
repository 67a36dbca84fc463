"""Honest work of other environment classes, audited as in a run: who would be accused?

For each seed a small job is profiled and its limits are fixed, as a requester does before the first round. Peers of all
classes (train.profile) then train it, and a verifier of the base class repeats every segment of every round, whatever
the draw would have been, encodes again and judges. No process, no network: the functions that verifiers call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from farflung.core.crypto import digest, local_key
from farflung.core.layout import Layout
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
from farflung.ledger.tx import Finding
from farflung.train import messages, profile, snapshot
from farflung.train.engine import Engine
from farflung.train.roundlog import Contribution, payload_hash
from farflung.train.snapshot import PublicState
from farflung.train.work import Honest
from farflung.verify import audit as chair
from farflung.verify.judge import EXCESS_CAP, Found
from farflung.verify.opening import Place, needed, read_border
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
CLASSES = [name for name in profile.CLASSES if name != "base"]
EACH = SPEC.rounds * SPEC.segments * len(CLASSES)  # segments of one seed
TEXT = 4096  # tokens of training data
NONCE = digest("bench/nonce/1")


class Audited(NamedTuple):
    """One segment: the peer's class, what was found, and whether its bits were other ones than the verifier's."""

    kind: str
    found: Found
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
        self.environment = profile.CLASSES[kind]
        self.engine = Engine(lambda: 0.0)
        threads = self.environment.threads
        self.ask(messages.Setup(spec, packed, b"", member, self.key.public, threads))
        if self.environment.is_off:
            self._put_off(spec.seed + 1)  # other signs than those that the profile run drew

    def _put_off(self, seed: int) -> None:
        """Gradients at weights that are off by a rounding: machines that this one is not."""
        job = self.engine._job
        assert job is not None
        self.engine._work = Honest(replace(job, model=profile.Off(job.model, seed)))

    def ask(self, request: messages.Request) -> Any:
        """The reply, computed in the peer's class."""
        with profile.environment(self.environment):
            return self.engine.handle(request)


class _Job:
    """One seed's job."""

    def __init__(self, seed: int) -> None:
        self.spec = msgspec.structs.replace(SPEC, seed=seed)
        packed = data(seed)
        self.bench = _Peer(self.spec, packed, len(CLASSES), "base")
        public = self.bench.ask(messages.Initialize())
        self.snapshot, self.layout = public.snapshot, Layout.of(dict(public.shapes))
        profiled = self.bench.ask(messages.Profile(public.snapshot))
        self.tolerance: Tolerance = tolerance_of(profiled.noise)
        self.peers = [_Peer(self.spec, packed, i, kind) for i, kind in enumerate(CLASSES)]
        for peer in (self.bench, *self.peers):
            peer.ask(messages.Load(0, self.snapshot, b""))

    def run(self) -> Iterator[Audited]:
        """Every segment of every round of every peer."""
        for round in range(self.spec.rounds):
            made = [peer.ask(messages.Train(round)) for peer in self.peers]
            state = snapshot.unpack(self.snapshot, self.layout)
            for peer, trained in zip(self.peers, made, strict=True):
                last = peer.ask(messages.OpenSegment(round, 0)).last
                again = self.bench.ask(messages.Reencode(self.snapshot, peer.key.public, last))
                for segment in range(self.spec.segments):
                    yield self.audit(state, peer, trained, segment, again)
            weight = self.spec.round_tokens
            pairs = zip(self.peers, made, strict=True)
            parts = tuple(messages.Part(p.key.public, weight, t.payload) for p, t in pairs)
            for peer in (self.bench, *self.peers):
                peer.ask(messages.Merge(round, parts))
            assert self.bench.engine._public is not None
            self.snapshot = snapshot.pack(self.bench.engine._public, self.layout)

    def audit(
        self,
        state: PublicState,
        peer: _Peer,
        trained: messages.Trained,
        segment: int,
        again: messages.Reencoded,
    ) -> Audited:
        """What the verifier finds. `again`: its encoding of the peer's round, the same for all segments."""
        opened = peer.ask(messages.OpenSegment(state.round, segment))
        payload, trace, weight = payload_hash(trained.payload), trained.trace, self.spec.round_tokens
        contribution = Contribution(peer.key.public, weight, payload, payload, NONCE, trace.root, "none")
        params = trace.borders[0].params
        place = Place(self.spec, state.round, segment, contribution, params)
        mine = self.bench.ask(messages.Rerun(self.snapshot, peer.member, segment, opened.start))
        border = read_border(trace.opened(segment)[0])
        is_start = chair.is_start(place, self.layout, border, opened.start)
        audit = chair.begun(place, self.layout, self.tolerance, border, opened.start, state.params, mine)
        shown = chair.Shown(trace.opened(*needed(segment, place.segments)), opened.end, opened.last)
        found = chair.judge(audit, shown, again) if is_start else Found(Finding.FALSE, EXCESS_CAP)
        return Audited(peer.kind, found, not chair.is_same(mine.border, trace.borders[segment + 1]))
