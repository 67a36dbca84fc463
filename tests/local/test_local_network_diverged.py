"""A run whose numbers are lost is settled: by a loss that is no number, or as nobody could train a round."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from test_watch_fold import PLANNED, RESULT, told

from farflung.core.errors import FarflungError, NetworkError, RunError
from farflung.core.ids import PeerId
from farflung.job.spec import JobSpec
from farflung.local.network import run_end
from farflung.local.network.run_end import RunLosses
from farflung.local.network.session import RunSession
from farflung.peers.requester.coordinator import Coordinator
from farflung.peers.rundir.folder import RunFolder
from farflung.train import rounds
from farflung.watch import phrases
from farflung.watch.event_lines import lines
from farflung.watch.fold import fold
from farflung.watch.screen import ScreenView, screen

PEER = PeerId(b"\1" * 32)


@pytest.mark.parametrize(
    ("error", "has_diverged"),
    [
        (RunError("FF-TRAIN-062", "training diverged in round 3"), True),
        (RunError("FF-TRAIN-058", "the model's loss is nan"), True),
        (RunError("FF-COMP-020", "a value is not finite"), True),
        (RunError("FF-TRAIN-055", "the forward pass fails"), False),
        (NetworkError("FF-NET-020", "the connection ended"), False),
        (ValueError("nan"), False),
    ],
)
def test_a_member_that_lost_its_numbers_says_so_to_the_rounds(error: Exception, has_diverged: bool) -> None:
    async def work() -> None:
        raise error

    async def main() -> rounds.Event:
        effects: Any = SimpleNamespace(begin=lambda _: None, lost=lambda *_, **__: None)
        log: Any = SimpleNamespace()
        state = rounds.CoordinatorState(rounds.Hash(b"\2" * 32), 3, 3, 0, 96, (PEER,))
        coordinator = Coordinator(state, log, effects)
        await coordinator._guard(PEER, work())
        return coordinator._events.get_nowait()

    assert asyncio.run(main()) == rounds.MemberLossInput(PEER, has_diverged)


@pytest.mark.parametrize(
    ("reason", "code", "loss"),
    [
        (rounds.REASON_DIVERGED, "FF-TRAIN-058", None),
        (rounds.REASON_DIVERGED, "FF-TRAIN-055", "FF-TRAIN-055"),
        (rounds.REASON_STOPPED, "FF-TRAIN-058", "FF-TRAIN-058"),
    ],
)
def test_a_diverged_run_has_a_result_without_a_loss(reason: str, code: str, loss: str | None) -> None:
    session = RunSession.__new__(RunSession)

    async def refuses(*_: object) -> float:
        raise RunError(code, "the model's loss is nan")

    session._score = refuses  # type: ignore[method-assign]
    session._last_state = lambda _: b""  # type: ignore[method-assign, assignment]
    outcome: Any = SimpleNamespace(reason=reason, rounds=2)
    evaluator: Any = None
    try:
        found: float | str | None = asyncio.run(session._last_score(evaluator, outcome))
    except FarflungError as error:
        found = error.code
    assert found == loss


@pytest.mark.parametrize(
    ("end", "why"), [(12.0, "more than evaluate.stop_loss = 2 times"), (None, "in round 2"), (5.4, "in round 2")]
)
def test_the_error_of_a_diverged_run_names_what_was_seen(end: float | None, why: str) -> None:
    outcome: Any = SimpleNamespace(rounds=2)
    error = run_end.diverged(RunFolder(Path("runs/r1")), JobSpec(), outcome, RunLosses(end, 5.5, 3.3, None))
    assert why in error.cause
    assert "the rest of the escrow returned" in error.cause
    assert "--set optimizer.lr=" in error.hint


def test_a_result_without_a_loss_is_shown_and_compared_with_nothing() -> None:
    ended = msgspec.structs.replace(RESULT, loss=None, loss_baseline=2.0, reason=rounds.REASON_DIVERGED)
    timeline = told(PLANNED, ended)
    rows = [row.text for row in screen(timeline, ScreenView(now=timeline.at))]
    for text in ("\n".join(rows), "\n".join(lines(ended, fold(timeline, ended)))):
        assert "is no number" in text
    assert phrases.gap(ended) == ""
    assert phrases.unigram(ended).startswith("has not learned yet")
