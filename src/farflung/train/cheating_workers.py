"""Provides workers that cheat on a round's work (job.cheats), to show and test what audits find
(SetupCommand.cheat). They are never on by default. Those that spoil segment after segment use train.shortcuts.

    kind              what it does instead                                     compute saved
    none              nothing: honest
    skip              only every second step                                   half
    stale             sends its last change again                              all
    copy              sends what another peer sent in the last merged round    all
    noise             sends a random change as long as its last one            all
    half-batch        trains on half of the rows                               half
    wrong-data        trains on the same few windows in every step             none
    poison-encoding   trains honestly, and encodes the change times POISON     none

A cheat begins in round FIRST; one that needs a past (what it made or merged in an earlier round, in this process)
is honest in a round without. It states a whole trace of the right form: borders that chain, losses that could be;
what it sends is what its last border gives. Everything follows from the job's seed, so a round that is
repeated gives the same bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from farflung.core.errors import SpecError
from farflung.core.similar_name import similar_name
from farflung.core.tensor_layout import Float32
from farflung.job.cheat_names import FIRST, HONEST, KINDS
from farflung.train import round_work, segments, shortcuts, worker_messages
from farflung.train.inner_state import VECTORS, InnerState
from farflung.train.inner_steps import Pulse
from farflung.train.public_state import PublicState
from farflung.train.round_work import RoundWorker, TrainedRound, WorkerJob
from farflung.train.segments import BorderState
from farflung.train.sync_arithmetic import EncodedUpdate

POISON: Final = -4.0


class LastHonestRound(NamedTuple):
    """The last round of honest work: the change, shape (size,), and what was seen."""

    round: int
    change: Float32
    made: TrainedRound


class CheatingWorker(RoundWorker):
    """Honest until FIRST; from then on `spoil` makes the round."""

    def train(self, state: PublicState, inner: InnerState, pulse: Pulse) -> TrainedRound:
        """The round's work, or what stands for it."""
        return self.spoil(state, inner, pulse) if state.round >= FIRST else super().train(state, inner, pulse)

    def prefetch(self, state: PublicState, inner: InnerState) -> None:
        """Nothing: a cheat has no work that takes time to hide."""

    def spoil(self, state: PublicState, inner: InnerState, pulse: Pulse) -> TrainedRound:
        """What the cheat does from round FIRST on."""
        raise NotImplementedError


class ShortcutWorker(CheatingWorker):
    """Takes one way around the work in every segment (train.shortcuts)."""

    def __init__(self, job: WorkerJob, play: shortcuts.Play) -> None:
        super().__init__(job)
        self.play = play

    def spoil(self, state: PublicState, inner: InnerState, pulse: Pulse) -> TrainedRound:
        """Segment after segment, with what was unsent before the round at every border."""
        job, member = self.job, self.job.setup.member
        first = round_work.fresh(state, inner)
        at = replace(first, params=segments.begin(replace(first, params=None), state.params))
        states, losses, largest = [first], list[float](), 0.0
        for begin, end in itertools.pairwise(self.borders):
            steps_made = self.play(shortcuts.SegmentTask(job, job.spec, at, member, range(begin, end), pulse))
            at, largest = steps_made.end, max(largest, steps_made.grad_norm)
            losses += steps_made.losses
            states.append(at)
        return TrainedRound(tuple(states), tuple(losses), largest)


class IdleWorker(CheatingWorker):
    """Trains nothing, and claims to have gone straight to where `change` leads. One forward pass makes it plausible."""

    def __init__(self, job: WorkerJob) -> None:
        super().__init__(job)
        self.honest: LastHonestRound | None = None

    def train(self, state: PublicState, inner: InnerState, pulse: Pulse) -> TrainedRound:
        """Honest as long as there is nothing to send instead; that work becomes the past of later rounds."""
        last_round = self.honest
        if state.round >= FIRST and last_round is not None and last_round.round < state.round:
            change = self.change(state, last_round)
            if change is not None:
                return claimed(self, state, inner, change, last_round.made, self.first_loss(state))
        made = RoundWorker.train(self, state, inner, pulse)
        self.honest = LastHonestRound(state.round, made.end - state.params, made)
        return made

    def first_loss(self, state: PublicState) -> float:
        """The loss of step 0, as an honest peer sees it."""
        at, setup = BorderState(state.round, 0, state.params), self.job.setup
        return shortcuts.SegmentTask(self.job, self.job.spec, at, setup.member, range(1)).glance()

    def change(self, state: PublicState, last_round: LastHonestRound) -> Float32 | None:
        """What to send as P_end - P_r, shape (size,); None when there is nothing."""
        raise NotImplementedError


