"""Computes the learning rate of a step, with the same bits on every machine: outer steps are public arithmetic."""

from __future__ import annotations

from farflung.core.canon.float_operations import cosine
from farflung.job.spec import ScheduleSpec


def learning_rate(step: int, total: int, peak: float, schedule: ScheduleSpec) -> float:
    """The rate of step `step` of `total`: linear warm-up, then cosine down to `final` times the peak.

    Both count behind the steps of earlier runs (`schedule.begin`).
    """
    step, total = step + schedule.begin, total + schedule.begin
    if step < schedule.warmup:
        return peak * (step + 1) / schedule.warmup
    if schedule.kind == "constant":
        return peak
    done = min(1.0, (step - schedule.warmup) / max(1, total - schedule.warmup))
    return peak * (schedule.final + (1.0 - schedule.final) * 0.5 * (1.0 + cosine(done)))
