"""Applies user limits on cost and time; layouts beyond them are rejected with the limit that would admit them
(P1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from farflung.advice.layouts.training_options import InfeasibleOption, LayoutKind, TrainingOption
from farflung.core.money import Credits, format_credits
from farflung.core.units import Seconds, format_short

PASSED = 5  # constraints that a way has met which is possible, but for this


class UserLimits(msgspec.Struct, frozen=True):
    """Pico-credits of all hosts, and seconds of the whole job; None: nobody said."""

    price: Credits | None = None
    seconds: Seconds | None = None

    def needs(self, option: TrainingOption) -> tuple[float, float]:
        """Of what is allowed, how much a way takes, in money and in time: 1 is all of it."""
        return self.least(option.price, option.seconds)

    def least(self, price: float, seconds: float) -> tuple[float, float]:
        """The same of what a way costs and takes, or does not go below."""
        money = 0.0 if self.price is None else price / self.price if self.price else float(price)
        return money, 0.0 if self.seconds is None else seconds / self.seconds


def within(
    options: Mapping[LayoutKind, Sequence[TrainingOption]], user_limits: UserLimits
) -> tuple[dict[LayoutKind, list[TrainingOption]], dict[LayoutKind, InfeasibleOption]]:
    """The ways that keep to it, by kind; of kinds without any what comes nearest, and by what it is beyond."""
    kept: dict[LayoutKind, list[TrainingOption]] = {}
    beyond: dict[LayoutKind, InfeasibleOption] = {}
    for kind, found in options.items():
        allowed = [option for option in found if max(user_limits.needs(option)) <= 1.0]
        if allowed:
            kept[kind] = allowed
        else:
            beyond[kind] = _beyond(min(found, key=lambda option: max(user_limits.needs(option))), user_limits)
    return kept, beyond


def _beyond(option: TrainingOption, user_limits: UserLimits) -> InfeasibleOption:
    money, time = user_limits.needs(option)
    costs, takes = f"{format_credits(option.price)} credits", format_short(option.seconds)
    said = f"the nearest way, on {len(option.hosts)} host{'s' * (len(option.hosts) > 1)}, takes {takes} and costs"
    constraint = "budget" if money >= time else "deadline"
    limit = (
        format_credits(user_limits.price or Credits(0)) if money >= time else format_short(user_limits.seconds or 0.0)
    )
    needs = [
        *([f"a budget of {costs}"] if money > 1.0 else []),
        *([f"{takes} until the deadline"] if time > 1.0 else []),
    ]
    return InfeasibleOption(
        option.kind,
        constraint,
        PASSED,
        1.0 / max(money, time),
        f"{said} {costs}; the {constraint} is {limit}{' credits' if constraint == 'budget' else ''}",
        " and ".join(needs),
    )
