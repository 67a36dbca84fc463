"""A requester that ships another graph than its terms name, a bomb in its place, or terms that claim a class."""

from __future__ import annotations

import asyncio
import functools
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attack_lease import FACTS, ME, PROPOSAL, Process, Scene
from attack_world import JOB_KEY, LAYOUT, SPEC, SYNCED, TERMS, Worker
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.canon import graph
from farflung.core.canon.graph import CanonicalGraph, GraphInput, GraphNode, GraphOutput
from farflung.core.canon.program import CanonicalProgram
from farflung.core.codec import encode
from farflung.core.crypto import NS_GRAPH, NS_OBJECT, digest
from farflung.core.errors import ProtocolError
from farflung.core.ids import ZERO_HASH
from farflung.job import dataset
from farflung.job.dataset import Dataset
from farflung.job.spec import JobTerms, Tolerance
from farflung.ledger.transactions import LeaseRole
from farflung.peers.node import agent, workspace
from farflung.peers.protocol import messages as protocol_messages
from farflung.peers.protocol.job_key import wrap
from farflung.train import flat_model, inner_steps, public_state, segments, worker_messages
from farflung.train.flat_model import FlatModel
from farflung.train.inner_state import VECTORS
from farflung.train.segments import BorderState
from farflung.verify.canon import step_graph
from farflung.verify.canon.graph_file import GraphFile
from farflung.verify.canon.job_program import assemble

pytestmark = pytest.mark.xdist_group("attack graph")  # the job's step is traced in one process only

TOKENS = (np.arange(2000, dtype=np.uint16) ** 2 % 7).astype(np.uint8)
PACKED = dataset.pack(Dataset(TOKENS, TOKENS[:100]))
RULES = CanonicalGraph((GraphInput("x", "f32", ()),), (GraphNode("abs", (0,), "f32", (), ()),), (GraphOutput("y", 1),))
BACKWARDS = CanonicalGraph(
    (GraphInput("x", "f32", ()),), (GraphNode("neg", (1,), "f32", (), ()),), (GraphOutput("y", 1),)
)
LIMIT = 1 << 19  # in 2^-30 of a tensor's change


@functools.cache
def built() -> FlatModel:
    return flat_model.build(SPEC, b"")


@functools.cache
def step() -> CanonicalGraph:
    """The job's own."""
    return step_graph.traced(built(), SPEC)


def swapped(op: str, other: str) -> CanonicalGraph:
    """A valid graph of the same inputs and outputs, in which one operation is another."""
    nodes = list(step().nodes)
    at = max(n for n, node in enumerate(nodes) if node.op == op and len(node.args) == 2)
    nodes[at] = replace(nodes[at], op=other)
    return CanonicalGraph(step().inputs, tuple(nodes), step().outputs)


def tolerance() -> Tolerance:
    """The gradient of the key's bias is rounding noise."""
    row = tuple(0 if t.name.endswith("qkv.bias") else LIMIT for t in LAYOUT.tensors)
    return Tolerance(tuple((name, row) for name in ("params", *VECTORS[SPEC.optimizer.name])))


def shipped(graph: CanonicalGraph) -> bytes:
    return encode(GraphFile(encode(graph), ()))


def named(graph: CanonicalGraph) -> JobTerms:
    """Terms of a job that states this graph as its step, and all that follows from it."""
    program = assemble(SPEC, LAYOUT, tolerance(), graph, {}, TOKENS).program
    made = replace(TERMS, dataset=digest(NS_OBJECT, PACKED), tolerance=tolerance())
    return replace(made, program=program, unproven="")


class Trainer(Worker):
    """One that trains what a verifier asks for as torch does."""

    def answer(self, message: worker_messages.Request) -> worker_messages.Reply:
        if not isinstance(message, worker_messages.RerunCommand):
            return super().answer(message)
        self.asked.append("RerunCommand")
        public = public_state.unpack(message.snapshot, LAYOUT)
        start = segments.unpack(message.start, SPEC.optimizer, LAYOUT, public.round)
        begin = BorderState(public.round, start.step, public.params, start.vectors)
        batches = inner_steps.batches(TOKENS, SPEC, public.round, message.member)
        leg = inner_steps.run_steps(built(), SPEC, begin, batches, message.member, range(1), lambda: None)
        border = segments.border(LAYOUT, SPEC.optimizer, 1, leg.end, ZERO_HASH)
        return worker_messages.RerunResult(border, segments.pack(leg.end, SPEC.optimizer, LAYOUT), leg.losses, 0.01)


