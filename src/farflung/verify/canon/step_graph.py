"""Traces one inner step of a job as a canonical graph: forward, gradient, clip and our own optimizer together.

Only the submitter's worker may trace, inside its sandbox: tracing runs the user's module, which is a stranger's program
everywhere else. The graph travels as data; nobody traces again to verify (another version of torch writes another
graph). The job's terms name it (peers.program.trace). Inputs and outputs carry the names of the state:

    in    params/NAME  VECTOR/NAME  buffers/NAME (where used)  x  y  and the scalars of BY_STEP and BY_COUNT
    out   params/NAME  VECTOR/NAME  loss  grad_norm

The canonical step is the native one (train.inner_steps) but for rounding. The clip has no branch: the gradient is
multiplied with select(norm ≤ limit, 1, limit / norm), where the native one leaves it alone or multiplies with a
quotient that was taken in double precision; 1 · g is g, so that both agree where nothing is clipped. A batch that is
cut into passes (accumulate) goes through them in turn, as the native step does. The norm is the
root of the sum of each tensor's squares, a tensor at a time. Rates are float32 where training takes double precision,
and what depends on the step of the run as well as on the optimizer's own count is multiplied in the graph: each has
one table.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions
from torch.func import functional_call, functionalize, grad_and_value
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from farflung.core.canon.graph import CanonicalGraph, check
from farflung.core.errors import FarflungError, SpecError, type_and_text
from farflung.job.spec import JobSpec, OptimizerSpec
from farflung.train import optim
from farflung.train.contribution_trace import PARAMS
from farflung.train.flat_model import FlatModel
from farflung.train.inner_state import VECTORS
from farflung.train.inner_steps import clip_limit
from farflung.train.rates import OptimizerRates
from farflung.verify.canon.lower import lowered
from farflung.verify.canon.scalars import BUFFERS, BY_COUNT, BY_STEP


def traced(model: FlatModel, spec: JobSpec) -> CanonicalGraph:
    """The graph of one step; the same model gives the same graph, byte for byte, under one version of torch.

    Raises SpecError FF-VERI-080 to FF-VERI-085 (an operation that has no canonical form, see `lower`) or FF-VERI-086
    (the module cannot be traced at all).
    """
    step = _StepFunction(model, spec)
    module = _recorded(step, step.examples())
    graph = lowered(module, step.inputs, step.outputs, f"{BUFFERS}/")
    check(graph)
    return graph


def buffers(model: FlatModel) -> dict[str, np.ndarray]:
    """The constants that a module brings with it, by the names of a graph's inputs; a graph may need fewer."""
    named = sorted(model.module.named_buffers())
    return {f"{BUFFERS}/{name}": tensor.detach().numpy() for name, tensor in named}


class _StepFunction:
    """One step as a function of flat lists of tensors, in the order of `inputs` and `outputs`."""

    def __init__(self, model: FlatModel, spec: JobSpec) -> None:
        self.module, self.spec, self.layout = model.module, spec, model.layout
        self.limit, self.share = clip_limit(spec), 1 / spec.accumulate  # of one pass
        self.names = [tensor.name for tensor in model.layout.tensors]
        self.buffers = sorted(name for name, _ in model.module.named_buffers())
        self.matrices = _matrices(model)
        self.unused = _unused(model, spec)
        self.scalars = BY_STEP[spec.optimizer.name] + BY_COUNT[spec.optimizer.name]
        vectors = VECTORS[spec.optimizer.name]
        state = [f"{vector}/{name}" for vector in (PARAMS, *vectors) for name in self.names]
        self.inputs = [*state, *(f"{BUFFERS}/{name}" for name in self.buffers), "x", "y", *self.scalars]
        self.outputs = [*state, "loss", "grad_norm"]

    def examples(self) -> list[Tensor]:
        """Tensors of the shapes and kinds of the inputs."""
        count = 1 + len(VECTORS[self.spec.optimizer.name])
        held = dict(self.module.named_buffers())
        batch = torch.zeros(self.spec.batch, self.spec.model.context, dtype=torch.int64)
        return [
            *(torch.zeros(t.shape) for _ in range(count) for t in self.layout.tensors),
            *(held[name].detach() for name in self.buffers),
            batch,
            batch.clone(),
            *(torch.ones(()) for _ in self.scalars),
        ]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        left = list(inputs)
        optimizer = self.spec.optimizer

        def take(count: int) -> list[Tensor]:
            taken, left[:] = left[:count], left[count:]
            return taken

        params = dict(zip(self.names, take(len(self.names)), strict=True))
        vectors = [dict(zip(self.names, take(len(self.names)), strict=True)) for _ in VECTORS[optimizer.name]]
        held = dict(zip(self.buffers, take(len(self.buffers)), strict=True))
        x, y = take(2)
        at = _rates(dict(zip(self.scalars, left, strict=True)))

        def loss_of(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            loss: Tensor = functional_call(self.module, (weights, held), (x, y))
            return loss.reshape(()) * self.share if self.share != 1 else loss.reshape(())

        rows = self.spec.pass_rows
        (grads, loss), *more = (
            grad_and_value(loss_of)(params, *each)
            for each in zip(torch.split(x, rows), torch.split(y, rows), strict=True)
        )
        for another, part in more:
            grads, loss = {name: grads[name] + another[name] for name in self.names}, loss + part
        grads, norm = _clipped({name: grads[name] for name in self.names}, self.limit)
        after = self._moved(params, grads, vectors, at)
        for name in self.unused:
            for held, old in zip(after, (params, *vectors), strict=True):
                held[name] = old[name]
        return [*(after[n][name] for n in range(1 + len(vectors)) for name in self.names), loss, norm]

    def _moved(
        self, params: dict[str, Tensor], grads: dict[str, Tensor], vectors: list[dict[str, Tensor]], at: OptimizerRates
    ) -> list[dict[str, Tensor]]:
        """Parameters, then vectors, after the optimizer's step; each tensor alone, matrices of one shape together."""
        after: list[dict[str, Tensor]] = [{} for _ in range(1 + len(vectors))]
        matrices = self.matrices if self.spec.optimizer.name == "muon" else {}
        for shape, names in matrices.items():
            self._turned(shape, names, (params, grads, vectors[0]), at, after)
        together = {name for names in matrices.values() for name in names}
        for name in (name for name in self.names if name not in together):
            old = tuple(vector[name] for vector in vectors)
            moved, new = _single(self.spec.optimizer, params[name], grads[name], old, at)
            for held, value in zip(after, (moved, *new), strict=True):
                held[name] = value
        return after

    def _turned(
        self,
        shape: tuple[int, int],
        names: list[str],
        state: tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]],
        at: OptimizerRates,
        after: list[dict[str, Tensor]],
    ) -> None:
        """Muon's step for matrices of one shape (train.optim.muon)."""
        params, grads, means = state

        def stack(of: dict[str, Tensor]) -> Tensor:
            return torch.stack([of[name].reshape(shape) for name in names])

        held, update = optim.momentum(self.spec.optimizer, stack(means), stack(grads))
        moved = optim.against(stack(params), update, at, torch.ones(()), shape)
        for index, name in enumerate(names):
            like = params[name].shape
            after[0][name], after[1][name] = moved[index].reshape(like), held[index].reshape(like)
            after[2][name] = torch.zeros(like)


