"""What honesty costs a worker, measured beside the work itself: roots, submission checks, the sandbox, the start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from farflung.core.crypto import local_key
from farflung.core.tensor_layout import TensorLayout
from farflung.host import sandbox
from farflung.host.io.sandbox_tiers import strongest
from farflung.host.io.worker_process import WorkerProcess, start_worker
from farflung.job import dataset
from farflung.job.io.job_files import read_dataset
from farflung.job.spec import DataSpec, JobSpec
from farflung.train import public_state, segments, worker_messages
from farflung.train.contribution_trace import ContributionTrace
from farflung.train.engine import WorkerEngine
from farflung.train.io.worker_pipe import WorkerPipe
from farflung.train.run_log import Contribution
from farflung.verify.io.checker import CheckerState
from farflung.verify.submission_checks import (
    CheckerSetup,
    PayloadCheckReply,
    PayloadCheckRequest,
    RoundFlagsRequest,
    TrainingStatement,
)

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


def _setup(data: bytes, member: int) -> worker_messages.SetupCommand:
    return worker_messages.SetupCommand(JobSpec(), data, b"", member, local_key(0, "bench", member).public)


def inside() -> Inside:
    """One round of the default model for each member, then all of its roots once more, then its checks."""
    data, made = packed(), list[tuple[worker_messages.SetupCommand, worker_messages.TrainResult]]()
    training = hashing = 0.0
    public: Any = None
    for member in range(MEMBERS):
        engine, setup = WorkerEngine(time.process_time), _setup(data, member)
        engine.handle(setup)
        public = engine.handle(worker_messages.InitializeCommand())
        engine.handle(worker_messages.LoadCommand(0, public.snapshot, b""))
        began = time.process_time()
        trained = engine.handle(worker_messages.TrainCommand(0))
        training += time.process_time() - began
        assert isinstance(trained, worker_messages.TrainResult)
        made.append((setup, trained))
        hashing += _hashing(engine, public, trained)
    return Inside(training, hashing, _checking(public, made))


def _hashing(engine: WorkerEngine, public: Any, trained: worker_messages.TrainResult) -> float:
    """The roots of all borders, and the tree over them, as the worker made them."""
    held, layout, optimizer = engine._made, TensorLayout.of(dict(public.shapes)), JobSpec().optimizer
    assert held is not None
    began = time.process_time()
    borders = segments.borders(layout, optimizer, held.states, held.after.residual, held.after.offset)
    root = ContributionTrace(borders, trained.trace.statistics, trained.trace.payload).root
    took = time.process_time() - began
    assert root == trained.trace.root
    return took


def _checking(public: Any, made: Sequence[tuple[worker_messages.SetupCommand, worker_messages.TrainResult]]) -> float:
    spec, desk, layout = JobSpec(), CheckerState(), TensorLayout.of(dict(public.shapes))
    desk.handle(CheckerSetup(spec, layout, spec.round_tokens))
    root = public_state.unpack(public.snapshot, layout).root(layout)
    began = time.process_time()
    for setup, trained in made:
        trace = trained.trace
        c = Contribution(setup.peer, spec.round_tokens, trace.payload, trace.payload, trace.payload, trace.root, "")
        said = TrainingStatement(trace.statistics.losses, spec.round_tokens)
        checked = desk.handle(PayloadCheckRequest(0, root, c, said, trained.payload))
        assert isinstance(checked, PayloadCheckReply)
        assert not checked.code, checked.words
    desk.handle(RoundFlagsRequest(0, tuple(setup.peer for setup, _ in made)))
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
            await pipes[turn % 2].request(worker_messages.TrainCommand(0))
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
    public = await pipe.request(worker_messages.InitializeCommand())
    assert isinstance(public, worker_messages.StateResult)
    await pipe.request(worker_messages.LoadCommand(0, public.snapshot, b""))
