"""Computes pipeline traffic: activations over each cut forward, their gradients back (P1, T3).

AQ-SGD sends changes of activations instead.

A micro-batch hands b s h e bytes over each of the p v - 1 cuts of p stages with v parts each, and as many back
(Huang et al. 2019; Narayanan et al. 2021, sections 2.2 and 3.2). Where t tensor-parallel ranks hold the same
activation, each sends all of it, or a t-th and the receivers gather it in their node (section 4.1). With sequence
parallelism each of them holds a t-th anyway, hands on that, and the layer behind gathers it as all its layers do, which
tensor parallelism's terms count (Korthikanti et al. 2022, section 4.2.2; Megatron-core's get_tensor_shapes divides by
t).

Where the head reads the embedding's table, the first and the last stage hold a copy each, and add up their gradients of
it every step: an all-reduce of two ranks of V h e/t bytes, after each stage has summed its own over its replicas
(Megatron-core, finalize_model_grads).

AQ-SGD (Wang et al. 2022, algorithm 1) sends the change of an example's activation since the last epoch in few bits. The
first epoch goes in full, gradients too, as its authors' code has it. Both ends of a cut keep what was last said of each
example, s x h values, in memory or on disk: an inner stage twice as many, for it has a cut on either side.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from farflung.advice.traffic import input_checks
from farflung.advice.traffic.collectives import RankSpan, all_gather, all_reduce
from farflung.advice.traffic.traffic_terms import RetainedBytes, RetentionPlace, TrafficPhase, TrafficTerm, told
from farflung.advice.traffic.transformer_shapes import TransformerShape

PIPELINE = "Narayanan et al. 2021, sections 2.2 and 3.2"
SCATTER = "Narayanan et al. 2021, section 4.1"
TIED = "Megatron-core, _allreduce_word_embedding_grads"
CHANGES = "Wang et al. 2022 (AQ-SGD), algorithm 1"
SCALE_BYTES = 2.0


class PipelineCuts(msgspec.Struct, frozen=True):
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
            input_checks.count(name, getattr(self, name))
        input_checks.amount("between", self.between, most=1.0)

    @property
    def cuts(self) -> int:
        """Places where an activation changes hands."""
        return self.stages * self.virtual - 1 if self.stages > 1 else 0

    def beside(self, stage: int) -> tuple[int, int]:
        """Cuts before and behind the parts of one stage, counted from 0."""
        if self.stages == 1:
            return 0, 0
        return self.virtual - (stage == 0), self.virtual - (stage == self.stages - 1)

    @property
    def is_split(self) -> bool:
        """Whether each of `tensor` ranks sends its own part of an activation only."""
        return self.is_scattered or self.is_sequence_parallel


class AqSgdConfig(msgspec.Struct, frozen=True):
    """AQ-SGD on so many `examples` an epoch: bits forward and backward, values that share a scale (0: no scales).

    `epochs` 0: a step of any epoch but the first; 1: of the first; more: the mean over so many from the first on.
    Raises UsageError FF-PLAN-020, FF-PLAN-021.
    """

    examples: float
    forward: int = 4
    backward: int = 8
    block: int = 0
    epochs: int = 0

    def __post_init__(self) -> None:
        input_checks.amount("examples", self.examples, above=True)
        input_checks.count("forward", self.forward, most=32)
        input_checks.count("backward", self.backward, most=32)
        input_checks.count("block", self.block, least=0)
        input_checks.count("epochs", self.epochs, least=0)

    def share(self, bits: int, element: int) -> float:
        """Of plain bytes of `element` bytes a value, what `bits` bits send. Raises UsageError FF-PLAN-020."""
        input_checks.count("bits", bits, most=32)
        input_checks.count("element", element, most=8)
        later = (bits + (8 * SCALE_BYTES / self.block if self.block else 0.0)) / (8 * element)
        return (1 + (self.epochs - 1) * later) / self.epochs if self.epochs else later

    def told(self, bits: int) -> str:
        """Of which epochs, for people."""
        if self.epochs < 2:
            return "first epoch, in full" if self.epochs else f"{bits} bits"
        return f"{bits} bits, mean of {self.epochs} epochs, the first in full"


class StageTraffic(msgspec.Struct, frozen=True):
    """What a rank of one stage hands to its neighbours and takes from them in a step: bytes, and messages each way."""

    sent: float
    received: float
    messages: int


class _CutDirection(NamedTuple):
    """Forward or backward: bytes that one rank hands over one cut of one micro-batch."""

    name: str
    phase: TrafficPhase
    size: float
    source: str


def pipelined(
    shape: TransformerShape,
    cuts: PipelineCuts,
    *,
    batch: int = 1,
    changes: AqSgdConfig | None = None,
    groups: float = 1.0,
) -> tuple[TrafficTerm, ...]:
    """A step of one pipeline (of `groups`), one rank a stage. Raises UsageError FF-PLAN-020, FF-PLAN-021."""
    input_checks.amount("groups", groups)
    if not cuts.cuts:
        return ()
    terms = [_handed(way, cuts, groups) for way in _ways(shape, cuts, batch, changes)]
    if cuts.tensor > 1 and cuts.is_scattered and not cuts.is_sequence_parallel:
        moved = all_gather(RankSpan(cuts.tensor, 0.0, 0.0), shape.activation(batch))
        received, places = cuts.micros * cuts.virtual, cuts.cuts / cuts.virtual / cuts.tensor
        for term in terms[:2]:
            name = term.name + ", gathered in the node"
            terms.append(moved.term(name, term.phase, SCATTER, received, groups * places))
    return tuple(terms)


def by_stage(
    shape: TransformerShape, cuts: PipelineCuts, *, batch: int = 1, changes: AqSgdConfig | None = None
) -> tuple[StageTraffic, ...]:
    """A step of one rank of each stage, first to last, over its cuts alone: ends have one side, inner stages two.

    Raises UsageError FF-PLAN-020, FF-PLAN-021.
    """
    forward, backward = (way.size * cuts.micros for way in _ways(shape, cuts, batch, changes))
    sides = [cuts.beside(stage) for stage in range(cuts.stages)]
    return tuple(
        StageTraffic(
            behind * forward + before * backward, before * forward + behind * backward, (before + behind) * cuts.micros
        )
        for before, behind in sides
    )


def cached(
    shape: TransformerShape, cuts: PipelineCuts, changes: AqSgdConfig, *, replicas: int = 1
) -> tuple[RetainedBytes, ...]:
    """What a rank of the stage with most cuts keeps for `changes`, each of `replicas` seeing its share of the examples.

    Raises UsageError FF-PLAN-020.
    """
    if not cuts.cuts:
        return ()
    sides = max(sum(cuts.beside(stage)) for stage in range(cuts.stages))
    own = changes.examples / input_checks.count("replicas", replicas)
    each = shape.activation(1) / (cuts.tensor if cuts.is_split else 1)
    text = f"{own:.4g} examples x {told(each)} x {sides} cuts"
    return (RetainedBytes("activations as last said", own * each * sides, RetentionPlace.HOST, text, CHANGES),)


def tied_table(size: float, ends: RankSpan, *, tensor: int = 1, groups: float = 1.0) -> tuple[TrafficTerm, ...]:
    """A step's sum of the gradient of a table of `size` bytes that both ends of a pipeline hold, a `tensor`-th a rank.

    `ends`: the first and the last stage, Span(2); one rank, where there is but one stage, sums nothing. Raises
    UsageError FF-PLAN-020, FF-PLAN-021.
    """
    input_checks.count("ends", ends.ranks, most=2)
    moved = all_reduce(ends, input_checks.amount("size", size) / input_checks.count("tensor", tensor))
    name = "gradient of the table that the first and last stage share"
    return (moved.term(name, TrafficPhase.BACKWARD, TIED, groups=groups),) if moved.total else ()


def _ways(
    shape: TransformerShape, cuts: PipelineCuts, batch: int, changes: AqSgdConfig | None
) -> tuple[_CutDirection, _CutDirection]:
    size = shape.activation(batch) / (cuts.tensor if cuts.is_split else 1)
    forward = _CutDirection("activations", TrafficPhase.FORWARD, size, PIPELINE)
    backward = _CutDirection("their gradients", TrafficPhase.BACKWARD, size, PIPELINE)
    if changes is None:
        return forward, backward
    return _coded(forward, changes, changes.forward, shape), _coded(backward, changes, changes.backward, shape)


def _coded(way: _CutDirection, changes: AqSgdConfig, bits: int, shape: TransformerShape) -> _CutDirection:
    size = way.size * changes.share(bits, shape.element)
    return _CutDirection(f"{way.name} ({changes.told(bits)})", way.phase, size, CHANGES)


def _handed(way: _CutDirection, cuts: PipelineCuts, groups: float) -> TrafficTerm:
    busiest = cuts.micros * cuts.virtual
    total = way.size * cuts.micros * cuts.cuts * groups
    text = f"m v [b s h e]: m = {cuts.micros}, v = {cuts.virtual}, {told(way.size)} a cut, {cuts.cuts} cuts"
    return TrafficTerm(
        name=way.name,
        phase=way.phase,
        sent=way.size * busiest,
        received=way.size * busiest,
        total=total,
        between=total * cuts.between,
        messages=float(busiest),
        syncs=float(busiest),
        formula=text,
        source=way.source,
    )
