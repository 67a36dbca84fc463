"""Computes the traffic of a step in a hybrid layout (P1): the groups of ranks, what each sends, what leaves a
node.

Ranks are numbered with tensor innermost, then context, then data, pipeline outermost (Narayanan et al. 2021,
section 3):

    rank = ((stage x data + replica) x context + part) x tensor + slice

Nodes hold `node` consecutive ranks. Gradients are summed over data x context, since parts of one sequence train the
same weights; experts lie across `expert` of those ranks, and theirs over the rest. A group's bytes leave a node by
the share of its ring's hops, or of its pairs, that do.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

import msgspec

from farflung.advice.traffic import input_checks
from farflung.advice.traffic.collectives import RankSpan, span
from farflung.advice.traffic.context_and_expert_parallel import ring_attention, routed
from farflung.advice.traffic.data_parallel import ReplicaSharding, copied, replicated
from farflung.advice.traffic.local_step_methods import averaged
from farflung.advice.traffic.pipeline_traffic import AqSgdConfig, PipelineCuts, cached, pipelined, tied_table
from farflung.advice.traffic.tensor_parallel import embedding, tensor_parallel
from farflung.advice.traffic.traffic_terms import TrafficLoad, TrafficTerm
from farflung.advice.traffic.transformer_shapes import TransformerShape
from farflung.core import limits
from farflung.plan.step_trace import Recomputation


class ParallelMesh(msgspec.Struct, frozen=True):
    """How many ways each kind of parallelism cuts; `node`: ranks of one node. Raises FF-PLAN-020, FF-PLAN-023."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    node: int = 1

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "pipeline", "context", "expert", "node"):
            input_checks.count(name, getattr(self, name))
        input_checks.count("ranks", self.ranks)
        input_checks.dividing("data x context", self.data * self.context, "expert", self.expert)

    @property
    def ranks(self) -> int:
        """Cards of the whole mesh."""
        return self.data * self.tensor * self.pipeline * self.context

    def tensors(self) -> RankSpan:
        """Slices of a layer."""
        return span(self.tensor, 1, self.node)

    def contexts(self) -> RankSpan:
        """Parts of a sequence."""
        return span(self.context, self.tensor, self.node)

    def replicas(self) -> RankSpan:
        """Ranks that hold the same weights."""
        return span(self.data * self.context, self.tensor, self.node)

    def owners(self) -> RankSpan:
        """Ranks that hold the same experts."""
        return span(self.data * self.context // self.expert, self.tensor * self.expert, self.node)

    def experts(self) -> RankSpan:
        """Ranks that share the experts out among them."""
        return span(self.expert, self.tensor, self.node)

    def between_stages(self) -> float:
        """Share of hops from one stage to the next that leave a node."""
        if self.pipeline == 1:
            return 0.0
        stride = self.tensor * self.context * self.data
        homes = [stage * stride // self.node for stage in range(self.pipeline)]
        return sum(one != other for one, other in pairwise(homes)) / (self.pipeline - 1)

    def ends(self) -> RankSpan:
        """The first and the last stage."""
        stride = self.tensor * self.context * self.data
        return span(min(2, self.pipeline), stride * max(1, self.pipeline - 1), self.node)


class TrainingStep(msgspec.Struct, frozen=True):
    """A step: `micros` micro-batches of `batch` sequences through each replica, and how it is done."""

    batch: int = 1
    micros: int = 1
    virtual: int = 1
    recompute: Recomputation = Recomputation.NONE
    is_sequence_parallel: bool = False
    is_scattered: bool = False
    sharding: ReplicaSharding = ReplicaSharding()
    changes: AqSgdConfig | None = None
    every: int = 1  # steps between two exchanges of what replicas changed: more than 1 with whole replicas only
    bits: float = 0.0  # of a parameter in them, 0: as a gradient's

    def __post_init__(self) -> None:
        for name in ("batch", "micros", "virtual"):
            input_checks.count(name, getattr(self, name))
        input_checks.word("recompute", self.recompute, Recomputation)
        input_checks.count("every", self.every, most=1 if self.sharding.stage else limits.PLANNED_RANKS)
        input_checks.amount("bits", self.bits, most=0.0 if self.sharding.stage else 64.0)


class ParallelAxis(StrEnum):
    """Along which axis of the mesh something is sent."""

    DATA = "data parallel"
    TENSOR = "tensor parallel"
    CONTEXT = "context parallel"
    EXPERT = "expert parallel"
    PIPELINE = "pipeline"


def load(shape: TransformerShape, mesh: ParallelMesh, training: TrainingStep) -> TrafficLoad:
    """All that a step of this layout sends, and what it keeps so as not to send more.

    Raises UsageError FF-PLAN-020, FF-PLAN-021, FF-PLAN-023 (ways that do not divide).
    """
    input_checks.dividing("layers", shape.layers, "pipeline x virtual", mesh.pipeline * training.virtual)
    input_checks.dividing("sequence", shape.sequence, "context", mesh.context)
    input_checks.dividing("routed", shape.routed, "pipeline", mesh.pipeline)
    terms = tuple(term for along in by_axis(shape, mesh, training).values() for term in along)
    sharding = _sharding(shape, training)
    kept = [one for held in _held(shape, mesh) for one in copied(held.size, held.group, sharding)]
    if training.changes:
        kept += cached(_part(shape, mesh), _cutting(mesh, training), training.changes, replicas=mesh.data)
    return TrafficLoad(mesh.ranks, terms, tuple(kept))


def by_axis(
    shape: TransformerShape, mesh: ParallelMesh, training: TrainingStep
) -> dict[ParallelAxis, tuple[TrafficTerm, ...]]:
    """A step's terms along each axis; raises UsageError FF-PLAN-020, FF-PLAN-021."""
    part, groups = _part(shape, mesh), mesh.ranks / mesh.pipeline
    cuts = _cutting(mesh, training)
    return {
        ParallelAxis.DATA: _gradients(shape, mesh, training),
        **_inside_layers(shape, mesh, training),
        ParallelAxis.PIPELINE: (
            *pipelined(part, cuts, batch=training.batch, changes=training.changes, groups=groups),
            *tied_table(_shared(shape, mesh), mesh.ends(), tensor=mesh.tensor, groups=groups),
        ),
    }


def _cutting(mesh: ParallelMesh, training: TrainingStep) -> PipelineCuts:
    return PipelineCuts(
        mesh.pipeline,
        training.micros,
        training.virtual,
        mesh.tensor,
        training.is_scattered,
        mesh.between_stages(),
        training.is_sequence_parallel,
    )


def _part(shape: TransformerShape, mesh: ParallelMesh) -> TransformerShape:
    """What one rank of a context group sees of each sequence."""
    return msgspec.structs.replace(shape, sequence=shape.sequence // mesh.context, parameters=shape.size)


def _shared(shape: TransformerShape, mesh: ParallelMesh) -> float:
    """Bytes of the table that the last stage holds a copy of."""
    return shape.table if shape.is_tied and mesh.pipeline > 1 else 0.0


class _ReplicatedWeights(NamedTuple):
    """Weights that so many groups of ranks hold alike: bytes of a rank before any sharding."""

    name: str
    size: float
    group: RankSpan
    groups: int


def _held(shape: TransformerShape, mesh: ParallelMesh) -> tuple[_ReplicatedWeights, ...]:
    cut = mesh.tensor * mesh.pipeline
    # Replicas of the last stage hold and sum their copy of a shared table, too.
    dense = ((shape.size - shape.experts) * shape.element + _shared(shape, mesh)) / cut
    held = _ReplicatedWeights("", dense, mesh.replicas(), cut)
    if not shape.experts:
        return (held,)
    own = shape.experts * shape.element / cut / mesh.expert
    return held, _ReplicatedWeights("experts: ", own, mesh.owners(), cut * mesh.expert)


def _sharding(shape: TransformerShape, training: TrainingStep) -> ReplicaSharding:
    found = msgspec.structs.replace(training.sharding, accumulation=training.micros)
    if found.plus is None:
        return found
    return msgspec.structs.replace(found, plus=msgspec.structs.replace(found.plus, element=shape.element))


def _gradients(shape: TransformerShape, mesh: ParallelMesh, training: TrainingStep) -> tuple[TrafficTerm, ...]:
    return tuple(
        msgspec.structs.replace(term, name=held.name + term.name)
        for held in _held(shape, mesh)
        for term in _summed(held, shape, training)
    )


def _summed(held: _ReplicatedWeights, shape: TransformerShape, training: TrainingStep) -> tuple[TrafficTerm, ...]:
    """Each step's gradients, or each round's changes."""
    if training.every == 1 and not training.bits:
        return replicated(held.size, held.group, _sharding(shape, training), held.groups)
    if held.group.ranks == 1:
        return ()
    bits = training.bits or 8.0 * shape.element
    parameters, algorithm = held.size / shape.element, training.sharding.algorithm
    return (averaged(parameters, held.group, training.every, bits, algorithm, held.groups).expected,)


def _inside_layers(
    shape: TransformerShape, mesh: ParallelMesh, training: TrainingStep
) -> dict[ParallelAxis, tuple[TrafficTerm, ...]]:
    part, layers = _part(shape, mesh), shape.layers // mesh.pipeline
    batch, micros = training.batch, training.micros
    tensors, slices = mesh.tensors(), mesh.ranks / mesh.tensor
    heads = msgspec.structs.replace(shape, share=shape.share / mesh.tensor)
    tokens = batch * part.sequence / (mesh.tensor if training.is_sequence_parallel else 1)
    return {
        ParallelAxis.TENSOR: (
            *tensor_parallel(
                part, tensors, batch=batch, micros=micros, layers=layers, recompute=training.recompute,
                is_sequence_parallel=training.is_sequence_parallel, backend=training.sharding.backend, groups=slices,
            ),
            *embedding(part, tensors, batch=batch, micros=micros, groups=slices / mesh.pipeline),
        ),
        ParallelAxis.CONTEXT: ring_attention(
            heads, mesh.contexts(), batch=batch, micros=micros, layers=layers, recompute=training.recompute,
            groups=mesh.ranks / mesh.context,
        ),
        ParallelAxis.EXPERT: routed(
            part, mesh.experts(), tokens=tokens, micros=micros, layers=shape.routed // mesh.pipeline,
            recompute=training.recompute, groups=mesh.ranks / mesh.expert,
        ),
    }  # fmt: skip
