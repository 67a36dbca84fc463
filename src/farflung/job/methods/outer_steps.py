"""Lists the outer optimizers: what public state keeps for each one, and how it moves the weights after a merge.

All arithmetic is that of core.canon.float_operations: element by element, the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from farflung.core.canon.float_operations import apply_adamw, apply_outer, apply_sign
from farflung.core.tensor_layout import Float32
from farflung.job.spec import OptimizerSpec, SyncSpec

MOMENTUM: Final = "momentum"  # of an outer sgd
FIRST: Final = "first"  # moments of an outer adamw
SECOND: Final = "second"


class OuterSetting(NamedTuple):
    """What a step goes by: the job's settings, the rate, and its number among outer steps, from 1 on."""

    sync: SyncSpec
    optimizer: OptimizerSpec
    rate: float
    number: int


# Weights and the merged change, shape (n,), and what public state keeps of the same elements → the weights after the
# step; what is kept is written in place.
Move = Callable[[OuterSetting, Float32, Float32, Mapping[str, Float32]], Float32]


class OuterStep(NamedTuple):
    """An outer optimizer: the vectors, each as long as the weights, that public state keeps for it, and its step."""

    vectors: Callable[[SyncSpec], tuple[str, ...]]
    move: Move


def _sgd(setting: OuterSetting, params: Float32, change: Float32, kept: Mapping[str, Float32]) -> Float32:
    sync, momentum = setting.sync, kept.get(MOMENTUM)
    moved, new = apply_outer(params, momentum, change, setting.rate, sync.outer_momentum, sync.nesterov)
    if momentum is not None and new is not None:
        momentum[:] = new
    return moved


def _adamw(setting: OuterSetting, params: Float32, change: Float32, kept: Mapping[str, Float32]) -> Float32:
    first, second, inner = kept[FIRST], kept[SECOND], setting.optimizer
    betas = (inner.beta1, inner.beta2)
    moved, first[:], second[:] = apply_adamw(
        params, first, second, change, setting.number, setting.rate, betas, inner.eps
    )
    return moved


def _sign(setting: OuterSetting, params: Float32, change: Float32, kept: Mapping[str, Float32]) -> Float32:
    return apply_sign(params, change, setting.rate)


OUTER_STEPS: Final[Mapping[str, OuterStep]] = MappingProxyType(
    {
        "sgd": OuterStep(lambda sync: (MOMENTUM,) if sync.outer_momentum > 0 else (), _sgd),
        "adamw": OuterStep(lambda sync: (FIRST, SECOND), _adamw),
        "sign": OuterStep(lambda sync: (), _sign),
    }
)
