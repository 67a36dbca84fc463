"""Implements the inner optimizers as pure functions on flat vectors.

`torch.optim` objects hide their state from a traced graph; these do not, so that the same code trains and is
audited. All vectors have shape (size,), float32. What a step takes from the count of steps before it are its
`OptimizerRates`: numbers in training, 0-dimensional tensors where one traced graph serves every step
(verify.canon.step_graph).

`step` alone writes: it moves weights and vectors in place, some elements at a time, so that beside them a step of a
model of any size takes a few megabytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from farflung.job.methods.registry import method_of
from farflung.job.spec import JobSpec, OptimizerSpec
from farflung.train.inner_state import VECTORS
from farflung.train.rates import OptimizerRates, rates
from farflung.train.sync_arithmetic import SCALE
from farflung.train.vector_store import BLOCK, blocks

# From Jordan et al. 2024: singular values from 0.01 on come near 1 in five steps.
POLYNOMIAL = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
# RMS of an AdamW update (Liu et al. 2025, arXiv 2502.16982, section 2.2): one rate serves both parts.
MATCH = 0.2


Vectors = tuple[Tensor, ...]  # an optimizer's own, in the order of train.inner_state.VECTORS


GROUP: Final = 1 << 22  # elements of the matrices that Muon multiplies at once


class ParameterLayout(NamedTuple):
    """What of a model's shape an optimizer looks at. `decay` is true (1) where weight decay applies; `matrices` are
    the places and shapes (n, m) that Muon orthogonalises, in the order of their places.
    """

    decay: Tensor
    matrices: tuple[tuple[slice, tuple[int, int]], ...] = ()


class OptimState(NamedTuple):
    """Steps done so far, and the optimizer's own vectors in the order of train.inner_state.VECTORS."""

    step: int
    vectors: Vectors


def fresh(spec: OptimizerSpec, params: Tensor) -> OptimState:
    """The state before the first step: zeros."""
    return OptimState(0, tuple(torch.zeros_like(params) for _ in VECTORS[spec.name]))


def norm(grad: Tensor) -> float:
    """The global L2 norm, of so many elements at a time: `torch.linalg.vector_norm` adds in float32, and of 10^7
    elements its sum is off by a thousandth, which an exact step is not.
    """
    return math.hypot(*(float(torch.linalg.vector_norm(piece)) for piece in torch.split(grad, BLOCK)))


def clip_factor(norm: float, limit: float) -> float:
    """What a gradient of `norm` is multiplied by, so that its norm is at most `limit` (0: no limit); 1 leaves it."""
    return 1.0 if limit <= 0 or norm <= limit else limit / norm


def bounded(grad: Tensor, norm: float, limit: float) -> Tensor:
    """`grad`, whose norm is `norm`, scaled so that it is at most `limit` (0: no limit)."""
    factor = clip_factor(norm, limit)
    return grad if factor == 1.0 else grad * factor


def ordered_norm(vector: Tensor) -> float:
    """L2 norm with the same bits on every device: `torch.linalg.vector_norm` adds in an order that the device chooses.

    Halves are added to each other until one number is left, so its error grows with the logarithm of the size. float32.
    """
    largest = float(vector.abs().max()) if vector.numel() else 0.0
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    left = (vector / largest).square_()
    while left.numel() > 1:
        half = (left.numel() + 1) // 2
        left[: left.numel() - half] += left[half:]
        left = left[:half]
    return largest * math.sqrt(float(left))


