"""A job as its worker holds it, and the work itself: to train a round, and to encode what came out.

`Honest` is what every peer runs. A verifier repeats single parts of it (`rerun`, `reencode`) through the very same
functions, so that the same settings give the same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.layout import Float32
from farflung.job import dataset
from farflung.job.spec import JobSpec
from farflung.train import local, messages, segments
from farflung.train.inner import InnerState
from farflung.train.local import Batches, Pulse
from farflung.train.model import Model
from farflung.train.roundlog import payload_hash
from farflung.train.segments import BorderState
from farflung.train.snapshot import PublicState
from farflung.train.sync import Sync
from farflung.train.trace import Border, Statistics, Trace


@dataclass(frozen=True)
class Job:
    """What Setup fixed."""

    setup: messages.Setup
    data: dataset.Dataset
    model: Model
    sync: Sync
    start: Float32  # parameters of round 0

    @property
    def spec(self) -> JobSpec:
        """The job's spec."""
        return self.setup.spec

    def batches(self, round: int, member: int) -> Batches:
        """The batches that a member is to train on in a round."""
        return local.batches(self.data.train, self.spec, round, member)

    def check_segment(self, segment: int) -> tuple[int, int]:
        """First step of a segment, and the first one after it; raises RunError FF-TRAIN-082."""
        borders, count = self.spec.borders, self.spec.segments
        if not 0 <= segment < count:
            raise segments.unfit(f"a round has {count} segments, and {segment} was asked for")
        return borders[segment], borders[segment + 1]


class Made(NamedTuple):
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


class Honest:
    """Trains and encodes as the job's spec says."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def train(self, state: PublicState, held: InnerState, pulse: Pulse) -> Made:
        """H steps from P_r; `pulse` is called between them. Raises RunError FF-TRAIN-062 when the numbers are lost."""
        batches = self.job.batches(state.round, self.job.setup.member)
        return trained(self.job, state, held, batches, pulse)

    def encode(self, state: PublicState, held: InnerState, made: Made) -> tuple[Float32 | None, bytes]:
        """The residual after the round, and the payload."""
        return encoded(self.job, state, self.job.setup.peer, held.residual, made.end)

    def merged(self, state: PublicState, parts: Sequence[messages.Part]) -> None:
        """Called with what a round's merge brought, and the state before it."""


def trained(job: Job, state: PublicState, held: InnerState, batches: Batches, pulse: Pulse) -> Made:
    """H steps from P_r on these batches, segment by segment."""
    at = BorderState(state.round, held.step, state.params, held.vectors, held.residual)
    states, losses, largest = [at], list[float](), 0.0
    for first, after in itertools.pairwise(job.spec.borders):
        steps = range(first, after)
        leg = local.leg(job.model, job.spec, at, batches, job.setup.member, steps, pulse)
        at = leg.end
        states.append(at)
        losses += leg.losses
        largest = max(largest, leg.grad_norm)
    return Made(tuple(states), tuple(losses), largest)


def encoded(
    job: Job, state: PublicState, peer: PeerId, residual: Float32 | None, end: Float32
) -> tuple[Float32 | None, bytes]:
    """What `peer` has not sent after the round that led it from P_r to `end`, and its payload."""
    about = job.sync.about(state, job.model.layout, peer)
    return job.sync.encode(residual, end - state.params, job.model.layout, about)


def trace(job: Job, made: Made, residual: Float32 | None, payload: bytes) -> Trace:
    """What the peer commits to: `residual` is the one that the encoding left."""
    borders = segments.borders(job.model.layout, job.spec.optimizer, made.states, residual)
    statistics = Statistics(made.losses, made.grad_norm, job.spec.round_tokens)
    return Trace(borders, statistics, payload_hash(payload))


class Rerun(NamedTuple):
    """What a segment gives here."""

    border: Border
    end: BorderState
    losses: tuple[float, ...]


def rerun(job: Job, state: PublicState, member: int, segment: int, start: BorderState, pulse: Pulse) -> Rerun:
    """Trains one segment of `member`'s round from its opened state, as that peer should have.

    Raises RunError: FF-TRAIN-082 when the job has no such segment or `start` cannot stand at its first border,
    FF-TRAIN-058 or FF-TRAIN-062 when training from there loses the numbers: no honest peer went on from it.
    """
    first, after = job.check_segment(segment)
    if (start.params is None) is (segment > 0):
        raise segments.unfit("weights are told from border 1 on, and there always")
    if segment > 0 and not start.vectors:
        raise segments.unfit("it has made steps, and holds no optimizer")
    begin = replace(start, params=state.params) if start.params is None else start
    batches = job.batches(state.round, member)
    leg = local.leg(job.model, job.spec, begin, batches, member, range(first, after), pulse)
    layout, is_last = job.model.layout, segment == len(job.spec.borders) - 2
    residual = ZERO_HASH if is_last else segments.residual_root(layout, start.residual)
    border = segments.border(layout, job.spec.optimizer, segment + 1, leg.end, residual)
    return Rerun(border, replace(leg.end, residual=None), leg.losses)


class Reencoded(NamedTuple):
    """What a claimed end gives here."""

    payload: Hash
    params: Hash
    residual: Hash


def reencode(job: Job, state: PublicState, peer: PeerId, last: BorderState) -> Reencoded:
    """Encodes what `peer` claims to have ended its round with; raises RunError FF-TRAIN-082 without weights."""
    if last.params is None or last.vectors:
        raise segments.unfit("an end of a round is its weights, and perhaps a residual")
    layout = job.model.layout
    residual, payload = encoded(job, state, peer, last.residual, last.params)
    return Reencoded(
        payload_hash(payload),
        segments.params_root(layout, last.params),
        segments.residual_root(layout, residual),
    )
