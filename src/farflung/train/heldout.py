"""Measures how well a model predicts text that it has not seen: loss, and top-1 accuracy.

The windows, their passes and the sum are those of the run's own evaluation (train.forward_passes), so that the same
tokens give the same figure to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from torch import Tensor

from farflung.core.canon.token_leaves import TokenSource
from farflung.job.spec import ModelSpec
from farflung.train import data_order, forward_passes
from farflung.train.flat_model import FlatModel
from farflung.train.token_sampler import logits_of


class HeldoutLoss(msgspec.Struct, frozen=True):
    """`loss` in nats per token; `accuracy`: share of tokens that were the likeliest, None without logits."""

    loss: float
    accuracy: float | None
    tokens: int


def measure(
    model: FlatModel,
    of: ModelSpec,
    batch: int,
    tokens: TokenSource,
    limit: int,
    pulse: Callable[[], None] = lambda: None,
) -> HeldoutLoss:
    """Measures `model` on the first `limit` of `tokens`. `batch`: windows of a step that it was trained by.

    Raises SpecError FF-TRAIN-061, RunError FF-TRAIN-055 on.
    """
    rows = data_order.windows(tokens, of.context, limit)
    logits, right = logits_of(model.module), 0

    def count(x_BT: Tensor, y_BT: Tensor) -> None:
        nonlocal right
        if logits is not None:
            right += int((logits(x_BT).argmax(-1) == y_BT).sum())

    loss, seen = forward_passes.mean_loss(model, of, batch, rows, pulse, count), rows[0].size
    return HeldoutLoss(loss, right / seen if logits is not None else None, seen)
