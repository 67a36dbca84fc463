"""Names the likeliest cause of a difference between plan and run that the run's events show, in a few words
(P1).

Each sign says how much it explains (plan.run_signs). The one that explains most is named where it explains ENOUGH
of what was measured beyond the plan, or below it; where none does alone but all in that direction do together,
the largest is named, after "mostly". Else nothing is named: a guess would look like a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from farflung.plan import run_signs
from farflung.plan.run_plan import RunPlan
from farflung.plan.run_signs import RunObservations, Signs

ENOUGH: Final = 0.5  # of measured - planned


def likely(quantity: str, more: float, plan: RunPlan, seen: RunObservations) -> str:
    """The likeliest cause of measured - planned = `more`, in the unit of `quantity`; empty: the run shows none."""
    shown = [sign for sign in SIGNS[quantity](plan, seen) if sign.explains * more > 0]
    if not shown:
        return ""
    first = max(shown, key=lambda sign: abs(sign.explains))
    if abs(first.explains) >= ENOUGH * abs(more):
        return first.words
    together = sum(abs(sign.explains) for sign in shown)
    return f"mostly: {first.words}" if together >= ENOUGH * abs(more) else ""


SIGNS: Final[Mapping[str, Callable[[RunPlan, RunObservations], Signs]]] = {
    "sync": run_signs.of_sync,
    "audit": run_signs.of_audit,
    "join": run_signs.of_join,
    "control": run_signs.of_control,
    "relay": run_signs.of_relay,
    "worker memory": run_signs.of_memory,
    "time": run_signs.of_time,
    "price": run_signs.of_price,
    "relay fees": run_signs.of_fees,
}
