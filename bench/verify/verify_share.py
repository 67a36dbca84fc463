"""Cases of bench/verify.py: what audits cost verifiers, workers and lines, on the default job."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from reporting import Row, at_most, told

from farflung.core.crypto import local_key
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.job import dataset
from farflung.job.io.job_files import read_dataset
from farflung.job.job_loader import load as read_job
from farflung.job.spec import JobSpec
from farflung.plan import audit_costs
from farflung.train import public_state, segments, worker_messages
from farflung.train.engine import WorkerEngine

NEW = 12  # rounds that count as those of a new node: as many as the default job has


def seconds(run: Callable[[], object]) -> float:
    """Of the processor, of one call."""
    before = time.process_time()
    run()
    return time.process_time() - before


def share(quick: bool) -> Iterator[Row]:
    """Rounds of one peer, and audits of its segments, on one thread."""
    spec = read_job(None, flags={}).spec
    key = local_key(1, "bench").public
    packed = dataset.pack(read_dataset(spec.data, spec.model, Path()))
    engine, verifier = (WorkerEngine(lambda: 0.0) for _ in range(2))
    for each in (engine, verifier):
        each.handle(worker_messages.SetupCommand(spec, packed, b"", 0, key))
    start = engine.handle(worker_messages.InitializeCommand())
    engine.handle(worker_messages.LoadCommand(0, start.snapshot, b""))
    round_seconds, committing, examined, besides, sizes = [], [], [], [], []
    for turn in range(2 if quick else 4):
        round_seconds.append(seconds(lambda: engine.handle(worker_messages.TrainCommand(0))))
        committing.append(seconds(partial(committed, engine)))
        for segment in range(spec.segments):
            opened = engine.handle(worker_messages.OpenSegmentCommand(0, segment))
            shown = opened.last, opened.start
            examined.append(seconds(partial(audited, verifier, start.snapshot, segment, *shown, key)))
            besides.append(seconds(partial(measured, verifier, start.snapshot, segment, opened.end)))
            sizes.append(len(opened.start) + (len(opened.last) if segment < spec.segments - 1 else 0))
        if not turn:  # nothing was warm
            round_seconds, committing, examined, besides, sizes = [], [], [], [], []
    yield from told_of(spec, *map(statistics.median, (round_seconds, committing, examined, besides)))
    moved = audit_costs.moved(spec, audit_costs.expected(spec), lambda vectors: 4.0 * vectors * size_of(engine))
    yield told("bytes of states, an audit of round 0", statistics.mean(sizes), "B", "start and last; no optimizer yet")
    count = audit_costs.expected(spec).count
    yield told("bytes of states, an audit", moved / count, "B", "computed for the default run (plan.audits)")


def told_of(spec: JobSpec, round: float, committing: float, examined: float, besides: float) -> Iterator[Row]:
    """Shares of the work, from seconds of a round, of what commits to it, and of one audit."""
    rate, known = spec.audit.rate, spec.audit.probation
    about = f"an audit takes {examined / round:.3f} of a round's processor time; rate {rate:g}"
    yield at_most("verifiers, steady state", rate * examined / round, "of the work", 0.02, about)
    about = "what measuring distances adds where verifiers are of another class, NumPy's threads included"
    yield told("verifiers, another class", rate * besides / round, "of the work", about)
    new = (known + rate * (NEW - known)) / NEW
    about = f"the first {known} of its first {NEW} rounds are always drawn"
    yield at_most("verifiers, new node", new * examined / round, "of the work", 0.05, about)
    about = "hashing the states at all borders, against the round's steps"
    yield at_most("worker's overhead", committing / (round - committing), "of the steps", 0.02, about)


def committed(engine: WorkerEngine) -> None:
    """What a round costs for being checked: the states at its borders, hashed."""
    job, made = engine._job, engine._made
    assert job is not None
    assert made is not None
    layout, optimizer = job.model.layout, job.spec.optimizer
    segments.borders(layout, optimizer, made.states, made.after.residual, made.after.offset)


def audited(verifier: WorkerEngine, before: bytes, segment: int, last: bytes, start: bytes, key: PeerId) -> None:
    """Trains the segment again and encodes again; equal roots end the audit."""
    verifier.handle(worker_messages.RerunCommand(before, 0, segment, start))
    verifier.handle(worker_messages.ReencodeCommand(before, key, last))


def measured(verifier: WorkerEngine, before: bytes, segment: int, end: bytes) -> None:
    """What an audit of another class takes besides: the claimed end, checked and measured against another one."""
    job = verifier._job
    assert job is not None
    layout, optimizer = job.model.layout, job.spec.optimizer
    claimed = segments.unpack(end, optimizer, layout, 0)
    segments.border(layout, optimizer, segment + 1, claimed, ZERO_HASH)
    both = segments.compared(claimed, optimizer)
    segments.distances(layout, public_state.unpack(before, layout).params, both, {n: v + 1 for n, v in both.items()})


def size_of(engine: WorkerEngine) -> int:
    """Elements of one vector."""
    assert engine._job is not None
    return engine._job.model.layout.size
