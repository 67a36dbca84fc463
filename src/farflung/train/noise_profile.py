"""Measures how far honest work lies apart: the same segments in every environment class that one process can be.

A machine's threads, instruction set and libraries decide the order of its sums, hence its last bits (verify.tolerance
turns what is measured here into tolerances). Each class trains the same segments from the same states:

    base        1 thread, oneDNN
    threads-2   2 threads
    plain       1 thread, without oneDNN
    rounding    as base, and each gradient is taken at weights that are off by one unit in their last place

The last stands for machines that this one is not: a sum of products in any order is the exact one of inputs that are
off by some roundings (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). Small models need it: their
sums are too short to be split, and all other classes then agree to the bit.

The segments are the first, the middle one and the last of the whole run by their learning rates and batches. Each
starts where the base class ended the one before, so that the optimizer is no longer fresh in the later ones.

Adam scales every gradient to a full step, also one that is nothing but rounding (a key's bias: softmax does not see
it); only `eps` damps it, and less so the longer a run goes on: for the default job its distance grows from 6e-5 in
round 0 to 2e-2 in round 5. Hence all is measured with EPS in its place: such a tensor then lies as far apart at the
start (about 0.5) as it ever will, and the others keep their distances.

In the middle stretch the least that can be left out of each kind (MEASURED) is played against base as well:
verify.tolerance_margin refuses a job whose tolerances would let one of them through.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor
from torch.backends import mkldnn

from farflung.core.crypto import NS_DATA_ORDER, derive, digest
from farflung.core.errors import RunError
from farflung.job.spec import JobSpec
from farflung.train import inner_steps, segments, worker_messages
from farflung.train.cheating_models import CheatingModel
from farflung.train.contribution_trace import PARAMS
from farflung.train.flat_model import FlatModel
from farflung.train.inner_steps import Pulse
from farflung.train.public_state import PublicState
from farflung.train.round_work import WorkerJob
from farflung.train.segments import BorderState, Float64
from farflung.train.shortcuts import SHORTCUTS, SegmentTask, Shares, apart
from farflung.train.vector_store import blocks

MEMBER: Final = 0  # whose batches are trained on
EPS: Final = 1e-30
UNIT: Final = 2.0**-23  # the spacing of float32 numbers just above 1
MIDDLE: Final = 1  # of the stretches
STEPS: Final = 3  # of a segment: distances hardly depend on its length, because their unit grows with it


class NumericEnvironment(NamedTuple):
    """What one process can vary."""

    threads: int
    onednn: bool
    is_off: bool = False


CLASSES: Final = {
    "base": NumericEnvironment(1, True),  # the first is what the others are held against
    "threads-2": NumericEnvironment(2, True),
    "plain": NumericEnvironment(1, False),
    "rounding": NumericEnvironment(1, True, True),
}


# A step, a row, or bits of each number less: of what saves any compute, what is smallest in its kind (decision 047), by
# what the job computes in.
NARROW: Final = "bf16"
MEASURED: Final = {
    "float32": ("skip-one", "drop-row", NARROW, "fp8"),
    "bfloat16": ("skip-one", "drop-row", "fp8"),  # whole numbers of 8 bits: decision 107
}


class NoiseProfile(NamedTuple):
    """Honest noise, and how far shortcuts lie from the work: distances by vector, in layout order."""

    noise: Shares
    shortcuts: tuple[worker_messages.ShortcutDistance, ...]


def measure(job: WorkerJob, state: PublicState, pulse: Pulse) -> NoiseProfile:
    """For each vector (weights, then the optimizer's) the largest distance of each tensor, in layout order.

    Distances are those of segments.distances between a class and base: all are finite, and a tensor whose unit is zero
    where classes differ lies segments.UNBOUNDED apart; 0 is a tensor that no class moved otherwise than base, as a
    first small step may. Raises RunError FF-TRAIN-058 or -062 when training loses the numbers.
    """
    optimizer = job.spec.optimizer
    spec = replace(job.spec, optimizer=replace(optimizer, eps=min(optimizer.eps, EPS)))
    params = state.params
    at = BorderState(state.round, 0, params)
    worst: dict[str, Float64] = {}
    shortcuts: tuple[worker_messages.ShortcutDistance, ...] = ()
    for place, (round, steps) in enumerate(stretches(job.spec)):
        begin = BorderState(round, at.step, params, at.vectors)
        at, *others = (_train(job, spec, begin, steps, kind, pulse) for kind in CLASSES.values())
        mine = segments.compared(at, optimizer)
        for other in others:
            claimed = segments.compared(other, optimizer)
            for name, found in segments.distances(job.model.layout, params, mine, claimed).items():
                worst[name] = np.maximum(worst.get(name, found), found)
        params = mine[PARAMS]
        if place == MIDDLE:
            shortcuts = _spared(SegmentTask(job, spec, begin, MEMBER, steps, pulse), at)
    noise = tuple((name, tuple(float(d) for d in found)) for name, found in worst.items())
    return NoiseProfile(noise, shortcuts)


def _spared(segment: SegmentTask, right: BorderState) -> tuple[worker_messages.ShortcutDistance, ...]:
    """How far MEASURED lie from `right`; those that save nothing here, or cannot be played on this model, are left out.

    What spoils one step of a segment spoils a smaller share of a longer one.
    """
    found = []
    longest = max(end - begin for begin, end in pairwise(segment.spec.borders))
    for name in MEASURED[segment.spec.numerics.compute]:
        shortcut = SHORTCUTS[name]
        saved = shortcut.saved(segment.spec, longest)
        if saved <= 0:
            continue
        try:
            with environment(CLASSES["base"]):
                claimed = shortcut.play(segment).end
        except RunError:  # a model that does not bear it, or numbers that are lost: no end to claim
            continue
        share = len(segment.steps) / longest if shortcut.is_once else 1.0
        rows = apart(segment, right, claimed)
        if name == NARROW and not any(d for _, row in rows for d in row):
            continue  # no product in the model: there was nothing to save
        distances = tuple((vector, tuple(d * share for d in row)) for vector, row in rows)
        found.append(worker_messages.ShortcutDistance(name, shortcut.about, saved, distances))
    return tuple(found)


class PerturbedWeightsModel(CheatingModel):
    """A model whose gradients are those of weights times 1 + s u: u = 2^-23, and signs s that the seed draws."""

    def __init__(self, model: FlatModel, seed: int) -> None:
        super().__init__(model)
        key = digest(NS_DATA_ORDER, b"rounding", seed.to_bytes(8, "little"))
        self._signs = np.frombuffer(derive(NS_DATA_ORDER, key, length=(model.layout.size + 7) // 8), np.uint8)

    def gradient(self, x_BT: Tensor, y_BT: Tensor) -> float:
        """As FlatModel.gradient; the weights are then what they were."""
        kept = self.params.clone()
        for piece in blocks(slice(0, self.layout.size)):
            bits = np.unpackbits(self._signs[piece.start // 8 : -(-piece.stop // 8)], count=piece.stop - piece.start)
            factor = np.where(bits, np.float32(1 + UNIT), np.float32(1 - UNIT))
            self.params[piece] *= torch.from_numpy(factor).to(self.device)
        loss = super().gradient(x_BT, y_BT)
        self.params.copy_(kept)
        return loss


def stretches(spec: JobSpec) -> tuple[tuple[int, range], ...]:
    """Round and steps: the first of the run's first segment, of its middle one and of its last."""
    borders, count, rounds = spec.borders, spec.segments, spec.rounds
    places = ((0, 0), (rounds // 2, count // 2), (rounds - 1, count - 1))
    return tuple((round, range(borders[index], borders[index + 1])[:STEPS]) for round, index in places)


def _train(
    job: WorkerJob, spec: JobSpec, begin: BorderState, steps: range, kind: NumericEnvironment, pulse: Pulse
) -> BorderState:
    batches = job.batches(begin.round, MEMBER)
    model = PerturbedWeightsModel(job.model, spec.seed) if kind.is_off else job.model
    with environment(kind):
        return inner_steps.run_steps(model, spec, begin, batches, MEMBER, steps, pulse).end


@contextmanager
def environment(kind: NumericEnvironment) -> Iterator[None]:
    """Makes the process one of `kind`, and sets it back."""
    threads = torch.get_num_threads()
    flags = mkldnn.set_flags(kind.onednn)  # type: ignore[no-untyped-call]
    torch.set_num_threads(kind.threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        mkldnn.set_flags(flags[0])  # type: ignore[no-untyped-call]
