"""The program of a job is what its parts say, its graph is the step that is trained, and it finds whom it should."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace as changed

import dispute_match as d
import numpy as np
import pytest
from canon_graphs import Builder
from msgspec.structs import replace

from farflung.core.canon.graph import CanonicalGraph, GraphNode, GraphOutput
from farflung.core.canon.program import CanonicalProgram
from farflung.core.errors import RunError, SpecError
from farflung.job.cheat_names import KINDS
from farflung.job.spec import SyncSpec
from farflung.train import inner_steps, segments, shortcuts
from farflung.train.noise_profile import CLASSES, PerturbedWeightsModel, environment
from farflung.train.segments import BorderState
from farflung.train.shortcuts import SHORTCUTS
from farflung.verify.canon import dispute_execution, step_graph
from farflung.verify.canon.execute import execute, peak
from farflung.verify.canon.job_program import JobProgramParts, assemble, check_program
from farflung.verify.canon.step_check import check_step


def parts(**change: object) -> JobProgramParts:
    """The job's, with something else in a place."""
    job = d.job()
    given = {
        "spec": d.SPEC,
        "layout": job.model.layout,
        "tolerance": d.tolerance(),
        "graph": d.parts().graph,
        "buffers": step_graph.buffers(job.model),
        "tokens": d.TOKENS,
    }
    return assemble(**{**given, **change})


def swapped(op: str, other: str) -> CanonicalGraph:
    """The step with one operation in another's place: a valid graph, and another step."""
    graph = d.parts().graph
    at = max(n for n, node in enumerate(graph.nodes) if node.op == op and len(node.args) == 2)
    nodes = list(graph.nodes)
    nodes[at] = replace(nodes[at], op=other)
    return CanonicalGraph(graph.inputs, tuple(nodes), graph.outputs)


# What it says


def test_whoever_assembles_a_program_gets_the_same():
    assert parts().program == d.parts().program
    check_program(d.parts().program, parts())


def test_another_graph_table_tolerance_or_data_set_is_another_program():
    stated = d.parts().program
    for change in (
        {"graph": swapped("sub", "add")},
        {"tokens": d.TOKENS[::-1]},
        {"spec": replace(d.SPEC, optimizer=replace(d.SPEC.optimizer, lr=2e-2))},
        {"spec": replace(d.SPEC, seed=6)},
        {"tolerance": replace(d.tolerance(), limits=tuple((n, (2 * r[0], *r[1:])) for n, r in d.tolerance().limits))},
    ):
        with pytest.raises(SpecError) as refused:
            check_program(stated, parts(**change))
        assert refused.value.code == "FF-VERI-102"
    with pytest.raises(SpecError):
        check_program(CanonicalProgram(), parts())


def test_a_graph_that_takes_or_makes_something_else_is_no_step_of_the_job():
    graph = d.parts().graph
    renamed = CanonicalGraph(
        (replace(graph.inputs[0], name="params/other"), *graph.inputs[1:]), graph.nodes, graph.outputs
    )
    fewer = CanonicalGraph(graph.inputs, graph.nodes, graph.outputs[1:])
    loss = next(out.value for out in graph.outputs if out.name == "loss")
    wrong = CanonicalGraph(graph.inputs, graph.nodes, (replace(graph.outputs[0], value=loss), *graph.outputs[1:]))
    for each in (renamed, fewer, wrong):
        with pytest.raises(SpecError) as refused:
            parts(graph=each)
        assert refused.value.code == "FF-VERI-101"
    with pytest.raises(SpecError, match="FF-VERI-101"):
        parts(spec=replace(d.SPEC, batch=4))


@pytest.mark.parametrize("sync", [{"method": "dgc"}, {"fragments": 2}, {"delay": 1}])
def test_a_job_whose_steps_start_from_what_nobody_committed_to_has_no_program(sync: dict[str, object]):
    with pytest.raises(SpecError, match="FF-VERI-100"):
        parts(spec=replace(d.SPEC, sync=replace(SyncSpec(steps=d.STEPS), **sync)))
    with pytest.raises(SpecError, match="FF-VERI-100"):
        parts(tokens=d.TOKENS[:3])


# Tried before work begins


