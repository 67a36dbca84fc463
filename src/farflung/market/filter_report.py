"""Counts how many offers each constraint leaves, and names the constraint to relax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]


class OfferConstraint(msgspec.Struct, frozen=True):
    """One constraint: its name, what it asks for as text, and which offers meet it."""

    name: str
    value: str
    met: Mask


class FilterReport(msgspec.Struct, frozen=True):
    """How many offers were left after each constraint, in the order they were applied."""

    steps: tuple[tuple[str, int], ...]

    def text(self) -> str:
        """`5 offers → 5 memory → 4 price`; constraints that lost nobody are left out but for the last."""
        kept = [self.steps[0]]
        for i, step in enumerate(self.steps[1:], 1):
            if step[1] != self.steps[i - 1][1] or i == len(self.steps) - 1:
                kept.append(step)
        return " → ".join(f"{count} {name}" for name, count in kept)

    @property
    def removed(self) -> tuple[tuple[str, int], ...]:
        """How many each constraint removed of those that the ones before it had left."""
        pairs = zip(self.steps, self.steps[1:], strict=False)
        return tuple((name, before - left) for (_, before), (name, left) in pairs)


def pour(offers: int, rules: Sequence[OfferConstraint]) -> tuple[Mask, tuple[tuple[str, int], ...]]:
    """Which offers meet all rules, and how many were left after each."""
    left = np.ones(offers, np.bool_)
    steps = [("offers", offers)]
    for rule in rules:
        left &= rule.met
        steps.append((rule.name, int(np.count_nonzero(left))))
    return left, tuple(steps)


def alone(rules: Sequence[OfferConstraint]) -> tuple[Mask, ...]:
    """For each rule: which offers meet all the others. Two sweeps, whatever their number."""
    size = rules[0].met.size
    before = [np.ones(size, np.bool_)]
    for rule in rules[:-1]:
        before.append(before[-1] & rule.met)
    after, found = np.ones(size, np.bool_), list[Mask]()
    for rule, earlier in zip(reversed(rules), reversed(before), strict=True):
        found.append(earlier & after)
        after = after & rule.met
    return tuple(reversed(found))


def relief(rules: Sequence[OfferConstraint], needed: int, similar: str, is_enough: Callable[[Mask], bool]) -> str:
    """What to relax: the one constraint that, dropped alone, leaves enough; else the one that loses most.

    `similar` is the answer where enough meet all constraints and too few of them are alike.
    """
    rest = alone(rules)
    counts = [int(np.count_nonzero(mask)) for mask in rest]
    left = int(np.count_nonzero(rest[0] & rules[0].met))
    for rule, mask, count in zip(rules, rest, counts, strict=True):
        if count > left and count >= needed and is_enough(mask):
            return f"relax {rule.name}: {rule.value} is asked of each"
    if left >= needed:
        return similar
    missed = [int(np.count_nonzero(~rule.met)) for rule in rules]  # where others keep all of them out, too
    rule, *_ = max(zip(rules, counts, missed, strict=True), key=lambda each: each[1:])
    return f"relax {rule.name} first ({rule.value} is asked of each); it is not the only constraint in the way"