def _rates(at: dict[str, Tensor]) -> OptimizerRates:
    """What the optimizer reads; what it does not read has no scalar and stands as 0."""
    rate = at["lr"] * at["bias"] if "bias" in at else 0.0
    return OptimizerRates(at.get("lr", 0.0), at.get("decay", 0.0), rate, at.get("scale", 0.0))


def _single(
    spec: OptimizerSpec, params: Tensor, grad: Tensor, vectors: optim.Vectors, at: OptimizerRates
) -> tuple[Tensor, optim.Vectors]:
    """The optimizer's step for a tensor that is no matrix of Muon's, in its own shape (train.optim.step)."""
    decay = torch.full((), float(params.dim() >= 2))
    match spec.name:
        case "adamw" | "muon":
            return optim.adamw(spec, params, grad, vectors, at, decay)
        case "sgd":
            return optim.sgd(spec, params, grad, vectors, at, decay)
        case "gradient":
            return optim.gradient(spec, params, grad, vectors)


def _clipped(grads: dict[str, Tensor], limit: float) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients of a global L2 norm of at most `limit` (0: no limit), and the norm before."""
    first, *rest = [(grad * grad).sum() for grad in grads.values()]
    for square in rest:
        first = first + square
    norm = first.sqrt()
    if limit <= 0:
        return grads, norm
    factor = torch.where(norm <= limit, torch.ones(()), limit / norm)
    return {name: grad * factor for name, grad in grads.items()}, norm


def _matrices(model: FlatModel) -> dict[tuple[int, int], list[str]]:
    """Names of Muon's matrices by shape, in layout order."""
    by_start = {place.start: tensor.name for tensor, place in model.layout.slices()}
    alike = optim.alike(model.parameter_layout.matrices)
    return {shape: [by_start[place.start] for place in places] for shape, places in alike.items()}


def _unused(model: FlatModel, spec: JobSpec) -> frozenset[str]:
    """Names of the tensors that no step uses: they have no gradient, and stay as they are (train.optim.hold)."""
    batch = torch.zeros(spec.batch, spec.model.context, dtype=torch.int64)
    try:
        return model.never_used(batch, batch.clone())
    except FarflungError:  # a forward that fails is told where it is traced
        return frozenset()


def _lerp(a: Tensor, b: Tensor, weight: float) -> Tensor:
    """torch's formula for a weight that is a number: the shorter way from either end."""
    return a + weight * (b - a) if abs(weight) < 0.5 else b - (b - a) * (1.0 - weight)


def _recorded(step: _StepFunction, examples: list[Tensor]) -> fx.GraphModule:
    """torch's own graph of the step. Raises SpecError FF-VERI-086."""
    table = dict(core_aten_decompositions())
    table.pop(torch.ops.aten.embedding_dense_backward.default, None)
    table[torch.ops.aten.lerp.Scalar] = _lerp
    try:
        with sdpa_kernel(SDPBackend.MATH):
            return make_fx(
                functionalize(step, remove="mutations"),
                decomposition_table=table,
                tracing_mode="fake",
                record_stack_traces=True,
            )(*examples)
    except FarflungError:
        raise
    except (Exception, SystemExit) as error:  # a module's forward may raise anything, or leave
        raise SpecError(
            "FF-VERI-086",
            "the model cannot be traced",
            cause=type_and_text(error).splitlines()[0][:240],
            hint="forward must do the same operations whatever the numbers are: no .item(), no if on a tensor",
        ) from error
