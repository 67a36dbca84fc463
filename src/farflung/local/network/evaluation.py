"""Evaluates validation loss during the run: the requester's own worker scores public states in the background."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

from farflung.core.errors import FarflungError
from farflung.core.events import BaselineEvent, BaselineProgressEvent, EvaluationEvent, WarningEvent
from farflung.job.spec import JobSpec, JobTerms
from farflung.peers.node.workspace import WorkerHandle, ask
from farflung.peers.rundir.journal import EventEmitter
from farflung.train import worker_messages
from farflung.train.blobs import Blob, in_file

T = TypeVar("T")

GONE: Final = "FF-TRAIN-113"  # of a state that the requester keeps no more
NO_NUMBER: Final = "FF-TRAIN-058"  # of a model whose loss is NaN or infinite


def has_diverged(spec: JobSpec, start: float | None, loss: float) -> bool:
    """Whether `evaluate.stop_loss` ends a run whose validation loss was `start` and is `loss`.

    A loss that began at zero or below has no multiple: only what is no finite number ends such a run.
    """
    most = spec.evaluate.stop_loss
    if not most:
        return False
    return not math.isfinite(loss) or (start is not None and 0 < most * start < loss)


class Evaluator:
    """At most one evaluation at a time; of the states that come while one runs the newest waits for its end."""

    def __init__(
        self,
        worker: WorkerHandle,
        terms: JobTerms,
        journal: EventEmitter,
        hear: Callable[[int, float], None] = lambda _, __: None,
    ) -> None:
        """`hear`: told of each loss on the way, by its round; NaN where the model gives no finite one."""
        self._worker, self._terms, self._journal, self._hear = worker, terms, journal, hear
        self._running: asyncio.Task[None] | None = None
        self._next: tuple[int, Path] | None = None
        self._begun: list[asyncio.Task[Any]] = []

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs `work`, which asks this evaluator, beside others; `close` ends it. What it raises is for who awaits it:
        where the run ends before, of something else, that is what is told.
        """
        task = asyncio.create_task(work)
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._begun = [*(each for each in self._begun if not each.done()), task]
        return task

    async def close(self) -> None:
        """Ends what runs."""
        for task in self._begun:
            task.cancel()
        await asyncio.gather(*self._begun, return_exceptions=True)

    def offer(self, round: int, stored: Path) -> None:
        """Evaluates the state before `round` in the background, if it is that round's turn.

        The coordinator stores what is due before it tells of the round; a state that is gone again is left out.
        """
        spec = self._terms.spec
        if round % spec.evaluate.every or round >= spec.rounds:
            return
        self._next = round, stored
        if self._running is None or self._running.done():
            self._running = self.begin(self._score_newest())

    async def _score_newest(self) -> None:
        while self._next is not None:
            (round, stored), self._next = self._next, None
            try:
                packed = in_file(stored, stored.stat().st_size)
            except OSError:
                continue
            await self._score(round, packed)

    async def _score(self, round: int, packed: Blob) -> None:
        """A loss on the way to the last one: the run goes on without it, and says so."""
        try:
            score = await self.score(packed, self._terms.spec.evaluate.tokens)
        except FarflungError as error:
            if error.code == GONE:
                return
            text = f"the validation loss of round {round} was not measured: {error.message}: {error.cause}"
            self._journal.emit(WarningEvent(code=error.code, message=text[:300], hint=error.hint or ""))
            if error.code == NO_NUMBER:
                self._hear(round, math.nan)
            return
        self._journal.emit(EvaluationEvent(round=round, loss=score.loss, tokens=score.tokens))
        self._hear(round, score.loss)

    async def score(self, packed: Blob, tokens: int) -> worker_messages.LossResult:
        """Validation loss of a state (train.public_state form) on the first `tokens` validation tokens."""
        return await ask(self._worker, worker_messages.EvaluateCommand(packed, tokens), worker_messages.LossResult)

    async def baseline(self, initial: Blob, threads: int) -> float:
        """Validation loss of a single machine on the same tokens, from public state in train.public_state form.

        Every few rounds' worth of steps it tells how far that is, with the loss on as many tokens as in a run.
        """
        spec = self._terms.spec
        members, seconds = spec.network.providers, 0.0

        async def train(until: int, tokens: int) -> worker_messages.LossResult:
            asked = worker_messages.BaselineCommand(initial, members, until, tokens, threads)
            return await ask(self._worker, asked, worker_messages.LossResult)

        for rounds in range(spec.evaluate.every, spec.rounds, spec.evaluate.every):
            until = rounds * spec.sync.steps
            score = await train(until, spec.evaluate.tokens)
            initial, seconds = b"", seconds + score.seconds
            trained = rounds * spec.round_tokens * members
            said = BaselineProgressEvent(step=until, steps=spec.steps, tokens=trained, loss=score.loss, seconds=seconds)
            self._journal.emit(said)
        last = await train(spec.steps, spec.evaluate.final_tokens)
        self._journal.emit(BaselineEvent(loss=last.loss, steps=last.steps, seconds=seconds + last.seconds))
        return last.loss

    async def idle(self) -> None:
        """Waits until the worker is free, and no state waits for it."""
        if self._running is not None:
            await self._running
