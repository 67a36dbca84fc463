"""Implements `farflung plan --layout`: what a layout of cards sends, waits for and keeps, by closed forms (P1)."""

from __future__ import annotations

from textwrap import wrap
from typing import Any, Final

import msgspec

from farflung.advice.layout_syntax import ParallelLayout, parse
from farflung.advice.memory.activations import MicroBatch
from farflung.advice.memory.breakdown import Footprint
from farflung.advice.memory.layer_slices import sliced
from farflung.advice.memory.model_states import ADAM, ZeroSplit
from farflung.advice.memory.transformer import Transformer
from farflung.advice.memory.worst_stage import PipelineStages, StageTraining, footprints
from farflung.advice.traffic import goodput, packet_overhead
from farflung.advice.traffic.collective_times import on_link
from farflung.advice.traffic.hybrid_parallel import ParallelAxis, by_axis, load
from farflung.advice.traffic.pipeline_schedules import PipelineSchedule
from farflung.advice.traffic.traffic_terms import TrafficLoad, TrafficPhase, explained
from farflung.app.cli.plan_offers_text import columns, long
from farflung.core.units import Seconds, format_bytes, format_count, format_share
from farflung.job.spec import JobSpec
from farflung.plan import link_syntax
from farflung.plan.link_syntax import Link

STAGE: Final = 9
HEAD: Final = f"{'':<18}{'up':>9}{'down':>9}{'all cards':>11}{'leave nodes':>13}{'waits':>8}"


class LayoutPlan(msgspec.Struct, frozen=True):
    """A step of a layout. `steps` of an epoch, 0: not known; `seconds` that the busiest card's line is busy."""

    layout: ParallelLayout
    step: TrafficLoad
    axes: dict[ParallelAxis, TrafficLoad]
    steps: float
    link: Link | None
    seconds: Seconds | None
    memory: Footprint | None  # of the fullest card; None: no closed form


def plan(text: str, link: str | None, spec: JobSpec, examples: int) -> LayoutPlan:
    """The plan of a layout for a job, or for the model that `text` names. `examples`: windows of the job's data.

    Raises what layout_syntax.parse, hybrid_parallel.load and link_syntax.parse raise.
    """
    m = spec.model
    own = Transformer(m.layers, m.width, m.heads, m.vocabulary, positions=m.context) if m.kind == "gpt" else None
    layout = parse(text, own, m.context, spec.batch)
    made = layout.shape, layout.mesh, layout.training
    step = load(*made)
    axes = {axis: TrafficLoad(step.ranks, terms) for axis, terms in by_axis(*made).items() if terms}
    tokens = layout.tokens or (examples * m.context if layout.model == own else 0.0)
    line = link_syntax.parse(link) if link is not None else None
    return LayoutPlan(
        layout,
        step,
        axes,
        tokens / (layout.batch * layout.shape.sequence),
        line,
        on_link(step, _payload(line, layout.loss)) if line is not None else None,
        _memory(layout) if layout.is_sized else None,
    )


def _payload(link: Link, loss: float) -> Link:
    """What of a line is left for payload, after headers and lost packets."""
    up, down = (
        min(packet_overhead.payload_rate(rate), goodput.goodput(rate, link.round_trip, loss))
        for rate in (link.up, link.down)
    )
    return Link(up, down, link.round_trip)


