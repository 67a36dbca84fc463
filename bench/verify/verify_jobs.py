"""Small jobs in one process for bench/verify.py: an engine that holds one, its profile, and segments of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from farflung.core.crypto import local_key
from farflung.job import dataset
from farflung.job.spec import JobSpec, ModelSpec, OptimizerSpec, ScheduleSpec, SyncSpec, Tolerance
from farflung.train import worker_messages
from farflung.train.engine import WorkerEngine
from farflung.train.round_work import WorkerJob
from farflung.train.segments import BorderState
from farflung.train.shortcuts import SegmentTask, Shares
from farflung.verify.audit_verdict import compare
from farflung.verify.tolerance import tolerance_of

SMALL = JobSpec(
    batch=8,
    model=ModelSpec(layers=1, width=16, heads=2, context=16),
    optimizer=OptimizerSpec(lr=1e-2),
    schedule=ScheduleSpec(warmup=4),
    sync=SyncSpec(steps=20, topk=32, chunk=256),
)
# Wide enough that two threads divide its sums, short enough for ten thousand segments.
WIDE = msgspec.structs.replace(
    SMALL, model=ModelSpec(layers=1, width=32, heads=2, context=64), sync=SyncSpec(steps=10, topk=32, chunk=256)
)
OPTIMIZERS = (OptimizerSpec(lr=1e-2), OptimizerSpec(name="adamw", lr=3e-3), OptimizerSpec(name="sgd", lr=0.1))


class Profiled(NamedTuple):
    """A job at its start, how far honest work on it lies apart, and the tolerances that follow."""

    job: WorkerJob
    noise: Shares
    limits: Tolerance

    def excess(self, distances: Shares) -> float:
        """The worst tensor's distance in tolerances."""
        return compare(self.limits, self.job.model.layout, dict(distances)) / 1000

    def against_noise(self, distances: Shares) -> float:
        """The worst tensor's distance in honest distances of the profile run, noise tensors left out."""
        rows = zip(distances, self.noise, self.limits.limits, strict=True)
        return max(
            far / max(near, 1e-7)
            for (_, fars), (_, nears), (_, limits) in rows
            for far, near, limit in zip(fars, nears, limits, strict=True)
            if limit
        )


def text() -> bytes:
    """A packed data set: lines of code that follow a rule with numbers in it."""
    lines = [f"def f{i % 97}(x):\n    return x * {i * i % 89} + {i % 13}\n".encode() for i in range(1200)]
    tokens = np.frombuffer(b"".join(lines), np.uint8)
    return dataset.pack(dataset.Dataset(tokens[:-4000].copy(), tokens[-4000:].copy()))


def opened(spec: JobSpec) -> WorkerEngine:
    """An engine that holds the job."""
    engine = WorkerEngine(lambda: 0.0)
    engine.handle(worker_messages.SetupCommand(spec, text(), b"", 0, local_key(spec.seed, "bench").public))
    return engine


def profiled(spec: JobSpec) -> Profiled:
    """The job, after its profile run."""
    engine = opened(spec)
    start = engine.handle(worker_messages.InitializeCommand())
    found = engine.handle(worker_messages.ProfileCommand(start.snapshot))
    return Profiled(engine._job, found.noise, tolerance_of(found.noise))


def chain(job: WorkerJob, count: int) -> Iterator[tuple[SegmentTask, BorderState]]:
    """The first segments of a peer that trains alone, round after round, each with its honest end."""
    spec, borders = job.spec, job.spec.borders
    at = BorderState(0, 0, job.start)
    for place in range(count):
        round, index = divmod(place, spec.segments)
        segment = SegmentTask(job, spec, replace(at, round=round), 0, range(borders[index], borders[index + 1]))
        at = segment.honest().end
        yield segment, at
