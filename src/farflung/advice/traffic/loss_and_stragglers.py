"""Computes what lines and machines cost beyond their rates: lost packets, stragglers, clocks that disagree (P1).

Goodput under loss, of one connection with segments of s bytes and round trip T where each packet is lost with
chance p:

    Reno     s / T x sqrt(3 / (2 p))                            Mathis et al. 1997, equation 3
    cubic    s / T x (C (3 + b) / (4 (1 - b)))^(1/4) x (T / p)^(3/4)      RFC 9438, section 5.1; b = 0.7, C = 0.4;
             not below Reno's, where cubic follows it (section 4.3)
    BBR      the line x (1 - p): loss is not taken for congestion (Cardwell et al. 2016), up to some 20 %

each at most the line x (1 - p). Stragglers: who waits for all n waits for the largest of n times. For independent
times with distribution function F the mean of the largest is the integral of 1 - F^n; quantiles of a log-normal
with the given mean and coefficient of variation, exponentials by harmonic numbers. Clocks: a deadline by the clock
has to leave room for two clocks' error, and for their drift since they were set.
"""

from __future__ import annotations

import math
from enum import StrEnum
from statistics import NormalDist
from typing import Final

import numpy as np

from farflung.advice.traffic import input_checks
from farflung.advice.traffic.packet_overhead import MTU, segment
from farflung.core.units import Seconds
from farflung.plan.link_syntax import FASTEST, SLOWEST

CUBIC_C: Final = 0.4
CUBIC_BETA: Final = 0.7
BBR_MOST: Final = 0.2  # loss beyond which BBR's own figures show collapse
_POINTS: Final = 600
_LONGEST: Final = 1e3


class LossResponse(StrEnum):
    """How a connection answers loss."""

    RENO = "reno"
    CUBIC = "cubic"
    BBR = "bbr"


def goodput(
    rate: float, trip: float, loss: float, congestion: LossResponse = LossResponse.CUBIC, mtu: int = MTU
) -> float:
    """Bit/s of payload of one connection over a line of `rate` bit/s. Raises UsageError FF-PLAN-021."""
    input_checks.amount("rate", rate, SLOWEST, FASTEST)
    input_checks.amount("trip", trip, most=_LONGEST)
    input_checks.amount("loss", loss, most=0.99)
    line = rate * (1.0 - loss)
    if not loss or not trip:
        return line
    if congestion is LossResponse.BBR and loss <= BBR_MOST:
        return line
    reno = math.sqrt(1.5 / loss)
    window = reno
    if congestion is not LossResponse.RENO:  # beyond its limit BBR is reckoned like cubic
        factor = (CUBIC_C * (3 + CUBIC_BETA) / (4 * (1 - CUBIC_BETA))) ** 0.25
        window = max(reno, factor * (trip / loss) ** 0.75)
    return min(line, 8.0 * segment(mtu) * window / trip)


def slowest_of(count: int, mean: float, deviation: float) -> Seconds:
    """Expected time of the slowest of `count` alike, log-normal with this mean and deviation (seconds)."""
    input_checks.count("count", count)
    input_checks.amount("mean", mean, above=True)
    input_checks.amount("deviation", deviation)
    if count == 1 or not deviation:
        return Seconds(mean)
    spread = math.sqrt(math.log1p((deviation / mean) ** 2))
    middle = math.log(mean) - spread**2 / 2
    # E max = integral over u of Q(u^(1/n)); u = 1 - e^-x puts the points where the tail is.
    x = (np.arange(_POINTS) + 0.5) * (40.0 / _POINTS)
    below = np.exp(np.log1p(-np.exp(-x)) / count)
    above = -np.expm1(np.log1p(-np.exp(-x)) / count)
    normal = NormalDist()
    score = np.array(
        [
            -normal.inv_cdf(high) if low > 0.5 else normal.inv_cdf(low)
            for low, high in zip(below, above, strict=True)
        ]
    )
    weight = np.exp(-x) * (40.0 / _POINTS)
    return Seconds(float((np.exp(middle + spread * score) * weight).sum() / weight.sum()))


def slowest_memoryless(count: int, mean: float) -> Seconds:
    """The same for exponential times: mean x (1 + 1/2 + ... + 1/n)."""
    input_checks.count("count", count)
    input_checks.amount("mean", mean)
    if count <= _POINTS:
        return Seconds(mean * sum(1.0 / k for k in range(1, count + 1)))
    return Seconds(mean * (math.log(count) + 0.5772156649015329 + 1 / (2 * count)))


def clock_margin(error: float, drift: float = 0.0, since: float = 0.0) -> Seconds:
    """Seconds by which a deadline has to be later, for two clocks that are off by `error` each when they are set, and
    drift apart by `drift` (a share, such as 50e-6) each for `since` seconds.
    """
    input_checks.amount("error", error)
    input_checks.amount("drift", drift, most=1.0)
    input_checks.amount("since", since)
    return Seconds(2 * (error + drift * since))
