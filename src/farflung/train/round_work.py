"""Holds a job for its worker and does the work itself: it trains a round, and encodes the result.

`RoundWorker` is what every peer runs, and `PartialRound` a round's steps, made at once or one by one. A verifier
repeats single parts of it (`rerun`, `reencode`) through the very same functions, so that the same settings give the
same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from farflung.core.commitments import BorderRoots
from farflung.core.errors import RunError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.tensor_layout import Float32
from farflung.job import dataset
from farflung.job.spec import JobSpec
from farflung.train import inner_steps, segments, worker_messages
from farflung.train.contribution_trace import ContributionTrace, TrainingStatistics
from farflung.train.flat_model import FlatModel
from farflung.train.inner_state import InnerState
from farflung.train.inner_steps import Batches, Pulse
from farflung.train.public_state import PublicState
from farflung.train.run_log import payload_hash
from farflung.train.segments import BorderState
from farflung.train.sync_arithmetic import EncodedUpdate, Sync


@dataclass(frozen=True)
class WorkerJob:
    """What the SetupCommand fixed."""

    setup: worker_messages.SetupCommand
    data: dataset.Dataset
    model: FlatModel
    sync: Sync
    start: Float32  # parameters of round 0

    @property
    def spec(self) -> JobSpec:
        """The job's spec."""
        return self.setup.spec

    def batches(self, round: int, member: int) -> Batches:
        """The batches that a member is to train on in a round."""
        return inner_steps.batches(self.data.train, self.spec, round, member)

    def steps(self, asked: int) -> int:
        """Steps of a round in which `asked` were asked for: 0 for all. Raises RunError FF-TRAIN-013."""
        spec = self.spec
        if asked and not spec.segments <= asked <= spec.sync.steps:
            raise RunError(
                "FF-TRAIN-013",
                f"a round cannot have {asked} steps",
                cause=f"the job's rounds have {spec.segments} to {spec.sync.steps}",
                hint="the coordinator asks for what the terms allow",
            )
        return asked or spec.sync.steps

    def check_segment(self, segment: int, steps: int = 0) -> tuple[int, int]:
        """First step of a segment of such a round, and the first one after it; raises RunError FF-TRAIN-082."""
        borders, count = self.spec.borders_of(self.steps(steps)), self.spec.segments
        if not 0 <= segment < count:
            raise segments.unfit(f"a round has {count} segments, and {segment} was asked for")
        return borders[segment], borders[segment + 1]


class TrainedRound(NamedTuple):
    """A round's work: the state at each border, each with the residual from before the round, and what was seen."""

    states: tuple[BorderState, ...]
    losses: tuple[float, ...]
    grad_norm: float

    @property
    def end(self) -> Float32:
        """The weights at border K, shape (size,)."""
        params = self.states[-1].params
        assert params is not None
        return params


class RoundWorker:
    """Trains and encodes as the job's spec says."""

    def __init__(self, job: WorkerJob) -> None:
        self.job = job
        self.steps = job.spec.sync.steps  # of the round that is asked for

    @property
    def borders(self) -> tuple[int, ...]:
        """Steps after which the segments of the round end, 0 first."""
        return self.job.spec.borders_of(self.steps)

    def train(self, state: PublicState, inner: InnerState, pulse: Pulse) -> TrainedRound:
        """The round's steps from P_r; `pulse` is called between. Raises RunError FF-TRAIN-062: numbers are lost."""
        return self._begun(state, inner).finished(pulse)

    def prefetch(self, state: PublicState, inner: InnerState) -> PartialRound | None:
        """The same round, for steps that are made before it is asked for; None: this worker makes none."""
        return self._begun(state, inner)

    def _begun(self, state: PublicState, inner: InnerState) -> PartialRound:
        batches = self.job.batches(state.round, self.job.setup.member)
        return PartialRound(self.job, state, inner, batches, self.borders)

    def encode(self, state: PublicState, inner: InnerState, trained_round: TrainedRound) -> EncodedUpdate:
        """The payload, and what is unsent after the round."""
        return encoded(self.job, state, self.job.setup.peer, trained_round.states[0], trained_round.end)

    def merged(self, state: PublicState, parts: Sequence[worker_messages.AcceptedPayload]) -> None:
        """Called with what a round's merge brought, and the state before it."""


def fresh(state: PublicState, inner: InnerState) -> BorderState:
    """What is at border 0 of the round that `inner` goes into."""
    return BorderState(state.round, inner.step, state.params, inner.vectors, inner.residual, inner.offset)


