"""The tracer: one request, one graph or one reason, and nothing larger than its bounds."""

from __future__ import annotations

import asyncio
import socket

import pytest

from farflung.core import limits
from farflung.core.canon import graph
from farflung.core.canon.graph import CanonicalGraph, GraphInput, GraphNode, GraphOutput
from farflung.core.codec import encode
from farflung.core.errors import RunError, VerificationError
from farflung.job.job_loader import load
from farflung.train.io.worker import HEAD_BYTES
from farflung.train.worker_messages import WorkerFailure
from farflung.verify.canon import step_graph
from farflung.verify.canon.graph_file import GraphFile
from farflung.verify.io import tracer
from farflung.verify.io.tracer import REPLY_BYTES, TracerClient, TraceStepRequest

SPEC = load(None, preset="tiny").spec
SORTS = b"""
import torch
from torch import nn


def build():
    return Sorts()


class Sorts(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 256)

    def forward(self, x, y):
        found = self.table(x).flatten(0, 1)
        ordered = found.sort(dim=1).values
        return nn.functional.cross_entropy(ordered, y.flatten())
"""


def own_model() -> TraceStepRequest:
    job = '[model]\nkind = "module"\nmodule = "model.py:build"\ncontext = 8\n'
    return TraceStepRequest(load(job, preset="tiny").spec, SORTS)


def said(reply: bytes) -> GraphFile:
    """What a tracer gets that is answered with `reply`, framed by hand."""

    async def ask() -> bytes:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(reply)
            theirs.shutdown(socket.SHUT_WR)
            return await TracerClient(ours).trace(TraceStepRequest(SPEC, b""))

    return asyncio.run(ask())


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(HEAD_BYTES, "little") + data


@pytest.mark.slow
def test_the_built_in_model_has_a_graph_that_the_rules_accept() -> None:
    reply = tracer.answer(TraceStepRequest(SPEC, b""))
    assert isinstance(reply, GraphFile)
    names = {each.name for each in graph.read(reply.graph).inputs}
    assert {"x", "y", "params/embed.weight"} <= names


def test_a_model_outside_the_whitelist_is_refused_with_the_operation_and_its_line() -> None:
    reply = tracer.answer(own_model())
    assert isinstance(reply, WorkerFailure)
    assert reply.code == "FF-VERI-080"
    assert "sort" in reply.message
    assert "model.py, line 17" in reply.cause


def test_a_graph_over_its_bound_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    small = CanonicalGraph(
        (GraphInput("x", "f32", ()),), (GraphNode("neg", (0,), "f32", (), ()),), (GraphOutput("y", 1),)
    )
    monkeypatch.setattr(step_graph, "traced", lambda *_: small)
    assert tracer.answer(TraceStepRequest(SPEC, b"")) == GraphFile(encode(small), ())
    monkeypatch.setattr(limits, "GRAPH_BYTES", len(encode(small)) - 1)
    reply = tracer.answer(TraceStepRequest(SPEC, b""))
    assert isinstance(reply, WorkerFailure)
    assert reply.code == "FF-VERI-111"


def test_the_answer_is_a_graph_or_the_tracers_own_refusal() -> None:
    assert said(framed(encode(GraphFile(b"graph", (b"",))))) == GraphFile(b"graph", (b"",))
    broken = WorkerFailure("FF-VERI-080", "aten.sort cannot be checked", "no form (model.py, line 17)", "")
    with pytest.raises(VerificationError, match="FF-VERI-080") as refused:
        said(framed(encode(broken)))
    assert refused.value.cause == "no form (model.py, line 17)"


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        (REPLY_BYTES + 1).to_bytes(HEAD_BYTES, "little"),
        (1 << 63).to_bytes(HEAD_BYTES, "little"),
        framed(b"\x93no message"),
        framed(encode(GraphFile(b"graph", (b"",))))[:-1],
    ],
    ids=["it ended", "too long", "2^63", "no message", "cut"],
)
def test_a_process_that_answers_nothing_sensible_is_gone(reply: bytes) -> None:
    with pytest.raises(RunError, match="FF-VERI-110"):
        said(reply)
