"""Builds a job's program, the part of a canonical execution that the terms fix, or checks one against its parts.

All but the traced graph and the module's buffers follows from the terms and the data set, so that only the graph has
to be shipped. Whoever takes part assembles the program anew and compares (`check_program`), and tries the graph against
the step that it will train (`trial`): a submitter who swaps either is refused before work begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from farflung.core import merkle
from farflung.core.canon import input_roots, tile_tree
from farflung.core.canon import program as programs
from farflung.core.canon.array_operations import Array
from farflung.core.canon.graph import CanonicalGraph, graph_id
from farflung.core.canon.operation_rules import F32, I64
from farflung.core.canon.program import CanonicalProgram, ProgramEntry, Source
from farflung.core.canon.tiles import tile_count
from farflung.core.canon.token_leaves import TokenSource
from farflung.core.codec import encode
from farflung.core.errors import ProtocolError, SpecError
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.proof_class import ungraphed
from farflung.job.spec import JobSpec, Tolerance
from farflung.train.contribution_trace import PARAMS
from farflung.train.inner_state import VECTORS
from farflung.verify.canon.distance_graph import distance_graph
from farflung.verify.canon.scalars import BUFFERS, BY_COUNT, BY_STEP, by_count, by_step

SAID: Final = ("loss", "grad_norm")  # outputs beside the state


class JobProgramParts(NamedTuple):
    """A program with all that it stands for. `entries`: of the step graph, then of the judging graph.

    Tables have one row a step of the run, and one for each number of steps that an optimizer may have counted.
    """

    spec: JobSpec
    program: CanonicalProgram
    graph: CanonicalGraph
    judge: CanonicalGraph
    entries: tuple[ProgramEntry, ...]
    buffers: Mapping[str, Array]
    by_step: Float32
    by_count: Float32
    tokens: TokenSource


def assemble(
    spec: JobSpec,
    layout: TensorLayout,
    tolerance: Tolerance,
    graph: CanonicalGraph,
    buffers: Mapping[str, Array],
    tokens: TokenSource,
) -> JobProgramParts:
    """The one program that these parts make: `buffers` by input names (trace.buffers), `tokens` the training part.

    `graph` has been checked (core.canon.graph). Raises SpecError FF-VERI-100: the job cannot have a program; -101:
    the graph is no step of this job.
    """
    _check_job(spec)
    used = {each.name: buffers[each.name] for each in graph.inputs if each.name in buffers}
    _check_step(spec, layout, graph, used)
    judge = distance_graph(layout, tolerance)
    entries = _listed(spec, graph, judge)
    of_run = _table(by_step(spec, done) for done in range(spec.steps))
    of_count = _table(by_count(spec, number) for number in range(1, spec.steps + 1))
    program = CanonicalProgram(
        graph=graph_id(graph),
        judge=graph_id(judge),
        listing=merkle.root([encode(entry) for entry in entries]),
        values=len(graph.inputs) + len(graph.nodes),
        judged=len(judge.inputs) + len(judge.nodes),
        leaves=_leaves(graph),
        closing=_leaves(judge),
        buffers=input_roots.buffers_root(used),
        by_step=input_roots.table_root(of_run if of_run.size else ()),
        by_count=input_roots.table_root(of_count if of_count.size else ()),
        tokens=input_roots.tokens_root(tokens),
        seed=spec.seed,
        rows=spec.batch,
        context=spec.model.context,
        places=len(tokens) - spec.model.context,
        round_steps=spec.sync.steps,
        segments=spec.segments,
        step_tokens=spec.step_tokens,
    )
    _check_size(program)
    return JobProgramParts(spec, program, graph, judge, entries, used, of_run, of_count, tokens)


def check_program(stated: CanonicalProgram, parts: JobProgramParts) -> None:
    """Raises SpecError FF-VERI-102 when terms state another program than their parts make."""
    if stated != parts.program:
        names = [n for n in CanonicalProgram.__struct_fields__ if getattr(stated, n) != getattr(parts.program, n)]
        raise SpecError(
            "FF-VERI-102",
            "the job's program is not what its parts make",
            cause=f"it states another {', '.join(names)}",
            hint="take no part in this job: a dispute would be about another execution than the one you train",
        )


def _check_job(spec: JobSpec) -> None:
    """A graph must be able to say what a step does."""
    if why := ungraphed(spec):
        raise _no_program(why)


def _check_size(program: CanonicalProgram) -> None:
    longest = -(-program.round_steps // program.segments)
    try:
        tile_tree.sizes(programs.leaf_count(program, longest))
        is_sound = programs.is_sound(program)
    except ProtocolError:
        is_sound = False
    if not is_sound:
        raise _no_program("a segment has more tiles than a tree may have, or the data hold no window, or over 2^33")


def _no_program(cause: str) -> SpecError:
    return SpecError(
        "FF-VERI-100",
        "the work of this job cannot be pinpointed",
        cause=cause,
        hint="choose another sync.method, more audit.segments, or leave its disputes to the jury",
    )


def _check_step(spec: JobSpec, layout: TensorLayout, graph: CanonicalGraph, buffers: Mapping[str, Array]) -> None:
    """The graph takes and makes what a step of this job does, by name, kind and shape."""
    optimizer, batch = spec.optimizer.name, (spec.batch, spec.model.context)
    state = {f"{vector}/{t.name}": (F32, t.shape) for vector in (PARAMS, *VECTORS[optimizer]) for t in layout.tensors}
    rates = dict.fromkeys(BY_STEP[optimizer] + BY_COUNT[optimizer], (F32, ()))
    held = {name: (_kind(array), array.shape) for name, array in buffers.items()}
    wanted = state | held | {"x": (I64, batch), "y": (I64, batch)} | rates
    taken = {each.name: (each.kind, each.shape) for each in graph.inputs}
    values = {out.name: graph.value(out.value) for out in graph.outputs}
    made = {name: (value.kind, value.shape) for name, value in values.items()}
    if taken != wanted or made != state | dict.fromkeys(SAID, (F32, ())):
        strange = sorted({n for n, _ in taken.items() ^ wanted.items()} or set(made) ^ {*state, *SAID})
        raise SpecError(
            "FF-VERI-101",
            "the graph is no step of this job",
            cause=f"it takes or makes something else: {', '.join(strange[:3]) or 'another kind or shape'}",
            hint="trace the job's own model with the job's own spec",
        )


def _kind(array: Array) -> str:
    return {"float32": F32, "int64": I64}.get(str(array.dtype), str(array.dtype))


def _listed(spec: JobSpec, graph: CanonicalGraph, judge: CanonicalGraph) -> tuple[ProgramEntry, ...]:
    """All entries: the sources of the inputs follow from their names."""
    optimizer, outputs = spec.optimizer.name, {out.name: out.value for out in graph.outputs}
    given: dict[str, Source] = {"x": (programs.BATCH, (0,)), "y": (programs.BATCH, (1,))}
    for op, names in ((programs.BY_STEP, BY_STEP), (programs.BY_COUNT, BY_COUNT)):
        given |= {name: (op, (column,)) for column, name in enumerate(names[optimizer])}
    for each in graph.inputs:
        if each.name in outputs:
            given[each.name] = programs.STATE, (outputs[each.name],)
        elif each.name.startswith(f"{BUFFERS}/"):
            given[each.name] = programs.BUFFER, ()
    ends: dict[str, Source] = {}
    for each in judge.inputs:
        kind, _, name = each.name.partition("/")
        ends[each.name] = kind, (outputs[name],) if kind == programs.FINAL else ()
    return programs.listed(graph, given) + programs.listed(judge, ends)


def _leaves(graph: CanonicalGraph) -> int:
    return sum(tile_count(graph.value(number).shape) for number in range(len(graph.inputs) + len(graph.nodes)))


def _table(rows: Iterable[Mapping[str, Float32]]) -> Float32:
    """One row for each mapping, its columns in the mapping's order."""
    return np.array([list(row.values()) for row in rows], np.float32)
