"""Determines the size of a job's model for a plan: from its layout, or by tracing one step in the sandbox (P2)."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from farflung.app.cli import plan_link
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import format_bytes
from farflung.job.io.job_files import read_module
from farflung.job.spec import JobSpec
from farflung.local.jobs import memory_trace
from farflung.local.jobs.memory_trace import MeasuredStep
from farflung.peers.rundir.inputs import known_layout
from farflung.plan.step_trace import StepTrace


class JobModel(msgspec.Struct, frozen=True):
    """`traced` None: it is the built-in model, and its sizes say enough. `source`: of a module of one's own."""

    layout: TensorLayout
    traced: StepTrace | None = None
    source: bytes = b""


def known(spec: JobSpec, base: Path, *, traces: bool) -> JobModel:
    """A module of one's own is always traced, the built-in model if asked for.

    Raises what gauging.gauge raises, and SpecError FF-JOB-01x, -04x (no such source).
    """
    layout = known_layout(spec)
    if layout is not None and not traces:
        return JobModel(layout)
    source = read_module(spec.model.module, base)[0] if layout is None else b""
    sys.stderr.write("goes through one step of the model without numbers, in the sandbox ...\n")
    sys.stderr.flush()
    traced = asyncio.run(memory_trace.gauge(spec, source))
    return JobModel(traced.layout, traced, source)


def lines(found: MeasuredStep) -> list[str]:
    """What was found, in the words of `farflung plan`."""
    traced, risen = found.traced, found.risen
    how = f"run on up to {traced.ran_rows} of them" if traced.ran_rows else "traced without numbers"
    many = f"{traced.rows} sequence{'s' * (traced.rows > 1)}"
    text = (
        f"one step of {many}, {how}: {format_bytes(traced.resident)} between steps,"
        f" {format_bytes(traced.peak())} at its peak; {len(traced.blocks) or 'no'} repeated blocks; "
    )
    if risen is not None:
        text += f"a process here holds {risen.factor:.2f} times that, measured on {risen.rows} sequences"
    else:
        text += f"what the heap adds was not measured: {found.unseen}"
    return plan_link.say("Memory", text)
