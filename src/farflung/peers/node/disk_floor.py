"""Keeps a node's disk from running full: below a floor no lease is taken, below a quarter of it none goes on.

A node whose disk is full cannot keep what it committed to, and is found to withhold it. So it ends its lease at a
round's border, before the write that would fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from farflung.core.errors import PolicyError
from farflung.core.units import format_bytes
from farflung.host.io.machine_probe import disk_bytes
from farflung.job.spec import JobTerms
from farflung.ledger.transactions import LeaseRole
from farflung.plan.run_disk import node_disk

LOOK_SECONDS: Final = 5.0
END_SHARE: Final = 4  # of the floor


class DiskFloor:
    """One folder's. `floor`: bytes that stay free beside a job's states when a lease is taken; 0: nobody looks."""

    def __init__(self, folder: Path, floor: int, free: Callable[[Path], int] = disk_bytes) -> None:
        self._folder, self._floor, self._free = folder, floor, free
        self._next, self._fault = 0.0, ""

    def check(self, terms: JobTerms, role: LeaseRole) -> None:
        """Raises PolicyError FF-APP-576: too little for a lease of this job, whose states lie on the disk."""
        needed = node_disk(terms.spec, terms.layout, audits=role is LeaseRole.AUDIT)
        if self._floor and (free := self._free(self._folder)) < self._floor + needed:
            raise PolicyError(
                "FF-APP-576",
                "this node's disk is too full for a lease",
                cause=f"{format_bytes(free)} are free; it keeps {format_bytes(self._floor)}, and the job's states take "
                f"{format_bytes(needed)}",
                hint="free some disk on the node, or lower its floor (disk_floor); or hire another provider",
            )

    def fault(self, now: float | None = None) -> str:
        """Why a lease must end, of the last look; empty: it need not. `now`: seconds that only go forward."""
        now = time.monotonic() if now is None else now
        if self._floor and now >= self._next:
            self._next, free = now + LOOK_SECONDS, self._free(self._folder)
            is_low = free < self._floor // END_SHARE
            self._fault = f"the disk is nearly full: {format_bytes(free)} are free" if is_low else ""
        return self._fault
