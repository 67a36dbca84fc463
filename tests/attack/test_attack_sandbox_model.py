"""A hostile model, run by the real worker: its source is a program, and gets no further than the sandbox lets it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from farflung.core.ids import PeerId
from farflung.host import sandbox
from farflung.host.io import sandbox_tiers
from farflung.host.io.worker_process import WorkerProcess, start_worker
from farflung.host.worker_limits import MIB, limits_for
from farflung.job import dataset
from farflung.job.spec import JobSpec, ModelSpec, OptimizerSpec, ScheduleSpec, SyncSpec
from farflung.train import worker_messages
from farflung.train.io.worker_pipe import WorkerPipe

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandbox tiers above `limits` need Linux")
SPEC = JobSpec(
    seed=7,
    rounds=4,
    batch=2,
    model=ModelSpec(kind="module", context=8, module="mine.py:build"),
    optimizer=OptimizerSpec(lr=1e-2),
    schedule=ScheduleSpec(warmup=2),
    sync=SyncSpec(steps=3, topk=32, chunk=256),
)
HOSTILE = """
import os, socket
import torch
from torch import nn

def tries():
    open("mine", "w").close()
    ways = {
        "inet": lambda: socket.socket(),
        "fork": lambda: os.fork() or os._exit(0),
        "run": lambda: open(WEIGHTS).read(),
        "write": lambda: open(WEIGHTS + "-planted", "w"),
    }
    for name, way in ways.items():
        try:
            way()
        except OSError:
            continue
        yield name

def build():
    raise ValueError("got out by: " + ",".join(tries()) + ".")
"""
GROWING = """
def build():
    import mmap
    held = mmap.mmap(-1, 1 << 31)
    for at in range(0, len(held), 1 << 20):
        held[at : at + (1 << 20)] = bytes(1 << 20)
"""


def worker_for(folder: Path, tier: str) -> WorkerProcess:
    return start_worker(folder / "scratch", folder / "worker.log", limits_for(200 * MIB), tier=tier)


def set_up(worker: WorkerProcess, source: str) -> worker_messages.WorkerFailure | str:
    """The worker's error on being given the module, or why it ended."""
    tokens = np.frombuffer(b"def f(x):\n    return x + 1\n\n" * 40, np.uint8)
    data = dataset.pack(dataset.Dataset(tokens[:900].copy(), tokens[900:].copy()))
    setup = worker_messages.SetupCommand(SPEC, data, source.encode(), 0, PeerId(bytes(32)))

    async def talk() -> worker_messages.WorkerFailure | str:
        pipe = WorkerPipe(worker.socket)
        try:
            await pipe.request(setup)
        except Exception as error:
            return str(error)
        finally:
            pipe.close()
        return "it was set up"

    return asyncio.run(talk())


@pytest.mark.slow
@pytest.mark.parametrize("tier", [sandbox.BWRAP, sandbox.LANDLOCK])
def test_a_models_source_reaches_nothing(tmp_path: Path, tier: str) -> None:
    if why := sandbox_tiers.probe(tier):
        assert sandbox.remedy(tier, why), why  # a wall that is missing is no reason to skip
        pytest.skip(f"tier {tier} does not work here: {why}")
    weights = tmp_path / "weights"
    weights.write_text("of another run")
    worker = worker_for(tmp_path, tier)
    said = set_up(worker, f"WEIGHTS = {json.dumps(str(weights))}\n{HOSTILE}")
    worker.terminate()
    assert "got out by: ." in str(said)
    assert not weights.with_name("weights-planted").exists()


@pytest.mark.whole
def test_a_model_that_eats_memory_ends_its_worker_and_is_named(tmp_path: Path) -> None:
    tier = sandbox_tiers.strongest()
    if sandbox.SandboxGap.SHARED_MEMORY in tier.gaps:
        pytest.skip("no cgroup bounds memory here, as the gaps say: not tried")
    worker = worker_for(tmp_path, tier.name)
    set_up(worker, GROWING)
    assert worker.wait(60) == -9
    assert worker.reason().startswith("over its memory limit of 1.4")
