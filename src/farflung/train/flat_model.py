"""Holds the model of a job as one flat vector: every parameter is a view into it, every gradient into another.

Public tensors are all named parameters, sorted by name (core.tensor_layout), a tied weight once. A model is judged
before anything is paid: its parameters are float32 and trained, its buffers constant, and on one batch its loss is
a finite scalar with a gradient.

A user's module is built anew for each forward pass, from its source: what it counts, caches or notes beside its
parameters is gone before the next one, at whoever trains and at whoever repeats it (decision 074).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch
from torch import Tensor, nn

from farflung.core.errors import FarflungError, RunError, SpecError
from farflung.core.mapped_pages import leave
from farflung.core.tensor_layout import Float32, TensorLayout, TensorSpec
from farflung.job.spec import JobSpec
from farflung.plan.step_trace import Recomputation
from farflung.train import library_marks, process_draws, recomputation, source_reads, user_module
from farflung.train.backend.registry import backend_of
from farflung.train.models import gpt
from farflung.train.optim import ParameterLayout
from farflung.train.pass_numerics import PLAIN, PassSetting
from farflung.train.recomputation import blocks_of, recomputed
from farflung.train.vector_store import IN_MEMORY, VectorStore, blocks, kept

FINITE: Final = "forward(x, y) must return one finite scalar tensor that depends on the parameters"
CPU: Final = torch.device("cpu")
HEADS: Final = ("head", "lm_head", "unembed")


class FlatModel:
    """A module whose parameters live in `params` and whose gradients live in `grads`, both of shape (size,)."""

    def __init__(
        self,
        module: nn.Module,
        again: Callable[[], nn.Module] | None = None,
        store: VectorStore = IN_MEMORY,
        setting: PassSetting = PLAIN,
        device: torch.device = CPU,
    ) -> None:
        """`again` builds the same module once more; None: the module keeps nothing from one pass to the next. `store`:
        where parameters go that are taken from it. `device`: where parameters, gradients and passes are.
        """
        named = dict(module.named_parameters())
        check_parameters(named)
        self.module, self._again, self.store, self.setting = module, again, store, setting
        if setting.recompute is not Recomputation.NONE:
            if not blocks_of(module):
                raise _no_blocks()
            recomputation.load()
        self.layout = TensorLayout.of({name: tuple(p.shape) for name, p in named.items()})
        self.params = torch.empty(self.layout.size, device=device)
        self.grads = torch.zeros(self.layout.size, device=device)
        # Where weights decay: tensors of 2 sides or more.
        decay = torch.zeros(self.layout.size, dtype=torch.bool, device=device)
        matrices: list[tuple[slice, tuple[int, int]]] = []
        tables = looked_up(module)
        self._places: list[tuple[Tensor, Tensor, Tensor]] = []
        self._used: set[int] = set()  # where the tensors begin that the last gradient reached
        for tensor, place in self.layout.slices():
            parameter = named[tensor.name]
            view, grad = self.params[place].view(tensor.shape), self.grads[place].view(tensor.shape)
            view.copy_(parameter.detach())
            parameter.data, parameter.grad = view, grad
            decay[place] = len(tensor.shape) >= 2
            if len(tensor.shape) >= 2 and tensor.name not in tables:
                matrices.append((place, (tensor.shape[0], tensor.size // tensor.shape[0])))
            self._places.append((parameter, view, grad))
            _observe(parameter, self._used, place.start)
        _move_buffers(module, device)
        self.parameter_layout = ParameterLayout(decay, tuple(matrices))

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.params.device

    def put(self, params: Float32) -> None:
        """Takes parameters of shape (size,), by copy."""
        fill(self.params, params)

    def take(self) -> Float32:
        """A copy of the parameters, shape (size,), read-only."""
        return kept(self.store, self.params.cpu().numpy())

    def gradient(self, x_BT: Tensor, y_BT: Tensor) -> float:
        """The loss on a batch; `grads` then holds its gradient. Raises RunError FF-TRAIN-055 to FF-TRAIN-059.

        As many passes as the setting says, each of as many rows (of a batch with a remainder the last one has fewer):
        they are weighted by their rows, so that the result is the mean over the batch.
        """
        self.grads.zero_()
        self._used.clear()
        backend_of(self.device).seed(torch.default_generator.initial_seed())  # each step seeds that one
        rows = -(-len(x_BT) // self.setting.passes)
        passes = zip(torch.split(x_BT, rows), torch.split(y_BT, rows), strict=True)
        loss = math.fsum(self._backward(x, y, len(x) / len(x_BT)) for x, y in passes)
        self._check_views()
        return loss

    def _backward(self, x_BT: Tensor, y_BT: Tensor, share: float) -> float:
        """Adds one pass' share of the gradient; the same share of its loss."""
        with self.setting.autocast(self.device.type):
            loss = self.loss(x_BT, y_BT)
        if not loss.requires_grad:
            raise _bad_loss("FF-TRAIN-059", "has no gradient", "it does not depend on any parameter")
        part = loss if share == 1 else loss * share
        try:
            with self._watched():
                part.backward()  # type: ignore[no-untyped-call]
        except FarflungError:
            raise
        except (Exception, SystemExit) as error:  # a module that calls sys.exit() is no worker that died
            raise user_module.failure("FF-TRAIN-055", "the model's backward pass failed", error) from error
        return float(loss.detach()) * share

    def mean_gradient(self, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
        """The mean loss of one batch or more of as many rows each; `grads` then holds its gradient.

        One pass a batch: no more is held at once than for one of them. Raises what `gradient` raises.
        """
        losses, total, used = list[float](), torch.zeros_like(self.grads), set[int]()
        for x_BT, y_BT in batches:
            losses.append(self.gradient(x_BT, y_BT))
            total += self.grads
            used |= self._used
        torch.div(total, len(losses), out=self.grads)
        self._used.update(used)
        return sum(losses) / len(losses)

    @property
    def unused(self) -> list[slice]:
        """Places of the tensors that the last loss did not depend on: they have no gradient."""
        return [place for _, place in self.layout.slices() if place.start not in self._used]

    def never_used(self, x_BT: Tensor, y_BT: Tensor) -> frozenset[str]:
        """Names of the tensors that the loss on a batch does not depend on. Raises RunError FF-TRAIN-055 to -057."""
        loss = self.scalar(x_BT, y_BT)
        parameters = [parameter for parameter, _, _ in self._places]
        grads = torch.autograd.grad(loss, parameters, allow_unused=True) if loss.requires_grad else ()
        return frozenset(tensor.name for tensor, grad in zip(self.layout.tensors, grads, strict=False) if grad is None)

    def _check_views(self) -> None:
        if any(p.grad is not grad for p, _, grad in self._places):
            raise _bad_loss("FF-TRAIN-059", "gives sparse or replaced gradients", "only dense ones can be flat")
        if any(p.data_ptr() != view.data_ptr() or p.dtype != view.dtype for p, view, _ in self._places):
            raise _bad_loss("FF-TRAIN-059", "moves its own parameters", "forward replaced a parameter's storage")

    def loss(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        """The module's loss on a batch, finite and scalar. Raises RunError FF-TRAIN-055 to FF-TRAIN-058."""
        loss = self.scalar(x_BT, y_BT)
        value = loss.detach().item()
        if not math.isfinite(value):
            raise _bad_loss("FF-TRAIN-058", f"is {value}", "forward returned NaN or an infinity")
        return loss

    def scalar(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        """The same, whatever its value is: tensors without numbers have none. Raises FF-TRAIN-055 to FF-TRAIN-057."""
        self._renew()
        return self._scalar(x_BT, y_BT)

    def traced_scalar(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        """The same where tensors have no numbers: a buffer that is written to is refused as `probe` refuses one that
        changes. Raises SpecError FF-TRAIN-054 besides.
        """
        self._renew()
        before = {name: (id(b), b._version) for name, b in self.module.named_buffers()}
        with self.setting.autocast(self.device.type):
            loss = self._scalar(x_BT, y_BT)
        for name, buffer in self.module.named_buffers():
            if before.get(name) != (id(buffer), buffer._version):
                raise _bad_buffer(name)
        return loss

    def _scalar(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        try:
            with self._watched(), self._recomputed():
                loss = self.module(x_BT.to(self.device), y_BT.to(self.device))
        except FarflungError:
            raise
        except (Exception, SystemExit) as error:  # a module that calls sys.exit() is no worker that died
            raise user_module.failure("FF-TRAIN-055", "the model's forward pass failed", error) from error
        if not isinstance(loss, Tensor):
            raise _bad_loss("FF-TRAIN-056", "is not a tensor", f"forward returned {type(loss).__name__}")
        if loss.numel() != 1 or not loss.is_floating_point():
            shape = tuple(loss.shape)
            raise _bad_loss("FF-TRAIN-057", "is not a scalar", f"forward returned {loss.dtype} of shape {shape}")
        return loss.reshape(())

    def _watched(self) -> AbstractContextManager[None]:
        return nullcontext() if self._again is None else process_draws.untouched()

    def _recomputed(self) -> AbstractContextManager[None]:
        how = self.setting.recompute if torch.is_grad_enabled() else Recomputation.NONE
        return recomputed({} if how is Recomputation.NONE else blocks_of(self.module), how)

    def _renew(self) -> None:
        """Puts a module that nobody has called in the place of the one that was, on the same storage."""
        if self._again is None:
            return
        fresh = self._again().train(self.module.training)
        named = dict(fresh.named_parameters())
        check_parameters(named)
        if TensorLayout.of({name: tuple(p.shape) for name, p in named.items()}) != self.layout:
            raise _built_otherwise()
        slices = self.layout.slices()
        for index, ((tensor, place), (_, view, grad)) in enumerate(zip(slices, self._places, strict=True)):
            parameter = named[tensor.name]
            parameter.data, parameter.grad = view, grad
            _observe(parameter, self._used, place.start)
            self._places[index] = parameter, view, grad
        _move_buffers(fresh, self.device)
        self.module = fresh

    def probe(self, x_BT: Tensor, y_BT: Tensor) -> None:
        """Judges the model on a batch; parameters stay. Raises SpecError FF-TRAIN-054, -068, RunError -055 to -059."""
        before = {name: b.clone() for name, b in self.module.named_buffers()}
        self.gradient(x_BT, y_BT)
        after = dict(self.module.named_buffers())
        for name, value in after.items():
            if name not in before or not torch.equal(before[name], value):
                raise _bad_buffer(name)
        if self._again is not None:  # torch has loaded by now what it loads when it is used first
            marks = library_marks.taken(self.module)
            self.gradient(x_BT, y_BT)
            library_marks.check(marks, library_marks.taken(self.module))


def _move_buffers(module: nn.Module, device: torch.device) -> None:
    """Constants follow the parameters, whose places are told from the outside."""
    for buffer in module.buffers():
        if buffer.device != device:
            buffer.data = buffer.to(device)


def _observe(parameter: nn.Parameter, used: set[int], start: int) -> None:
    """Adds `start` to `used` whenever the parameter gets a gradient."""
    parameter.register_post_accumulate_grad_hook(lambda _: used.add(start))  # type: ignore[no-untyped-call]


def only_read(vector: Float32) -> Tensor:
    """A vector that nobody writes to as a tensor (no copy): it may lie in a file that is mapped read-only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch knows of no such tensors
        return torch.from_numpy(vector)


def fill(into: Tensor, vector: Float32) -> None:
    """Copies a vector to a tensor on any device, block by block, so that no more of a mapped one stays in memory."""
    for place in blocks(slice(0, vector.size)):
        into[place] = only_read(vector[place])
        leave(vector[place])


def build(spec: JobSpec, module: bytes, store: VectorStore = IN_MEMORY, device: torch.device = CPU) -> FlatModel:
    """The model of a job: built-in, or from the user's source `module`. `store`, `device`: see FlatModel.

    Raises SpecError or RunError FF-TRAIN-050 to FF-TRAIN-054, SpecError FF-TRAIN-069.
    """
    torch.manual_seed(spec.seed & ((1 << 63) - 1))
    if spec.model.kind == "gpt":
        return FlatModel(gpt.build(spec.model), None, store, PassSetting.of(spec), device)

    def again() -> nn.Module:
        with process_draws.seeded(spec.seed):
            return user_module.build(spec.model.module, module)

    try:
        return FlatModel(again(), again, store, PassSetting.of(spec), device)
    except FarflungError:
        raise
    except Exception as error:
        raise user_module.failure("FF-TRAIN-052", f"{spec.model.module} cannot be trained", error) from error


def check_source(spec: JobSpec, module: bytes) -> None:
    """Raises SpecError FF-TRAIN-067 when the user's source depends on more than a job's state (source_reads)."""
    if spec.model.kind == "module":
        source_reads.check(spec.model.module.partition(":")[0], module)


def initial(spec: JobSpec, model: FlatModel) -> Float32:
    """Round 0's parameters, shape (size,): ours from the seed, or those the user's module came with.

    Raises RunError FF-TRAIN-058 when one is not finite.
    """
    if spec.model.kind == "gpt":
        return kept(model.store, gpt.initial(spec.model, spec.seed, model.layout))
    if not bool(torch.isfinite(model.params).all()):
        raise _bad_loss("FF-TRAIN-058", "cannot be computed", "a parameter starts as NaN or an infinity")
    return model.take()


def looked_up(module: nn.Module) -> frozenset[str]:
    """Names of embeddings and heads: tables of a row a token, which Muon leaves to AdamW (Jordan et al. 2024)."""
    names = {
        f"{prefix}.weight" if prefix else "weight"
        for prefix, part in module.named_modules()
        if isinstance(part, nn.Embedding) or prefix.rpartition(".")[2] in HEADS
    }
    return frozenset(names)


def check_parameters(named: Mapping[str, nn.Parameter]) -> None:
    """Raises SpecError FF-TRAIN-054 with the names of parameters that peers cannot share."""
    bad = [
        f"{name} is {p.dtype}" + ("" if p.requires_grad else ", frozen")
        for name, p in named.items()
        if p.dtype != torch.float32 or not p.requires_grad
    ]
    bad += [f"{name} has no elements (shape {tuple(p.shape)})" for name, p in named.items() if not p.numel()]
    tensors = [TensorSpec(name, tuple(p.shape)) for name, p in sorted(named.items())]
    bad += [f"{tensor.name[:80]} {fault}" for tensor in tensors if tensor.size and (fault := tensor.fault())]
    if named and not bad:
        bad = [fault] if (fault := TensorLayout(tuple(tensors)).fault()) else []
        if not bad:
            return
    raise SpecError(
        "FF-TRAIN-054",
        "unsupported parameters: they must be float32 and trainable",
        cause="; ".join(bad[:3]) or "the module has none",
        hint="every parameter must be float32 (module.float()), with an element at least, and require a gradient; "
        "make constants non-persistent buffers",
    )


def _bad_buffer(name: str) -> SpecError:
    return SpecError(
        "FF-TRAIN-054",
        f"buffer {name!r} changes while training",
        cause="peers share parameters only, so its value would differ between them",
        hint="use layers without running statistics (LayerNorm, GroupNorm), or make the buffer constant",
    )


def _no_blocks() -> SpecError:
    return SpecError(
        "FF-TRAIN-069",
        "the model has no blocks to compute again",
        cause='model.recompute = "blocks" recomputes modules of one class in an nn.ModuleList or nn.Sequential',
        hint='build its layers as an nn.ModuleList of one class, or leave model.recompute at "none"',
    )


def _built_otherwise() -> RunError:
    return RunError(
        "FF-TRAIN-065",
        "the model is not built alike each time",
        cause="its parameters have other names or shapes than when it was built first",
        hint="build the model from constants of its own file alone",
    )


def _bad_loss(code: str, what: str, cause: str) -> RunError:
    hint = FINITE if code == "FF-TRAIN-058" else user_module.CONTRACT
    return RunError(code, f"the model's loss {what}", cause=cause, hint=hint)