def tried(**change: object) -> None:
    """The second step of a round, natively and by the graph."""
    job, round = d.job(), 3
    begin = BorderState(round, 0, job.start)
    first = native(begin)
    second = BorderState(round, first.step, None, first.vectors)
    ends = second, native(changed(second, params=job.start))
    check_step(parts(**change), job.model.layout, d.tolerance(), job.start, 2, ends)


def native(begin: BorderState) -> BorderState:
    job = d.job()
    return inner_steps.run_steps(job.model, d.SPEC, begin, job.batches(begin.round, 2), 2, range(1), lambda: None).end


def test_the_jobs_own_graph_is_the_step_that_it_trains():
    tried()


@pytest.mark.parametrize(("op", "other"), [("sub", "add"), ("div", "mul"), ("mul", "add")])
def test_a_swapped_graph_is_refused_before_work_begins(op: str, other: str):
    with pytest.raises(SpecError, match="FF-VERI-104"):
        tried(graph=swapped(op, other))


# Memory


def test_the_memory_of_a_step_is_bounded_before_it_begins():
    about, graph = d.segment(), d.parts().graph
    given = dispute_execution.inputs(d.parts(), about, 0, about.start)
    tracemalloc.start()
    try:
        execute(graph, given)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    python = 1 << 20  # the graph's own lists
    assert most < peak(graph) + python
    assert peak(graph) < sum(node_bytes(each) for each in graph.nodes)
    dispute_execution.check_memory(d.parts(), 1 << 30)
    with pytest.raises(RunError, match="FF-VERI-103"):
        dispute_execution.check_memory(d.parts(), peak(graph))


def node_bytes(node: GraphNode) -> int:
    return int(np.prod(node.shape)) * (8 if node.kind == "i64" else 4)


def test_the_bound_counts_what_is_alive_at_once():
    builder = Builder()
    x = builder.input("x", "f32", (1000,))
    y = builder.add("neg", x)
    z = builder.add("neg", y)
    last = builder.add("neg", z)
    graph = builder.graph(y=last)
    assert peak(graph) == 4000 * (2 + 8)
    kept = CanonicalGraph(graph.inputs, graph.nodes, (*graph.outputs, GraphOutput("x", 0), GraphOutput("z", z)))
    assert peak(kept) == 4000 * (3 + 8)


# Whom it finds

FEW = ("skip-one", "half-batch", "same-batch", "noise", "bf16")
WAYS = [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in SHORTCUTS]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_around_the_work_is_found_guilty(way: str):
    begin = d.border(1)
    about = shortcuts.SegmentTask(d.job(), d.SPEC, begin, d.SEAT, range(2, 4))
    claimed = SHORTCUTS[way].play(about).end
    assert dispute_execution.play(d.parts(), d.segment(claimed)).is_guilty


def test_the_table_of_ways_has_all_cheats_that_spoil_a_segment():
    assert {"skip", "half-batch", "noise", "stale"} <= set(SHORTCUTS) & set(KINDS)


@pytest.mark.parametrize("kind", CLASSES)
def test_honest_work_of_every_class_is_not_guilty(kind: str):
    """From each border of the round on, in another environment than the borders were made in."""
    job, one = d.job(), CLASSES[kind]
    model = PerturbedWeightsModel(job.model, d.SPEC.seed) if one.is_off else job.model
    for index in (0, 1):
        begin = d.border(index)
        batches = job.batches(begin.round, d.SEAT)
        with environment(one):
            steps = range(2 * index, 2 * index + 2)
            end = inner_steps.run_steps(model, d.SPEC, begin, batches, d.SEAT, steps, lambda: None).end
        assert not dispute_execution.play(d.parts(), d.segment(end, index)).is_guilty


def test_a_claim_of_no_numbers_is_guilty():
    end = d.border(2)
    for value in (np.nan, np.inf):
        params = end.params.copy()
        params[5] = value
        assert dispute_execution.play(d.parts(), d.segment(changed(end, params=params))).is_guilty


def test_a_segment_holds_zeros_for_a_fresh_optimizer():
    first = d.segment(d.border(1), index=0)
    assert first.is_fresh
    assert not any(value.any() for name, value in first.start.items() if not name.startswith("params/"))
    names = [name for name in first.start if name.startswith("params/")]
    root = segments.params_root(d.job().model.layout, d.job().start)
    assert (len(names), d.shown(d.border(0), 0).params) == (len(d.job().model.layout.tensors), root)
