"""unsloth #5168, transformers #8476: training fits, then the evaluation does not.

Every pass of a worker is watched by the storages that are alive in it, and none holds more than a step, or than the
plan counts. Nothing here is timed, and no process is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from farflung.core.canon.graph import CanonicalGraph, GraphInput, GraphOutput
from farflung.core.errors import RunError
from farflung.core.ids import PeerId
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Bytes
from farflung.host.io.machine_probe import torch_build
from farflung.host.worker_limits import GIB, WorkerLimits, limits_for, unplanned_limits
from farflung.job import dataset
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.spec import AuditSpec, JobSpec, ModelSpec, NetworkSpec, ScheduleSpec, SyncSpec
from farflung.peers.node import graph_trial
from farflung.peers.program.graph_runs import JobGraph
from farflung.peers.program.worker_bounds import bounds_of
from farflung.plan.worker_memory import AGENT, PASS_VALUES, PASS_WINDOWS, StepMemory, memory, pass_windows
from farflung.train import flat_model, heldout, token_sampler, worker_messages
from farflung.train.engine import WorkerEngine
from farflung.train.flat_model import FlatModel
from farflung.train.gauge.live_tensors import LiveTensorTracker

replace = msgspec.structs.replace

CONTEXT, WORDS = 64, 4096  # a window has PASS_VALUES logits: a MiB
MEMBERS = 4
OWN = b"""
import torch
from torch import nn
from torch.nn import functional

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4096, 4)
        self.head = nn.Linear(4, 4096)

    def logits(self, x):
        return self.head(torch.tanh(self.embed(x)))

    def forward(self, x, y):
        return functional.cross_entropy(self.logits(x).flatten(0, 1), y.flatten())

def build():
    return Own()
"""
GPT = ModelSpec(layers=1, width=8, heads=2, context=CONTEXT, vocabulary=WORDS)
MODULE = ModelSpec(kind="module", module="own.py:build", context=CONTEXT, vocabulary=WORDS)
PEER = PeerId(bytes(32))


class Seen(NamedTuple):
    """The most windows of one pass, and the most bytes of tensors alive beside those that were there before."""

    windows: int
    bytes: int


class Watch:
    """Sees each pass of any model."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._windows, scalar = 0, FlatModel.scalar

        def seen(model: FlatModel, x_BT: Tensor, y_BT: Tensor) -> Tensor:
            self._windows = max(self._windows, len(x_BT))
            return scalar(model, x_BT, y_BT)

        monkeypatch.setattr(FlatModel, "scalar", seen)

    def of(self, work: Callable[[], Any]) -> Seen:
        self._windows = 0
        with LiveTensorTracker() as living:
            living.begin()
            before = living.now
            work()
            return Seen(self._windows, living.peak - before)


def spec_of(model: ModelSpec, batch: int) -> JobSpec:
    return JobSpec(
        seed=3, rounds=2, batch=batch, model=model, sync=SyncSpec(steps=1, topk=32, chunk=256),
        schedule=ScheduleSpec(warmup=1), network=NetworkSpec(providers=MEMBERS), audit=AuditSpec(probe=64),
    )  # fmt: skip


def data_of(windows: int) -> dataset.Dataset:
    words = np.random.default_rng(1).integers(0, WORDS, 64 * CONTEXT).astype(np.uint16)
    return dataset.Dataset(words, words[: windows * CONTEXT + 1].copy())


def engine_of(spec: JobSpec, source: bytes, held: int) -> tuple[WorkerEngine, bytes]:
    engine = WorkerEngine(lambda: 0.0)
    engine.handle(worker_messages.SetupCommand(spec, dataset.pack(data_of(held)), source, 0, PEER))
    made = engine.handle(worker_messages.InitializeCommand())
    assert isinstance(made, worker_messages.StateResult)
    engine.handle(worker_messages.LoadCommand(0, made.snapshot, b""))
    return engine, made.snapshot


