"""What workers really reply is within the bounds of what they may, whatever the job; and a small job's are small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.tensor_layout import TensorLayout
from farflung.core.value_count import count_values
from farflung.job.spec import JobSpec, OptimizerSpec, SyncSpec
from farflung.train import blobs
from farflung.train import worker_messages as words
from farflung.train.engine import WorkerEngine
from farflung.train.io.worker import broken
from farflung.train.reply_bounds import WorkerReplies

Setup = Callable[..., words.SetupCommand]

JOBS: dict[str, dict[str, Any]] = {
    "topk": {},
    "dense": {"sync": SyncSpec(steps=3, codec="dense", value_bits=32, outer="adamw")},
    "low rank": {
        "sync": SyncSpec(method="powersgd", codec="low_rank", value_bits=32, steps=1, rank=2, outer="adamw"),
        "optimizer": OptimizerSpec(name="gradient"),
    },
    "streaming": {"sync": SyncSpec(steps=4, codec="dense", value_bits=4, fragments=2, delay=1)},
    "sgd": {"optimizer": OptimizerSpec(name="sgd", lr=0.1)},
    "muon": {"optimizer": OptimizerSpec(name="muon", lr=0.1)},
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("is_known", [True, False])
def test_what_a_worker_replies_is_within_its_bounds(name: str, is_known: bool, tiny: JobSpec, setup: Setup) -> None:
    spec = replace(tiny, **JOBS[name])
    peer = setup(spec).peer
    engine, replies = WorkerEngine(lambda: 0.0), WorkerReplies()

    def ask(command: Any) -> Any:
        bound = replies.to(command)
        light, long = blobs.take(engine.handle(command))
        data = encode(light)
        assert len(data) <= bound.size
        assert sum(map(len, long)) <= bound.blobs
        assert count_values(data, len(data)) <= bound.values
        if replies.layout is not None:
            assert bound.size + bound.blobs < limits.MIB  # some thousand weights
            assert bound.values < 10_000
        return blobs.put(decode(data, bound.kind, bound.size, bound.values), iter(map(blobs.bytes_of, long)))

    ask(setup(spec))
    began = ask(words.InitializeCommand())
    replies.layout = TensorLayout.of(dict(began.shapes)) if is_known else None
    ask(words.InitializeCommand())
    ask(words.LoadCommand(0, began.snapshot, b""))
    for round in range(2):
        trained = ask(words.TrainCommand(round))
        opened = ask(words.OpenSegmentCommand(round, 0))
        if round == 0:
            ask(words.RerunCommand(began.snapshot, 0, 0, opened.start))
            ask(words.ReencodeCommand(began.snapshot, peer, opened.last))
        part = words.AcceptedPayload(peer, spec.round_tokens, trained.payload)
        if round == 0:
            ask(words.LossProbeCommand(began.snapshot, (0,), (part,), 1, 3))
        ask(words.MergeCommand(round, (part,)))
    ask(words.RewindCommand(2, b""))
    ask(words.EvaluateCommand(began.snapshot, 16))
    ask(words.BaselineCommand(began.snapshot, 2, 2, 16, 1))


@pytest.mark.slow
def test_a_profile_is_within_its_bounds(engine: Callable[..., WorkerEngine], tiny: JobSpec, setup: Setup) -> None:
    replies = WorkerReplies()
    replies.to(setup(tiny))
    made = engine()
    began = made.handle(words.InitializeCommand())
    assert isinstance(began, words.StateResult)
    replies.layout = TensorLayout.of(dict(began.shapes))
    bound, data = replies.to(words.ProfileCommand(b"")), encode(made.handle(words.ProfileCommand(began.snapshot)))
    assert len(data) <= bound.size
    assert count_values(data, len(data)) <= bound.values


def test_a_failure_fits_whatever_it_says() -> None:
    for text in ("x" * 10**6, "\U0001f600" * 10**5):
        data = encode(broken(ValueError(text)))
        assert len(data) <= limits.REPLY_BYTES
    wordy = RuntimeError()
    wordy.args = ("y" * 10**6,)
    assert len(encode(broken(wordy))) <= limits.REPLY_BYTES


def test_the_largest_model_of_a_worker_may_reply(tiny: JobSpec, setup: Setup) -> None:
    """What it says is short, and what travels beside it grows with the model alone."""
    replies = WorkerReplies(TensorLayout.of({"w": (100_000, 100_000)}))
    replies.to(setup(tiny))
    bound = replies.to(words.OpenSegmentCommand(0, 0))
    assert bound.size < limits.MIB
    assert bound.blobs > 28 * 10**10
