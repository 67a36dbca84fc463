"""Provides the other inputs of a step's graph, besides state and batch: module constants, and scalars by two
counts.

No torch: a graph is executed where no model is loaded.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from farflung.core.tensor_layout import Float32
from farflung.job.spec import JobSpec
from farflung.train.inner_state import VECTORS
from farflung.train.rates import rates
from farflung.train.schedule import learning_rate

BUFFERS: Final = "buffers"
# What each optimizer reads: by the step of the run, and by the number of its own step, in the order of inputs.
BY_STEP: Final = {name: () if name == "gradient" else ("lr", "decay") for name in VECTORS}
BY_COUNT: Final = {name: ("bias", "scale") if name in ("adamw", "muon") else () for name in VECTORS}


def by_step(spec: JobSpec, done: int) -> dict[str, Float32]:
    """The scalars of step `done` of the run, from 0: the learning rate, and that times the weight decay."""
    lr = learning_rate(done, spec.steps, spec.optimizer.lr, spec.schedule)
    at = rates(spec.optimizer, lr, 1)
    both = {"lr": lr, "decay": at.decay}
    return {name: np.asarray(both[name], np.float32) for name in BY_STEP[spec.optimizer.name]}


def by_count(spec: JobSpec, number: int) -> dict[str, Float32]:
    """The scalars of the optimizer's own step `number`, from 1: AdamW's corrections of the mean and of the root."""
    at = rates(spec.optimizer, 1.0, number)
    both = {"bias": at.rate, "scale": at.scale}
    return {name: np.asarray(both[name], np.float32) for name in BY_COUNT[spec.optimizer.name]}


def scalars(spec: JobSpec, done: int, number: int) -> dict[str, Float32]:
    """All scalar inputs of step `done` of the run (from 0), the optimizer's own step `number` (from 1)."""
    return by_step(spec, done) | by_count(spec, number)
