"""Trains the next round before it is requested, while the other peers' parts of a round travel.

With a delay the weights that round r + 1 begins with do not depend on what round r brings (train.sync_arithmetic), and
the private state that goes into it is the one that round r left, unless that round is not accepted. So both are known
once round r is trained, and the steps of round r + 1 are made from them (Douillard et al. 2025, section 2.2). What was
made counts where the guess was right to the bit, and is dropped where it was not: nothing that anybody sees depends on
it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from farflung.train.inner_state import InnerState
from farflung.train.public_state import PublicState
from farflung.train.round_work import PartialRound, RoundWorker


class PrefetchedRound:
    """The round after one that was trained from `state` and left `inner`. Nothing is computed before the first step.

    `seconds`: what its steps have taken.
    """

    def __init__(self, work: RoundWorker, state: PublicState, inner: InnerState) -> None:
        self._work, self._inner = work, inner
        self._before: PublicState | None = state  # until the first step
        self._start: PublicState | None = None  # what the round is expected to begin with
        self._round: PartialRound | None = None
        spec = work.job.spec
        self._is_over = spec.sync.delay == 0 or state.round + 1 >= spec.rounds
        self.seconds = 0.0

    def step(self, clock: Callable[[], float]) -> bool:
        """Makes one more step of the round; False when there is none to make.

        A step that fails ends it, and what was made is gone: the round itself then meets what stopped it.
        """
        if self._is_over:
            return False
        began, drawn = clock(), torch.default_generator.get_state()
        try:
            self._step()
        except Exception:
            self._round, self._is_over = None, True
        finally:
            torch.default_generator.set_state(drawn)
        self.seconds += clock() - began
        return True

    def _step(self) -> None:
        if self._before is not None:
            job = self._work.job
            expected = job.sync.moved(self._before, job.model.layout, None)
            self._start = PublicState(expected.round, expected.params, {})
            self._before = None
            self._round = self._work.prefetch(self._start, self._inner)
        if self._round is not None:
            self._round.go_on(_quiet, 1)
        self._is_over = self._round is None or self._round.is_done

    def fits(self, state: PublicState, inner: InnerState) -> bool:
        """Whether this is the round that begins with `state` and `inner`, to the bit."""
        start = self._start
        if start is None or start.round != state.round or inner is not self._inner:
            return False
        return np.array_equal(start.params.view(np.uint32), state.params.view(np.uint32))

    def take(self, state: PublicState, inner: InnerState, borders: tuple[int, ...]) -> PartialRound | None:
        """What was made of the round that begins with these and has these borders; None: nothing."""
        if self._round is None or not self.fits(state, inner) or not self._round.turn(borders):
            return None
        return self._round


def _quiet() -> None:
    """Whoever has the steps made looks between them whether something else is to be done."""
