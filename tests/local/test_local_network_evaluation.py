"""The validation loss is measured in each round that `evaluate.every` names; of states that come fast, the newest."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farflung.core.events import EvaluationEvent
from farflung.job.spec import EvaluateSpec, JobSpec
from farflung.local.network.evaluation import Evaluator
from farflung.train.blobs import Blob, file_of
from farflung.train.worker_messages import LossResult
from farflung.watch.event_lines import lines
from farflung.watch.fold import RunTimeline


@pytest.mark.parametrize(
    ("every", "at_once", "measured"),
    [
        (1, 1, [1, 2, 3, 4, 5]),
        (2, 1, [2, 4]),
        (1, 3, [1, 3, 4, 5]),  # the second came and was followed by the third while the first was measured
        (1, 9, [1, 5]),
        (9, 1, []),
    ],
)
def test_each_round_that_is_due_is_measured_and_of_those_that_come_too_fast_the_newest(
    tmp_path: Path, every: int, at_once: int, measured: list[int]
) -> None:
    terms: Any = SimpleNamespace(spec=JobSpec(rounds=6, evaluate=EvaluateSpec(every=every, tokens=64)))
    told: list[EvaluationEvent] = []
    journal: Any = SimpleNamespace(emit=told.append)

    async def main() -> None:
        gate = asyncio.Event()
        evaluator = Evaluator(None, terms, journal)  # type: ignore[arg-type]

        async def score(packed: Blob, tokens: int) -> LossResult:
            await gate.wait()
            lent = file_of(packed)
            assert lent is not None
            return LossResult(float(lent.path.read_bytes()), tokens, 0, 0.0)

        evaluator.score = score  # type: ignore[method-assign]
        for round in range(1, 7):
            stored = tmp_path / f"{round}.bin"
            stored.write_bytes(str(round).encode())
            evaluator.offer(round, stored)
            await asyncio.sleep(0)  # the first is being measured from here on
            if round >= at_once:
                gate.set()
                await evaluator.idle()
        gate.set()
        await evaluator.idle()
        await evaluator.close()

    asyncio.run(main())
    assert [(event.round, event.loss, event.tokens) for event in told] == [(r, float(r), 64) for r in measured]
    for event in told:
        assert f"validation loss {event.loss:.3f}" in " ".join(lines(event, RunTimeline()))
