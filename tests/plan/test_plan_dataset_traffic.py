"""What a node is sent of a data set, against what its rounds lie in."""

from __future__ import annotations

import statistics

import pytest

from farflung.core import limits
from farflung.core.canon.token_leaves import packed_bytes
from farflung.core.tensor_layout import TensorLayout
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.spec import JobSpec, ModelSpec, SyncSpec
from farflung.plan.dataset_traffic import first_bytes, held_bytes, is_whole, round_bytes
from farflung.plan.run_disk import least_disk
from farflung.plan.worker_memory import memory
from farflung.train import data_order

GB = 10**9


@pytest.mark.parametrize(("size", "steps", "batch"), [(2 * GB, 20, 8), (50 * GB, 5, 4), (1_500_000_000, 200, 64)])
def test_a_rounds_pieces_are_as_long_as_planned(size: int, steps: int, batch: int) -> None:
    model = ModelSpec(context=256, vocabulary=1024)
    spec = JobSpec(rounds=40, batch=batch, model=model, sync=SyncSpec(steps=steps))
    tokens = size // 2
    rounds = range(0, 40, 40 if batch > 8 else 1)
    found = [packed_bytes(tokens, 2, data_order.round_leaves(spec, tokens, round, 1)) for round in rounds]
    assert statistics.mean(found) == pytest.approx(round_bytes(spec, size), rel=0.05)


def test_a_data_set_goes_whole_where_its_rounds_would_take_as_much() -> None:
    model = ModelSpec(context=256, vocabulary=1024)
    short, long = (JobSpec(rounds=rounds, model=model) for rounds in (12, 12_000))
    assert not is_whole(short, 200_000_000)
    assert is_whole(long, 200_000_000)
    assert round_bytes(long, 200_000_000) == 0
    assert not is_whole(long, limits.WHOLE_DATA_MOST + 1)  # and never what is too much for one


def test_a_plan_does_not_grow_with_a_large_data_set() -> None:
    spec = JobSpec()
    layout = TensorLayout.of(gpt_shapes(spec.model))
    small, whole = memory(spec, layout, 0), memory(spec, layout, limits.WHOLE_DATA_BYTES)
    assert whole.worker - small.worker == limits.WHOLE_DATA_BYTES
    large = [memory(spec, layout, size * GB).worker - small.worker for size in (1, 1000)]
    assert max(large) < 3 * round_bytes(spec, GB)
    small_bytes = limits.WHOLE_DATA_BYTES
    assert first_bytes(spec, small_bytes) == held_bytes(spec, small_bytes) > first_bytes(spec, 50 * GB)
    assert least_disk(spec, layout, 50 * GB) < 50 * GB + 2 * least_disk(spec, layout, 0) + GB
