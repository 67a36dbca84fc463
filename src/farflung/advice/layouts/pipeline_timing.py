"""Holds pipelines with their layers assigned and their step timed; exchange and failures are derived from it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from farflung.advice.layouts.activation_bits import PLAIN, ActivationCode
from farflung.advice.layouts.grid_placement import Grid
from farflung.advice.layouts.training_options import LayoutKind
from farflung.advice.memory.worst_stage import WorstStage
from farflung.advice.traffic.pipeline_schedules import PipelineTimeline
from farflung.core.units import Seconds
from farflung.plan.step_trace import Recomputation


class StepTail(NamedTuple):
    """What comes once a step, behind the last micro-batch of the slowest stage."""

    name: str
    seconds: Seconds
    formula: str
    source: str


class TimedPipelines(msgspec.Struct, frozen=True):
    """A grid with its layers, and the timeline of its slowest pipeline. `sequences`: of one pipeline's step; `shared`:
    bytes that both ends send each other for a table that they share; `plain`: seconds of the timeline before `code`
    begins to save.
    """

    grid: Grid
    counts: tuple[int, ...]
    recompute: Recomputation
    micro: int
    sequences: int
    run: PipelineTimeline
    tight: WorstStage
    after: tuple[StepTail, ...] = ()
    shared: float = 0.0
    code: ActivationCode = PLAIN
    plain: Seconds = Seconds(0.0)

    @property
    def kind(self) -> LayoutKind:
        """One pipeline, or several."""
        return LayoutKind.PIPELINE if len(self.grid) == 1 else LayoutKind.PIPELINES

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
