"""The gauging process: one question, its trace, or one reason."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from farflung.app import gauging
from farflung.app.gauging import gauge
from farflung.core.codec import decode, encode
from farflung.core.errors import FarflungError, RunError, UsageError
from farflung.job.load import load
from farflung.plan.footprint.traced import Mode, Traced
from farflung.train.gauge.request import Gauge
from farflung.train.io.worker import Channel
from farflung.train.messages import Broken

SPEC = load(None, preset="tiny").spec
TRACED = Traced(2, 0, 4, 100, 8, 500, 100, 25, (60, 40), 0, (), (Mode("none", 10, (), 20, 30, 90, 1000),))


class Played:
    """A worker process that is a thread, and says what it is told to."""

    def __init__(self, say: Callable[[Channel], None]) -> None:
        self.socket, theirs = socket.socketpair()
        self.ended = False
        self.asked: Gauge | None = None
        self._thread = threading.Thread(target=self._run, args=(theirs, say))
        self._thread.start()

    def _run(self, theirs: socket.socket, say: Callable[[Channel], None]) -> None:
        with theirs:
            channel = Channel(theirs.fileno(), theirs.fileno())
            raw = channel.read()
            if raw is not None:
                self.asked = decode(raw, Gauge, len(raw))
                say(channel)

    def terminate(self, grace: float) -> None:
        self.ended = True
        self.socket.close()
        self._thread.join(10)


def played(monkeypatch: pytest.MonkeyPatch, say: Callable[[Channel], None]) -> list[Played]:
    started: list[Played] = []

    def start(*_: object, **__: object) -> Played:
        started.append(Played(say))
        return started[-1]

    monkeypatch.setattr(gauging, "start_worker", start)
    return started


def test_a_trace_is_the_processs_answer_and_the_process_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    started = played(monkeypatch, lambda channel: channel.write(encode(TRACED)))
    assert gauge(SPEC, b"source") == TRACED
    assert started[0].ended
    assert started[0].asked == Gauge(SPEC, b"source")


def test_a_trace_that_makes_no_sense_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    absurd = Traced(2, 0, 4, -1, 8, 500, 100, 25, (60, 40), 0, (), TRACED.modes)
    started = played(monkeypatch, lambda channel: channel.write(encode(absurd)))
    with pytest.raises(UsageError, match="FF-PLAN-056"):
        gauge(SPEC, b"")
    assert started[0].ended


def test_a_reason_is_told_as_the_process_told_it(monkeypatch: pytest.MonkeyPatch) -> None:
    played(
        monkeypatch,
        lambda channel: channel.write(encode(Broken("FF-TRAIN-052", "it failed", "here", "mend"))),
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
    assert over.wait(10)


def test_words_that_are_no_trace_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    started = played(monkeypatch, lambda channel: channel.write(b"\x93no message"))
    with pytest.raises(FarflungError):
        gauge(SPEC, b"")
    assert started[0].ended


def test_the_process_traces_in_its_sandbox() -> None:
    found = gauge(SPEC, b"")
    assert found.rows == SPEC.batch
    assert found.ran_rows == 0
    assert {mode.recompute for mode in found.modes} == {"none", "selective", "full"}
