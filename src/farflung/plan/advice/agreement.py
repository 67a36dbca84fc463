"""What a pipelined step comes to with its failures, and what several pipelines send each other (T1, T7, P1).

Each stage's hosts exchange what that stage has changed, all stages at the same time, so a round waits for the stage
whose bytes are most for its lines. The method and H are those that suit that stage (plan.choose); the codec's payload
goes from each member to each (Peng et al. 2024). A replica group is one pipeline. When one of its hosts leaves, that
pipeline alone stops: it goes on from the last round, whose state the others hold, or from a checkpoint of its own,
whichever loses less.
"""

from __future__ import annotations

import math

import msgspec

from farflung.core.layout import Layout
from farflung.core.units import Seconds, format_bytes, format_short
from farflung.job.spec import SyncSpec
from farflung.plan.advice import replicas
from farflung.plan.advice.laid import Laid
from farflung.plan.advice.options import Fact, Option, mean_churn
from farflung.plan.advice.replicas import Assumed, slowest_line
from farflung.plan.advice.work import Work
from farflung.plan.advise import describe_codec
from farflung.plan.choose import choose
from farflung.plan.methods import Setting, estimate
from farflung.plan.parallel import failures
from farflung.plan.parallel.stages import PIPELINE


class Agreed(msgspec.Struct, frozen=True):
    """A step with its share of the round's exchange; `up` and `down` bytes a step of the stage with most."""

    step: Seconds
    sync: SyncSpec | None = None
    up: float = 0.0
    down: float = 0.0
    facts: tuple[Fact, ...] = ()


def agreed(work: Work, laid: Laid) -> Agreed:
    """One pipeline agrees with nobody."""
    step = laid.run.seconds
    if len(laid.grid) == 1:
        return Agreed(step)
    lines = [slowest_line(members) for members in zip(*laid.grid, strict=True)]
    settings = [
        Setting(layout, line, len(laid.grid), step)
        for layout, line in zip(parts(work, laid.counts), lines, strict=True)
        if layout is not None
    ]
    binding = max(settings, key=lambda each: each.layout.size / min(each.link.up, each.link.down))
    choice = choose(binding)
    sync = choice.chosen.sync
    each = [estimate(setting, sync) for setting in settings]
    longest = max(each, key=lambda one: one.exchange)
    at = each.index(longest)
    facts = [
        Fact("exchange of a round", format_short(longest.exchange), why, "plan/choose")
        for why in choice.reasons
    ]
    facts.append(
        Fact(
            "stages",
            f"{len(each)} exchanges at a time",
            f"of {', '.join(format_bytes(one.payload) for one in each)} a member; stage {at + 1} is the last",
            "Peng et al. 2024, section 3",
        )
    )
    return Agreed(
        longest.step, sync, max(one.up for one in each), max(one.down for one in each), tuple(facts)
    )


def parts(work: Work, counts: tuple[int, ...]) -> tuple[Layout | None, ...]:
    """The tensors of each stage; None where all of its layers' belong to another one's, too."""
    stage_of = [0, *(stage for stage, count in enumerate(counts) for _ in range(count)), len(counts) - 1]
    shapes: list[dict[str, tuple[int, ...]]] = [{} for _ in counts]
    for tensor in work.layout.tensors:  # places are 0, 1 to layers, and -1, the last
        shapes[stage_of[work.model.place(tensor.name)]][tensor.name] = tensor.shape
    return tuple(Layout.of(each) if each else None for each in shapes)


def option(work: Work, laid: Laid, assumed: Assumed) -> Option:
    """The whole job on a laid grid."""
    found = agreed(work, laid)
    crew = tuple(host for way in laid.grid for host in way)
    activation = work.model.handed(laid.micro)
    moved = activation * laid.micros * (2 if len(laid.counts) > 2 else 1)
    efficiency, lost = _counting(work, laid, found, assumed)
    busiest = max(laid.run.work)
    cut = "/".join(map(str, laid.counts))
    how = f"layers {cut}"
    if found.sync is not None:
        how = f"{len(laid.grid)} of layers {cut}, {found.sync.method} H={found.sync.steps} {describe_codec(found.sync)}"
    facts = (
        Fact(
            "a step",
            format_short(laid.run.seconds),
            f"1F1B, {laid.micros} micro-batches of {laid.micro}; layers {cut}; the busiest stage computes"
            f" {format_short(busiest)}",
            "Narayanan et al. 2021, section 2.2.1",
        ),
        Fact(
            "bubble and lines", f"{laid.run.bubble:.0%} of that", "event by event", "plan/parallel/schedules"
        ),
        Fact(
            "activations",
            format_bytes(moved),
            f"{format_bytes(activation)} a cut and micro-batch",
            PIPELINE,
        ),
        *found.facts,
        lost,
        *(
            Fact(part.name, format_bytes(part.bytes), part.formula, part.source)
            for part in laid.tight.footprint.parts
        ),
    )
    return Option(
        kind=laid.kind, how=how, hosts=crew, recompute=laid.recompute, micro=laid.micro, step=found.step,
        exchange=Seconds(found.step - busiest),
        steps=math.ceil(work.tokens / (len(laid.grid) * laid.sequences * work.context)),
        up=moved + found.up, down=moved + found.down, efficiency=max(efficiency, 1e-9), worst=laid.tight,
        tokens=work.tokens, facts=facts, ways=len(laid.grid), sync=found.sync,
    )  # fmt: skip


def _counting(work: Work, laid: Laid, found: Agreed, assumed: Assumed) -> tuple[float, Fact]:
    """The share of time that is work which counts, and how often a replica group writes a checkpoint."""
    crew = [host for way in laid.grid for host in way]
    stages = len(laid.counts)
    each = work.recipe.whole * work.parameters / stages
    mean = mean_churn(crew, assumed.churn) / stages
    restart = replicas.RESTART + 8 * each / slowest_line(crew).down
    kept = failures.best(each / replicas.DISK, mean, restart)
    if found.sync is not None:
        lost = restart + found.sync.steps * found.step / 2
        share = mean / (mean + lost)
        if share >= kept.efficiency:
            text = (
                f"the others hold what a round began with; R + H t / 2 = {format_short(lost)} is lost once in"
                f" {format_short(mean)} of a pipeline of {stages}"
            )
            return share, Fact("checkpoint interval", "a round", text, "renewal reward: Daly 2006, section 2")
    return kept.efficiency, Fact("checkpoint interval", format_short(kept.work), kept.formula, kept.source)
