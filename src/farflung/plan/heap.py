"""Estimates what a process on a CPU holds beside its tensors, from measurements: the heap's own share (P2)."""

from __future__ import annotations

from farflung.core import limits
from farflung.core.codec import Wire
from farflung.core.errors import RunError, UsageError

LEAST, MOST = 0.1, 16.0  # of what tensors take


class HeapGrowth(Wire, frozen=True, tag="risen"):
    """By how many bytes resident memory rose in steps of so many rows, and how many their tensors take."""

    rows: int
    resident: int
    live: int

    @property
    def factor(self) -> float:
        """Resident bytes of one that is alive."""
        return self.resident / self.live


def check(growth: HeapGrowth) -> None:
    """It comes from a process that ran a stranger's module: raises UsageError FF-PLAN-056 if it makes no sense."""
    is_bounded = all(0 < size <= limits.TRACED_BYTES for size in (growth.resident, growth.live))
    if not (is_bounded and growth.rows >= 1 and LEAST <= growth.factor <= MOST):
        raise UsageError(
            "FF-PLAN-056",
            "what was measured of this module's memory makes no sense",
            cause="resident memory that no tensors of such sizes take",
            hint="do not trust this module",
        )


def unmeasured(cause: str) -> RunError:
    """The error where it cannot be told."""
    return RunError(
        "FF-PLAN-058",
        "what the heap keeps was not measured",
        cause=cause,
        hint="count on 1.1 to 1.8 times the traced sum (docs/plan/memory.md)",
    )
