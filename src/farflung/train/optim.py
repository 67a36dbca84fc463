"""Inner optimizers as pure functions on flat vectors, and the learning rate as a function of the step.

`torch.optim` objects hide their state from a traced graph; these do not, so that the same code trains and is
audited. All vectors have shape (size,), float32.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from farflung.job.spec import OptimizerSpec, ScheduleSpec


class OptimState(NamedTuple):
    """Steps done so far, and the optimizer's own vectors in the order of train.inner.VECTORS."""

    step: int
    vectors: tuple[Tensor, ...]


def fresh(spec: OptimizerSpec, params: Tensor) -> OptimState:
    """The state before the first step: zeros."""
    count = 2 if spec.name == "adamw" else 1
    return OptimState(0, tuple(torch.zeros_like(params) for _ in range(count)))


def learning_rate(step: int, total: int, peak: float, schedule: ScheduleSpec) -> float:
    """The rate of step `step` of `total`: linear warm-up, then cosine down to `final` times the peak."""
    if step < schedule.warmup:
        return peak * (step + 1) / schedule.warmup
    if schedule.kind == "constant":
        return peak
    done = min(1.0, (step - schedule.warmup) / max(1, total - schedule.warmup))
    return peak * (schedule.final + (1.0 - schedule.final) * 0.5 * (1.0 + math.cos(math.pi * done)))


def clip(grad: Tensor, limit: float) -> tuple[Tensor, float]:
    """`grad` scaled so that its global L2 norm is at most `limit` (0: no limit), and the norm before."""
    norm = float(torch.linalg.vector_norm(grad))
    if limit <= 0 or norm <= limit:
        return grad, norm
    return grad * (limit / norm), norm


def step(
    spec: OptimizerSpec, params: Tensor, grad: Tensor, state: OptimState, lr: float, decay: Tensor
) -> tuple[Tensor, OptimState]:
    """One step of the optimizer that `spec` names. `decay` is 1 where weight decay applies, else 0."""
    rule = adamw if spec.name == "adamw" else sgd
    return rule(spec, params, grad, state, lr, decay)


def adamw(
    spec: OptimizerSpec, params: Tensor, grad: Tensor, state: OptimState, lr: float, decay: Tensor
) -> tuple[Tensor, OptimState]:
    """AdamW (Loshchilov & Hutter 2019, algorithm 2), with bias correction by the peer's own step count."""
    done = state.step + 1
    mean = torch.lerp(state.vectors[0], grad, 1.0 - spec.beta1)
    square = torch.lerp(state.vectors[1], grad * grad, 1.0 - spec.beta2)
    scale = math.sqrt(1.0 - spec.beta2**done)
    rate = lr / (1.0 - spec.beta1**done)
    kept = params - params * decay * (lr * spec.weight_decay)
    moved = torch.addcdiv(kept, mean, square.sqrt() / scale + spec.eps, value=-rate)
    return moved, OptimState(done, (mean, square))


def sgd(
    spec: OptimizerSpec, params: Tensor, grad: Tensor, state: OptimState, lr: float, decay: Tensor
) -> tuple[Tensor, OptimState]:
    """SGD with heavy-ball momentum and decoupled weight decay."""
    velocity = state.vectors[0] * spec.momentum + grad
    kept = params - params * decay * (lr * spec.weight_decay)
    return kept - lr * velocity, OptimState(state.step + 1, (velocity,))
