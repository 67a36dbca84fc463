"""The supervisor's own worker is killed at any place: what was asked for is asked again of the next one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from worker_end import WorkerEnd

from farflung.core.errors import RunError
from farflung.core.events import AnyEvent, EvaluationEvent, ProcessRestartEvent, ProcessUsageEvent, WarningEvent
from farflung.core.ids import PeerId
from farflung.job.spec import EvaluateSpec, JobSpec, NetworkSpec
from farflung.local.network.evaluation import Evaluator
from farflung.local.network.restarts import RESTARTS
from farflung.local.network.supervisor_worker import SupervisorWorker
from farflung.train import worker_messages as words

SETUP = words.SetupCommand(JobSpec(), b"data", b"", 0, PeerId(bytes(32)))
READY = words.SetupResult(10, 5, 2.0)
ALONE = (words.BaselineCommand(b"state", 2, 4, 8, 1), words.BaselineCommand(b"", 2, 8, 8, 1))
SCORE = words.EvaluateCommand(b"state", 8)


class Life:
    """In the place of a worker process: answers so many requests, and dies over the next one."""

    def __init__(self, answers: float, broke: str = "") -> None:
        self.socket, self._theirs = socket.socketpair()
        self.heard: list[words.Request] = []
        self.log_path, self._answers, self._broke = Path("worker.log"), answers, broke
        self._task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        end = WorkerEnd(self._theirs)
        while (request := await end.next()) is not None:
            self.heard.append(request)
            if len(self.heard) > self._answers:
                self._theirs.close()
                return
            is_setup = isinstance(request, words.SetupCommand)
            await end.reply(READY if is_setup else words.LossResult(float(len(self.heard)), 8, 4, 0.1))

    def usage(self) -> dict[str, float]:
        return {"peak_bytes": 5, "cpu_seconds": 1.0}

    def over_limit(self) -> str:
        return self._broke

    def terminate(self) -> str:
        self.socket.close()
        self._theirs.close()
        self._task.cancel()
        return "signal 9"


class Lives:
    """A worker whose processes answer so many requests each, and the events that are told."""

    def __init__(self, *answers: float, broke: str = "") -> None:
        self._answers, self._broke = iter([*answers, *[float("inf")] * (answers[-1] == float("inf"))]), broke
        self.each: list[Life] = []
        self.told: list[AnyEvent] = []
        self.worker = SupervisorWorker(self._start, self)

    def _start(self) -> Any:
        self.each.append(Life(next(self._answers), self._broke))
        return self.each[-1]

    def emit(self, event: AnyEvent, *, durable: bool = False) -> None:
        self.told.append(event)

    @property
    def heard(self) -> list[list[words.Request]]:
        return [life.heard for life in self.each]

    @property
    def restarts(self) -> list[str]:
        return [event.why for event in self.told if isinstance(event, ProcessRestartEvent)]


EVER = float("inf")


def play(lives: Callable[[], Lives], story: Callable[[Lives], Awaitable[None]]) -> Lives:
    made: list[Lives] = []

    async def test() -> None:
        made.append(lives())
        try:
            async with asyncio.timeout(30):
                await story(made[0])
        finally:
            made[0].worker.stop()

    asyncio.run(test())
    return made[0]


@pytest.mark.parametrize(
    ("answers", "heard"),
    [
        ((0, EVER), [[SETUP], [SETUP, SCORE, *ALONE]]),
        ((1, EVER), [[SETUP, SCORE], [SETUP, SCORE, *ALONE]]),
        ((2, EVER), [[SETUP, SCORE, ALONE[0]], [SETUP, *ALONE]]),
        ((3, EVER), [[SETUP, SCORE, *ALONE], [SETUP, words.BaselineCommand(b"state", 2, 8, 8, 1)]]),
        ((1, 0, 1, EVER), [[SETUP, SCORE], [SETUP], [SETUP, SCORE], [SETUP, SCORE, *ALONE]]),
        ((0,) * RESTARTS + (EVER,), [[SETUP]] * RESTARTS + [[SETUP, SCORE, *ALONE]]),
    ],
)
def test_what_was_asked_of_one_that_died_is_asked_of_the_next(
    answers: tuple[float, ...], heard: list[list[words.Request]]
) -> None:
    async def story(lives: Lives) -> None:
        assert await lives.worker.request(SETUP) == READY
        for message in (SCORE, *ALONE):
            assert isinstance(await lives.worker.request(message), words.LossResult)

    lives = play(lambda: Lives(*answers), story)
    assert lives.heard == heard
    assert lives.restarts == ["signal 9"] * (len(answers) - 1)
    assert lives.told[-1] == ProcessUsageEvent(
        process="requester worker", peak_bytes=5, cpu_seconds=float(len(answers))
    )


def test_one_that_is_killed_while_nothing_is_asked_is_replaced_when_something_is() -> None:
    async def story(lives: Lives) -> None:
        await lives.worker.request(SETUP)
        lives.each[0]._theirs.close()
        assert isinstance(await lives.worker.request(SCORE), words.LossResult)

    assert play(lambda: Lives(EVER, EVER), story).heard == [[SETUP], [SETUP, SCORE]]


def test_one_that_dies_over_every_request_is_not_started_for_ever() -> None:
    async def story(lives: Lives) -> None:
        with pytest.raises(RunError, match="FF-APP-025") as caught:
            await lives.worker.request(SETUP)
        assert "signal 9" in caught.value.cause

    assert len(play(lambda: Lives(*[0] * (RESTARTS + 1)), story).each) == RESTARTS + 1


def test_one_that_broke_its_limit_would_break_it_again() -> None:
    async def story(lives: Lives) -> None:
        with pytest.raises(RunError, match="FF-TRAIN-090"):
            await lives.worker.request(SETUP)

    assert len(play(lambda: Lives(0, broke="memory"), story).each) == 1


def test_requests_of_several_wait_for_one_restart() -> None:
    async def story(lives: Lives) -> None:
        await lives.worker.request(SETUP)
        replies = await asyncio.gather(*(lives.worker.request(SCORE) for _ in range(3)))
        assert all(isinstance(reply, words.LossResult) for reply in replies)

    lives = play(lambda: Lives(2, EVER), story)
    assert lives.heard == [[SETUP, SCORE, SCORE], [SETUP, SCORE, SCORE]]


def test_a_loss_on_the_way_that_cannot_be_measured_is_a_warning_and_no_traceback(tmp_path: Path) -> None:
    terms = cast(Any, type("Terms", (), {"spec": JobSpec(evaluate=EvaluateSpec(every=1), network=NetworkSpec())}))
    (tmp_path / "state").write_bytes(b"state")
    noise: list[Any] = []

    async def story(lives: Lives) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(context))
        evaluator = Evaluator(lives.worker, terms, cast(Any, lives))
        for round in (1, 2):
            evaluator.offer(round, tmp_path / "state")
            await evaluator.idle()
        left = evaluator.begin(evaluator.score(b"state", 8))  # nobody awaits it
        await asyncio.wait({left})
        await evaluator.close()

    deaths = [0] * (RESTARTS + 1)
    lives = play(lambda: Lives(*deaths, EVER), story)
    (warning,) = [event for event in lives.told if isinstance(event, WarningEvent)]
    assert (warning.code, "round 1" in warning.message) == ("FF-APP-025", True)
    assert [event.round for event in lives.told if isinstance(event, EvaluationEvent)] == [2]
    assert noise == []
