"""Measures how well a model predicts text that it has not seen: loss, and top-1 accuracy.

The windows, the rows of one forward pass and the sum are those of the run's own evaluation (train.loss_probe), so that
the same tokens give the same figure to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch

from farflung.train import data_order, inner_steps
from farflung.train.data_order import Tokens
from farflung.train.flat_model import FlatModel
from farflung.train.loss_probe import EVALUATE_ROWS
from farflung.train.token_sampler import logits_of


class HeldoutLoss(msgspec.Struct, frozen=True):
    """`loss` in nats per token; `accuracy`: share of tokens that were the likeliest, None without logits."""

    loss: float
    accuracy: float | None
    tokens: int


def measure(
    model: FlatModel, tokens: Tokens, context: int, limit: int, pulse: Callable[[], None] = lambda: None
) -> HeldoutLoss:
    """Measures `model` on the first `limit` of `tokens`. Raises SpecError FF-TRAIN-061, RunError FF-TRAIN-055 on."""
    x_NT, y_NT = inner_steps.tensors(data_order.windows(tokens, context, limit))
    logits = logits_of(model.module)
    total, right = 0.0, 0
    model.module.eval()
    with torch.no_grad():
        for start in range(0, len(x_NT), EVALUATE_ROWS):
            pulse()
            rows = slice(start, start + EVALUATE_ROWS)
            total += float(model.loss(x_NT[rows], y_NT[rows])) * len(x_NT[rows])
            if logits is not None:
                right += int((logits(x_NT[rows]).argmax(-1) == y_NT[rows]).sum())
    seen = int(x_NT.numel())
    return HeldoutLoss(total / len(x_NT), right / seen if logits is not None else None, seen)
