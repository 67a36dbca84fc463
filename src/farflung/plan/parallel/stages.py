"""Pipelines: activations over each cut forward, their gradients back; and AQ-SGD, which sends changes (P1, T3).

A micro-batch hands b s h e bytes over each of the p v - 1 cuts of p stages with v parts each, and as many back
(Huang et al. 2019; Narayanan et al. 2021, sections 2.2 and 3.2). Where t tensor-parallel ranks hold the same
activation, each sends all of it, or a t-th and the receivers gather it in their node (section 4.1). With sequence
parallelism each of them holds a t-th anyway, hands on that, and the layer behind gathers it as all its layers do, which
tensor parallelism's terms count (Korthikanti et al. 2022, section 4.2.2; Megatron-core's get_tensor_shapes divides by
t).

Where the head reads the embedding's table, the first and the last stage hold a copy each, and add up their gradients of
it every step: an all-reduce of two ranks of V h e/t bytes, after each stage has summed its own over its replicas
(Megatron-core, finalize_model_grads).

AQ-SGD (Wang et al. 2022, algorithm 1) sends the change of an example's activation since the last epoch in few bits,
the first epoch in full. Both ends of a cut keep what was last said of each example: samples x s x h values each.
"""

from __future__ import annotations

import msgspec

from farflung.plan.parallel import bounds
from farflung.plan.parallel.collectives import Span, all_gather, all_reduce
from farflung.plan.parallel.shapes import Shape
from farflung.plan.parallel.terms import Phase, Term, told

PIPELINE = "Narayanan et al. 2021, sections 2.2 and 3.2"
SCATTER = "Narayanan et al. 2021, section 4.1"
TIED = "Megatron-core, _allreduce_word_embedding_grads"
CHANGES = "Wang et al. 2022 (AQ-SGD), algorithm 1"
SCALE_BYTES = 2.0


class Cutting(msgspec.Struct, frozen=True):
    """A pipeline of `stages` ranks with `virtual` parts of the model each; `tensor` ranks hold each activation."""

    stages: int
    micros: int
    virtual: int = 1
    tensor: int = 1
    is_scattered: bool = False
    between: float = 1.0  # share of cuts that lie between nodes
    is_sequence_parallel: bool = False

    def __post_init__(self) -> None:
        for name in ("stages", "micros", "virtual", "tensor"):
            bounds.count(name, getattr(self, name))
        bounds.amount("between", self.between, most=1.0)

    @property
    def cuts(self) -> int:
        """Places where an activation changes hands."""
        return self.stages * self.virtual - 1 if self.stages > 1 else 0

    @property
    def is_split(self) -> bool:
        """Whether each of `tensor` ranks sends its own part of an activation only."""
        return self.is_scattered or self.is_sequence_parallel


class Changes(msgspec.Struct, frozen=True):
    """AQ-SGD: bits forward and backward, values that share a scale (0: scales are left out)."""

    forward: int = 4
    backward: int = 8
    block: int = 0

    def __post_init__(self) -> None:
        bounds.count("forward", self.forward, most=32)
        bounds.count("backward", self.backward, most=32)
        bounds.count("block", self.block, least=0)

    def share(self, bits: int, element: int) -> float:
        """Of plain bytes of `element` bytes a value, what `bits` bits send. Raises UsageError FF-PLAN-020."""
        bounds.count("bits", bits, most=32)
        bounds.count("element", element, most=8)
        return (bits + (8 * SCALE_BYTES / self.block if self.block else 0.0)) / (8 * element)


def pipelined(
    shape: Shape, cutting: Cutting, *, batch: int = 1, changes: Changes | None = None, groups: float = 1.0
) -> tuple[Term, ...]:
    """A step of one pipeline (of `groups`), one rank a stage; with `changes`, of any epoch but the first."""
    bounds.amount("groups", groups)
    if not cutting.cuts:
        return ()
    whole = shape.activation(batch)
    size = whole / cutting.tensor if cutting.is_split else whole
    terms = []
    for phase, name in ((Phase.FORWARD, "activations"), (Phase.BACKWARD, "their gradients")):
        share, source = 1.0, PIPELINE
        if changes is not None:
            bits = changes.forward if phase is Phase.FORWARD else changes.backward
            share, source = changes.share(bits, shape.element), CHANGES
            name += f" ({bits} bits)"
        terms.append(_handed(name, phase, size * share, cutting, groups, source))
    if cutting.tensor > 1 and cutting.is_scattered and not cutting.is_sequence_parallel:
        moved = all_gather(Span(cutting.tensor, 0.0, 0.0), whole)
        received, places = cutting.micros * cutting.virtual, cutting.cuts / cutting.virtual / cutting.tensor
        for term in terms[:2]:
            name = term.name + ", gathered in the node"
            terms.append(moved.term(name, term.phase, SCATTER, received, groups * places))
    return tuple(terms)


def tied_table(size: float, ends: Span, *, tensor: int = 1, groups: float = 1.0) -> tuple[Term, ...]:
    """A step's sum of the gradient of a table of `size` bytes that both ends of a pipeline hold, a `tensor`-th a rank.

    `ends`: the first and the last stage, Span(2); one rank, where there is but one stage, sums nothing. Raises
    UsageError FF-PLAN-020, FF-PLAN-021.
    """
    bounds.count("ends", ends.ranks, most=2)
    moved = all_reduce(ends, bounds.amount("size", size) / bounds.count("tensor", tensor))
    name = "gradient of the table that the first and last stage share"
    return (moved.term(name, Phase.BACKWARD, TIED, groups=groups),) if moved.total else ()


def cache_bytes(shape: Shape, samples: float, cuts: int = 1, element: int = 2) -> float:
    """Bytes that AQ-SGD keeps at either end of `cuts` cuts for so many examples: s h values each."""
    bounds.amount("samples", samples)
    bounds.count("cuts", cuts)
    return samples * shape.sequence * shape.hidden * bounds.count("element", element, most=8) * cuts


def _handed(name: str, phase: Phase, size: float, cutting: Cutting, groups: float, source: str) -> Term:
    busiest = cutting.micros * cutting.virtual
    total = size * cutting.micros * cutting.cuts * groups
    text = (
        f"m v [b s h e]: m = {cutting.micros}, v = {cutting.virtual}, {told(size)} a cut, {cutting.cuts} cuts"
    )
    return Term(
        name=name,
        phase=phase,
        sent=size * busiest,
        received=size * busiest,
        total=total,
        between=total * cutting.between,
        messages=float(busiest),
        syncs=float(busiest),
        formula=text,
        source=source,
    )
