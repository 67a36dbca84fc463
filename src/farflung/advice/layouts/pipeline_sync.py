"""Computes the step time of pipelines with their failures, and the traffic of their periodic exchange (T1, T7,
P1).

Each stage's hosts exchange what that stage has changed, all stages at the same time, so a round waits for the stage
whose bytes are most for its lines. The method and H are those that suit that stage (advice.method_choice); the
codec's payload goes from each member to each (Peng et al. 2024). A replica group is one pipeline. When one of its
hosts leaves, that pipeline alone stops: it goes on from the last round, whose state the others hold, or from a
checkpoint of its own, whichever loses less.
"""

from __future__ import annotations

import math

import msgspec

from farflung.advice.job_work import JobWork
from farflung.advice.layouts import checkpoint_policy, replica_layouts
from farflung.advice.layouts.pipeline_timing import TimedPipelines
from farflung.advice.layouts.replica_layouts import OfferAssumptions, slowest_line
from farflung.advice.layouts.training_options import (
    DerivedFact,
    Found,
    HostLoad,
    TrainingOption,
    held,
    mean_churn,
    precise,
)
from farflung.advice.method_choice import choose
from farflung.advice.method_costs import MethodSetting, estimate
from farflung.advice.traffic.pipeline_traffic import PIPELINE
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Seconds, format_bytes
from farflung.job.spec import SyncSpec
from farflung.plan.run_plan import describe_codec


class PipelineSync(msgspec.Struct, frozen=True):
    """A step with its share of the round's exchange; `up` and `down` bytes a step of the stage with most."""

    step: Seconds
    sync: SyncSpec | None = None
    up: float = 0.0
    down: float = 0.0
    facts: tuple[DerivedFact, ...] = ()
    tail: Seconds = Seconds(0.0)  # behind the last step
    each: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # bytes up and down of each stage's hosts a step


def agreed(work: JobWork, timed: TimedPipelines) -> PipelineSync:
    """One pipeline agrees with nobody."""
    step = timed.step
    if len(timed.grid) == 1:
        return PipelineSync(step)
    lines = [slowest_line(members) for members in zip(*timed.grid, strict=True)]
    most = work.steps_most(len(timed.grid), timed.sequences * work.context)
    layouts = parts(work, timed.counts)
    settings = [
        MethodSetting(layout, line, len(timed.grid), step, most=most)
        for layout, line in zip(layouts, lines, strict=True)
        if layout is not None
    ]
    binding = max(settings, key=lambda each: each.layout.size / min(each.link.up, each.link.down))
    choice = choose(binding)
    sync = choice.chosen.sync
    each = [estimate(setting, sync) for setting in settings]
    longest = max(each, key=lambda one: one.exchange)
    at = each.index(longest)
    facts = replica_layouts.agreeing(longest, settings[at], choice.reasons)
    facts.append(
        DerivedFact(
            "stages",
            f"{len(each)} exchanges at a time",
            f"of {', '.join(format_bytes(one.payload) for one in each)} a member; stage {at + 1} is the last",
            "Peng et al. 2024, section 3",
        )
    )
    tail = longest.exchange if sync.delay else Seconds(0.0)
    most_up, most_down = (max(getattr(one, way) for one in each) for way in ("up", "down"))
    moved = iter(each)
    stages = [next(moved) if layout is not None else None for layout in layouts]
    up, down = ([getattr(one, way) if one else 0.0 for one in stages] for way in ("up", "down"))
    return PipelineSync(longest.step, sync, most_up, most_down, tuple(facts), tail, (tuple(up), tuple(down)))


def parts(work: JobWork, counts: tuple[int, ...]) -> tuple[TensorLayout | None, ...]:
    """The tensors of each stage; None where all of its layers' belong to another one's, too."""
    stage_of = [0, *(stage for stage, count in enumerate(counts) for _ in range(count)), len(counts) - 1]
    shapes: list[dict[str, tuple[int, ...]]] = [{} for _ in counts]
    for tensor in work.layout.tensors:  # places are 0, 1 to layers, and -1, the last
        shapes[stage_of[work.model.place(tensor.name)]][tensor.name] = tensor.shape
    return tuple(TensorLayout.of(each) if each else None for each in shapes)