class PartialRound:
    """A round that is being trained: what is at the borders that it has passed, and what was seen so far.

    It may rest after any step: what comes out depends on nothing that happens in between (inner_steps.run_steps).
    """

    def __init__(
        self, job: WorkerJob, state: PublicState, inner: InnerState, batches: Batches, borders: tuple[int, ...]
    ) -> None:
        first = fresh(state, inner)
        self._job, self._batches, self._borders = job, batches, borders
        self._states = [first]
        self._at = replace(first, params=segments.begin(replace(first, params=None), state.params, job.model.store))
        self._losses: list[float] = []
        self._largest = 0.0

    @property
    def done(self) -> int:
        """Steps made so far."""
        return len(self._losses)

    @property
    def is_done(self) -> bool:
        """Whether no step is left."""
        return self.done == self._borders[-1]

    def turn(self, borders: tuple[int, ...]) -> bool:
        """Takes the borders of a shorter or longer round, of as many segments. False: what was made passed others."""
        own, others = ([b for b in each if b <= self.done] for each in (self._borders, borders))
        if own == others:
            self._borders = borders
        return own == others

    def go_on(self, pulse: Pulse, most: int | None = None) -> None:
        """Makes the rest of a segment, or `most` steps of it. Raises RunError FF-TRAIN-062, and is then as before."""
        job, done = self._job, self.done
        after = next(border for border in self._borders if border > done)
        stop = after if most is None else min(after, done + most)
        # DGC masks its momentum by the residual where a segment begins, and nowhere else.
        at = self._at if done in self._borders else replace(self._at, residual=None)
        steps_made = inner_steps.run_steps(
            job.model, job.spec, at, self._batches, job.setup.member, range(done, stop), pulse
        )
        self._at = replace(steps_made.end, residual=self._at.residual)
        self._losses += steps_made.losses
        self._largest = max(self._largest, steps_made.grad_norm)
        if stop == after:
            self._states.append(self._at)

    def finished(self, pulse: Pulse) -> TrainedRound:
        """The whole round, with the steps that are left. Raises RunError FF-TRAIN-062: numbers are lost."""
        while not self.is_done:
            self.go_on(pulse)
        return TrainedRound(tuple(self._states), tuple(self._losses), self._largest)


def trained(
    job: WorkerJob,
    state: PublicState,
    inner: InnerState,
    batches: Batches,
    pulse: Pulse,
    borders: tuple[int, ...] | None = None,
) -> TrainedRound:
    """Steps from P_r on these batches, segment by segment; `borders` are those of the job, or of a shorter round."""
    return PartialRound(job, state, inner, batches, borders or job.spec.borders).finished(pulse)


def encoded(job: WorkerJob, state: PublicState, peer: PeerId, before: BorderState, end: Float32) -> EncodedUpdate:
    """The payload of `peer`, whose round led to `end`, and what it has not sent. `before` holds what was unsent."""
    return job.sync.encode(state, before.residual, before.offset, end, job.model.layout, peer)


def trace(job: WorkerJob, trained_round: TrainedRound, update: EncodedUpdate) -> ContributionTrace:
    """What the peer commits to: `update` is what the encoding left."""
    optimizer = job.spec.optimizer
    borders = segments.borders(job.model.layout, optimizer, trained_round.states, update.residual, update.offset)
    tokens = job.spec.step_tokens * len(trained_round.losses)
    statistics = TrainingStatistics(trained_round.losses, trained_round.grad_norm, tokens)
    return ContributionTrace(borders, statistics, payload_hash(update.payload))


class SegmentRerun(NamedTuple):
    """What a segment gives here."""

    border: BorderRoots
    end: BorderState
    losses: tuple[float, ...]


def rerun(
    job: WorkerJob, state: PublicState, member: int, segment: int, start: BorderState, pulse: Pulse, steps: int = 0
) -> SegmentRerun:
    """Trains one segment of `member`'s round (of so many steps) from its opened state, as that peer should have.

    Raises RunError: FF-TRAIN-082 when the job has no such segment or `start` cannot be at its first border,
    FF-TRAIN-058 or FF-TRAIN-062 when training from there loses the numbers: no honest peer went on from it.
    """
    first, after = job.check_segment(segment, steps)
    if (start.params is None) is (segment > 0):
        raise segments.unfit("weights are told from border 1 on, and there always")
    if segment > 0 and not start.vectors:
        raise segments.unfit("it has made steps, and holds no optimizer")
    begin = replace(start, params=segments.begin(start, state.params, job.model.store))
    batches = job.batches(state.round, member)
    leg = inner_steps.run_steps(job.model, job.spec, begin, batches, member, range(first, after), pulse)
    layout, is_last = job.model.layout, segment == job.spec.segments - 1
    unsent = ZERO_HASH if is_last else segments.unsent_root(layout, start.residual, start.offset)
    border = segments.border(layout, job.spec.optimizer, segment + 1, leg.end, unsent)
    return SegmentRerun(border, replace(leg.end, residual=None, offset=None), leg.losses)


class ReencodedUpdate(NamedTuple):
    """What a claimed end gives here."""

    payload: Hash
    params: Hash
    residual: Hash


def reencode(job: WorkerJob, state: PublicState, peer: PeerId, last: BorderState) -> ReencodedUpdate:
    """Encodes what `peer` claims to have ended its round with; raises RunError FF-TRAIN-082 without weights."""
    if last.params is None or last.vectors:
        raise segments.unfit("an end of a round is its weights, and perhaps what was unsent before")
    layout = job.model.layout
    update = encoded(job, state, peer, last, last.params)
    return ReencodedUpdate(
        payload_hash(update.payload),
        segments.params_root(layout, last.params),
        segments.unsent_root(layout, update.residual, update.offset),
    )
