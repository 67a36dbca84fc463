"""Provides ways to skip the work of one segment, each with the share of compute that it saves.

Audits must tell them from honest work.

Whole-run cheats (train.cheating_workers) are made of them, the profile run measures on the job's own model how far
those lie from honest work that save something (train.noise_profile), benchmarks and tests play all of them. Jia et al.
2021 (proof of learning), Zhang et al. 2022 and Fang et al. 2023 (how it is broken) give most of them; the others are
what saves time.

A shortcut claims an end of the right form: as many steps counted as were asked for, a vector for each of the
optimizer's. What it takes is a `SegmentTask`; it gives what an honest `inner_steps.run_steps` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import msgspec
import numpy as np
import torch

from farflung.core.crypto import NS_DATA_ORDER, derive, digest
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.spec import JobSpec
from farflung.train import inner_steps, segments
from farflung.train.cheating_models import (
    FROZEN,
    Bfloat16ProductsCheat,
    FrozenLayersCheat,
    SkippedGradientsCheat,
    fp8_weights,
    int8_weights,
)
from farflung.train.data_order import Int64
from farflung.train.flat_model import FlatModel
from farflung.train.inner_state import VECTORS
from farflung.train.inner_steps import Batches, Pulse, StepRange
from farflung.train.round_work import WorkerJob
from farflung.train.segments import BorderState

WINDOWS: Final = 2  # batches that `few-batches` goes round
FAR: Final = 5  # segments that a chord spans
CHOICES: Final = 3  # batches among which `chosen-data` looks for the one that leads where it wants to be
BACKWARD: Final = 2 / 3  # of a step's products
Shares = tuple[tuple[str, tuple[float, ...]], ...]


@dataclass(frozen=True)
class SegmentTask:
    """What is asked for: `steps` of `member`'s round from `begin`, whose weights are told. `spec`: the job's own, or
    one that differs in numbers of the optimizer.
    """

    job: WorkerJob
    spec: JobSpec
    begin: BorderState
    member: int
    steps: range
    pulse: Pulse = lambda: None

    @property
    def batches(self) -> Batches:
        """The batches that the spec gives."""
        return self.job.batches(self.begin.round, self.member)

    @property
    def start(self) -> Float32:
        """The weights at the start, shape (size,)."""
        assert self.begin.params is not None
        return self.begin.params

    @property
    def vectors(self) -> tuple[Float32, ...]:
        """The optimizer's at the start; zeros of a fresh one."""
        zeros = tuple(np.zeros_like(self.start) for _ in VECTORS[self.spec.optimizer.name])
        return self.begin.vectors or zeros

    def honest(self) -> StepRange:
        """The work."""
        return self.made()

    def made(
        self,
        *,
        model: FlatModel | None = None,
        batches: Batches | None = None,
        steps: range | None = None,
        rate: float = 1,
    ) -> StepRange:
        """The work with something else in a place of it; `rate`: times the learning rate."""
        optimizer = msgspec.structs.replace(self.spec.optimizer, lr=self.spec.optimizer.lr * rate)
        spec = msgspec.structs.replace(self.spec, optimizer=optimizer)
        batches, steps = batches or self.batches, self.steps if steps is None else steps
        return inner_steps.run_steps(model or self.job.model, spec, self.begin, batches, self.member, steps, self.pulse)

    def claim(self, params: Float32, vectors: tuple[Float32, ...], losses: tuple[float, ...], norm: float) -> StepRange:
        """An end that was not trained to, with as many losses and steps as were asked for."""
        count = len(self.steps)
        end = replace(self.begin, step=self.begin.step + count, params=params, vectors=vectors)
        return StepRange(end, tuple(losses[at * len(losses) // count] for at in range(count)), norm)

    def glance(self) -> float:
        """The loss of the first step, by one forward pass."""
        model = self.job.model
        model.put(self.start)
        inner_steps.seed(self.spec, self.begin.round, self.member, self.steps[0])
        with torch.no_grad():
            return float(model.loss(*inner_steps.tensors(self.batches(self.steps[0]))))


Play = Callable[[SegmentTask], StepRange]


class Shortcut(NamedTuple):
    """One way. `saved(spec, count)`: the share of the compute of a segment of `count` steps; 0: nothing. `is_once`: it
    spoils one step of a segment, so its distance falls as the segment grows.
    """

    about: str
    saved: Callable[[JobSpec, int], float]
    play: Play
    is_once: bool = False


# Steps left out


def skip(segment: SegmentTask) -> StepRange:
    """Makes the even steps of the round, and counts all."""
    return _left_out(segment, lambda step: step % 2 == 0)


def skip_one(segment: SegmentTask) -> StepRange:
    """Leaves the segment's last step out."""
    return _left_out(segment, lambda step: step != segment.steps[-1])


def _left_out(segment: SegmentTask, is_made: Callable[[int], bool]) -> StepRange:
    """A step that is left out repeats the loss of the one before it; the first one's costs a forward pass."""
    at, losses, largest, seen = segment.begin, list[float](), 0.0, None
    for step in segment.steps:
        if is_made(step):
            leg = replace(segment, begin=at).made(steps=range(step, step + 1))
            at, seen, largest = replace(leg.end, residual=None), leg.losses[0], max(largest, leg.grad_norm)
        else:
            at = replace(at, step=at.step + 1)
        seen = segment.glance() if seen is None else seen
        losses.append(seen)
    end = replace(at, vectors=at.vectors or segment.vectors, residual=segment.begin.residual)
    return StepRange(end, tuple(losses), largest)


def spacing(segment: SegmentTask) -> StepRange:
    """Borders that lie farther apart than they say: half of the steps, each at twice the rate."""
    count = (len(segment.steps) + 1) // 2
    leg = segment.made(steps=segment.steps[:count], rate=2)
    assert leg.end.params is not None
    return segment.claim(leg.end.params, leg.end.vectors, leg.losses, leg.grad_norm)


# Other data


def _other(change: Callable[[SegmentTask, int, Int64, Int64], tuple[Int64, Int64]]) -> Play:
    def play(segment: SegmentTask) -> StepRange:
        right = segment.batches
        return segment.made(batches=lambda step: change(segment, step, *right(step)))

    return play


def _rows(count: Callable[[int], int]) -> Play:
    return _other(lambda _, __, x, y: (x[: count(len(x))], y[: count(len(y))]))


def _half_context(_: SegmentTask, __: int, x: Int64, y: Int64) -> tuple[Int64, Int64]:
    half = max(1, x.shape[1] // 2)
    return np.ascontiguousarray(x[:, :half]), np.ascontiguousarray(y[:, :half])


def _wrong_row(segment: SegmentTask, step: int, x: Int64, y: Int64) -> tuple[Int64, Int64]:
    others = segment.job.batches(segment.begin.round, segment.member + 1)(step)
    return np.concatenate([x[:-1], others[0][-1:]]), np.concatenate([y[:-1], others[1][-1:]])


def other_data(segment: SegmentTask) -> StepRange:
    """What another member was given: one work under two names."""
    return segment.made(batches=segment.job.batches(segment.begin.round, segment.member + 1))


def few_batches(segment: SegmentTask) -> StepRange:
    """The first batches of round 0, in turn."""
    first = segment.job.batches(0, segment.member)
    return segment.made(batches=lambda step: first(step % WINDOWS))


def same_batch(segment: SegmentTask) -> StepRange:
    """The first batch of the segment in every step."""
    right = segment.batches
    return segment.made(batches=lambda _: right(segment.steps[0]))


def chosen_data(segment: SegmentTask) -> StepRange:
    """Data chosen so that training on them leads to an end that was fixed before (Zhang et al. 2022), as far as whole
    batches of tokens can: in each step the one of CHOICES whose gradient points there best.
    """
    wanted, model, at, losses, largest = (interpolated(segment).end.params, segment.job.model, segment.begin, [], 0.0)
    for step in segment.steps:
        assert at.params is not None
        assert wanted is not None
        way, found = at.params - wanted, list[tuple[float, int]]()
        for choice in range(CHOICES):
            model.put(at.params)
            model.gradient(*inner_steps.tensors(_choice(segment, choice)(step)))
            grads = model.grads.cpu().numpy()
            found.append((float(grads @ way) / max(float(np.linalg.norm(grads)), 1e-30), choice))
        best = _choice(segment, max(found)[1])
        leg = replace(segment, begin=at).made(batches=best, steps=range(step, step + 1))
        at, largest = leg.end, max(largest, leg.grad_norm)
        losses.append(leg.losses[0])
    return StepRange(at, tuple(losses), largest)


def _choice(segment: SegmentTask, choice: int) -> Batches:
    return segment.job.batches(segment.begin.round, segment.member + 1 + choice)


# Ends that nobody trained to


def idle(segment: SegmentTask) -> StepRange:
    """No update at all."""
    return segment.claim(segment.start, segment.vectors, (segment.glance(),), 1.0)


def noise(segment: SegmentTask) -> StepRange:
    """A random change, in every tensor as long as the right one, which it is told for nothing."""
    right = segment.honest()
    assert right.end.params is not None
    about = (segment.begin.round, segment.member, segment.steps[0])
    change = drawn(segment.spec.seed, about, segment.job.model.layout, right.end.params - segment.start)
    return segment.claim(segment.start + change, right.end.vectors, right.losses, right.grad_norm)


def interpolated(segment: SegmentTask) -> StepRange:
    """A point on the straight way to where FAR such segments lead: a checkpoint that was never reached."""
    steps = range(segment.steps.start, segment.steps.start + FAR * len(segment.steps))
    leg, share = segment.made(steps=steps), np.float32(1 / FAR)
    assert leg.end.params is not None
    params = segment.start + share * (leg.end.params - segment.start)
    both = zip(segment.vectors, leg.end.vectors, strict=True)
    vectors = tuple(old + share * (new - old) for old, new in both)
    return segment.claim(params, vectors, leg.losses, leg.grad_norm)


def drawn(seed: int, about: tuple[int, ...], layout: TensorLayout, change: Float32) -> Float32:
    """Uniform in every element, as long as `change` in every tensor, shape (size,)."""
    key = digest(NS_DATA_ORDER, b"noise", seed.to_bytes(8, "little"))
    raw = derive(NS_DATA_ORDER, key, b"".join(n.to_bytes(8, "little") for n in about), length=4 * change.size)
    found = np.frombuffer(raw, "<i4").astype(np.float32)
    for _, place in layout.slices():
        norm = float(np.linalg.norm(found[place]))
        found[place] *= np.float32(float(np.linalg.norm(change[place])) / max(norm, 1.0))
    return found


def _with(model: Callable[[FlatModel], FlatModel]) -> Play:
    return lambda segment: segment.made(model=model(segment.job.model))


def _seldom(every: int) -> Play:
    return _with(lambda model: SkippedGradientsCheat(model, every))


def _rate(times: float) -> Play:
    return lambda segment: segment.made(rate=times)


def _nothing(_: JobSpec, __: int) -> float:
    return 0.0


def _all(_: JobSpec, __: int) -> float:
    return 1.0


def _of_bits(bits: int) -> Callable[[JobSpec, int], float]:
    """Narrower numbers than the job's own; those that it computes in save nothing."""
    return lambda spec, _: 1 - bits / spec.numerics.bits


def _of_rows(count: Callable[[int], int]) -> Callable[[JobSpec, int], float]:
    return lambda spec, _: 1 - count(spec.batch) / spec.batch


def _but_one(rows: int) -> int:
    return max(1, rows - 1)


def _half(rows: int) -> int:
    return max(1, rows // 2)


SHORTCUTS: Final[Mapping[str, Shortcut]] = {
    "skip-one": Shortcut("one step left out", lambda _, k: 1 / k, skip_one, is_once=True),
    "skip": Shortcut("every second step left out", lambda _, k: k // 2 / k, skip),
    "drop-row": Shortcut("one row of every batch left out", _of_rows(_but_one), _rows(_but_one)),
    "wrong-row": Shortcut("another row in place of one of every batch", _nothing, _other(_wrong_row)),
    "half-batch": Shortcut("half of the rows", _of_rows(_half), _rows(_half)),
    "half-context": Shortcut(
        "the first half of every row", lambda spec, _: 1 - _half(spec.model.context) / spec.model.context,
        _other(_half_context),
    ),
    "stale": Shortcut(
        "every second gradient again", lambda _, k: k // 2 / k, _seldom(2)
    ),
    "one-gradient": Shortcut(
        "the first gradient in every step", lambda _, k: (k - 1) / k, _seldom(1 << 60)
    ),
    "same-batch": Shortcut("the first batch in every step", _nothing, same_batch),
    "few-batches": Shortcut("the same few batches all the time", _nothing, few_batches),
    "other-data": Shortcut("another member's batches", _nothing, other_data),
    "chosen-data": Shortcut("data searched for, so that the end fits", _nothing, chosen_data),
    "frozen": Shortcut("the first layers left as they are", lambda *_: BACKWARD * FROZEN, _with(FrozenLayersCheat)),
    "momentum": Shortcut("the optimizer alone, without gradients", _all, _seldom(0)),
    "idle": Shortcut("no update", _all, idle),
    "noise": Shortcut("a random change of the right length", _all, noise),
    "interpolated": Shortcut("a point on the straight way to a later end", _nothing, interpolated),
    "rate-1.01": Shortcut("the learning rate times 1.01", _nothing, _rate(1.01)),
    "rate-1.1": Shortcut("the learning rate times 1.1", _nothing, _rate(1.1)),
    "rate-2": Shortcut("the learning rate times 2", _nothing, _rate(2.0)),
    "spacing": Shortcut("half of the steps at twice the rate", lambda _, k: k // 2 / k, spacing),
    "bf16": Shortcut("products in bfloat16", _of_bits(16), _with(Bfloat16ProductsCheat)),
    "int8": Shortcut("weights in whole numbers of 8 bits", _of_bits(8), _with(int8_weights)),
    "fp8": Shortcut("weights in 8 bits", _of_bits(8), _with(fp8_weights)),
}  # fmt: skip


def apart(segment: SegmentTask, right: BorderState, claimed: BorderState) -> Shares:
    """Distances of a claimed end from the right one, by vector, in layout order (segments.distances)."""
    optimizer = segment.spec.optimizer
    mine, other = (segments.compared(state, optimizer) for state in (right, claimed))
    found = segments.distances(segment.job.model.layout, segment.start, mine, other)
    return tuple((name, tuple(float(d) for d in row)) for name, row in found.items())
