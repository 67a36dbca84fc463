"""Pipelines whose layers are dealt and whose step is timed; exchange and failures are reckoned from it."""

from __future__ import annotations

import msgspec

from farflung.plan.advice.grids import Grid
from farflung.plan.advice.options import Kind
from farflung.plan.footprint.worst import Worst
from farflung.plan.parallel.schedules import Timeline
from farflung.plan.parallel.shapes import Recompute


class Laid(msgspec.Struct, frozen=True):
    """A grid with its layers, and the timeline of its slowest pipeline. `sequences`: of one pipeline's step."""

    grid: Grid
    counts: tuple[int, ...]
    recompute: Recompute
    micro: int
    sequences: int
    run: Timeline
    tight: Worst

    @property
    def kind(self) -> Kind:
        """One pipeline, or several."""
        return Kind.PIPELINE if len(self.grid) == 1 else Kind.PIPELINES

    @property
    def micros(self) -> int:
        """Micro-batches of a pipeline's step."""
        return self.sequences // self.micro
