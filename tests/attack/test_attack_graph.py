"""A requester that ships another graph than its terms name, a bomb in its place, or terms that claim a class."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from attack_lease import FACTS, ME, PROPOSAL, Process, Scene
from attack_world import GRAPH, JOB_KEY, TERMS
from msgspec.structs import replace

from farflung.app import lender, wire
from farflung.app.wrapping import wrap
from farflung.core import limits
from farflung.core.canon import graph
from farflung.core.canon.graph import Graph, Input, Node, Output
from farflung.core.canon.program import Program
from farflung.core.codec import encode
from farflung.core.crypto import NS_GRAPH, digest
from farflung.core.errors import ProtocolError
from farflung.ledger.tx import Role

OTHER = encode(Graph((Input("x", "f32", ()),), (Node("abs", (0,), "f32", (), ()),), (Output("y", 1),)))
BACKWARDS = encode(Graph((Input("x", "f32", ()),), (Node("neg", (1,), "f32", (), ()),), (Output("y", 1),)))


def bomb() -> bytes:
    """As many of the smallest nodes as the bytes of a graph can hold."""
    node = encode(Node("", (), "", (), ()))
    count = (limits.GRAPH_BYTES - 32) // len(node)
    return b"\x93\x90\xdd" + count.to_bytes(4, "big") + node * count + b"\x90"


def named(data: bytes) -> Any:
    """Terms that name this graph, whatever it is."""
    return replace(TERMS, program=Program(graph=digest(NS_GRAPH, data)))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a start is answered that ships `data` under `terms`, and what the worker was then asked."""
    monkeypatch.setattr(lender, "capabilities", lambda *_: FACTS)
    monkeypatch.setattr(lender, "report", lambda *_args, **_facts: None)
    monkeypatch.setattr(lender, "start_worker", lambda *_: Process(ME))

    def run(data: bytes, terms: Any = TERMS, role: Role = Role.TRAIN) -> tuple[str, list[str]]:
        async def attack() -> tuple[str, list[str]]:
            async with Scene(tmp_path, role=role).open() as scene:
                proposal = replace(PROPOSAL, terms=terms, role=role)
                assert await scene.order(wire.PROPOSE, proposal) == "ok"
                start = replace(scene.start, job=terms.id, graph=scene.home.put(data))
                wrapped = wrap(scene.provider._lease_key.public, terms.id, JOB_KEY)
                code = await scene.order(wire.START, replace(start, wrapped_key=wrapped))
                return code, scene.process.worker.asked

        return asyncio.run(asyncio.wait_for(attack(), 20))

    return run


@pytest.mark.parametrize("role", list(Role))
def test_a_graph_that_is_not_the_named_one_is_refused_before_the_worker_sees_the_job(
    served: Any, role: Role
) -> None:
    assert served(OTHER, role=role) == ("FF-APP-343", [])


def test_a_job_that_is_proven_ships_its_graph(served: Any) -> None:
    assert served(b"") == ("FF-APP-343", [])


def test_the_graph_that_is_named_lets_the_work_begin(served: Any) -> None:
    code, asked = served(GRAPH)
    assert code == "ok"
    assert "Setup" in asked


def test_a_named_graph_that_breaks_a_rule_is_refused(served: Any) -> None:
    assert served(BACKWARDS, named(BACKWARDS)) == ("FF-CORE-064", [])


def test_a_graph_beyond_its_bound_is_not_fetched(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRAPH_BYTES", len(GRAPH) - 1)
    assert served(GRAPH) == ("FF-APP-058", [])


def test_a_job_that_is_outcome_only_ships_no_graph(served: Any) -> None:
    unproven = replace(TERMS, program=Program(), unproven="no form")
    assert served(GRAPH, unproven) == ("FF-APP-058", [])


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
        {"terms": replace(TERMS, program=Program())},
        {"terms": replace(TERMS, unproven="but it is")},
        {"terms": replace(TERMS, program=replace(TERMS.program, seed=5))},
        {"terms": replace(TERMS, program=Program(), unproven="x" * (limits.REASON_LENGTH + 1))},
        {"terms": replace(TERMS, program=Program(), unproven="no form"), "unit_price": 11},
        {"stake": 499},
        {"terms": replace(TERMS, stake=501)},
    ],
    ids=[
        "no graph",
        "proven and not",
        "more than a graph",
        "a long story",
        "dear",
        "less stake",
        "more stake",
    ],
)
def test_terms_that_claim_another_class_or_stake_than_theirs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: dict[str, Any]
) -> None:
    monkeypatch.setattr(lender, "capabilities", lambda *_: FACTS)

    async def attack() -> None:
        async with Scene(tmp_path).open() as scene:
            assert await scene.order(wire.PROPOSE, replace(PROPOSAL, **lie)) == "FF-APP-073"
            cheap = replace(TERMS, program=Program(), unproven="no form")
            assert await scene.order(wire.PROPOSE, replace(PROPOSAL, terms=cheap)) == "ok"

    asyncio.run(asyncio.wait_for(attack(), 20))
