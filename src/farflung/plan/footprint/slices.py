"""A model cut along its depth: what comes before its layers, each layer, and what comes after them (P2).

Stages of a pipeline are runs of slices; where they are cut is a plan's business (worst). Slices come from a
transformer's sizes, or from a traced module, layer by layer.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from farflung.plan.footprint import activations
from farflung.plan.footprint.activations import Load
from farflung.plan.footprint.traced import Traced
from farflung.plan.footprint.transformer import Transformer
from farflung.plan.parallel import bounds
from farflung.plan.parallel.shapes import Recompute


class Slice(msgspec.Struct, frozen=True):
    """One run of a model on one card. `kept`: bytes of one micro-batch from its forward to its backward pass;
    `working`: bytes beside them while it is computed again. Raises UsageError FF-PLAN-021.
    """

    parameters: float
    kept: float
    working: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("parameters", "kept", "working"):
            bounds.amount(name, getattr(self, name))


class Stack(msgspec.Struct, frozen=True):
    """A model as slices. `copied`: parameters of `last` that are also in `first`, and so are there once on one card."""

    first: Slice
    layers: tuple[Slice, ...]
    last: Slice
    copied: float = 0.0

    @property
    def parameters(self) -> float:
        """On a card that holds all of it."""
        return sum(each.parameters for each in (self.first, *self.layers, self.last)) - self.copied

    @property
    def unit(self) -> float:
        """Parameters of the largest slice."""
        return max(each.parameters for each in (self.first, *self.layers, self.last))


def sliced(model: Transformer, load: Load) -> Stack:
    """A transformer's slices by the closed forms (activations.kept, logits). Tensor parallelism splits matrices."""
    t = load.tensor
    held = activations.kept(load, model)
    none = activations.kept(replace(load, recompute=Recompute.NONE), model)
    layer = Slice(model.layer / t, held.bytes, none.bytes - held.bytes, held.source)
    mask = float(load.tokens) * model.width / load.spread if load.has_dropout else 0.0
    first = Slice(model.embedding / t, mask, source=activations.COUNTED)
    head = activations.logits(load, model)
    table = float(model.vocabulary) * model.width / t
    copied = table if model.is_tied else 0.0
    last = Slice(model.head / t + copied, head.bytes, source=head.source)
    return Stack(first, (layer,) * model.layers, last, copied)


def of_traced(found: Traced, recompute: Recompute = Recompute.NONE) -> Stack:
    """A traced module's slices. What lies outside its repeated blocks is split between both ends as the trace saw it:
    parameters before the first block and after the last, activations likewise. Raises UsageError FF-PLAN-052.
    """
    mode = found.mode(recompute)
    width = found.width
    layers = tuple(
        Slice(block.parameters / width, kept, working, TRACED)
        for block, kept, working in zip(found.blocks, mode.kept, found.working(recompute), strict=True)
    )
    before, after = found.ends
    first = Slice(before / width, mode.before, source=TRACED)
    return Stack(first, layers, Slice(after / width, mode.after, source=TRACED), found.copied / width)


TRACED = "traced: tensors that autograd keeps, each storage once"
