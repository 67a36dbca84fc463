"""Describes a model cut along its depth: what comes before its layers, each layer, and what comes after them
(P2).

Stages of a pipeline are runs of slices; where they are cut is a plan's business (worst). Slices come from a
transformer's sizes, or from a traced module, layer by layer.
"""

from __future__ import annotations

import functools

import msgspec

from farflung.advice.memory import activations
from farflung.advice.memory.activations import MicroBatch
from farflung.advice.memory.transformer import Transformer
from farflung.advice.traffic import input_checks
from farflung.plan.step_trace import Recomputation, StepTrace


class ModelSlice(msgspec.Struct, frozen=True):
    """One run of a model on one card. `kept`: bytes of one micro-batch from its forward to its backward pass;
    `working`: bytes beside what it and all before it keep, at most, while it is gone through: gradients of its values,
    and what is computed again. Raises UsageError FF-PLAN-021.
    """

    parameters: float
    kept: float
    working: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("parameters", "kept", "working"):
            input_checks.amount(name, getattr(self, name))


class ModelStack(msgspec.Struct, frozen=True, cache_hash=True):
    """A model as slices. `copied`: parameters of `last` that are also in `first`, and so are there once on one card."""

    first: ModelSlice
    layers: tuple[ModelSlice, ...]
    last: ModelSlice
    copied: float = 0.0

    @property
    def parameters(self) -> float:
        """On a card that holds all of it."""
        return sum(each.parameters for each in (self.first, *self.layers, self.last)) - self.copied

    @property
    def unit(self) -> float:
        """Parameters of the largest slice."""
        return max(each.parameters for each in (self.first, *self.layers, self.last))


@functools.lru_cache(maxsize=256)  # a search asks for the same micro-batches on many subsets of hosts
def sliced(model: Transformer, micro_batch: MicroBatch) -> ModelStack:
    """A transformer's slices by the closed forms (activations.kept, logits). Tensor parallelism splits matrices."""
    t = micro_batch.tensor
    held = activations.kept(micro_batch, model)
    table = float(model.vocabulary) * model.width / t
    copied = table if model.is_tied else 0.0
    carried = (
        micro_batch.element * copied
    )  # a tied table's gradient waits for its other half from the head to the embedding
    layer = ModelSlice(model.layer / t, held.bytes, activations.passing(micro_batch, model) + carried, held.source)
    mask = float(micro_batch.tokens) * model.width / micro_batch.spread if micro_batch.has_dropout else 0.0
    halves = (
        micro_batch.element * table + 2 * carried
    )  # the embedding's, and where it is tied the other half and their sum
    first = ModelSlice(model.embedding / t, mask, halves, activations.COUNTED)
    head = activations.logits(micro_batch, model)
    last = ModelSlice(model.head / t + copied, head.bytes, activations.passing_head(micro_batch, model), head.source)
    return ModelStack(first, (layer,) * model.layers, last, copied)


def of_traced(trace: StepTrace, recompute: Recomputation, rows: int, element: float) -> ModelStack:
    """A traced module's slices, for `rows` rows whose values take `element` bytes; those of the last slice, where the
    loss is, take as many as they were traced with. What lies outside its repeated blocks is split between both ends as
    the trace saw it: parameters before the first block and after the last, activations likewise.

    Raises UsageError FF-PLAN-020, FF-PLAN-021, FF-PLAN-052.
    """
    mode, width = trace.mode(recompute), trace.width
    share = input_checks.count("rows", rows) / trace.rows
    narrow = input_checks.amount("element", element, most=16.0, above=True) / width
    sizes = (trace.ends[0], *(block.parameters for block in trace.blocks), trace.ends[1])
    kept = (mode.before, *mode.kept, mode.after)
    scales = [narrow] * (len(sizes) - 1) + [1.0]
    first, *layers, last = (
        ModelSlice(size / width, scale * share * one, scale * (fixed + share * (working - fixed)), TRACED)
        for size, one, working, fixed, scale in zip(sizes, kept, mode.working, mode.fixed, scales, strict=True)
    )
    return ModelStack(first, tuple(layers), last, trace.copied / width)


TRACED = "traced: tensors that autograd keeps, each storage once"
