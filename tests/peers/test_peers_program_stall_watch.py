"""A model that never returns: the wait is bounded, and says meanwhile how long it takes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from farflung.core.errors import RunError
from farflung.local.model import text_generation
from farflung.peers.node.agent import NodeAgent
from farflung.peers.process.interrupts import InterruptHandler
from farflung.peers.program import stall_watch
from farflung.peers.program.stall_watch import NOTICE_SECONDS, STALL_SECONDS, StallWatch, watched

IDLE, BUSY, STARVED = 0.0, 1.0, 0.02  # processor seconds a second; the last: among many others


@pytest.mark.parametrize(
    ("rate", "ends"), [(IDLE, STALL_SECONDS), (0.005, STALL_SECONDS), (STARVED, None), (BUSY, None)]
)
def test_who_uses_no_processor_stalls_and_who_is_starved_does_not(rate: float, ends: float | None) -> None:
    watch = StallWatch(100.0, 7.0)
    found = next((t for t in range(4000) if watch.is_stalled(100.0 + t, 7.0 + rate * t)), None)
    assert found == ends


def test_a_model_that_computes_first_and_then_sleeps_stalls_after_that() -> None:
    watch = StallWatch(0.0, 0.0)
    found = next(t for t in range(4000) if watch.is_stalled(t, float(min(t, 1000))))
    assert 1000 + STALL_SECONDS - 2 <= found <= 1000 + STALL_SECONDS + 2


def test_notices_become_rarer() -> None:
    watch = StallWatch(0.0, 0.0)
    told = [t for t in range(1000) if watch.notice(float(t)) is not None]
    assert told == [NOTICE_SECONDS * factor for factor in (1, 2, 4, 8, 16)]


class Sleeper:
    """A process that uses nothing."""

    def usage(self) -> dict[str, float]:
        return {"cpu_seconds": 3.0}


class Burner:
    """A process that computes without an end."""

    def __init__(self) -> None:
        self.used = 0.0

    def usage(self) -> dict[str, float]:
        self.used += 60.0
        return {"cpu_seconds": self.used}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks a thousand times as often as in life, on a clock that runs a minute a look."""
    clock = iter(range(0, 10**6, 60))
    monkeypatch.setattr(stall_watch, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(stall_watch, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))


@pytest.mark.usefixtures("quick")
def test_an_answer_that_never_comes_ends_with_the_cause_and_the_clock() -> None:
    told: list[int] = []
    with pytest.raises(RunError, match="FF-APP-488") as error:
        asyncio.run(watched(Sleeper(), asyncio.sleep(3600), told.append))
    assert told == [60, 120]
    assert "sleep()" in (error.value.hint or "")
    with pytest.raises(RunError, match="more processor time"):
        asyncio.run(watched(Burner(), asyncio.sleep(3600), most=500.0))
    assert asyncio.run(watched(Sleeper(), asyncio.sleep(0, "an answer"))) == "an answer"


@pytest.mark.usefixtures("quick")
def test_sampling_and_evaluating_a_module_that_sleeps_end_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(text_generation, "time", stall_watch.time)
    mine, other = socket.socketpair()
    interrupts = InterruptHandler()
    real = interrupts.wait

    def hurried(descriptor: int, events: int, look: Callable[[], None]) -> None:
        for _ in range(3):
            look()
        os.write(other.fileno(), b"x")
        real(descriptor, events, look)

    monkeypatch.setattr(interrupts, "wait", hurried)
    with mine, other, pytest.raises(RunError, match="FF-APP-488"):
        text_generation._wait(Sleeper(), interrupts, mine.fileno(), 1)  # type: ignore[arg-type]
    assert "takes 60 s so far; Ctrl-C stops" in capsys.readouterr().err


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_node_ends_a_worker_that_stalls_and_not_one_that_was_asked_for_nothing(
    is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent: Any = NodeAgent.__new__(NodeAgent)
    agent._pipe, agent._stall = SimpleNamespace(is_busy=is_busy), None
    times = iter([0.0, STALL_SECONDS / 2, STALL_SECONDS])
    monkeypatch.setattr("farflung.peers.node.agent.time", SimpleNamespace(monotonic=lambda: next(times)))
    said = [agent._stalled(Sleeper()) for _ in range(3)]
    assert [bool(each) for each in said] == [False, False, is_busy]
