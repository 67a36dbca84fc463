"""Measures a job's memory by tracing one step of its own module in the sandbox, and validates the trace."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import sys
from collections.abc import AsyncIterator
from typing import Final, TypeVar

import msgspec

from farflung.core import limits
from farflung.core.errors import FarflungError, RunError
from farflung.core.events import WarningEvent
from farflung.core.io.extras import require
from farflung.core.units import Bytes
from farflung.host.io import temporary_folders
from farflung.host.io.machine_probe import memory_bytes
from farflung.host.io.worker_process import PYTHON, start_worker, tail
from farflung.host.worker_limits import WorkerLimits, limits_for, unplanned_limits
from farflung.job.spec import JobSpec
from farflung.peers.program.stall_watch import Tell, watched
from farflung.peers.rundir.journal import EventEmitter
from farflung.plan.heap import HeapGrowth, unmeasured
from farflung.plan.heap import check as check_risen
from farflung.plan.step_trace import Recomputation, StepTrace, check, unanswered, way_of
from farflung.plan.worker_memory import StepMemory
from farflung.train.gauge.request import HeapMemoryRequest, Request, StepMemoryRequest
from farflung.train.io import memory_process
from farflung.train.io.worker_pipe import GONE, WorkerPipe
from farflung.train.reply_bounds import ReplyBound

Answer = TypeVar("Answer", StepTrace, HeapGrowth)

CPU_SECONDS: Final = 600  # of one answer: some five for a GPT of 4 layers
SECONDS: Final = 1200.0  # the same on a busy machine, and for a model that sleeps
MOST_FLOP: Final = 4e11  # of a step that is made to see what the heap keeps: three take some ten seconds
LEAST_BYTES: Final = 64_000_000  # of a step: beside less, what a process takes anyhow is seen and not the heap
VALUES: Final = 16 * limits.TENSORS  # of an answer: a name and a shape for each tensor, and figures for each block
SHARE: Final = 0.5  # of this machine's usable memory, what such a step may take


class MeasuredStep(msgspec.Struct, frozen=True):
    """A traced step on this computer; `unseen`: why what the heap keeps was not measured; `way`: the job's own."""

    traced: StepTrace
    risen: HeapGrowth | None
    unseen: str = ""
    way: Recomputation = Recomputation.NONE

    @property
    def step(self) -> StepMemory:
        """As plan.worker_memory takes it."""
        peak = Bytes(self.traced.peak(self.way))
        return StepMemory(peak) if self.risen is None else StepMemory(peak, self.risen.factor)


async def gauge(spec: JobSpec, module: bytes, seconds: float = SECONDS, tell: Tell = lambda _: None) -> StepTrace:
    """The trace of a job's step; `module` is the source of its model, empty for a built-in one. `tell` hears now and
    then how many seconds it has taken.

    Raises RunError FF-APP-488 (it stalled) or with the process' own code, or FF-PLAN-057 (it ended, or did not answer
    within `seconds`), UsageError FF-PLAN-056 (what it says makes no sense), FF-PLAN-052 (no block to recompute), and
    what host.io.process.start_worker raises.
    """
    bounds = unplanned_limits(memory_bytes(), CPU_SECONDS)
    found = await _answer(StepMemoryRequest(spec, module), StepTrace, bounds, seconds, tell)
    check(found)
    found.mode(way_of(spec))
    return found


async def heap(spec: JobSpec, module: bytes, traced: StepTrace, usable: int, seconds: float = SECONDS) -> HeapGrowth:
    """What the heap keeps beside a step's tensors, by steps of half of the batch, or of less of a large model.

    `usable`: this machine's memory, bytes. Raises what `gauge` raises, RunError FF-PLAN-058 (it cannot be measured).
    """
    way = way_of(spec)
    peak, each = traced.peak(way), traced.mode(way).flop / traced.rows
    rows = min(max(min(traced.rows, 2), math.ceil(traced.rows / 2)), int(MOST_FLOP / max(1.0, each)))
    if peak < LEAST_BYTES:
        raise unmeasured("a step this small is below what a process takes anyway")
    if rows < 1 or peak > SHARE * usable:
        raise unmeasured("a step of this model is too much for this machine")
    bounds = limits_for(peak, CPU_SECONDS)
    found = await _answer(HeapMemoryRequest(spec, module, rows), HeapGrowth, bounds, seconds)
    check_risen(found)
    return found


async def stepped(spec: JobSpec, module: bytes, usable: int, traced: StepTrace | None = None) -> MeasuredStep:
    """Both; where the heap cannot be measured, why not. Raises what `gauge` raises; `traced`: what it said before."""
    found = traced or await gauge(spec, module)
    try:
        return MeasuredStep(found, await heap(spec, module, found, usable), way=way_of(spec))
    except RunError as error:
        return MeasuredStep(found, None, error.cause or error.message, way_of(spec))


@contextlib.asynccontextmanager
async def beside(
    spec: JobSpec, module: bytes, journal: EventEmitter, *, is_wanted: bool
) -> AsyncIterator[asyncio.Task[StepMemory | None]]:
    """For a run, while its network starts; None, and a warning, where it cannot be told. What is left ends with it."""
    task = asyncio.create_task(_or_warned(spec, module, journal) if is_wanted else _nothing())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _nothing() -> None:
    return None


async def _or_warned(spec: JobSpec, module: bytes, journal: EventEmitter) -> StepMemory | None:
    try:
        return (await stepped(spec, module, memory_bytes())).step
    except FarflungError as error:
        text = f"memory is planned from the shapes of the module's tensors: {error.message}: {error.cause}"
        journal.emit(WarningEvent(code=error.code, message=text[:300], hint=error.hint or ""))
        return None


async def _answer(
    request: Request, kind: type[Answer], bounds: WorkerLimits, seconds: float, tell: Tell = lambda _: None
) -> Answer:
    """What a process in the sandbox says; of it only that it has this form. The process is gone when this returns."""
    require("torch")
    bound = ReplyBound(kind, limits.CONTROL_BYTES, VALUES)
    folder = temporary_folders.make("farflung-gauger-")
    log = folder / "gauger.log"
    try:
        worker = start_worker(folder / "scratch", log, bounds, command=(*PYTHON, "-m", memory_process.MODULE))
        try:
            async with asyncio.timeout(seconds):
                answer = await watched(worker, WorkerPipe(worker.socket, lambda _: bound).request(request), tell)
        except TimeoutError:
            raise unanswered("it did not answer in time") from None
        except RunError as error:
            worker.terminate(0)  # its log is complete then
            if error.code != GONE:
                if os.environ.get("FARFLUNG_DEBUG"):  # the process has written its traceback
                    sys.stderr.write(tail(log).decode("utf-8", "replace"))
                raise
            said = tail(log).decode("utf-8", "replace").strip()[-200:]
            raise unanswered(said or f"its process said nothing: {error.cause}") from None
        finally:
            worker.terminate(0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert isinstance(answer, kind)
    return answer
