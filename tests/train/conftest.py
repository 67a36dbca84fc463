"""One tiny job for every test of training, and engines that run it; makes `train_methods` importable."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from farflung.core.ids import PeerId
from farflung.job import dataset
from farflung.job.spec import EvaluateSpec, JobSpec, ModelSpec, OptimizerSpec, ScheduleSpec, SyncSpec
from farflung.train import worker_messages
from farflung.train.engine import WorkerEngine

TINY = JobSpec(
    seed=7,
    rounds=4,
    batch=2,
    model=ModelSpec(layers=1, width=16, heads=2, context=8),
    optimizer=OptimizerSpec(lr=1e-2),
    schedule=ScheduleSpec(warmup=2),
    sync=SyncSpec(steps=3, topk=32, chunk=256),
    evaluate=EvaluateSpec(tokens=64),
)


def make_data() -> dataset.Dataset:
    text = b"def f(x):\n    return x + 1\n\n" * 40
    tokens = np.frombuffer(text, np.uint8)
    return dataset.Dataset(tokens[:900].copy(), tokens[900:].copy())


def peer(member: int) -> PeerId:
    return PeerId(bytes([member + 1]) * 32)


def make_setup(spec: JobSpec, member: int = 0, module: bytes = b"") -> worker_messages.SetupCommand:
    return worker_messages.SetupCommand(spec, dataset.pack(make_data()), module, member, peer(member))


@pytest.fixture
def tiny() -> JobSpec:
    return TINY


@pytest.fixture
def data() -> dataset.Dataset:
    return make_data()


@pytest.fixture
def setup() -> Callable[..., worker_messages.SetupCommand]:
    return make_setup


@pytest.fixture
def engine() -> Callable[..., WorkerEngine]:
    """`engine(spec, member)`: an engine whose job is set up, holding round 0 with fresh inner state."""

    def make(spec: JobSpec = TINY, member: int = 0, module: bytes = b"") -> WorkerEngine:
        made = WorkerEngine(lambda: 0.0)
        made.handle(make_setup(spec, member, module))
        start = made.handle(worker_messages.InitializeCommand())
        assert isinstance(start, worker_messages.StateResult)
        made.handle(worker_messages.LoadCommand(0, start.snapshot, b""))
        return made

    return make


@pytest.fixture
def user_job() -> Callable[[str], tuple[JobSpec, bytes]]:
    """`user_job(forward)`: the tiny job with a user's module whose forward ends in the given lines."""

    def make(forward: str) -> tuple[JobSpec, bytes]:
        model = ModelSpec(kind="module", context=8, module="mine.py:build")
        return msgspec.structs.replace(TINY, model=model), (USER_MODULE + forward).encode()

    return make


USER_MODULE = """
import torch
from torch import nn

def build():
    return Bigram()

class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 256)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x, y):
        loss = nn.functional.cross_entropy(self.table(x).flatten(0, 1), y.flatten())
"""
