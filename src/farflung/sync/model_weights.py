"""Maps a user's model to one flat float32 vector, in the layout of its trained parameters, and back.

What is exchanged: every parameter that requires a gradient and has elements, once, however many modules share
it. Half precision is exchanged as float32 and written back rounded. Double precision is exchanged as float32, too:
what float32 cannot tell apart stays as it is at each peer, and adds up there until it can. Frozen parameters and
buffers (running means, for instance) are each peer's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from farflung.core.errors import FarflungError, RunError, UsageError
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.sync.parameter_names import named_parameters

HOST: Final = torch.device("cpu")
EXCHANGED = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class _ParameterSignature(NamedTuple):
    """What must stay as it was between rounds."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    identity: int


class ModelWeights:
    """The trained parameters of `module`. Raises UsageError FF-SYNC-002 for what cannot be exchanged."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._named = dict(sorted(_trained(module).items()))
        for name, parameter in self._named.items():
            _check(name, parameter)
        if not self._named:
            raise _unfit("the model has no parameter that requires a gradient")
        try:
            self.layout = TensorLayout.of({name: tuple(p.shape) for name, p in self._named.items()})
        except FarflungError as error:
            raise _unfit(error.cause) from error
        self._known = _knowledge(self._named)
        self.is_rounded = any(p.dtype != torch.float32 for p in self._named.values())

    @property
    def parameters(self) -> list[nn.Parameter]:
        """In the layout's order."""
        return list(self._named.values())

    @property
    def names(self) -> dict[int, str]:
        """Bare names of all parameters of the model, frozen and empty ones too, by `id`."""
        return {id(parameter): name for name, parameter in named_parameters(self._module).items()}

    def check(self) -> None:
        """Raises UsageError FF-SYNC-003 when the model is no longer the one that the first round began with."""
        now = _knowledge(_trained(self._module))
        if now == self._known:
            return
        changes = [f"{name} is new" for name in now.keys() - self._known.keys()]
        changes += [f"{name} is gone or frozen" for name in self._known.keys() - now.keys()]
        for name in now.keys() & self._known.keys():
            before, after = self._known[name], now[name]
            if before[:2] != after[:2]:
                old, new = (f"{known.dtype} {list(known.shape)}" for known in (before, after))
                changes.append(f"{name} was {old} and is {new}")
            elif before != after:
                changes.append(f"{name} is another tensor")
        raise UsageError(
            "FF-SYNC-003",
            "the model changed between rounds",
            cause="; ".join(sorted(changes)[:4]),
            hint="make a new farflung.sync object, at every peer, after a change of the model",
        )

    def take(self, device: torch.device = HOST) -> Tensor:
        """The parameters now, on `device`: a new vector of shape (layout.size,), float32."""
        return self._gather([p.detach() for p in self.parameters], device)

    def gradients(self, device: torch.device = HOST) -> Tensor:
        """The gradients now, likewise; zeros where a parameter has none."""
        return self._gather([p.grad for p in self.parameters], device)

    def put(self, flat: Tensor) -> None:
        """Writes a vector of shape (layout.size,) into the parameters, rounded to their types.

        A float64 element that is `flat`'s when rounded to float32 keeps its further digits.
        """
        with torch.no_grad():
            for parameter, (tensor, place) in zip(self.parameters, self.layout.slices(), strict=True):
                values = flat[place].view(tensor.shape).to(parameter.device)
                if parameter.dtype == torch.float64:
                    parameter.copy_(torch.where(parameter.float() == values, parameter, values.double()))
                else:
                    parameter.copy_(values)

    def check_finite(self, flat: Tensor, what: str) -> None:
        """Raises RunError FF-SYNC-005, with the tensor's name, for NaN and infinities."""
        if _is_finite(flat):
            return
        bad = [tensor.name for tensor, place in self.layout.slices() if not _is_finite(flat[place])]
        raise not_finite(what, bad, len(self._named))

    def _gather(self, tensors: list[Tensor | None], device: torch.device) -> Tensor:
        flat = torch.zeros(self.layout.size, dtype=torch.float32, device=device)
        for values, (tensor, place) in zip(tensors, self.layout.slices(), strict=True):
            if values is not None:
                flat[place].view(tensor.shape).copy_(values)
        return flat


def on_host(vector: Float32) -> Tensor:
    """A NumPy vector as a tensor, without a copy where it may be written to."""
    return torch.from_numpy(vector if vector.flags.writeable else vector.copy())


def not_finite(what: str, bad: Sequence[str], count: int) -> RunError:
    """FF-SYNC-005: `what` of the tensors `bad`, at least one, of `count`."""
    return RunError(
        "FF-SYNC-005",
        f"{what} of {bad[0]} hold NaN or infinities",
        cause=f"{len(bad)} of {count} tensors: {', '.join(bad[:4])}",
        hint="lower the learning rate, clip gradients, or go back to the last checkpoint",
    )


def _is_finite(flat: Tensor) -> bool:
    return bool(torch.isfinite(flat).all())


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """By bare name (sync.parameter_names)."""
    return {name: p for name, p in named_parameters(module).items() if p.requires_grad and p.numel()}


def _knowledge(named: dict[str, nn.Parameter]) -> dict[str, _ParameterSignature]:
    return {name: _ParameterSignature(tuple(p.shape), p.dtype, id(p)) for name, p in named.items()}


def _check(name: str, parameter: nn.Parameter) -> None:
    """A value that float32 does not hold is refused before the first step; NaN is told when it is exchanged."""
    if parameter.dtype not in EXCHANGED:
        raise _unfit(f"{name} is {parameter.dtype}")
    if parameter.is_meta or parameter.layout != torch.strided:
        raise _unfit(f"{name} is not a dense tensor with values")
    if hasattr(parameter, "placements"):
        raise _unfit(f"{name} is sharded over several processes (DTensor)")
    if parameter.dtype == torch.float64:
        held = parameter.detach()
        if bool((held.float().isinf() & held.isfinite()).any()):
            raise _unfit(f"{name} holds values over {torch.finfo(torch.float32).max:.1e}, in float32")


def _unfit(cause: str) -> UsageError:
    return UsageError(
        "FF-SYNC-002",
        "this model cannot be synchronised",
        cause=cause,
        hint="pass an unsharded model with dense float parameters; for FSDP2 see farflung.sync.compress_islands",
    )
