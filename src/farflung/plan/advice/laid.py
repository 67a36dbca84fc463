"""Pipelines whose layers are dealt and whose step is timed; exchange and failures are reckoned from it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from farflung.core.units import Seconds
from farflung.plan.advice.cuts import PLAIN, Code
from farflung.plan.advice.grids import Grid
from farflung.plan.advice.options import Kind
from farflung.plan.footprint.worst import Worst
from farflung.plan.parallel.schedules import Timeline
from farflung.plan.parallel.shapes import Recompute


class After(NamedTuple):
    """What comes once a step, behind the last micro-batch of the slowest stage."""

    name: str
    seconds: Seconds
    formula: str
    source: str


class Laid(msgspec.Struct, frozen=True):
    """A grid with its layers, and the timeline of its slowest pipeline. `sequences`: of one pipeline's step; `shared`:
    bytes that both ends send each other for a table that they share; `plain`: seconds of the timeline before `code`
    begins to save.
    """

    grid: Grid
    counts: tuple[int, ...]
    recompute: Recompute
    micro: int
    sequences: int
    run: Timeline
    tight: Worst
    after: tuple[After, ...] = ()
    shared: float = 0.0
    code: Code = PLAIN
    plain: Seconds = Seconds(0.0)

    @property
    def kind(self) -> Kind:
        """One pipeline, or several."""
        return Kind.PIPELINE if len(self.grid) == 1 else Kind.PIPELINES

    @property
    def micros(self) -> int:
        """Micro-batches of a pipeline's step."""
        return self.sequences // self.micro

    @property
    def step(self) -> Seconds:
        """Of a pipeline, whole: the mean of all steps."""
        return Seconds(self.passed + sum(extra.seconds for extra in self.after))

    @property
    def passed(self) -> Seconds:
        """Until the last micro-batch is through: the mean of all steps."""
        first = self.code.first
        return Seconds(first * self.plain + (1.0 - first) * self.run.seconds if first else self.run.seconds)
