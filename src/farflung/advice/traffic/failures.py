"""Computes the best checkpoint interval and the cost of failures, by the exact exponential model (P1).

M mean time between failures of the group that stops together, C seconds to write, R to start again, W of work
between two checkpoints (Daly 2006, section 3; Bougeret et al. 2011):

    efficiency(W) = (W / M) e^(-R/M) / (e^((W + C)/M) - 1), largest where
    (1 - W/M) e^((W + C)/M) = 1, hence W = M (1 + w), w e^w = -e^(-1 - C/M)

Where failures are rare that is Young's sqrt(2 C M) (1974), and Daly's equation 37 nearly always.

A group is what must be rolled back together: of a job whose replicas are elastic one replica, not the job. n parts
with a failure rate f each have M = 1 / (n f).
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from farflung.advice.traffic import input_checks
from farflung.core.units import Seconds

DAY: Final = 86_400.0
_STEPS: Final = 200


class CheckpointInterval(msgspec.Struct, frozen=True):
    """The best interval: seconds of work between checkpoints, and the share of time that is work which counts."""

    work: Seconds
    efficiency: float
    formula: str
    source: str

    @property
    def waste(self) -> float:
        """Share of time that is lost."""
        return 1.0 - self.efficiency


def mean_time(parts: int, per_day: float) -> Seconds:
    """Mean seconds between failures of `parts` parts with `per_day` failures a day each."""
    input_checks.count("parts", parts)
    return Seconds(DAY / (parts * input_checks.amount("per_day", per_day, most=1e6, above=True)))


def efficiency(work: float, cost: float, mean: float, restart: float = 0.0) -> float:
    """Share of time that is work which counts, with exponential failures; 0 where none of it can be finished."""
    input_checks.amount("work", work, above=True)
    mean = _mean(mean)
    ahead = (work + _cost(cost)) / mean
    if ahead > 700.0:  # e^x is no number any more
        return 0.0
    return work / mean * math.exp(-input_checks.amount("restart", restart) / mean) / math.expm1(ahead)


def best(cost: float, mean: float, restart: float = 0.0) -> CheckpointInterval:
    """The interval of greatest efficiency. Raises UsageError FF-PLAN-021. A cost of 0: the limit, at no work."""
    mean = _mean(mean)
    if not _cost(cost):
        given = math.exp(-input_checks.amount("restart", restart) / mean)
        return CheckpointInterval(Seconds(0.0), given, "C = 0: after every step", "Daly 2006")
    low, high = 0.0, 1.0  # of W / M: the slope changes its sign once
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if middle < 1.0 and math.log1p(-middle) + middle + cost / mean > 0:
            low = middle
        else:
            high = middle
    work = Seconds(mean * high)
    text = f"(1 - W/M) e^((W + C)/M) = 1: C = {cost:g} s, M = {mean:.4g} s, R = {restart:g} s -> W = {work:.4g} s"
    return CheckpointInterval(work, efficiency(work, cost, mean, restart), text, "Daly 2006, section 3")


def _cost(cost: float) -> float:
    return input_checks.amount("cost", cost)


def _mean(mean: float) -> float:
    return input_checks.amount("mean", mean, most=1e15, above=True)
