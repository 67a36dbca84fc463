"""Checks that a job's tolerances keep out shortcuts: the least margin of those that its profile run played.

    margin = max over tensors of distance / tau        a job is refused where one is 2 or less

An audit finds a shortcut false where its worst tensor lies beyond twice the tolerance (verify.audit_verdict), so a
margin of 2 is the line between what is slashed and what is at most not paid. The distances are of the job's own model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from farflung.core.errors import PolicyError
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import Tolerance
from farflung.ledger.rules.slashes import EXCESS_FALSE
from farflung.train.worker_messages import ShortcutDistance
from farflung.verify.tolerance import UNIT_BITS


class ToleranceMargin(NamedTuple):
    """The tensor in which a shortcut stands out most: its vector and name, the distance there, and the limit."""

    shortcut: ShortcutDistance
    tensor: str
    distance: float
    limit: float

    @property
    def value(self) -> float:
        """How many limits the distance is."""
        return self.distance / self.limit


def margin(tolerance: Tolerance, layout: TensorLayout, shortcut: ShortcutDistance) -> ToleranceMargin:
    """How clearly an audit sees `shortcut`, whose distances and the limits are those of one profile run."""
    found, names = dict(shortcut.distances), [tensor.name for tensor in layout.tensors]
    rows = [
        ToleranceMargin(shortcut, f"{vector} {name}", distance, limit / (1 << UNIT_BITS))
        for vector, limits in tolerance.limits
        for name, distance, limit in zip(names, found[vector], limits, strict=True)
        if limit
    ]
    return max(rows, key=lambda row: row.value)


def check_margins(tolerance: Tolerance, layout: TensorLayout, shortcuts: Iterable[ShortcutDistance]) -> None:
    """Every shortcut would be slashed. Raises PolicyError FF-VERI-115 for the one that stands out least."""
    least = min((margin(tolerance, layout, each) for each in shortcuts), key=lambda m: m.value, default=None)
    if least is None or least.value > EXCESS_FALSE / 1000:
        return
    raise PolicyError(
        "FF-VERI-115",
        f"audits of this job would not see a shortcut: {least.shortcut.about}",
        cause=f"that saves {least.shortcut.saved:.0%} of a segment and lies {least.distance:.2g} from honest work in "
        f"{least.tensor}, whose tolerance is {least.limit:.2g}: {least.value:.1f} times, and more than 2 are needed",
        hint="lower optimizer.lr, use shorter segments (more audit.segments), or remove what is random",
    )