def step(
    spec: OptimizerSpec,
    params: Tensor,
    grad: Tensor,
    state: OptimState,
    lr: float,
    parameter_layout: ParameterLayout,
    factor: float = 1.0,
    unused: Sequence[slice] = (),
) -> OptimState:
    """One step of the optimizer that `spec` names, on `grad` times `factor`: moves `params` and the state's vectors in
    place. `unused`: places without a gradient, which stay as they are, as torch's optimizers skip them.
    """
    at, vectors = rates(spec, lr, state.step + 1), state.vectors
    skipped = {place.start for place in unused}
    matrices = parameter_layout.matrices if spec.name == "muon" else ()
    for place in between((*unused, *(place for place, _ in matrices if place.start not in skipped)), params.numel()):
        for piece in blocks(place):
            before, fresh = tuple(vector[piece] for vector in vectors), _times(grad[piece], factor)
            decay = parameter_layout.decay[piece].to(params.dtype)
            moved, after = _moved(spec, params[piece], fresh, before, at, decay)
            for vector, new in zip((params, *vectors), (moved, *after), strict=True):
                vector[piece] = new
    for shape, places in alike(tuple(each for each in matrices if each[0].start not in skipped)).items():
        together = max(1, GROUP // math.prod(shape))
        for begin in range(0, len(places), together):
            _orthogonal_step(
                spec, params, grad, vectors, at, parameter_layout.decay, shape, places[begin : begin + together], factor
            )
    return OptimState(state.step + 1, vectors)


def _moved(
    spec: OptimizerSpec, params: Tensor, grad: Tensor, vectors: Vectors, at: OptimizerRates, decay: Tensor
) -> tuple[Tensor, Vectors]:
    """What the weights and vectors of some elements become."""
    match spec.name:
        case "adamw" | "muon":
            return adamw(spec, params, grad, vectors, at, decay)
        case "sgd":
            return sgd(spec, params, grad, vectors, at, decay)
        case "gradient":
            return gradient(spec, params, grad, vectors)


def _orthogonal_step(
    spec: OptimizerSpec,
    params: Tensor,
    grad: Tensor,
    vectors: Vectors,
    at: OptimizerRates,
    decay: Tensor,
    shape: tuple[int, int],
    places: Sequence[slice],
    factor: float,
) -> None:
    """Muon (Jordan et al. 2024) for some matrices of one shape; weight decay of Liu et al. 2025.

    The first vector, AdamW's mean elsewhere, is the momentum here (Nesterov's form); the second is 0.
    """
    held, update = momentum(spec, _stack(vectors[0], places, shape), _times(_stack(grad, places, shape), factor))
    for index, place in enumerate(places):
        old = params[place]
        params[place] = against(old, update[index].reshape(-1), at, decay[place].to(old.dtype), shape)
        vectors[0][place], vectors[1][place] = held[index].reshape(-1), 0.0


def _times(grad: Tensor, factor: float) -> Tensor:
    return grad if factor == 1.0 else grad * factor


def between(places: Sequence[slice], size: int) -> list[slice]:
    """What of a vector of `size` lies between these places, each as long as it can be."""
    ordered = sorted({(place.start, place.stop) for place in places})
    borders = [0, *(border for place in ordered for border in place), size]
    return [slice(a, b) for a, b in zip(borders[::2], borders[1::2], strict=True) if a < b]


def hold(places: Iterable[slice], before: Vectors, after: Vectors) -> None:
    """Gives `after` the values of `before`, in place, at places that have no gradient: as torch's optimizers skip them,
    without weight decay and momentum.
    """
    for place in places:
        for old, new in zip(before, after, strict=True):
            new[place] = old[place]


def adamw(
    spec: OptimizerSpec, params: Tensor, grad: Tensor, vectors: Vectors, at: OptimizerRates, decay: Tensor
) -> tuple[Tensor, Vectors]:
    """AdamW (Loshchilov & Hutter 2019, algorithm 2), with bias correction by the peer's own step count."""
    mean = torch.lerp(vectors[0], grad, 1.0 - spec.beta1)
    square = torch.lerp(vectors[1], grad * grad, 1.0 - spec.beta2)
    kept = params - params * decay * at.decay
    moved = torch.addcdiv(kept, mean * at.rate, square.sqrt() / at.scale + spec.eps, value=-1.0)
    return moved, (mean, square)


def sgd(
    spec: OptimizerSpec, params: Tensor, grad: Tensor, vectors: Vectors, at: OptimizerRates, decay: Tensor
) -> tuple[Tensor, Vectors]:
    """SGD with heavy-ball momentum and decoupled weight decay."""
    velocity = vectors[0] * spec.momentum + grad
    kept = params - params * decay * at.decay
    return kept - at.lr * velocity, (velocity,)


def gradient(spec: OptimizerSpec, params: Tensor, grad: Tensor, vectors: Vectors) -> tuple[Tensor, Vectors]:
    """Weights less SCALE times the velocity: what the codec sends (train.sync_arithmetic); nothing is trained on them.

    With momentum the velocity is that of Deep Gradient Compression (Lin et al. 2018, equation 8), without it the
    gradient.
    """
    velocity = vectors[0] * spec.momentum + grad
    return params - SCALE * velocity, (velocity,)


def begun(spec: JobSpec, state: OptimState, residual: Tensor) -> OptimState:
    """The optimizer as a round begins with it, given what is unsent of earlier rounds."""
    method = method_of(spec.sync.method)
    return OptimState(state.step, tuple(method.begun(vector, residual) for vector in state.vectors))


def momentum(spec: OptimizerSpec, held_BNM: Tensor, fresh_BNM: Tensor) -> tuple[Tensor, Tensor]:
    """Muon's momentum after a gradient `fresh_BNM`, and the direction, both of that shape."""
    held = torch.lerp(held_BNM, fresh_BNM, 1.0 - spec.momentum)
    return held, orthogonal(torch.lerp(fresh_BNM, held, spec.momentum))


def against(old: Tensor, update: Tensor, at: OptimizerRates, decay: Tensor, shape: tuple[int, int]) -> Tensor:
    """Weights of a matrix of `shape`, decayed and moved against Muon's direction; all tensors have one shape."""
    kept = old - old * decay * at.decay
    return kept - at.lr * MATCH * math.sqrt(max(shape)) * update


def orthogonal(x_BNM: Tensor) -> Tensor:
    """Each (n, m) matrix with its singular values brought near 1 (0.7 to 1.2): Newton-Schulz, five quintic steps."""
    a, b, c = POLYNOMIAL
    is_tall = x_BNM.shape[1] > x_BNM.shape[2]
    x = x_BNM.mT if is_tall else x_BNM
    x = (x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)).contiguous()
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = (a * x).add_((b * gram).add_((gram @ gram).mul_(c)) @ x)
    result: Tensor = x.mT if is_tall else x
    return result


def alike(matrices: tuple[tuple[slice, tuple[int, int]], ...]) -> dict[tuple[int, int], list[slice]]:
    """The places of matrices by their shape: those of one shape are multiplied together."""
    found: dict[tuple[int, int], list[slice]] = {}
    for place, shape in matrices:
        found.setdefault(shape, []).append(place)
    return found


def _stack(vector: Tensor, places: Sequence[slice], shape: tuple[int, int]) -> Tensor:
    return torch.stack([vector[place].view(shape) for place in places])