def bomb() -> bytes:
    """As many of the smallest nodes as the bytes of a graph can hold."""
    node = encode(GraphNode("", (), "", (), ()))
    count = (limits.GRAPH_BYTES - 32) // len(node)
    return b"\x93\x90\xdd" + count.to_bytes(4, "big") + node * count + b"\x90"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a start is answered that ships `data` under `terms`, and what the worker was then asked."""
    monkeypatch.setattr(agent, "capabilities", lambda *_: FACTS)
    monkeypatch.setattr(agent, "start_worker", lambda *_: Process(ME, Trainer(ME)))

    def run(data: bytes, terms: JobTerms, role: LeaseRole = LeaseRole.TRAIN) -> tuple[str, list[str]]:
        async def attack() -> tuple[str, list[str]]:
            async with Scene(tmp_path, role=role).open() as scene:
                proposal = replace(PROPOSAL, terms=terms, role=role, dataset_bytes=len(PACKED))
                assert await scene.order(protocol_messages.PROPOSE, proposal) == "ok"
                put = scene.home.put
                state = put(public_state.pack(SYNCED.initial(flat_model.initial(SPEC, built())), LAYOUT))
                start = replace(scene.start, job=terms.id, graph=put(data), dataset=put(PACKED), snapshot=state)
                wrapped = wrap(scene.provider.lease_key.public, terms.id, JOB_KEY)
                code = await scene.order(protocol_messages.START, replace(start, wrapped_key=wrapped))
                return code, scene.process.worker.asked

        return asyncio.run(asyncio.wait_for(attack(), 60))

    return run


@pytest.mark.parametrize("role", list(LeaseRole))
def test_a_graph_that_is_not_the_named_one_is_refused_before_the_worker_sees_the_job(
    served: Any, role: LeaseRole
) -> None:
    assert served(shipped(swapped("sub", "add")), named(step()), role) == ("FF-APP-343", [])


def test_a_job_that_is_proven_ships_its_graph(served: Any) -> None:
    assert served(b"", named(step())) == ("FF-CORE-021", [])


def test_the_graph_that_is_named_lets_the_work_begin(served: Any) -> None:
    code, asked = served(shipped(step()), named(step()))
    assert code == "ok"
    assert asked[:3] == ["SetupCommand", "RerunCommand", "RerunCommand"]


@pytest.mark.parametrize(("op", "other"), [("sub", "add"), ("div", "mul")])
def test_a_graph_that_is_another_step_is_refused_by_who_would_train(served: Any, op: str, other: str) -> None:
    """The terms name it, so whoever trained honestly would be found guilty by it."""
    graph = swapped(op, other)
    code, asked = served(shipped(graph), named(graph))
    assert (code, asked) == ("FF-VERI-104", ["SetupCommand", "RerunCommand", "RerunCommand"])


@pytest.mark.parametrize("lie", [{"leaves": 5}, {"seed": 5}, {"tokens": ZERO_HASH}, {"judge": ZERO_HASH}])
def test_a_program_that_its_parts_do_not_make_is_refused(served: Any, lie: dict[str, Any]) -> None:
    terms = named(step())
    stated = replace(terms, program=replace(terms.program, **lie))
    assert served(shipped(step()), stated) == ("FF-VERI-102", [])


def test_a_named_graph_that_breaks_a_rule_is_refused(served: Any) -> None:
    terms = named(step())
    stated = replace(terms, program=replace(terms.program, graph=digest(NS_GRAPH, encode(BACKWARDS))))
    assert served(shipped(BACKWARDS), stated) == ("FF-CORE-064", [])
    stated = replace(terms, program=replace(terms.program, graph=digest(NS_GRAPH, encode(RULES))))
    assert served(shipped(RULES), stated) == ("FF-VERI-101", [])


def test_constants_that_the_graph_does_not_read_are_refused(served: Any) -> None:
    assert served(encode(GraphFile(encode(step()), (bytes(4),))), named(step())) == ("FF-VERI-116", [])


def test_a_graph_beyond_its_bound_is_not_fetched(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = shipped(step())
    monkeypatch.setattr(workspace, "SHIPPED_BYTES", len(data) - 1)
    assert served(data, named(step())) == ("FF-APP-058", [])


def test_a_job_that_is_outcome_only_ships_no_graph(served: Any) -> None:
    terms = named(step())
    assert served(shipped(step()), replace(terms, program=CanonicalProgram(), unproven="no form")) == ("FF-APP-058", [])


def test_a_bomb_of_nodes_is_counted_before_anything_is_made_of_it() -> None:
    data = bomb()
    assert len(data) <= limits.GRAPH_BYTES
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="FF-CORE-060"):
            graph.read(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limits.MIB  # each node would take some 300 bytes: more than 800 MiB


@pytest.mark.parametrize(
    "head", [b"\x93\xdd\xff\xff\xff\xff", b"\x93\x90\xdc\xff", b"\x93", b"", b"\x91\x90", b"\x93\x90\x90\xc1"]
)
def test_a_head_that_promises_what_does_not_come_is_no_graph(head: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"FF-CORE-02[0-3]"):
        graph.read(head)


@pytest.mark.parametrize(
    "lie",
    [
        lambda: {"terms": replace(TERMS, unproven="")},
        lambda: {"terms": replace(named(step()), unproven="but it is")},
        lambda: {"terms": replace(TERMS, program=replace(named(step()).program, leaves=0), unproven="")},
        lambda: {"terms": replace(TERMS, program=CanonicalProgram(), unproven="x" * (limits.REASON_LENGTH + 1))},
        lambda: {"terms": replace(TERMS, program=CanonicalProgram(), unproven="no form"), "unit_price": 10**7 + 1},
        lambda: {"stake": 499},
        lambda: {"terms": replace(TERMS, stake=501)},
    ],
    ids=["no graph", "proven and not", "no leaves", "a long story", "dear", "less stake", "more stake"],
)
def test_terms_that_claim_another_class_or_stake_than_theirs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Callable[[], dict[str, Any]]
) -> None:
    monkeypatch.setattr(agent, "capabilities", lambda *_: FACTS)
    told = replace(PROPOSAL, **lie())

    async def attack() -> None:
        async with Scene(tmp_path).open() as scene:
            assert await scene.order(protocol_messages.PROPOSE, told) == "FF-APP-073"
            cheap = replace(TERMS, program=CanonicalProgram(), unproven="no form")
            assert await scene.order(protocol_messages.PROPOSE, replace(PROPOSAL, terms=cheap)) == "ok"

    asyncio.run(asyncio.wait_for(attack(), 20))
