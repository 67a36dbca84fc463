"""Held-out loss while the run goes on: the requester's own worker evaluates public states in the background."""

from __future__ import annotations

import asyncio
from typing import Protocol

from farflung.app.journal import Journal
from farflung.core.errors import RunError
from farflung.core.events import Evaluated
from farflung.job.spec import Terms
from farflung.train import messages, snapshot
from farflung.train.snapshot import PublicState


class Worker(Protocol):
    """A worker process, as those who use it see it."""

    async def request(self, message: messages.Request) -> messages.Reply:
        """Sends one request and waits for its reply."""


class Scorer:
    """At most one evaluation at a time; a state that comes while one runs is left out."""

    def __init__(self, worker: Worker, terms: Terms, journal: Journal) -> None:
        self._worker, self._terms, self._journal = worker, terms, journal
        self._running: asyncio.Task[None] | None = None

    def offer(self, public: PublicState) -> None:
        """Evaluates this state in the background, if it is this round's turn and the worker is free."""
        is_due = (
            public.round % self._terms.spec.evaluate.every == 0 and public.round < self._terms.spec.rounds
        )
        if is_due and (self._running is None or self._running.done()):
            self._running = asyncio.create_task(self._score(public))

    async def _score(self, public: PublicState) -> None:
        score = await self.score(public, self._terms.spec.evaluate.tokens)
        self._journal.emit(Evaluated(round=public.round, loss=score.loss, tokens=score.tokens))

    async def score(self, public: PublicState, tokens: int) -> messages.Score:
        """Held-out loss of a state on the first `tokens` held-out tokens."""
        packed = snapshot.pack(public, self._terms.layout)
        return await self._ask(messages.Evaluate(packed, tokens))

    async def baseline(self, initial: PublicState, members: int, tokens: int) -> messages.Score:
        """Held-out loss of one machine that trained on the same tokens."""
        packed = snapshot.pack(initial, self._terms.layout)
        return await self._ask(messages.Baseline(packed, members, tokens))

    async def _ask(self, message: messages.Request) -> messages.Score:
        reply = await self._worker.request(message)
        if not isinstance(reply, messages.Score):
            raise RunError(
                "FF-APP-037", f"the worker answered {type(reply).__name__} to {type(message).__name__}"
            )
        return reply

    async def idle(self) -> None:
        """Waits until the worker is free."""
        if self._running is not None:
            await self._running
