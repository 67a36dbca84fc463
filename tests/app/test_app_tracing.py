"""The class that a submission finds, and what a node does with the graph that it is sent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from farflung.app import tracing
from farflung.app.folder import RunFolder
from farflung.core.canon.graph import Graph, Input, Node, Output
from farflung.core.canon.program import Program
from farflung.core.codec import encode
from farflung.core.crypto import NS_GRAPH, digest, local_key
from farflung.core.errors import FarflungError, ProtocolError, RunError, VerificationError
from farflung.core.ids import ZERO_HASH
from farflung.core.layout import Layout
from farflung.job.load import load
from farflung.job.spec import JobSpec, Terms
from farflung.verify.io.tracer import TraceStep

GRAPH = encode(Graph((Input("x", "f32", ()),), (Node("neg", (0,), "f32", (), ()),), (Output("y", 1),)))
UNSOUND = encode(Graph((Input("x", "f32", ()),), (Node("neg", (9,), "f32", (), ()),), (Output("y", 1),)))
SORTS = VerificationError(
    "FF-VERI-080", "aten.sort.default cannot be checked", cause="it has no canonical form (model.py, line 17)"
)
TERMS = Terms(
    JobSpec(),
    ZERO_HASH,
    ZERO_HASH,
    Layout.of({"w": (4,)}),
    local_key(1, "r").public,
    ZERO_HASH,
    program=Program(graph=digest(NS_GRAPH, GRAPH)),
    unproven="",
)


def found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bytes | FarflungError, **flags: str
) -> tracing.Found:
    """The class of a job whose tracer gives or raises `made`."""

    async def traced(_: RunFolder, request: TraceStep) -> bytes:
        assert isinstance(request.spec, JobSpec)
        if isinstance(made, FarflungError):
            raise made
        return made

    monkeypatch.setattr(tracing, "_traced", traced)
    spec = load(None, flags={key.replace("__", "."): value for key, value in flags.items()}).spec
    return asyncio.run(tracing.classify(RunFolder(tmp_path), spec, b""))


def test_a_traced_model_is_proven_and_its_graph_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(tmp_path, monkeypatch, GRAPH) == (Program(graph=digest(NS_GRAPH, GRAPH)), "")
    assert tracing.graph_bytes(RunFolder(tmp_path)) == GRAPH


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (SORTS, "aten.sort.default cannot be checked: it has no canonical form (model.py, line 17)"),
        (UNSOUND, "wrong arguments of value 1 (neg)"),
        (b"no graph", "message is not of the expected type"),
        (RunError("FF-VERI-110", "the tracer process is gone", cause="it ended"), "is gone: it ended"),
    ],
    ids=["no form", "a graph against the rules", "no graph", "a dead tracer"],
)
def test_a_model_without_a_sound_graph_is_outcome_only_and_the_reason_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bytes | FarflungError, why: str
) -> None:
    program, unproven = found(tmp_path, monkeypatch, made)
    assert program == Program()
    assert why in unproven
    assert tracing.graph_bytes(RunFolder(tmp_path)) == b""


def test_a_long_reason_is_cut_to_what_terms_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = VerificationError("FF-VERI-086", "the model cannot be traced", cause="x" * 900)
    assert len(found(tmp_path, monkeypatch, long).unproven) == 300


def test_nothing_is_traced_where_nothing_would_be_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = found(tmp_path, monkeypatch, GRAPH, audit__proof="outcome")
    assert asked == (Program(), "the job asks for no more")
    unaudited = found(tmp_path, monkeypatch, GRAPH, audit__rate="0", audit__probation="0")
    assert unaudited == (Program(), "none of its work is audited")


def test_who_asks_to_be_proven_is_refused_with_the_operation_and_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FarflungError, match="FF-APP-341") as refused:
        found(tmp_path, monkeypatch, SORTS, audit__proof="proven")
    assert "aten.sort.default" in refused.value.message
    assert "model.py, line 17" in refused.value.cause


def test_what_is_not_proven_may_not_cost_more_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(tmp_path, monkeypatch, SORTS, unit_price="0.00001", budget="50").unproven
    with pytest.raises(FarflungError, match="FF-APP-342") as refused:
        found(tmp_path, monkeypatch, SORTS, unit_price="0.000011", budget="50")
    assert "model.py, line 17" in refused.value.cause
    assert "outcome only: not proven" in refused.value.message
    assert found(tmp_path, monkeypatch, GRAPH, unit_price="0.000011", budget="50").unproven == ""


def test_a_node_takes_the_graph_that_the_terms_name_and_no_other() -> None:
    tracing.check_shipped(TERMS, GRAPH)
    with pytest.raises(VerificationError, match="FF-APP-343"):
        tracing.check_shipped(TERMS, GRAPH + b"\0")
    with pytest.raises(VerificationError, match="FF-APP-343"):
        tracing.check_shipped(TERMS, b"")
    named = replace(TERMS, program=Program(graph=digest(NS_GRAPH, UNSOUND)))
    with pytest.raises(ProtocolError, match="FF-CORE-064"):
        tracing.check_shipped(named, UNSOUND)


def test_a_job_that_names_no_graph_ships_none() -> None:
    tracing.check_shipped(replace(TERMS, program=Program(), unproven="no form"), b"")


def test_the_class_is_told_as_an_event() -> None:
    told = tracing.told(TERMS)
    assert (told.is_proven, told.graph, told.reason) == (True, digest(NS_GRAPH, GRAPH).hex(), "")
    told = tracing.told(replace(TERMS, program=Program(), unproven="no form"))
    assert (told.is_proven, told.graph, told.reason) == (False, "", "no form")


@pytest.mark.slow
@pytest.mark.tree
def test_the_tracer_is_a_process_of_its_own_in_the_sandbox_of_workers(tmp_path: Path) -> None:
    spec = load(None, preset="tiny").spec
    program, unproven = asyncio.run(tracing.classify(RunFolder(tmp_path), spec, b""))
    assert unproven == ""
    assert digest(NS_GRAPH, (tmp_path / "graph.bin").read_bytes()) == program.graph
    assert (tmp_path / "tracer.log").read_bytes() == b""
