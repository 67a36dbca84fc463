"""Inner optimizers as pure functions on flat vectors.

`torch.optim` objects hide their state from a traced graph; these do not, so that the same code trains and is
audited. All vectors have shape (size,), float32.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from farflung.job.spec import OptimizerSpec
from farflung.train.inner import VECTORS
from farflung.train.sync import SCALE

# From Jordan et al. 2024: singular values from 0.01 on come near 1 in five steps.
POLYNOMIAL = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
# RMS of an AdamW update (Liu et al. 2025, arXiv 2502.16982, section 2.2): one rate serves both parts.
MATCH = 0.2


class Terrain(NamedTuple):
    """What of a model's shape an optimizer looks at. `decay` is 1 where weight decay applies, else 0; `matrices` are
    the places and shapes (n, m) that Muon orthogonalises.
    """

    decay: Tensor
    matrices: tuple[tuple[slice, tuple[int, int]], ...] = ()


class OptimState(NamedTuple):
    """Steps done so far, and the optimizer's own vectors in the order of train.inner.VECTORS."""

    step: int
    vectors: tuple[Tensor, ...]


def fresh(spec: OptimizerSpec, params: Tensor) -> OptimState:
    """The state before the first step: zeros."""
    return OptimState(0, tuple(torch.zeros_like(params) for _ in VECTORS[spec.name]))


def clip(grad: Tensor, limit: float) -> tuple[Tensor, float]:
    """`grad` scaled so that its global L2 norm is at most `limit` (0: no limit), and the norm before."""
    norm = float(torch.linalg.vector_norm(grad))
    if limit <= 0 or norm <= limit:
        return grad, norm
    return grad * (limit / norm), norm


def step(
    spec: OptimizerSpec, params: Tensor, grad: Tensor, state: OptimState, lr: float, terrain: Terrain
) -> tuple[Tensor, OptimState]:
    """One step of the optimizer that `spec` names."""
    match spec.name:
        case "adamw":
            return adamw(spec, params, grad, state, lr, terrain.decay)
        case "muon":
            return muon(spec, params, grad, state, lr, terrain)
        case "sgd":
            return sgd(spec, params, grad, state, lr, terrain.decay)
        case "gradient":
            return gradient(spec, params, grad, state)


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


def gradient(
    spec: OptimizerSpec, params: Tensor, grad: Tensor, state: OptimState
) -> tuple[Tensor, OptimState]:
    """Weights less SCALE times the velocity, which is what the codec sends (train.sync): nothing is trained on them.

    With momentum the velocity is that of Deep Gradient Compression (Lin et al. 2018, equation 8), without it the
    gradient.
    """
    velocity = state.vectors[0] * spec.momentum + grad
    return params - SCALE * velocity, OptimState(state.step + 1, (velocity,))


def masked(state: OptimState, residual: Tensor) -> OptimState:
    """Momentum factor masking (Lin et al. 2018, section 3.2): no velocity where all was sent, that is, nothing is
    unsent.
    """
    return OptimState(state.step, tuple(v * (residual != 0) for v in state.vectors))


def muon(
    spec: OptimizerSpec, params: Tensor, grad: Tensor, state: OptimState, lr: float, terrain: Terrain
) -> tuple[Tensor, OptimState]:
    """Muon (Jordan et al. 2024) for `terrain.matrices`, AdamW for all else; weight decay as in Liu et al. 2025.

    The first vector is AdamW's mean, in matrices the momentum (Nesterov's form); the second stays 0 there.
    """
    moved, after = adamw(spec, params, grad, state, lr, terrain.decay)
    mean, square = after.vectors
    for shape, places in _alike(terrain.matrices).items():
        held = _stack(state.vectors[0], places, shape)
        fresh = _stack(grad, places, shape)
        held = torch.lerp(held, fresh, 1.0 - spec.momentum)
        update = orthogonal(torch.lerp(fresh, held, spec.momentum))
        rate = lr * MATCH * math.sqrt(max(shape))
        for index, place in enumerate(places):
            old = params[place]
            kept = old - old * terrain.decay[place] * (lr * spec.weight_decay)
            moved[place] = kept - rate * update[index].reshape(-1)
            mean[place], square[place] = held[index].reshape(-1), 0.0
    return moved, after


def orthogonal(x_BNM: Tensor) -> Tensor:
    """Each (n, m) matrix with its singular values brought near 1 (0.7 to 1.2): Newton-Schulz, five quintic steps."""
    a, b, c = POLYNOMIAL
    is_tall = x_BNM.shape[1] > x_BNM.shape[2]
    x = x_BNM.mT if is_tall else x_BNM
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    result: Tensor = x.mT if is_tall else x
    return result


def _alike(matrices: tuple[tuple[slice, tuple[int, int]], ...]) -> dict[tuple[int, int], list[slice]]:
    found: dict[tuple[int, int], list[slice]] = {}
    for place, shape in matrices:
        found.setdefault(shape, []).append(place)
    return found


def _stack(vector: Tensor, places: list[slice], shape: tuple[int, int]) -> Tensor:
    return torch.stack([vector[place].view(shape) for place in places])
