"""What honesty costs a worker, measured beside the work itself: roots, submission checks, the sandbox, the start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from farflung.core.crypto import local_key
from farflung.core.layout import Layout
from farflung.host import sandbox
from farflung.host.io.process import WorkerProcess, start_worker
from farflung.host.io.tiers import strongest
from farflung.job import dataset
from farflung.job.io.read import read_dataset
from farflung.job.spec import DataSpec, JobSpec
from farflung.train import messages, segments, snapshot
from farflung.train.engine import Engine
from farflung.train.io.pipe import WorkerPipe
from farflung.train.roundlog import Contribution
from farflung.train.trace import Trace
from farflung.verify.check import Check, Checked, CheckerSetup, Conclude, Statement
from farflung.verify.io.checker import Desk

MEMBERS = 2
TOKENS = 500_000


class Inside(NamedTuple):
    """Processor seconds of one process, for rounds of MEMBERS peers."""

    training: float  # hashing included
    hashing: float
    checking: float


def packed() -> bytes:
    """The default job's data, fewer of them."""
    spec = JobSpec()
    data = read_dataset(DataSpec(limit=TOKENS), spec.model, Path())
    return dataset.pack(data)


def _setup(data: bytes, member: int) -> messages.Setup:
    return messages.Setup(JobSpec(), data, b"", member, local_key(0, "bench", member).public)


def inside() -> Inside:
    """One round of the default model for each member, then all of its roots once more, then its checks."""
    data, made = packed(), list[tuple[messages.Setup, messages.Trained]]()
    training = hashing = 0.0
    public: Any = None
    for member in range(MEMBERS):
        engine, setup = Engine(time.process_time), _setup(data, member)
        engine.handle(setup)
        public = engine.handle(messages.Initialize())
        engine.handle(messages.Load(0, public.snapshot, b""))
        began = time.process_time()
        trained = engine.handle(messages.Train(0))
        training += time.process_time() - began
        assert isinstance(trained, messages.Trained)
        made.append((setup, trained))
        hashing += _hashing(engine, public, trained)
    return Inside(training, hashing, _checking(public, made))


def _hashing(engine: Engine, public: Any, trained: messages.Trained) -> float:
    """The roots of all borders, and the tree over them, as the worker made them."""
    held, layout, optimizer = engine._made, Layout.of(dict(public.shapes)), JobSpec().optimizer
    assert held is not None
    began = time.process_time()
    borders = segments.borders(layout, optimizer, held.states, held.after.residual, held.after.offset)
    root = Trace(borders, trained.trace.statistics, trained.trace.payload).root
    took = time.process_time() - began
    assert root == trained.trace.root
    return took


def _checking(public: Any, made: Sequence[tuple[messages.Setup, messages.Trained]]) -> float:
    spec, desk, layout = JobSpec(), Desk(), Layout.of(dict(public.shapes))
    desk.handle(CheckerSetup(spec, layout, spec.round_tokens))
    root = snapshot.unpack(public.snapshot, layout).root(layout)
    began = time.process_time()
    for setup, trained in made:
        trace = trained.trace
        c = Contribution(
            setup.peer, spec.round_tokens, trace.payload, trace.payload, trace.payload, trace.root, ""
        )
        said = Statement(trace.statistics.losses, spec.round_tokens)
        checked = desk.handle(Check(0, root, c, said, trained.payload))
        assert isinstance(checked, Checked)
        assert not checked.code, checked.words
    desk.handle(Conclude(0, tuple(setup.peer for setup, _ in made)))
    return time.process_time() - began


class Confined(NamedTuple):
    """Processor seconds of workers that train the same rounds in two tiers, and of a start up to its first round."""

    tier: str
    strong: float
    limits: float
    start: float


async def confined(folder: Path, rounds: int) -> Confined:
    """The strongest tier here against `limits`, in turn, so that both see the same machine."""
    data, tiers = packed(), (strongest().name, sandbox.LIMITS)
    workers = [_start(folder / str(i), tier) for i, tier in enumerate(tiers)]
    pipes = [WorkerPipe(worker.socket) for worker in workers]
    try:
        await asyncio.gather(*(_ready(pipe, data) for pipe in pipes))
        before = [worker.usage()["cpu_seconds"] for worker in workers]
        for turn in range(2 * rounds):
            await pipes[turn % 2].request(messages.Train(0))
        after = [worker.usage()["cpu_seconds"] for worker in workers]
    finally:
        for worker in workers:
            worker.terminate()
    strong, limits = (b - a for a, b in zip(before, after, strict=True))
    return Confined(tiers[0], strong, limits, before[0])


def _start(folder: Path, tier: str) -> WorkerProcess:
    folder.mkdir()
    return start_worker(folder / "scratch", folder / "worker.log", tier=tier)


async def _ready(pipe: WorkerPipe, data: bytes) -> None:
    await pipe.request(_setup(data, 0))
    public = await pipe.request(messages.Initialize())
    assert isinstance(public, messages.State)
    await pipe.request(messages.Load(0, public.snapshot, b""))