def paths(engine: WorkerEngine, spec: JobSpec, packed: bytes, held: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Whatever looks at the model beside its steps: at the requester, a verifier, and whoever has the model."""
    trained = engine.handle(worker_messages.TrainCommand(0))
    job = engine._job
    assert isinstance(trained, worker_messages.TrainResult)
    assert job is not None
    part = worker_messages.AcceptedPayload(PEER, spec.round_tokens, trained.payload)
    long = list(range(3 * CONTEXT))
    logits = token_sampler.logits_of(job.model.module)
    assert logits is not None
    drawn = logits, long, 2, CONTEXT, token_sampler.SamplingOptions(tokens=256), torch.Generator()
    tokens = data_of(held).heldout
    yield "evaluate", lambda: engine.handle(worker_messages.EvaluateCommand(packed, 1 << 20))
    yield "probe", lambda: engine.handle(worker_messages.LossProbeCommand(packed, (0,), (part,), 16, 5))
    yield "baseline", lambda: engine.handle(worker_messages.BaselineCommand(packed, MEMBERS, 1, 1 << 20, 1))
    if spec.model.kind == "module" and spec.batch > held:  # one says it for all, and takes longest
        yield "profile", lambda: engine.handle(worker_messages.ProfileCommand(packed))
    yield "rerun", lambda: engine.handle(worker_messages.RerunCommand(packed, 0, 0, _start(engine), 0))
    yield "eval", lambda: heldout.measure(job.model, spec.model, spec.batch, tokens, 1 << 20)
    yield "sample", lambda: list(token_sampler.stream(*drawn))


def _start(engine: WorkerEngine) -> bytes:
    opened = engine.handle(worker_messages.OpenSegmentCommand(0, 0))
    assert isinstance(opened, worker_messages.OpenSegmentResult)
    return opened.start


@pytest.mark.parametrize(("model", "source"), [(GPT, b""), (MODULE, OWN)], ids=["gpt", "module"])
@pytest.mark.parametrize(("batch", "held"), [(1, 9), (3, 2), (3, 9)])
def test_no_pass_holds_more_than_a_step_that_was_planned(
    monkeypatch: pytest.MonkeyPatch, model: ModelSpec, source: bytes, batch: int, held: int
) -> None:
    spec, watch = spec_of(model, batch), Watch(monkeypatch)
    engine, packed = engine_of(spec, source, held)
    step = watch.of(lambda: engine.handle(worker_messages.TrainCommand(0)))
    assert step.windows == batch
    job = engine._job
    assert job is not None
    layout = job.model.layout
    window = 4 * PASS_VALUES  # bytes of its logits
    states = 8 * 4 * layout.size  # vectors that a path holds beside its passes, which the plan counts elsewhere
    assert states < 2 * window, "two windows more would be seen"
    planned = memory(spec, layout, 0, StepMemory(Bytes(step.bytes + 4 * 4 * layout.size))).activations
    for name, work in paths(engine, spec, packed, held):
        seen = watch.of(work)
        assert seen.windows <= batch, name
        assert seen.bytes <= planned + states, name


@pytest.mark.parametrize(
    ("batch", "context", "vocabulary", "width", "windows"),
    [
        (1, 1024, 50257, 768, 1),
        (1, 128, 50257, 32, 1),
        (2, 32, 50257, 32, 2),
        (64, 1024, 50257, 768, PASS_WINDOWS),
        (2, 32, 256, 32, PASS_WINDOWS),  # the preset tiny: a pass of 32 windows has as many logits as the bound
        (8, 128, 256, 128, 8),
        (1, 64, 4, 1024, 1),  # few words and wide layers
        (1, 1 << 16, 4, 64, 1),
    ],
)
def test_windows_of_a_pass_follow_from_batch_context_and_the_widest_values(
    batch: int, context: int, vocabulary: int, width: int, windows: int
) -> None:
    model = ModelSpec(layers=1, width=width, heads=2, context=context, vocabulary=vocabulary)
    layout = TensorLayout.of(gpt_shapes(model))
    found = pass_windows(batch, model, layout)
    assert found == windows
    assert found <= batch or found * context * vocabulary <= PASS_VALUES


def test_a_pass_of_more_windows_than_a_step_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    small = ModelSpec(layers=2, width=32, heads=2, context=32, vocabulary=256)
    spec = replace(spec_of(small, 1))
    built = flat_model.build(spec, b"")
    rows = np.random.default_rng(1).integers(0, 256, 32 * 40 + 1).astype(np.uint8)
    watch = Watch(monkeypatch)
    built.put(flat_model.initial(spec, built))
    seen = watch.of(lambda: heldout.measure(built, small, 1, rows, 1 << 20))
    assert seen.windows == PASS_WINDOWS > spec.batch
    states = 4 * built.layout.size + 8 * len(rows)
    assert seen.bytes - states <= memory(spec, built.layout, 0, StepMemory(Bytes(0))).activations <= 3 * 4 * PASS_VALUES


@contextlib.contextmanager
def cut(windows: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from farflung.train import forward_passes

    with monkeypatch.context() as patch:
        patch.setattr(forward_passes, "pass_windows", lambda *_: windows)
        yield


@pytest.mark.parametrize("windows", [1, 2, 3, 7, 32])
def test_a_loss_depends_on_the_passes_by_rounding_alone(monkeypatch: pytest.MonkeyPatch, windows: int) -> None:
    engine, packed = engine_of(spec_of(GPT, 2), b"", 7)
    asked = worker_messages.EvaluateCommand(packed, 1 << 20)
    whole = engine.handle(asked)
    with cut(windows, monkeypatch):
        found = engine.handle(asked)
    assert isinstance(whole, worker_messages.LossResult)
    assert isinstance(found, worker_messages.LossResult)
    assert found.tokens == whole.tokens == 7 * CONTEXT
    assert found.loss == pytest.approx(whole.loss, rel=1e-6)


def test_the_gradient_of_several_batches_is_that_of_them_joined() -> None:
    spec = spec_of(GPT, 3)
    built = flat_model.build(spec, b"")
    built.put(flat_model.initial(spec, built))
    rows = torch.from_numpy(np.random.default_rng(1).integers(0, WORDS, (2, 4, 3, CONTEXT)))
    loss = built.gradient(rows[0].flatten(0, 1), rows[1].flatten(0, 1))
    joined = built.grads.clone()
    assert built.mean_gradient(zip(rows[0], rows[1], strict=True)) == pytest.approx(loss, rel=1e-6)
    assert torch.allclose(built.grads, joined, rtol=1e-4, atol=1e-7)
    assert built.unused == []


@pytest.mark.parametrize("planned", [300 * 10**6, 40 * 10**9])
def test_a_workers_bound_is_twice_the_plan_and_a_gib_and_no_other_bound_is_below(planned: int) -> None:
    bounds = limits_for(planned)
    assert bounds.data == 2 * planned + GIB
    assert bounds.address_space >= bounds.data


def test_the_requesters_own_worker_has_the_plans_bound_and_a_module_the_machines() -> None:
    spec = spec_of(GPT, 3)
    layout = TensorLayout.of(gpt_shapes(GPT))
    assert bounds_of(spec, 5000).data == 2 * memory(spec, layout, 5000, torch=torch_build()).worker + GIB
    assert bounds_of(spec_of(MODULE, 3), 5000).data >= WorkerLimits().data
    assert unplanned_limits(1 << 40).data == 1 << 40
    assert unplanned_limits(0, 7) == WorkerLimits(cpu_seconds=7)


@pytest.mark.parametrize(
    "model",
    [
        ModelSpec(layers=1, width=16, heads=2, context=32, vocabulary=4096),
        ModelSpec(layers=2, width=16, heads=8, context=128, vocabulary=256),
    ],
    ids=["words", "attention"],
)
def test_what_is_planned_for_an_agent_covers_a_step_by_the_jobs_graph(model: ModelSpec) -> None:
    from farflung.verify.canon.execute import peak
    from farflung.verify.canon.step_graph import traced

    spec = replace(spec_of(model, 2), sync=SyncSpec(method="diloco", codec="dense", steps=2))
    built = flat_model.build(spec, b"")
    planned, without = (memory(each, built.layout, 0) for each in (spec, replace(spec, audit=AuditSpec(0, 0.0, 0))))
    needed = peak(traced(built, spec), keeps_outputs=False)
    assert needed <= planned.trial <= AGENT + 3 * needed
    assert without.trial == 0
    assert planned.lease > planned.trial


def test_a_node_without_memory_for_the_graph_says_so_before_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_trial, "memory_bytes", lambda: 1000)
    graph = CanonicalGraph((GraphInput("params/w", "f32", (1000,)),), (), (GraphOutput("w", 0),))
    parts: Any = SimpleNamespace(graph=graph, judge=graph)
    nobody: Any = None
    with pytest.raises(RunError, match="FF-VERI-103"):
        asyncio.run(graph_trial.try_step(nobody, JobGraph(parts, nobody, nobody, b"", b""), nobody, 0, Path()))
