"""Compares plan and measurement, one quantity a line: a plan that is never compared is a guess (requirement T1)."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from farflung.core.events import PlanComparisonEvent
from farflung.plan import run_causes
from farflung.plan.run_plan import PlannedFees, RunPlan
from farflung.plan.run_signs import RunObservations

LOW: Final = 0.8
HIGH: Final = 1.25
NOTHING: Final = RunObservations()
OPTIONAL: Final = ("audit", "relay", "relay fees")  # what not every job has
NO_FEES: Final = PlannedFees(0, 0, 0)
# Why a plan has a bound beside its figure.
WITHIN: Final = {
    "sync": "as rounds may choose another way",
    "relay": "as rounds may choose another way",
    "relay fees": "as so much is put aside",
}


class MeasuredRun(msgspec.Struct, frozen=True):
    """What a run really took; None where nothing was measured."""

    sync_bytes: int | None = None
    audit_bytes: int | None = None
    join_bytes: int | None = None
    control_bytes: int | None = None
    relay_bytes: int | None = None
    memory_bytes: int | None = None  # peak resident memory of the largest worker
    seconds: float | None = None
    paid: int | None = None  # pico-credits
    fees: int | None = None  # pico-credits that relays got


def compare(
    plan: RunPlan, measured: MeasuredRun, seen: RunObservations = NOTHING, at: float = 0.0
) -> tuple[PlanComparisonEvent, ...]:
    """One event per measured quantity, in a fixed order; none for audits or a relay that are neither planned nor there.
    What lies off the plan is told with its likeliest cause, and whether it lies within what is planned at most.

    The plan of audits is what the draw brings on the average: a single run may lie beside it by luck alone.
    """
    fees = plan.fees or NO_FEES
    rows = (
        ("sync", "B", plan.traffic.sync, measured.sync_bytes),
        ("audit", "B", plan.traffic.audit, measured.audit_bytes),
        ("join", "B", plan.traffic.join, measured.join_bytes),
        ("control", "B", plan.traffic.control, measured.control_bytes),
        ("relay", "B", plan.traffic.relay, measured.relay_bytes),
        ("worker memory", "B", plan.memory.worker, measured.memory_bytes),
        ("time", "s", plan.duration.total, measured.seconds),
        ("price", "pico-credits", plan.price.price, measured.paid),
        ("relay fees", "pico-credits", fees.planned, measured.fees),
    )
    sent = plan.traffic
    bounds = {
        "sync": (sent.sync, sent.sync_most),
        "relay": (sent.relay, sent.relay_most),
        "relay fees": (fees.planned, fees.most),
    }
    most = {name: bound for name, (planned, bound) in bounds.items() if bound > planned}
    found = (
        PlanComparisonEvent(
            at=at,
            quantity=name,
            unit=unit,
            planned=float(planned),
            measured=float(value),
            most=float(most.get(name, 0)),
        )
        for name, unit, planned, value in rows
        if value is not None and (planned or value or name not in OPTIONAL)
    )
    return tuple(_with_cause(row, plan, seen) for row in found)


def _with_cause(row: PlanComparisonEvent, plan: RunPlan, seen: RunObservations) -> PlanComparisonEvent:
    if not is_off(row):
        return row
    cause = run_causes.likely(row.quantity, row.measured - row.planned, plan, seen)
    within = f"within what is planned at most, {WITHIN[row.quantity]}" if is_within(row) else ""
    return replace(row, cause="; ".join(part for part in (cause, within) if part))


def ratio(row: PlanComparisonEvent) -> float | None:
    """measured / planned; None when nothing was planned and something was measured."""
    if row.planned == 0:
        return 1.0 if row.measured == 0 else None
    return row.measured / row.planned


def is_off(row: PlanComparisonEvent) -> bool:
    """Whether the measured value lies outside 0.8 to 1.25 of the plan."""
    share = ratio(row)
    return share is None or not LOW <= share <= HIGH


def is_within(row: PlanComparisonEvent) -> bool:
    """Whether it lies above the plan, and not above what is planned at most."""
    return row.planned < row.measured <= row.most
