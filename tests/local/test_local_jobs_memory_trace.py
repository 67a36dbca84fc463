"""The gauging process: one question, its trace, or one reason."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from msgspec.structs import replace

from farflung.core.codec import decode, encode
from farflung.core.errors import FarflungError, RunError, UsageError
from farflung.core.events import AnyEvent, WarningEvent
from farflung.core.tensor_layout import TensorLayout
from farflung.job.job_loader import load
from farflung.job.spec import JobSpec
from farflung.local.jobs import memory_trace
from farflung.local.jobs.memory_trace import LEAST_BYTES, MeasuredStep
from farflung.plan.heap import HeapGrowth
from farflung.plan.step_trace import RecomputeTrace, StepTrace
from farflung.plan.worker_memory import HEAP_SLACK
from farflung.train.gauge.request import HeapMemoryRequest, Request, StepMemoryRequest
from farflung.train.io.worker import WorkerChannel
from farflung.train.worker_messages import WorkerFailure

SPEC = load(None, preset="tiny").spec
LAYOUT = TensorLayout.of({"w": (5, 5)})
MODES = (RecomputeTrace("none", 10, (), 20, 30, 90, 1000, (0, 0), (0, 0)),)
TRACED = StepTrace(2, 0, 4, 100, 8, 500, 100, 25, (60, 40), 0, LAYOUT, (), MODES, 0, ())


def gauge(spec: JobSpec, module: bytes, seconds: float = 60.0) -> StepTrace:
    return asyncio.run(memory_trace.gauge(spec, module, seconds))


def heap(traced: StepTrace, usable: int = 1 << 36) -> HeapGrowth:
    return asyncio.run(memory_trace.heap(SPEC, b"", traced, usable, 60.0))


class Played:
    """A worker process that is a thread, and says what it is told to."""

    def __init__(self, say: Callable[[WorkerChannel], None]) -> None:
        self.socket, theirs = socket.socketpair()
        self.ended = False
        self.asked: Request | None = None
        self._thread = threading.Thread(target=self._run, args=(theirs, say))
        self._thread.start()

    def _run(self, theirs: socket.socket, say: Callable[[WorkerChannel], None]) -> None:
        with theirs:
            channel = WorkerChannel(theirs.fileno(), theirs.fileno())
            raw = channel.read()
            if raw is not None:
                self.asked = decode(raw, cast(Any, Request), len(raw))
                say(channel)

    def usage(self) -> dict[str, float]:
        return {"cpu_seconds": 0.0}

    def terminate(self, grace: float) -> None:
        self.ended = True
        self.socket.close()
        self._thread.join(10)


def played(monkeypatch: pytest.MonkeyPatch, say: Callable[[WorkerChannel], None]) -> list[Played]:
    started: list[Played] = []

    def start(*_: object, **__: object) -> Played:
        started.append(Played(say))
        return started[-1]

    monkeypatch.setattr(memory_trace, "start_worker", start)
    return started


def test_a_trace_is_the_processs_answer_and_the_process_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    started = played(monkeypatch, lambda channel: channel.write(encode(TRACED)))
    assert gauge(SPEC, b"source") == TRACED
    assert started[0].ended
    assert started[0].asked == StepMemoryRequest(SPEC, b"source")


def test_a_trace_that_makes_no_sense_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    absurd = replace(TRACED, parameters=-1)
    started = played(monkeypatch, lambda channel: channel.write(encode(absurd)))
    with pytest.raises(UsageError, match="FF-PLAN-056"):
        gauge(SPEC, b"")
    assert started[0].ended


def test_a_reason_is_told_as_the_process_told_it(monkeypatch: pytest.MonkeyPatch) -> None:
    played(
        monkeypatch, lambda channel: channel.write(encode(WorkerFailure("FF-TRAIN-052", "it failed", "here", "mend")))
    )
    with pytest.raises(RunError, match="FF-TRAIN-052: it failed") as told:
        gauge(SPEC, b"")
    assert told.value.hint == "mend"


def test_a_process_that_ends_without_an_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    started = played(monkeypatch, lambda channel: None)
    with pytest.raises(RunError, match="FF-PLAN-057"):
        gauge(SPEC, b"")
    assert started[0].ended


def test_a_process_that_sleeps_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    started = played(monkeypatch, lambda channel: over.set() if channel.read() is None else None)
    with pytest.raises(RunError, match="did not answer in time"):
        gauge(SPEC, b"", seconds=0.05)
    assert started[0].ended
    assert over.wait(100)


def test_words_that_are_no_trace_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    started = played(monkeypatch, lambda channel: channel.write(b"\x93no message"))
    with pytest.raises(FarflungError):
        gauge(SPEC, b"")
    assert started[0].ended


@pytest.mark.whole
def test_the_process_traces_in_its_sandbox() -> None:
    found = gauge(SPEC, b"")
    assert found.rows == SPEC.batch
    assert found.ran_rows == 0
    assert {mode.recompute for mode in found.modes} == {"none", "selective", "full"}


LARGE = replace(TRACED, rows=16, resident=LEAST_BYTES)


def test_the_heap_is_asked_for_on_half_of_the_rows_or_as_many_as_are_soon_done(monkeypatch: pytest.MonkeyPatch) -> None:
    found = HeapGrowth(8, 150, 100)
    started = played(monkeypatch, lambda channel: channel.write(encode(found)))
    assert heap(LARGE) == found
    assert started[0].asked == HeapMemoryRequest(SPEC, b"", 8)
    slow = replace(LARGE, modes=(replace(MODES[0], flop=int(16 * memory_trace.MOST_FLOP / 3)),))
    assert heap(slow) == found
    assert started[1].asked == HeapMemoryRequest(SPEC, b"", 3)
    assert all(each.ended for each in started)


@pytest.mark.parametrize(
    ("traced", "usable"),
    [(TRACED, 1 << 36), (LARGE, LEAST_BYTES), (replace(LARGE, modes=(replace(MODES[0], flop=int(1e15)),)), 1 << 36)],
    ids=["too small to be seen", "more than fits", "takes too long"],
)
def test_what_cannot_be_measured_is_not_begun(monkeypatch: pytest.MonkeyPatch, traced: StepTrace, usable: int) -> None:
    started = played(monkeypatch, lambda channel: None)
    with pytest.raises(RunError, match="FF-PLAN-058"):
        heap(traced, usable)
    assert not started


@pytest.mark.parametrize(
    "found", [HeapGrowth(8, 0, 100), HeapGrowth(8, 100, -1), HeapGrowth(0, 100, 100), HeapGrowth(8, 9000, 100)], ids=str
)
def test_a_heap_that_makes_no_sense_is_not_believed(monkeypatch: pytest.MonkeyPatch, found: HeapGrowth) -> None:
    played(monkeypatch, lambda channel: channel.write(encode(found)))
    with pytest.raises(UsageError, match="FF-PLAN-056"):
        heap(LARGE)


def test_a_trace_without_a_heap_is_still_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, lambda channel: channel.write(encode(TRACED)))
    found = asyncio.run(memory_trace.stepped(SPEC, b"", 1 << 36))
    assert (found.traced, found.risen) == (TRACED, None)
    assert "small" in found.unseen
    assert (found.step.peak, found.step.heap) == (TRACED.peak(), HEAP_SLACK)
    assert MeasuredStep(TRACED, HeapGrowth(8, 150, 100)).step.heap == 1.5


class Told:
    def __init__(self) -> None:
        self.events: list[AnyEvent] = []

    def emit(self, event: AnyEvent, *, durable: bool = False) -> None:
        self.events.append(event)


def test_beside_a_run_a_model_that_cannot_be_traced_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    played(
        monkeypatch, lambda channel: channel.write(encode(WorkerFailure("FF-TRAIN-052", "it failed", "here", "mend")))
    )
    told = Told()

    async def both() -> object:
        async with memory_trace.beside(SPEC, b"", told, is_wanted=True) as step:
            return await step

    assert asyncio.run(both()) is None
    (warned,) = told.events
    assert isinstance(warned, WarningEvent)
    assert (warned.code, warned.hint) == ("FF-TRAIN-052", "mend")


def test_a_run_that_is_over_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, over = threading.Event(), threading.Event()

    def silent(channel: WorkerChannel) -> None:
        asked.set()
        if channel.read() is None:
            over.set()

    started = played(monkeypatch, silent)

    async def cancelled() -> None:
        async with memory_trace.beside(SPEC, b"", Told(), is_wanted=True):
            assert await asyncio.to_thread(asked.wait, 10)

    asyncio.run(cancelled())
    assert started[0].ended
    assert over.wait(100)


@pytest.mark.whole
def test_the_process_measures_its_heap_in_its_sandbox() -> None:
    """Resident memory holds the tensors, all of them at once, and less than a few times as much."""
    spec = load(None, flags={"model.context": "128", "batch": "24"}).spec
    traced = gauge(spec, b"")
    assert traced.peak() > LEAST_BYTES
    found = asyncio.run(memory_trace.heap(spec, b"", traced, 1 << 36))
    assert found.rows == 12
    assert found.live < traced.peak()
    assert 0.9 < found.factor < 3


def test_an_error_shows_its_traceback_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = load(None, preset="tiny", flags={"model.kind": "module", "model.module": "m.py:build"}).spec
    monkeypatch.setenv("FARFLUNG_DEBUG", "1")
    with pytest.raises(RunError, match="FF-TRAIN-052"):
        gauge(own, b"def build():\n    raise ValueError('my own bug')\n")
    shown = capsys.readouterr().err
    assert "Traceback (most recent call last)" in shown
    assert "my own bug" in shown