class StaleUpdateWorker(IdleWorker):
    """Its last change again."""

    def change(self, state: PublicState, last_round: LastHonestRound) -> Float32 | None:
        """As it was."""
        return last_round.change


class RandomUpdateWorker(IdleWorker):
    """A random change, as long as the last one."""

    def change(self, state: PublicState, last_round: LastHonestRound) -> Float32 | None:
        """Uniform in every element, the right length in every tensor."""
        about = (state.round, self.job.setup.member)
        return shortcuts.drawn(self.job.spec.seed, about, self.job.model.layout, last_round.change)


class CopiedUpdateWorker(IdleWorker):
    """What another peer sent in the last merged round."""

    def __init__(self, job: WorkerJob) -> None:
        super().__init__(job)
        self.seen: Float32 | None = None

    def change(self, state: PublicState, last_round: LastHonestRound) -> Float32 | None:
        """What `merged` kept."""
        return self.seen

    def merged(self, state: PublicState, parts: Sequence[worker_messages.AcceptedPayload]) -> None:
        """Keeps the first contribution of somebody else."""
        sync, layout = self.job.sync, self.job.model.layout
        for part in parts:
            if part.peer != self.job.setup.peer:
                values = sync.decode(sync.about(state, layout, part.peer), layout, part.payload)
                self.seen = sync.spread(state.round, layout, values)
                return


class PoisonedUpdateWorker(RoundWorker):
    """Trains honestly, and sends something else."""

    def encode(self, state: PublicState, inner: InnerState, made: TrainedRound) -> EncodedUpdate:
        """The change times POISON."""
        if state.round < FIRST:
            return super().encode(state, inner, made)
        end = state.params + np.float32(POISON) * (made.end - state.params)
        return round_work.encoded(self.job, state, self.job.setup.peer, made.states[0], end)


def claimed(
    by: RoundWorker, state: PublicState, inner: InnerState, change: Float32, last_round: TrainedRound, loss: float
) -> TrainedRound:
    """A round that nobody made: straight from P_r to P_r + change, an optimizer that only counts, and losses that fall
    from `loss` as those of `last_round` fell.
    """
    zeros = tuple(np.zeros_like(change) for _ in VECTORS[by.job.spec.optimizer.name])
    states = [round_work.fresh(state, inner)]
    for done in by.borders[1:]:
        params = state.params + change * np.float32(done / by.steps)
        vectors = inner.vectors or zeros
        step = inner.step + done
        states.append(BorderState(state.round, step, params, vectors, inner.residual, inner.offset))
    fall = [one / last_round.losses[0] for one in last_round.losses]
    losses = tuple(loss * fall[step % len(fall)] for step in range(by.steps))
    return TrainedRound(tuple(states), losses, last_round.grad_norm)


def _short(name: str) -> Callable[[WorkerJob], RoundWorker]:
    return lambda job: ShortcutWorker(job, shortcuts.SHORTCUTS[name].play)


_WORKERS: Final[Mapping[str, Callable[[WorkerJob], RoundWorker]]] = {
    HONEST: RoundWorker,
    "skip": _short("skip"),
    "stale": StaleUpdateWorker,
    "copy": CopiedUpdateWorker,
    "noise": RandomUpdateWorker,
    "half-batch": _short("half-batch"),
    "wrong-data": _short("few-batches"),
    "poison-encoding": PoisonedUpdateWorker,
}


def worker(job: WorkerJob) -> RoundWorker:
    """Who does the work of this job's setup; raises SpecError FF-TRAIN-064 (unknown cheat)."""
    kind = job.setup.cheat
    if kind not in KINDS:
        near = similar_name(kind, KINDS)
        raise SpecError(
            "FF-TRAIN-064",
            f"unknown cheat {kind[:40]!r}",
            cause=f"there are {', '.join(KINDS)}",
            hint=f"write {near!r}" if near else "choose one of them",
        )
    return _WORKERS[kind](job)
