"""One pipeline over hosts, each with the layers that suit its speed and its memory (T7, P1).

Stages hold runs of layers, the first the embedding, the last the head; 1F1B, event by event, with cuts as long as the
slower of two lines takes (plan/parallel/schedules). What is in flight on a stage decides its memory, so how many layers
have room on a host is asked for its place. Hosts that are near each other stand side by side; of what is left, those
with the weakest uplinks stand at the ends, where a line carries one direction only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from farflung.core.units import Seconds, format_bytes, format_seconds
from farflung.plan.advice import replicas, speed
from farflung.plan.advice.offers import Host
from farflung.plan.advice.options import Blocked, Fact, Found, Kind, Option, mean_churn, memory_of
from farflung.plan.advice.replicas import Assumed
from farflung.plan.advice.work import Work
from farflung.plan.footprint.states import Split
from farflung.plan.footprint.worst import Pipeline, Training, Worst, fitting_layers, footprints, worst
from farflung.plan.parallel import failures
from farflung.plan.parallel.schedules import Cut, Stage, Timeline, timeline
from farflung.plan.parallel.shapes import Recompute
from farflung.plan.parallel.stages import PIPELINE

MICROS_MOST: Final = 256  # micro-batches of a step that are tried: more are as many small messages


def pipeline(work: Work, crew: Sequence[Host], assumed: Assumed) -> Found:
    """The best of all micro-batch sizes and recomputations that fit; else what comes nearest to fitting."""
    crew = ordered(crew)
    if len(crew) > work.model.layers:
        return Blocked(
            Kind.PIPELINE, "layers", 0, work.model.layers / len(crew),
            f"{work.model.layers} layers for {len(crew)} hosts", "a deeper model",
        )  # fmt: skip
    best: Option | None = None
    nearest: Blocked | None = None
    for recompute in Recompute:
        for micro in (size for size in range(1, work.sequences + 1) if work.sequences % size == 0):
            if work.sequences // micro > MICROS_MOST:
                continue
            found = _tried(work, crew, recompute, micro, assumed)
            if isinstance(found, Blocked):
                nearest = found if nearest is None or found.short > nearest.short else nearest
            elif best is None or found.seconds < best.seconds:
                best = found
        if best is not None:
            return best  # computing again only costs time
    assert nearest is not None
    return nearest


def ordered(crew: Sequence[Host]) -> tuple[Host, ...]:
    """Region by region; the weakest uplinks of the first and the last region at the two ends."""
    regions = sorted({host.region for host in crew})
    rows = [
        sorted((h for h in crew if h.region == region), key=lambda h: (h.link.up, h.name))
        for region in regions
    ]
    rows[-1] = rows[-1][::-1]
    if len(rows) == 1 and len(crew) > 1:
        weakest = rows[0].pop()
        rows[0].insert(0, weakest)
    return tuple(host for row in rows for host in row)


def _tried(
    work: Work, crew: Sequence[Host], recompute: Recompute, micro: int, assumed: Assumed
) -> Option | Blocked:
    micros, stack = work.sequences // micro, work.stack(micro, recompute)
    rates = [speed.rate(host, assumed.utilisation) for host in crew]
    start = Training(Pipeline((0,) * len(crew), micros), work.recipe, Split())
    # All cards of a host hold its layers together, as one card of so much memory.
    caps = [
        fitting_layers(stack, start, at, float(host.cards * memory_of(host))) for at, host in enumerate(crew)
    ]
    room = sum(max(0, cap) for cap in caps)
    if min(caps) < 0 or room < work.model.layers:
        return _too_small(work, crew, caps, room, recompute, micro)
    counts = shared(work.model.layers, rates, caps)
    training = Training(Pipeline(counts, micros), work.recipe, Split())
    tight = worst(footprints(stack, training), [float(host.cards * memory_of(host)) for host in crew])
    stages = _stages(work, crew, counts, recompute, micro, assumed)
    run = timeline(stages, micros, cuts=_cuts(work, crew, micro))
    return _option(work, crew, counts, recompute, micro, run, tight, assumed)


def shared(layers: int, rates: Sequence[float], caps: Sequence[int]) -> tuple[int, ...]:
    """Layers of each stage: the next one always to who would be done with it first, which is least for the slowest.

    Equal layers make a stage's time its count over its rate, so giving them out one by one is exact. `caps` suffice.
    """
    counts = [0] * len(rates)
    for _ in range(layers):
        free = [at for at in range(len(rates)) if counts[at] < caps[at]]
        counts[min(free, key=lambda at: (counts[at] + 1) / rates[at])] += 1
    return tuple(counts)


def _stages(
    work: Work,
    crew: Sequence[Host],
    counts: Sequence[int],
    recompute: Recompute,
    micro: int,
    assumed: Assumed,
) -> list[Stage]:
    """Seconds of a micro-batch: a third forward, two thirds backward, and once more forward where all is recomputed."""
    tokens, m = micro * work.context, work.model
    head = 6.0 * m.vocabulary * m.width * tokens
    layer = (work.flop(tokens) - head) / m.layers
    again = work.flop(tokens, recompute) / work.flop(tokens)
    found = []
    for at, (host, count) in enumerate(zip(crew, counts, strict=True)):
        flop = layer * count + (head if at == len(crew) - 1 else 0.0)
        whole = flop / speed.rate(host, assumed.utilisation)
        found.append(Stage(whole / 3, whole * (again - 1 / 3)))
    return found


def _cuts(work: Work, crew: Sequence[Host], micro: int) -> list[Cut]:
    bits = 8.0 * work.shape.activation(micro)
    found = []
    for one, other in pairwise(crew):
        way = (one.link.round_trip + other.link.round_trip) / 2
        found.append(
            Cut(
                bits / min(_share(crew, one) * one.link.up, _share(crew, other) * other.link.down),
                way,
                bits / min(_share(crew, other) * other.link.up, _share(crew, one) * one.link.down),
            )
        )
    return found


def _share(crew: Sequence[Host], host: Host) -> float:
    """Of its line, what one neighbour has: an inner stage sends forward and backward at the same time."""
    return 1.0 if host in (crew[0], crew[-1]) else 0.5


def _option(
    work: Work, crew: Sequence[Host], counts: tuple[int, ...], recompute: Recompute, micro: int, run: Timeline,
    tight: Worst, assumed: Assumed,
) -> Option:  # fmt: skip
    micros, busiest = work.sequences // micro, max(run.work)
    activation = work.shape.activation(micro)
    moved = activation * micros * (2 if len(crew) > 2 else 1)
    each = work.recipe.whole * work.parameters / len(crew)
    mean = mean_churn(crew, assumed.churn) / len(crew)
    slowest = replicas.slowest_line(crew)
    kept = failures.best(each / replicas.DISK, mean, replicas.RESTART + 8 * each / slowest.down)
    text = f"1F1B, {micros} micro-batches of {micro}; layers {'/'.join(map(str, counts))}; the busiest stage computes"
    facts = (
        Fact(
            "a step",
            format_seconds(run.seconds),
            f"{text} {format_seconds(busiest)}",
            "Narayanan et al. 2021, section 2.2.1",
        ),
        Fact("bubble and lines", f"{run.bubble:.0%} of that", "event by event", "plan/parallel/schedules"),
        Fact(
            "activations",
            format_bytes(moved),
            f"b s h e = {format_bytes(activation)} a cut and micro-batch",
            PIPELINE,
        ),
        Fact("checkpoint interval", format_seconds(kept.work), kept.formula, kept.source),
        *(
            Fact(part.name, format_bytes(part.bytes), part.formula, part.source)
            for part in tight.footprint.parts
        ),
    )
    return Option(
        kind=Kind.PIPELINE, how=f"layers {'/'.join(map(str, counts))}", hosts=tuple(crew), recompute=recompute,
        micro=micro, step=run.seconds, exchange=Seconds(run.seconds - busiest),
        steps=math.ceil(work.tokens / (work.sequences * work.context)), up=moved, down=moved,
        efficiency=max(kept.efficiency, 1e-9), worst=tight, tokens=work.tokens, facts=facts,
    )  # fmt: skip


def _too_small(
    work: Work, crew: Sequence[Host], caps: Sequence[int], room: int, recompute: Recompute, micro: int
) -> Blocked:
    """Which cards hold how many layers, and what more it would take."""
    held = ", ".join(f"{host.name} {max(0, cap)}" for host, cap in zip(crew, caps, strict=True))
    missing = work.model.layers - room
    layer = (work.recipe.whole * work.model.layer) / 1e9
    return Blocked(
        Kind.PIPELINE, "memory", 2, room / work.model.layers,
        f"these {len(crew)} hosts have room for {room} of {work.model.layers} layers ({held}) even with {recompute}"
        f" recomputation and micro-batches of {micro}",
        f"hosts for {missing} layers more, of about {layer:.3g} GB each",
    )  # fmt: skip
