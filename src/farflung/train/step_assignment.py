"""Computes how many steps each member makes: measurements of past rounds in, H and the steps of each member out.

All should finish together. The member of (lower) median time a step makes all H steps of a round, a faster one no more,
a slower one as many as it makes in that time: it contributes fewer tokens instead of delaying all. H itself is the
smallest with which exchanging takes no more than `share` of a round,

    exchange / (exchange + H t) <= share      t: seconds a step of the median member

or as many as the job allows, where share is 0. From round to round nothing changes by more than a factor of CHANGE, so
that one odd measurement moves little. Nothing here reads a clock: what comes out is written into the round's opening
record before the work, and is the only thing of it that the result knows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from farflung.core.ids import PeerId

CHANGE: Final = 2  # steps at most double or halve from one round to the next
EVEN: Final = 0.9  # of the median member's speed: who has it makes all steps, whatever a clock's noise says
WINDOW: Final = 5  # rounds of which the median is taken


class StepBounds(NamedTuple):
    """What the terms allow: `least` steps of a member, `most` steps of a round; `share`: see above."""

    least: int
    most: int
    share: float = 0.0


class StepAssignment(NamedTuple):
    """H of a round, and the steps of each member that was measured; others make H."""

    steps: int
    of: Mapping[PeerId, int]


class StepTimings(NamedTuple):
    """Seconds a step of each member in the last rounds, and seconds that those rounds took to exchange."""

    step: Mapping[PeerId, Sequence[float]]
    exchange: Sequence[float]


def median(values: Sequence[float]) -> float:
    """The lower median of at least one value: a value that was measured."""
    return sorted(values)[(len(values) - 1) // 2]


def assign_steps(measured: StepTimings, before: StepAssignment, bounds: StepBounds) -> StepAssignment:
    """The pace of the next round, after one at the pace `before`."""
    seconds = {peer: median(seen[-WINDOW:]) for peer, seen in measured.step.items() if seen and min(seen) > 0.0}
    if not seconds:
        return before
    usual = median(list(seconds.values()))
    steps = _steps(measured.exchange[-WINDOW:], usual, before.steps, bounds)
    of = {
        peer: _bounded(_share_of(usual / own, steps), before.of.get(peer, before.steps), bounds.least, steps)
        for peer, own in sorted(seconds.items())
    }
    return StepAssignment(steps, of)


def _steps(exchange: Sequence[float], usual: float, before: int, bounds: StepBounds) -> int:
    """H: as few steps as the exchange allows."""
    if bounds.share <= 0.0 or not exchange:
        return bounds.most
    wanted = median(exchange) * (1.0 - bounds.share) / (bounds.share * usual)
    whole = bounds.most if wanted >= bounds.most else math.ceil(wanted)
    return _bounded(whole, before, bounds.least, bounds.most)


def _share_of(speed: float, steps: int) -> int:
    """Steps that a member of `speed`, in the median member's, makes while that one makes `steps`."""
    return steps if speed >= EVEN else int(steps * speed)


def _bounded(wanted: int, before: int, least: int, most: int) -> int:
    """Not too far from `before`, and within [least, most]; the latter weighs more."""
    near = max(-(-before // CHANGE), min(before * CHANGE, wanted))
    return max(least, min(most, near))
