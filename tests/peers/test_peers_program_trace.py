"""The class that a submission finds, and what a node does with the graph that it is sent."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from farflung.core.canon.graph import CanonicalGraph, GraphInput, GraphNode, GraphOutput
from farflung.core.canon.program import CanonicalProgram
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_OBJECT, digest, local_key
from farflung.core.errors import FarflungError, ProtocolError, RunError, SpecError, VerificationError
from farflung.core.ids import ZERO_HASH
from farflung.job import dataset
from farflung.job.dataset import Dataset
from farflung.job.job_loader import load
from farflung.job.spec import JobSpec, JobTerms, Tolerance
from farflung.peers.program import trace as program_trace
from farflung.peers.rundir.folder import RunFolder
from farflung.train import flat_model
from farflung.train.flat_model import FlatModel
from farflung.train.inner_state import VECTORS
from farflung.verify.canon import graph_file, step_graph
from farflung.verify.canon.graph_file import GraphFile, pack
from farflung.verify.canon.job_program import assemble
from farflung.verify.io.tracer import TraceStepRequest

SPEC = load("[model]\nlayers = 1\nwidth = 8\nheads = 1\ncontext = 4\nvocabulary = 16\n", preset="tiny").spec
TOKENS = (np.arange(600, dtype=np.uint16) ** 2 % 13).astype(np.uint8)
DATA = dataset.pack(Dataset(TOKENS, TOKENS[:100]))
OTHER = encode(
    GraphFile(
        encode(
            CanonicalGraph(
                (GraphInput("x", "f32", ()),), (GraphNode("neg", (0,), "f32", (), ()),), (GraphOutput("y", 1),)
            )
        ),
        (),
    )
)
UNSOUND = encode(
    GraphFile(
        encode(
            CanonicalGraph(
                (GraphInput("x", "f32", ()),), (GraphNode("neg", (9,), "f32", (), ()),), (GraphOutput("y", 1),)
            )
        ),
        (),
    )
)
SORTS = VerificationError(
    "FF-VERI-080", "aten.sort.default cannot be checked", cause="it has no canonical form (model.py, line 17)"
)
Made = GraphFile | FarflungError


def data_set() -> Dataset:
    return dataset.unpack(DATA)


@functools.cache
def built() -> FlatModel:
    return flat_model.build(SPEC, b"")


@functools.cache
def step() -> GraphFile:
    return pack(step_graph.traced(built(), SPEC), step_graph.buffers(built()))


def tolerance() -> Tolerance:
    row = (1 << 19,) * len(built().layout.tensors)
    return Tolerance(tuple((name, row) for name in ("params", *VECTORS[SPEC.optimizer.name])))


def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Made, **flags: str) -> tuple[CanonicalProgram, str]:
    """The class of a job whose tracer gives or raises `made`."""

    async def traced(_: RunFolder, request: TraceStepRequest) -> GraphFile:
        assert isinstance(request.spec, JobSpec)
        if isinstance(made, FarflungError):
            raise made
        return made

    monkeypatch.setattr(program_trace, "_traced", traced)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keys = {"model.layers": "1", "model.width": "8", "model.heads": "1", "model.context": "4"}
    keys |= {"model.vocabulary": "16"} | {key.replace("__", "."): value for key, value in flags.items()}
    spec = load(None, preset="tiny", flags=keys).spec
    folder = RunFolder(tmp_path)
    traced_ = asyncio.run(program_trace.trace(folder, spec, b""))
    parts, unproven = program_trace.classify(folder, spec, built().layout, tolerance(), TOKENS, traced_)
    return (CanonicalProgram() if parts is None else parts.program), unproven


def terms() -> JobTerms:
    """Of the job that `step` is the step of."""
    graph, constants = graph_file.read(encode(step()))
    layout = built().layout
    program = assemble(SPEC, layout, tolerance(), graph, constants, TOKENS).program
    parties = digest(NS_OBJECT, DATA), ZERO_HASH, layout, local_key(1, "r").public, ZERO_HASH, tolerance()
    return JobTerms(SPEC, *parties, program=program, unproven="")


@pytest.mark.slow
def test_a_traced_model_is_proven_and_its_graph_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(tmp_path, monkeypatch, step()) == (terms().program, "")
    assert program_trace.graph_bytes(RunFolder(tmp_path)) == encode(step())


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (SORTS, "aten.sort.default cannot be checked: it has no canonical form (model.py, line 17)"),
        (decode(UNSOUND, GraphFile, len(UNSOUND)), "wrong arguments of value 1 (neg)"),
        (decode(OTHER, GraphFile, len(OTHER)), "the graph is no step of this job"),
        (GraphFile(b"no graph", ()), "message is not of the expected type"),
        (RunError("FF-VERI-110", "the tracer process is gone", cause="it ended"), "is gone: it ended"),
    ],
    ids=["no form", "a graph against the rules", "another step", "no graph", "a dead tracer"],
)
def test_a_model_without_a_sound_graph_is_outcome_only_and_the_reason_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Made, why: str
) -> None:
    program, unproven = found(tmp_path, monkeypatch, made)
    assert program == CanonicalProgram()
    assert why in unproven
    assert program_trace.graph_bytes(RunFolder(tmp_path)) == b""


def test_a_long_reason_is_cut_to_what_terms_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = VerificationError("FF-VERI-086", "the model cannot be traced", cause="x" * 900)
    assert len(found(tmp_path, monkeypatch, long)[1]) == 300


@pytest.mark.slow
def test_nothing_is_traced_where_nothing_would_be_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = found(tmp_path, monkeypatch, step(), audit__proof="outcome")
    assert asked == (CanonicalProgram(), "the job asks for no more")
    hidden = found(tmp_path, monkeypatch, step(), sync__method="dgc")
    assert hidden == (CanonicalProgram(), "sync.method = dgc masks the momentum by what is unsent")
    unaudited = found(tmp_path, monkeypatch, step(), audit__rate="0", audit__probation="0")
    assert unaudited == (CanonicalProgram(), "none of its work is audited")


def test_who_asks_to_be_proven_is_refused_with_the_operation_and_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FarflungError, match="FF-APP-341") as refused:
        found(tmp_path, monkeypatch, SORTS, audit__proof="proven")
    assert "aten.sort.default" in refused.value.message
    assert "model.py, line 17" in refused.value.cause


def test_what_is_not_proven_may_not_cost_more_than_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(tmp_path, monkeypatch, SORTS, unit_price="0.00001", budget="50")[1]
    with pytest.raises(FarflungError, match="FF-APP-342") as refused:
        found(tmp_path, monkeypatch, SORTS, unit_price="0.000011", budget="50")
    assert "model.py, line 17" in refused.value.cause
    assert "outcome only: not verifiable step by step" in refused.value.message
    assert found(tmp_path, monkeypatch, step(), unit_price="0.000011", budget="50")[1] == ""


@pytest.mark.slow
def test_a_node_takes_the_graph_that_the_terms_name_and_no_other() -> None:
    made = program_trace.parts(terms(), data_set, encode(step()))
    assert made is not None
    assert made.program == terms().program
    with pytest.raises(VerificationError, match="FF-APP-343"):
        program_trace.parts(terms(), data_set, OTHER)
    with pytest.raises(ProtocolError, match="FF-CORE-064"):
        program_trace.parts(terms(), data_set, UNSOUND)
    with pytest.raises(ProtocolError):
        program_trace.parts(terms(), data_set, b"")


def test_a_node_takes_no_program_that_its_own_parts_do_not_make() -> None:
    other = Dataset(TOKENS[::-1].copy(), TOKENS[:100])
    with pytest.raises(SpecError, match="FF-VERI-102"):
        program_trace.parts(terms(), lambda: other, encode(step()))


def test_a_job_that_names_no_graph_ships_none() -> None:
    assert program_trace.parts(replace(terms(), program=CanonicalProgram(), unproven="no form"), data_set, b"") is None


def test_the_class_is_told_as_an_event() -> None:
    told = program_trace.told(terms())
    assert (told.is_proven, told.graph, told.reason) == (True, terms().program.graph.hex(), "")
    told = program_trace.told(replace(terms(), program=CanonicalProgram(), unproven="no form"))
    assert (told.is_proven, told.graph, told.reason) == (False, "", "no form")


@pytest.mark.slow
def test_the_tracer_is_a_process_of_its_own_in_the_sandbox_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    traced = asyncio.run(program_trace.trace(RunFolder(tmp_path), SPEC, b""))
    assert traced == (encode(step()), "")
    assert (tmp_path / "tracer.log").read_bytes() == b""