def option(work: JobWork, timed: TimedPipelines, assumed: OfferAssumptions) -> Found:
    """The whole job on a laid grid."""
    found = agreed(work, timed)
    subset = tuple(host for way in timed.grid for host in way)
    activation = work.model.handed(timed.micro)
    sent = _sent(timed)[min(1, len(timed.counts) - 2)]  # of an inner stage, where there is one
    moved, times = activation * timed.micros * max(sent), f" x {max(sent):.4g}" if max(sent) != 1.0 else ""
    kept = _counting(work, timed, found, assumed)
    if (blocked := checkpoint_policy.blocked(timed.kind, kept)) is not None:
        return blocked
    shares = _shares(work, timed, activation, found)
    busiest = max(timed.run.work)
    cut = "/".join(map(str, timed.counts)) + (f" with {timed.code.words}" if timed.code.words else "")
    how = f"layers {cut}"
    if found.sync is not None:
        method = f"{found.sync.method} H={found.sync.steps} {describe_codec(found.sync)}"
        how = f"{len(timed.grid)} of layers {cut}, {method}"
    facts = (
        DerivedFact(
            "a step",
            precise(timed.step),
            " + ".join(precise(each) for each in (timed.passed, *(extra.seconds for extra in timed.after)))
            + f"; 1F1B, {timed.micros} micro-batches of {timed.micro}"
            + "".join(f", then {extra.name}" for extra in timed.after)
            + f"; layers {cut}; the busiest stage computes {precise(busiest)}",
            "Narayanan et al. 2021, section 2.2.1; event by event: advice/traffic/pipeline_schedules",
        ),
        *(DerivedFact(extra.name, precise(extra.seconds), extra.formula, extra.source) for extra in timed.after),
        DerivedFact(
            "activations",
            format_bytes(moved),
            f"{format_bytes(activation)} x {timed.micros}{times}; a cut and micro-batch"
            + (", an inner stage has two cuts" if len(timed.counts) > 2 else ""),
            PIPELINE,
        ),
        *_coded(work, timed),
        *found.facts,
        *kept.facts,
        *held(timed.tight),
    )
    return TrainingOption(
        kind=timed.kind, how=how, hosts=subset, recompute=timed.recompute, micro=timed.micro, step=found.step,
        exchange=Seconds(found.step - busiest),
        steps=math.ceil(work.tokens / (len(timed.grid) * timed.sequences * work.context)),
        up=max(share.up for share in shares), down=max(share.down for share in shares),
        efficiency=kept.efficiency, stored=kept.stored,
        worst=timed.tight, tokens=work.tokens, facts=facts, sequences=len(timed.grid) * timed.sequences,
        ways=len(timed.grid), sync=found.sync, tail=found.tail, shares=shares,
    )  # fmt: skip


def _shares(work: JobWork, timed: TimedPipelines, activation: float, found: PipelineSync) -> tuple[HostLoad, ...]:
    """Of each host: an end hands on and gets one cut's activations, an inner stage two; both ends a shared table's."""
    last, sent = len(timed.counts) - 1, _sent(timed)

    def moved(at: int, way: int) -> float:
        return activation * timed.micros * sent[at][way] + (timed.shared if at in (0, last) else 0.0)

    up, down = found.each or ((0.0,) * (last + 1),) * 2
    kept = work.public(found.sync) / (last + 1) if found.sync else 0.0
    return tuple(
        HostLoad(kept, 0.0, moved(at, 0) + up[at], moved(at, 1) + down[at])
        for _ in timed.grid
        for at in range(last + 1)
    )


def _sent(timed: TimedPipelines) -> tuple[tuple[float, float], ...]:
    """Cuts of plain bytes that each stage sends and gets: activations go forward, their gradients back."""
    forward, back = timed.code.sent
    inner = ((forward + back,) * 2,) * (len(timed.counts) - 2)
    return ((forward, back), *inner, (back, forward))


def _coded(work: JobWork, timed: TimedPipelines) -> tuple[DerivedFact, ...]:
    """What of plain bytes is sent, what is plain anyway, and what a code keeps for it."""
    code = timed.code
    if not code.words:
        return ()
    (forward, back), coded = code.sent, 1.0 - code.first
    text = f"{forward:.4g} + {back:.4g}; of plain bytes, forward and back"
    found = [DerivedFact(code.words, f"{forward + back:.4g}", text, code.source)]
    if code.kept:
        mean = f"{code.first:.4g} x {precise(timed.plain)} + {coded:.4g} x {precise(timed.run.seconds)}"
        found += [
            DerivedFact(
                "until all are through", precise(timed.passed), f"{mean}; the first epoch is plain", code.source,
            ),
            DerivedFact(
                "kept at each end of a cut", format_bytes(code.kept),
                f"{work.examples} x {format_bytes(work.model.handed(1))}; an example's activation, in RAM or on disk",
                code.source,
            ),
        ]  # fmt: skip
    return tuple(found)


def _counting(
    work: JobWork, timed: TimedPipelines, found: PipelineSync, assumed: OfferAssumptions
) -> checkpoint_policy.CheckpointEfficiency:
    """What a pipeline that stops goes on from: its stages' checkpoints, or what the others hold of the last round."""
    subset = [host for way in timed.grid for host in way]
    layouts = parts(work, timed.counts)
    each = [checkpoint_policy.states(work.recipe, part.size if part is not None else 0) for part in layouts]
    sizes = each * len(timed.grid)
    mean = mean_churn(subset, assumed.churn) / len(each)
    written = checkpoint_policy.checkpointed(sizes, subset, mean)
    if found.sync is None:
        return written
    again = max(checkpoint_policy.restart(size, host.link) for size, host in zip(sizes, subset, strict=True))
    lost = again + found.sync.steps * found.step / 2
    text = f"R + H t / 2, once a pipeline of {len(each)}: the others hold what a round began with"
    held = checkpoint_policy.renewed(lost, mean, text)
    return held if held.efficiency >= written.efficiency else written
