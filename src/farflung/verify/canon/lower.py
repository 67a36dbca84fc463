"""Lowers torch's graph of a step to the canonical one, operation by operation; refuses what has no canonical
form.

Every refusal is a SpecError that names the operation, the model's own line where torch knows it, and what to change:
such a job can still run, but its work cannot be checked down to one operation ("outcome only").
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from operator import getitem
from typing import Any, Final

import torch
from torch import fx

from farflung.core import limits
from farflung.core.canon.graph import CanonicalGraph, GraphInput
from farflung.core.canon.operation_rules import BOOL, F32, I64
from farflung.core.errors import SpecError
from farflung.verify.canon.aten_table import ODD_FORMS, RULES
from farflung.verify.canon.graph_builder import GraphBuilder, GraphTensor
from farflung.verify.canon.pointwise import OutputSpec, RefusedError

KINDS: Final = {torch.float32: F32, torch.int64: I64, torch.bool: BOOL}
# What torch says about storage, and the kind of the result, which is in `OutputSpec`.
ASIDE: Final = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking"})
_FRAME: Final = re.compile(r'File "([^"]*)", line (\d+)')
_TORCH: Final = os.path.dirname(torch.__file__)
UNCHECKED: Final = "change the model, or run the job as outcome only: then no dispute looks into a step"


def lowered(module: fx.GraphModule, names: Sequence[str], outputs: Sequence[str], optional: str) -> CanonicalGraph:
    """The canonical graph of a traced function whose arguments are called `names`, and its results `outputs`.

    Arguments whose names begin with `optional` are left out when nothing needs them. Raises SpecError FF-VERI-080 to
    FF-VERI-085.
    """
    return _GraphLowering(module, names).graph(outputs, optional)


class _GraphLowering:
    def __init__(self, module: fx.GraphModule, names: Sequence[str]) -> None:
        self.module = module
        self.known: dict[fx.Node, Any] = {}
        places = [node for node in module.graph.nodes if node.op == "placeholder"]
        usable = [(n, name) for n, name in zip(places, names, strict=True) if n.meta["val"].dtype in KINDS]
        entries = [GraphInput(name, *_out(node.meta["val"], node)) for node, name in usable]
        self.builder = GraphBuilder(entries)
        for number, (node, _) in enumerate(usable):
            self.known[node] = self.builder.input(number)

    def graph(self, outputs: Sequence[str], optional: str) -> CanonicalGraph:
        found: Sequence[GraphTensor] = ()
        for node in self.module.graph.nodes:
            if node.op == "call_function":
                self.known[node] = self._call(node)
            elif node.op == "get_attr":
                self.known[node] = self._constant(node)
            elif node.op == "output":
                found = fx.map_arg(node.args[0], self._value)
        named = dict(zip(outputs, found, strict=True))
        unused = frozenset(n for n in self.builder.names if n.startswith(optional))
        return self.builder.finished(named, unused)

    def _value(self, node: fx.Node) -> Any:
        if node not in self.known:
            raise _bad_kind(node, node.meta["val"].dtype)
        return self.known[node]

    def _call(self, node: fx.Node) -> Any:
        if node.target is getitem:
            source, index = node.args
            assert isinstance(source, fx.Node)
            return self._value(source)[index]
        assert isinstance(node.target, torch._ops.OpOverload)
        rule = _rule(node, node.target)
        out = _outs(node)
        args = fx.map_arg(node.args, self._value)
        kwargs = {k: fx.map_arg(v, self._value) for k, v in node.kwargs.items() if k not in ASIDE}
        try:
            return rule(self.builder, out, *args, **kwargs)
        except RefusedError as refused:
            raise _bad_form(node, str(refused)) from None

    def _constant(self, node: fx.Node) -> GraphTensor:
        """A tensor that forward made from numbers of its own: one number, or the same everywhere."""
        tensor = getattr(self.module, str(node.target))
        out = _out(node.meta["val"], node)
        first = tensor.reshape(-1)[0]
        if not bool((tensor == first).all()):
            raise _bad_constant(node, out)
        return self.builder.const(first.item(), out.kind, out.shape)


def _rule(node: fx.Node, target: torch._ops.OpOverload) -> Any:
    namespace, _, name = target._schema.name.partition("::")
    if torch.Tag.nondeterministic_seeded in target.tags:
        raise _random(node)
    is_odd = str(target).removeprefix("aten.") in ODD_FORMS or target._schema.is_mutable
    if namespace != "aten" or name not in RULES or is_odd:
        raise _unknown(node)
    return RULES[name]


def _outs(node: fx.Node) -> OutputSpec | list[OutputSpec]:
    value = node.meta["val"]
    return [_out(one, node) for one in value] if isinstance(value, tuple | list) else _out(value, node)


def _out(value: torch.Tensor, node: fx.Node) -> OutputSpec:
    shape = tuple(int(side) for side in value.shape)
    if value.dtype not in KINDS:
        raise _bad_kind(node, value.dtype)
    if math.prod(shape) == 0 or len(shape) > limits.TENSOR_DIMENSIONS:
        raise _bad_shape(node, shape)
    return OutputSpec(KINDS[value.dtype], shape)


def _name(node: fx.Node) -> str:
    return f"{node.target}" if node.op == "call_function" else f"{node.name}"


def _where(node: fx.Node) -> str:
    """The model's own line, if torch knows it: the innermost frame that is not torch's. Never a machine's path."""
    frames = _FRAME.findall(node.stack_trace or "")
    own = [(os.path.basename(file), line) for file, line in frames if not file.startswith(_TORCH)]
    return f"{own[-1][0]}, line {own[-1][1]}" if own else "in the gradient or the optimizer: torch names no line"


def _unknown(node: fx.Node) -> SpecError:
    return SpecError(
        "FF-VERI-080",
        f"{_name(node)} cannot be checked",
        cause=f"it has no canonical form ({_where(node)})",
        hint=UNCHECKED,
    )


def _random(node: fx.Node) -> SpecError:
    return SpecError(
        "FF-VERI-081",
        f"{_name(node)} draws random numbers",
        cause=f"a step that draws cannot be repeated elsewhere ({_where(node)})",
        hint="set dropout to 0, and draw nothing in forward",
    )


def _bad_form(node: fx.Node, why: str) -> SpecError:
    return SpecError(
        "FF-VERI-082", f"{_name(node)} cannot be checked in this form", cause=f"{why} ({_where(node)})", hint=UNCHECKED
    )


def _bad_kind(node: fx.Node, dtype: torch.dtype) -> SpecError:
    return SpecError(
        "FF-VERI-083",
        f"{_name(node)} gives {str(dtype).removeprefix('torch.')}",
        cause=f"canonical arithmetic knows float32, int64 and bool ({_where(node)})",
        hint="convert to float32 before, or keep the numbers in float32 from the start",
    )


def _bad_shape(node: fx.Node, shape: tuple[int, ...]) -> SpecError:
    return SpecError(
        "FF-VERI-084",
        f"{_name(node)} gives a tensor of shape {shape}",
        cause=f"canonical tensors have at most {limits.TENSOR_DIMENSIONS} sides, and none is empty ({_where(node)})",
        hint="leave out what is empty; join sides with reshape",
    )


def _bad_constant(node: fx.Node, out: OutputSpec) -> SpecError:
    return SpecError(
        "FF-VERI-085",
        f"a tensor of shape {out.shape} is written into forward",
        cause=f"only tensors of one repeated number can be ({_where(next(iter(node.users), node))})",
        hint="register it in __init__: self.register_buffer(name, tensor, persistent=False)",
    )
