"""Computes by how much a line's rate is over-allocated to its connections, so that all of the rate is used.

A share is a bound, and some connections are below theirs: BBR comes up to a share that grew by a quarter in eight round
trips. What they leave would be nobody's. So the shares together are as many times the rate as it takes for what the
line carries to come up to it, by what was carried between two divisions; a queue shows that nothing was left, and in a
test, or without a pace, nothing is added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from farflung.net.uplink_estimator import UplinkPhase, UplinkSample

MOST: Final = 1.5  # times the rate
_PACED: Final = (UplinkPhase.KEEP, UplinkPhase.SHARE, UplinkPhase.PROBE)
_STEADY: Final = (UplinkPhase.KEEP, UplinkPhase.SHARE)  # a probe is not meant to be filled


@dataclass(frozen=True, slots=True)
class RateHeadroom:
    """How many times the rate is shared out, and what was seen since the last division, in bytes."""

    times: float = 1.0
    allowed: float = 0.0
    carried: float = 0.0
    is_told: bool = True  # all that time something waited, and no queue stood


def looked(
    lift: RateHeadroom, before: UplinkPhase, after: UplinkPhase, allowed: float, sample: UplinkSample
) -> RateHeadroom:
    """After one more look, in which the rate allowed so many bytes, and which led from one phase to another."""
    if after not in _PACED:
        # what was on the way is there: half of it is doubted
        return RateHeadroom(1 + (lift.times - 1) / 2, is_told=False) if before in _PACED else lift
    is_told = before is after and after in _STEADY and sample.is_busy and not sample.is_long
    return replace(
        lift, allowed=lift.allowed + allowed, carried=lift.carried + sample.carried, is_told=lift.is_told and is_told
    )


def divided(lift: RateHeadroom) -> RateHeadroom:
    """For the next division. What was not told changes nothing."""
    if not lift.is_told or lift.allowed <= 0:
        return RateHeadroom(lift.times)
    return RateHeadroom(min(MOST, max(1.0, lift.times * lift.allowed / max(1.0, lift.carried))))


def times(lift: RateHeadroom, phase: UplinkPhase, rate: float, cap: float) -> float:
    """How many times `rate` is shared out now; never beyond `cap`, which somebody has set."""
    return min(lift.times, max(1.0, cap / max(1.0, rate))) if phase in _PACED else 1.0
