"""What a job's peers hold decides their next step: each method goes on from disk, after any round and inside one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from farflung.core.errors import RunError
from farflung.core.ids import PeerId
from farflung.job.job_loader import load
from farflung.job.methods.registry import BUILT_IN
from farflung.job.spec import JobSpec
from farflung.train import public_state
from farflung.train.engine import WorkerEngine
from farflung.train.worker_messages import AcceptedPayload, LoadCommand, MergeCommand, TrainCommand

ROUNDS = 4  # twice through the phases of a method that has two; once through three fragments, and one more
SMALL = {"sync.chunk": "256", "sync.topk": "8", "sync.rank": "2"}
JOBS: dict[str, dict[str, str]] = {method.name: {} for method in BUILT_IN} | {
    "sparse_loco, streaming": {"sync.fragments": "3"},
    "sparse_loco, streaming, delayed": {"sync.fragments": "3", "sync.delay": "1"},
    "diloco, delayed": {"sync.delay": "1"},
    "muloco, exact, averaging": {"sync.value_bits": "32", "sync.outer_momentum": "0"},
    "dgc, warming up": {"sync.warmup_rounds": "4"},
    "dense, sgd": {"sync.outer": "sgd", "sync.outer_momentum": "0.9"},
    "local_sgd, sgd": {"optimizer.name": "sgd", "optimizer.lr": "0.1"},
}


@pytest.fixture(params=JOBS)
def spec(request: pytest.FixtureRequest, tiny: JobSpec) -> JobSpec:
    method = request.param.partition(",")[0]
    flags = SMALL | {"sync.method": method} | JOBS[request.param]
    of = load(None, preset="tiny", flags=flags).spec
    sync = of.sync if of.sync.steps == 1 else msgspec.structs.replace(of.sync, steps=2)
    return msgspec.structs.replace(tiny, rounds=ROUNDS, sync=sync, optimizer=of.optimizer, audit=of.audit)


Disk = tuple[int, bytes, list[bytes]]  # the round, public state before it, and each peer's own


class Pair:
    """Two peers of a job, in step; what each has on disk after every round."""

    def __init__(
        self, engine: Callable[..., WorkerEngine], spec: JobSpec, begun: tuple[int, bytes, list[bytes]] | None
    ):
        self.spec, self.engines = spec, [engine(spec, member) for member in range(2)]
        for one, inner in zip(self.engines, begun[2] if begun else (), strict=bool(begun)):
            assert begun
            one.handle(LoadCommand(begun[0], begun[1], inner))

    def train(self, number: int) -> list[Any]:
        return [engine.handle(TrainCommand(number)) for engine in self.engines]

    def merge(self, number: int, trained: list[Any]) -> tuple[bytes, bytes, list[bytes]]:
        """The root, the snapshot, and both inner states."""
        tokens = self.spec.round_tokens
        parts = [AcceptedPayload(PeerId(bytes([m + 1]) * 32), tokens, one.payload) for m, one in enumerate(trained)]
        merged: list[Any] = [engine.handle(MergeCommand(number, tuple(parts))) for engine in self.engines]
        assert merged[0].root == merged[1].root
        return merged[0].root, self.snapshot(), [one.inner for one in trained]

    def round(self, number: int) -> tuple[bytes, bytes, list[bytes]]:
        return self.merge(number, self.train(number))

    def snapshot(self) -> bytes:
        state, job = self.engines[0]._public, self.engines[0]._job
        assert state is not None
        assert job is not None
        assert set(state.vectors) | {"params"} <= job.sync.public_names(state.round)
        return public_state.pack(state, job.model.layout)


def test_a_job_goes_on_from_disk_after_every_round_and_inside_of_one(
    engine: Callable[..., WorkerEngine], spec: JobSpec
) -> None:
    whole = Pair(engine, spec, None)
    disks = [(0, whole.snapshot(), [b"", b""])]
    ends = []
    for number in range(ROUNDS):
        root, snapshot, inner = whole.round(number)
        ends.append((root, inner))
        disks.append((number + 1, snapshot, inner))
    for stop in range(ROUNDS):
        again = Pair(engine, spec, disks[stop])
        trained = again.train(stop)
        assert again.train(stop) == trained  # the process dies before the round is merged, and trains it again
        assert again.merge(stop, trained)[::2] == ends[stop]
        if stop + 1 < ROUNDS:
            assert again.round(stop + 1)[::2] == ends[stop + 1]


def test_what_a_round_was_trained_on_already_is_not_trained_on_twice(
    engine: Callable[..., WorkerEngine], spec: JobSpec
) -> None:
    """The state that a commitment stands for is on disk before the round is merged: the round goes on to its merge."""
    whole = Pair(engine, spec, None)
    _, snapshot, _ = whole.round(0)
    trained = whole.train(1)
    root = whole.merge(1, trained)[0]
    again = Pair(engine, spec, (1, snapshot, [one.inner for one in trained]))
    for one in again.engines:
        with pytest.raises(RunError, match=r"FF-TRAIN-080.*already trained"):
            one.handle(TrainCommand(1))
    assert again.merge(1, trained)[0] == root
