"""hivemind #476: numbers that the format of an average cannot hold, here in a job's rounds: encoded, merged, applied.

The codec's own ranges stand beside: 1 and 2 bits have levels from 6e-8 to 65,504, and keep the rest unsent.
"""

from __future__ import annotations

import numpy as np
import pytest

from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.job_loader import load
from farflung.train.sync_arithmetic import SCALE, Sync
from farflung.train.worker_messages import AcceptedPayload

LAYOUT = TensorLayout.of({"a": (24, 20), "b": (9,)})


def moved(method: str, size: float, rounds: int = 1, **flags: str) -> tuple[Float32, Float32]:
    """What weights of 0 become where two peers change them by `size` and by three times as much, and the mean."""
    named = {key.replace("__", "."): value for key, value in flags.items()}
    sync = Sync.of(load(None, flags={"sync.method": method, "sync.outer_lr": "1", **named}).spec)
    state, held = sync.initial(np.zeros(LAYOUT.size, np.float32)), [None, None]
    pattern = np.outer(1 + np.arange(LAYOUT.size) % 3, 1).reshape(-1).astype(np.float32) / 2
    for _ in range(rounds):
        parts = []
        for i, own in enumerate((size, 3 * size)):
            end = state.params + pattern * np.float32(own)
            peer = bytes([i + 1]) * 32
            sent = sync.encode(state, held[i], None, end, LAYOUT, peer)
            held[i] = sent.residual
            parts.append(AcceptedPayload(peer, 64, sent.payload))
        state = sync.apply(state, LAYOUT, parts)
    return state.params, pattern * np.float32(size)


PLAIN = {"sync__outer_momentum": "0", "sync__steps": "1"}


@pytest.mark.parametrize("size", [1e-30, 1e-10, 3e-8, 100.0, 1e9, 1e30])
@pytest.mark.parametrize(
    ("method", "flags", "near"),
    [
        ("local_sgd", {"sync__value_bits": "32"}, 1e-4),
        ("local_sgd", {"sync__value_bits": "16"}, 0.02),
        ("diloco", {"sync__value_bits": "8"}, 0.02),
        ("muloco", {"sync__value_bits": "4"}, 0.3),
        ("sparse_loco", {"sync__value_bits": "8", "sync__chunk": "256", "sync__topk": "256"}, 0.02),
    ],
)
def test_a_job_s_weights_move_by_any_size(method: str, flags: dict[str, str], near: float, size: float) -> None:
    """Both are clipped to the smaller norm, so the mean is the smaller change."""
    found, wanted = moved(method, size, **PLAIN, **flags)
    assert np.abs(found / wanted - 1).max() < near


STEADY = {
    "optimizer__lr": "1", "optimizer__weight_decay": "0", "schedule__kind": "constant", "schedule__warmup": "0",
}  # fmt: skip


@pytest.mark.parametrize("size", [1e-12, 1e-3, 1e6])
@pytest.mark.parametrize(
    ("method", "rounds", "flags"),
    [
        ("dgc", 1, {"sync__chunk": "256", "sync__topk": "256", "sync__warmup_rounds": "0"}),
        ("powersgd", 2, {"sync__rank": "2", "sync__outer": "sgd", "sync__outer_momentum": "0"}),
    ],
)
def test_a_job_that_sends_gradients_moves_by_any_size(
    method: str, rounds: int, flags: dict[str, str], size: float
) -> None:
    found, wanted = moved(method, size * SCALE, rounds, **STEADY, **flags)
    assert 0.5 < np.linalg.norm(found) / (np.linalg.norm(wanted) / SCALE) < 4


@pytest.mark.parametrize(("size", "most"), [(1e6, 65504.0 * 40), (2e-8, 1e-3)])
def test_two_bits_keep_what_they_cannot_say_and_send_it_later(size: float, most: float) -> None:
    found, wanted = moved("muloco", size, 24, **PLAIN, sync__value_bits="2", sync__error_decay="1")
    assert 0 < np.abs(found).max() < most
    assert np.abs(found).mean() > min(12 * np.abs(wanted).mean(), 24 * 60000.0)