def _memory(layout: ParallelLayout) -> Footprint:
    """The fullest card's, with Adam in mixed precision."""
    shape, mesh, training = layout.shape, layout.mesh, layout.training
    micro = MicroBatch(
        training.batch,
        shape.sequence // mesh.context,
        mesh.tensor,
        training.is_sequence_parallel,
        training.recompute,
        float(shape.element),
    )
    schedule = PipelineSchedule.ONE_F_ONE_B if training.virtual == 1 else PipelineSchedule.INTERLEAVED
    stages = PipelineStages(
        (shape.layers // mesh.pipeline,) * mesh.pipeline, training.micros, schedule, training.virtual
    )
    split = ZeroSplit(training.sharding.stage, mesh.data * mesh.context)
    needs = footprints(sliced(layout.model, micro), StageTraining(stages, ADAM, split))
    return max(needs, key=lambda need: need.card)


def lines(plan: LayoutPlan, *, explains: bool) -> list[str]:
    """The plan for a terminal."""
    layout, step, width = plan.layout, plan.step, columns()
    mesh, shape, training = layout.mesh, layout.shape, layout.training
    own = layout.batch // mesh.data
    rows = [
        *_say("Layout", _ways(plan), width),
        *_say(
            "Step",
            f"{layout.batch:,} sequences of {shape.sequence:,} tokens: {own} a replica,"
            f" {training.micros} x {training.batch}{_bubble(plan)}",
            width,
        ),
        "",
        HEAD,
    ]
    rows += [_row(axis.value, one) for axis, one in plan.axes.items()]
    rows += [_row("together", step), ""]
    rows += _say("Waits", _phases(step), width)
    if plan.steps:
        epoch = step.times(plan.steps)
        rows += _say("Epoch", f"{format_count(plan.steps)} steps: {_told(epoch)}", width)
    if plan.link is not None and plan.seconds is not None:
        after = f"; an epoch {long(plan.seconds * plan.steps)}" if plan.steps else ""
        rows += _say(
            "Link",
            f"{plan.link}: {long(plan.seconds)} a step for the busiest card{after}; headers counted, nothing"
            " hidden behind computing",
            width,
        )
    if plan.memory is not None:
        rows += _say("Memory", f"{format_bytes(plan.memory.card)} on {plan.memory.label}", width)
    if explains:
        rows += ["", *(row for line in explained(step.terms) for row in wrap(line, width, subsequent_indent="   "))]
    return rows


def _say(stage: str, text: str, width: int) -> list[str]:
    return wrap(text, width, initial_indent=f"{stage:<{STAGE}}", subsequent_indent=" " * STAGE)


def _ways(plan: LayoutPlan) -> str:
    mesh, shape = plan.layout.mesh, plan.layout.shape
    ways = {"data": mesh.data, "tensor": mesh.tensor, "pipeline": mesh.pipeline, "context": mesh.context}
    cut = " x ".join(f"{count} {name}" for name, count in ways.items() if count > 1) or "no way"
    experts = f", experts over {mesh.expert}" if mesh.expert > 1 else ""
    nodes = f", nodes of {mesh.node}" if mesh.node > 1 else ""
    return (
        f"{mesh.ranks:,} cards: {cut}{experts}{nodes}; {format_count(shape.size)} parameters in {shape.layers}"
        f" layers of {shape.hidden:,}"
    )


def _bubble(plan: LayoutPlan) -> str:
    share = idle(plan.layout)
    return f"; stages stand idle {format_share(share)} of the time" if share else ""


def idle(layout: ParallelLayout) -> float:
    """The share of a step in which stages wait, with even ones and free cuts (Narayanan et al. 2021, section 2.2)."""
    ahead = layout.mesh.pipeline - 1
    return ahead / (ahead + layout.training.virtual * layout.training.micros)


def _row(name: str, one: TrafficLoad) -> str:
    sizes = (one.sent, one.received, one.total, one.between)
    cells = [f"{format_bytes(size):>{wide}}" for size, wide in zip(sizes, (9, 9, 11, 13), strict=True)]
    return f"{name:<18}{''.join(cells)}{format_count(one.syncs):>8}"


def _phases(step: TrafficLoad) -> str:
    by = {phase: step.of(phase=phase) for phase in TrafficPhase}
    said = [f"{format_count(one.syncs)} {phase.value}" for phase, one in by.items() if one.terms]
    return f"a step's, of the busiest card: {', '.join(said)}" if said else "no rank waits for another"


def _told(epoch: TrafficLoad) -> str:
    by = {phase: epoch.of(phase=phase) for phase in TrafficPhase}
    said = [f"{format_bytes(one.total, 4)} {phase.value}" for phase, one in by.items() if one.terms]
    return f"{', '.join(said) or 'nothing'}, all cards; {format_bytes(epoch.between, 4)} leave nodes"


def json(plan: LayoutPlan) -> str:
    """One object. Bytes, seconds; `up` and `down` of the busiest card, `total` of all."""
    layout, link = plan.layout, plan.link
    facts = {
        "cards": layout.mesh.ranks,
        "ways": msgspec.structs.asdict(layout.mesh),
        "parameters": layout.shape.size,
        "batch": layout.batch,
        "micro_batches": layout.training.micros,
        "idle_share": idle(layout),
        "step": {axis.value: _phase_facts(one) for axis, one in plan.axes.items()},
        "together": _facts(plan.step),
        "epoch_steps": plan.steps or None,
        "epoch": _phase_facts(plan.step.times(plan.steps)) if plan.steps else None,
        "link": None if link is None else msgspec.structs.asdict(link),
        "seconds_a_step": plan.seconds,
        "memory_bytes": None if plan.memory is None else plan.memory.card,
    }
    return msgspec.json.encode(facts).decode()


def _phase_facts(one: TrafficLoad) -> dict[str, Any]:
    return {phase.value: _facts(one.of(phase=phase)) for phase in TrafficPhase if one.of(phase=phase).terms}


def _facts(one: TrafficLoad) -> dict[str, float]:
    return {
        "up": one.sent,
        "down": one.received,
        "total": one.total,
        "between_nodes": one.between,
        "messages": one.messages,
        "waits": one.syncs,
    }
