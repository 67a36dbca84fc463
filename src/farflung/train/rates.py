"""Computes the rates of an optimizer's step from the schedule and the count of steps.

No torch: whoever plays a dispute needs them where no model is loaded.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from farflung.core.canon.float_operations import power
from farflung.job.spec import OptimizerSpec

if TYPE_CHECKING:
    from torch import Tensor


class OptimizerRates(NamedTuple):
    """What of a step depends on its number: all that an optimizer sees of `lr` and of the steps done before.

    `decay` is lr times the weight decay; `rate` and `scale` are lr and the square mean's root with AdamW's bias
    corrections (Kingma & Ba 2015, section 2, last paragraph).
    """

    lr: float | Tensor
    decay: float | Tensor
    rate: float | Tensor
    scale: float | Tensor


def rates(spec: OptimizerSpec, lr: float, done: int) -> OptimizerRates:
    """The rates of a peer's own step `done`, from 1: the same numbers on every machine (powers by squaring)."""
    rate, scale = lr / (1.0 - power(spec.beta1, done)), math.sqrt(1.0 - power(spec.beta2, done))
    return OptimizerRates(lr, lr * spec.weight_decay, rate, scale)
