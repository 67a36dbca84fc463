"""Measures a loss by forward passes without gradient, none of which holds more than the plan counts.

Validation loss, loss probes and `farflung eval` all measure here. A pass takes as many windows as a training step,
which holds more of each; only small models are measured on more at once (plan.worker_memory.pass_windows). The mean
over passes is weighted by their windows and summed in double precision. How the windows are cut shows in a loss' last
bits alone, as a module gives the mean of a pass in single precision: whoever names the batch that the model was trained
with cuts them alike.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from farflung.job.spec import ModelSpec
from farflung.plan.worker_memory import pass_windows
from farflung.train.data_order import Windows
from farflung.train.flat_model import FlatModel
from farflung.train.inner_steps import Pulse, tensors


def mean_loss(
    model: FlatModel,
    of: ModelSpec,
    batch: int,
    rows: Windows,
    pulse: Pulse,
    seen: Callable[[Tensor, Tensor], None] = lambda x_BT, y_BT: None,
) -> float:
    """Mean loss in nats per token on inputs and targets of shape (n, context), n at least 1, of any integers.

    `batch`: windows of a training step. `seen` is given each pass' inputs and targets, for more to be measured on them.
    Raises RunError FF-TRAIN-055 to -058; the module is in training mode again when this returns.
    """
    x_NT, y_NT = rows
    most = pass_windows(batch, of, model.layout)
    total = 0.0
    model.module.eval()
    try:
        with torch.no_grad():
            for start in range(0, len(x_NT), most):
                pulse()
                place = slice(start, start + most)
                x_BT, y_BT = tensors((x_NT[place].astype(np.int64), y_NT[place].astype(np.int64)))
                total += float(model.loss(x_BT, y_BT)) * len(x_BT)
                seen(x_BT, y_BT)
    finally:
        model.module.train()
    return total / len(x_NT)
