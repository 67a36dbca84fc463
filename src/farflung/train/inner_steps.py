"""Computes inner steps: those of one peer alone in a round, and those of the single-machine baseline.

Inner steps run from P_r on the batches (round, member, 0..H-1) that `train.data_order` fixes; the optimizer's
state goes on from the peer's last round, the parameters start anew from P_r each time (Douillard et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from msgspec.structs import replace
from torch import Tensor

from farflung.core.canon.token_leaves import TokenSource
from farflung.core.crypto import NS_DATA_ORDER, digest
from farflung.core.errors import RunError
from farflung.core.mapped_pages import leave
from farflung.core.tensor_layout import Float32
from farflung.job.methods.registry import method_of
from farflung.job.spec import JobSpec
from farflung.train import data_order, optim
from farflung.train.data_order import Int64
from farflung.train.flat_model import FlatModel, fill, only_read
from farflung.train.optim import OptimState
from farflung.train.schedule import learning_rate
from farflung.train.segments import BorderState
from farflung.train.vector_store import is_finite, kept

Pulse = Callable[[], None]
# Step of the round -> inputs and targets, shape (rows, context).
Batches = Callable[[int], tuple[Int64, Int64]]


class StepRange(NamedTuple):
    """Some steps of a round: the state after them, and what was seen."""

    end: BorderState
    losses: tuple[float, ...]
    grad_norm: float  # largest L2 norm of a gradient, before the clip


def seed(spec: JobSpec, round: int, member: int, step: int) -> None:
    """Fixes torch's own draws (a user's dropout) for one step, so that a repeated round repeats them."""
    about = b"".join(n.to_bytes(8, "little") for n in (spec.seed, round, member, step))
    number = int.from_bytes(digest(NS_DATA_ORDER, b"torch", about)[:7], "little")
    # A card's own generator follows it (train.flat_model); manual_seed would visit all devices.
    torch.default_generator.manual_seed(number)


def tensors(batch: tuple[Int64, Int64]) -> tuple[Tensor, Tensor]:
    """NumPy batches as torch tensors (no copy)."""
    return torch.from_numpy(batch[0]), torch.from_numpy(batch[1])


def batches(tokens: TokenSource, spec: JobSpec, round: int, member: int) -> Batches:
    """The batches that the spec gives a member in a round, by step."""
    return lambda step: data_order.batch(tokens, spec, round, member, step)


def run_steps(
    model: FlatModel, spec: JobSpec, at: BorderState, batches: Batches, member: int, steps: range, pulse: Pulse
) -> StepRange:
    """The `steps` of `member`'s round from the state `at`, whose weights are told; it is left as it is.

    Nothing but the arguments decides the result: a leg of a round equals the same steps within the whole round.
    Raises RunError FF-TRAIN-062 when the numbers are lost.
    """
    assert at.params is not None
    model.put(at.params)
    optimizer = _resumed(spec, model, at)
    if at.residual is not None:
        optimizer = optim.begun(spec, optimizer, only_read(at.residual).to(model.device))
        leave(at.residual)
    losses: list[float] = []
    largest = 0.0
    for step in steps:
        pulse()
        seed(spec, at.round, member, step)
        done = at.round * spec.sync.steps + step
        loss, norm, optimizer = _step(model, spec, tensors(batches(step)), optimizer, done)
        losses.append(loss)
        largest = max(largest, norm)
    params = model.take()
    if not is_finite(params):
        raise _diverged(spec, at.round, "the parameters became NaN or infinite")
    vectors = tuple(kept(model.store, v.cpu().numpy()) for v in optimizer.vectors)
    end = BorderState(at.round, optimizer.step, params, vectors, at.residual, at.offset)
    return StepRange(end, tuple(losses), largest)


class SingleMachine(NamedTuple):
    """One machine that trains on what all members are given, after `step` steps."""

    at: BorderState

    @property
    def step(self) -> int:
        """Steps made so far."""
        return self.at.step

    @property
    def params(self) -> Float32:
        """Its weights, shape (size,)."""
        assert self.at.params is not None
        return self.at.params


def single_machine(params: Float32) -> SingleMachine:
    """One machine before its first step."""
    return SingleMachine(BorderState(0, 0, params))


def _of_one(spec: JobSpec) -> JobSpec:
    """The job of one machine: where peers send gradients, it takes the optimizer that would have moved the weights."""
    if spec.optimizer.name != "gradient":
        return spec
    name: Literal["sgd", "adamw"] = "sgd" if spec.sync.outer == "sgd" else "adamw"
    return replace(spec, optimizer=replace(spec.optimizer, name=name))


def baseline(
    model: FlatModel, spec: JobSpec, tokens: TokenSource, at: SingleMachine, members: int, until: int, pulse: Pulse
) -> SingleMachine:
    """One machine on the union of the members' batches, up to step `until` of as many as each of them makes.

    It goes through them one after another, so that no pass holds more than one of a member's.
    """
    model.put(at.params)
    spec = _of_one(spec)
    optimizer = _resumed(spec, model, at.at)
    for done in range(at.step, until):
        pulse()
        round, step = divmod(done, spec.sync.steps)
        seed(spec, round, members, step)
        each = (tensors(data_order.batch(tokens, spec, round, member, step)) for member in range(members))
        _, _, optimizer = _stepped(model, spec, model.mean_gradient(each), optimizer, done)
    vectors = tuple(kept(model.store, v.cpu().numpy()) for v in optimizer.vectors)
    return SingleMachine(BorderState(0, max(at.step, until), model.take(), vectors))


def _step(
    model: FlatModel, spec: JobSpec, batch: tuple[Tensor, Tensor], state: OptimState, done: int
) -> tuple[float, float, OptimState]:
    try:
        loss = model.gradient(*batch)
    except RunError as error:
        if error.code != "FF-TRAIN-058" or (spec.model.kind == "module" and not done):
            raise
        raise _diverged(spec, done // spec.sync.steps, f"the loss of step {done} is NaN or infinite") from error
    return _stepped(model, spec, loss, state, done)


def _stepped(
    model: FlatModel, spec: JobSpec, loss: float, state: OptimState, done: int
) -> tuple[float, float, OptimState]:
    """The optimizer's step by the gradient that the model holds."""
    with torch.no_grad():
        norm = optim.norm(model.grads)
        if not math.isfinite(norm):
            raise _diverged(
                spec, done // spec.sync.steps, f"the gradient became NaN or infinite at a loss of {loss:.3g}"
            )
        lr = learning_rate(done, spec.steps, spec.optimizer.lr, spec.schedule)
        factor, layout = optim.clip_factor(norm, clip_limit(spec)), model.parameter_layout
        after = optim.step(spec.optimizer, model.params, model.grads, state, lr, layout, factor, model.unused)
    return loss, norm, after


def clip_limit(spec: JobSpec) -> float:
    """The most that a gradient's norm may be."""
    return method_of(spec.sync.method).clip_limit(spec.optimizer.clip, spec.network.providers)


def _resumed(spec: JobSpec, model: FlatModel, at: BorderState) -> OptimState:
    """The optimizer's state before a step, which `optim.step` may write to."""
    if not at.vectors:
        return optim.fresh(spec.optimizer, model.params)
    return OptimState(at.step, tuple(_own(vector, model.device) for vector in at.vectors))


def _own(vector: Float32, device: torch.device) -> Tensor:
    fill(own := torch.empty(vector.size, device=device), vector)
    return own


def _diverged(spec: JobSpec, round: int, cause: str) -> RunError:
    others = "raise schedule.warmup" if spec.optimizer.clip else "raise schedule.warmup, or set optimizer.clip"
    return RunError(
        "FF-TRAIN-062",
        f"training diverged in round {round}",
        cause=cause,
        hint=f"lower optimizer.lr, which is {spec.optimizer.lr:g}, or {others}",
    )
