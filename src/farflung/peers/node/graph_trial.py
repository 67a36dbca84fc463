"""Tries before work begins whether a job's graph is the step that a worker trains: on nodes, and where it is submitted.

The worker makes two steps natively; the second one has what the optimizer made of the first. A process of its own
executes that one by the graph (peers.program.graph_runs) and compares.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from farflung.host.io.machine_probe import memory_bytes
from farflung.peers.node.workspace import JobWorkspace, WorkerHandle, ask
from farflung.peers.program import graph_runs
from farflung.peers.program.graph_runs import NODE_TIMES, STEP_SECONDS, JobGraph
from farflung.train import public_state, segments, worker_messages
from farflung.train.blobs import Blob
from farflung.train.public_state import PublicState
from farflung.train.segments import BorderState
from farflung.verify.canon.dispute_execution import check_memory
from farflung.verify.canon.graph_requests import StepTrialRequest


async def try_on_node(workspace: JobWorkspace, graph: JobGraph | None, packed: Blob, member: int) -> None:
    """One step of a round that is this node's secret, from a public state. `member`: whose batches.

    Raises what `try_step` raises.
    """
    if graph is None:
        return
    terms = workspace.terms
    held = public_state.unpack(packed, terms.layout)
    public = PublicState(workspace.secret_round, held.params, held.vectors)
    assert workspace.worker is not None
    await workspace.supply(public.round, (member,))
    graph = graph._replace(tokens=workspace.kept_tokens(public.round, member))
    seconds = NODE_TIMES * STEP_SECONDS
    await try_step(workspace.worker, graph, public, member, workspace.disk.root, seconds)


async def try_step(
    worker: WorkerHandle, graph: JobGraph, public: PublicState, member: int, folder: Path, seconds: int = STEP_SECONDS
) -> None:
    """The second step of a round from this public state, natively and by the graph; the worker is set up.

    `seconds`: of a processor, that the graph's may take. Raises RunError FF-VERI-103 (this machine has no memory for
    it), -104 (the graph is another step), -117 (it takes too long), -118, and what the worker raises of training that
    fails.
    """
    needed = check_memory(graph.parts, memory_bytes(), is_trial=True)
    layout, spec = graph.layout, graph.parts.spec
    data = public_state.pieces(public, layout)
    ends = [BorderState(public.round, 0)]
    packed: list[Blob] = []
    for _ in range(2):
        start = segments.pieces(replace(ends[-1], params=None), spec.optimizer, layout)
        # So many steps as segments: the first segment is one step.
        command = worker_messages.RerunCommand(data, member, 0, start, spec.segments)
        reran = await ask(worker, command, worker_messages.RerunResult)
        ends.append(segments.unpack(reran.end, spec.optimizer, layout, public.round))
        packed += [start, reran.end]
    begin, end = packed[2:]
    request = StepTrialRequest(*graph.about, data, public.round, member, begin, end, seconds)
    await graph_runs.finding(request, needed, folder)
