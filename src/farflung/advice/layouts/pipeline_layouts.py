"""Lays out pipelines over hosts, each stage with layers that suit its speed and memory.

There is one pipeline, or several that synchronise periodically (T7, P1).

Stages hold runs of layers, the first the embedding, the last the head; 1F1B, event by event, with cuts as long as the
slower of two lines takes (advice/traffic/pipeline_schedules). What is in flight on a stage decides its memory, so
how many layers have room on a host is asked for its place. Who stands where: grids.

Several pipelines are replicas of a method with rounds (DiLoCo: Douillard et al. 2023): the same stages in each, cut by
their slowest and smallest members; the step's sequences are shared out among them; what a stage has changed goes among
that stage's hosts alone (agreement).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from farflung.advice.job_work import WIRE, JobWork
from farflung.advice.layouts import activation_bits, grid_placement, host_routes, host_speed, pipeline_sync
from farflung.advice.layouts.activation_bits import PLAIN, ActivationCode
from farflung.advice.layouts.grid_placement import Grid
from farflung.advice.layouts.memory_fit import SINGLE, computes_wide, widened
from farflung.advice.layouts.pipeline_timing import StepTail, TimedPipelines
from farflung.advice.layouts.replica_layouts import RECOMPUTED, OfferAssumptions
from farflung.advice.layouts.training_options import Found, InfeasibleOption, LayoutKind, TrainingOption, memory_of
from farflung.advice.memory.model_states import StateRecipe, ZeroSplit
from farflung.advice.memory.worst_stage import PipelineStages, StageTraining, fitting_layers, footprints, worst
from farflung.advice.method_choice import SPARSE
from farflung.advice.method_costs import ENOUGH, sync_of
from farflung.advice.offers.offer_file import OfferedHost
from farflung.advice.placement import uneven_layers
from farflung.advice.placement.layer_chain import chain
from farflung.advice.traffic import collective_times
from farflung.advice.traffic.access_links import RankGroup
from farflung.advice.traffic.collectives import RankSpan
from farflung.advice.traffic.pipeline_schedules import CutTimes, StageTimes, timeline
from farflung.advice.traffic.pipeline_traffic import tied_table
from farflung.core.units import Seconds, format_bytes, format_count
from farflung.plan.step_trace import Recomputation

MICROS_MOST: Final = 256  # micro-batches of a step that are tried: more are as many small messages
WAYS_MOST: Final = 16  # pipelines that are tried
LARGEST: Final = sync_of(SPARSE, delay=1)  # of what advice.method_choice takes, it keeps most: residual and offset


def pipeline(work: JobWork, hosts: Sequence[OfferedHost], assumed: OfferAssumptions) -> Found:
    """One pipeline of all hosts: the best of all micro-batches and recomputations, else what is nearest to fitting."""
    return _best(work, grid_placement.grids(work, hosts, 1), LayoutKind.PIPELINE, assumed)


def pipelines(work: JobWork, hosts: Sequence[OfferedHost], assumed: OfferAssumptions, ways: int = 0) -> Found:
    """The same of `ways` pipelines; 0: of the best number of those that it can be cut into."""
    counts = (ways,) if ways else ways_of(work, hosts)
    tried = (grid for count in counts for grid in grid_placement.grids(work, hosts, count))
    return _best(work, tried, LayoutKind.PIPELINES, assumed)


def ways_of(work: JobWork, hosts: Sequence[OfferedHost]) -> tuple[int, ...]:
    """Numbers of equal pipelines of two hosts or more that a subset can be cut into, with a sequence for each."""
    most = min(WAYS_MOST, work.sequences, len(hosts) // 2)
    return tuple(count for count in range(2, most + 1) if len(hosts) % count == 0)


def improved(
    work: JobWork, option: TrainingOption, assumed: OfferAssumptions, hosts: Sequence[OfferedHost] = (), *,
    by_money: bool = False, is_own: bool = False, is_allowed: Callable[[TrainingOption], bool] = lambda _: True,
) -> TrainingOption:  # fmt: skip
    """The same after swaps of places, and with `hosts` that it does not use, by advice/placement's objective,
    where that is better by this page's (seconds, or money) and allowed.
    """
    stages = len(option.hosts) // option.ways
    grid = tuple(option.hosts[at * stages : (at + 1) * stages] for at in range(option.ways))
    micros = max(1, -(-work.sequences // option.ways) // option.micro)
    others = [host for host in hosts if host not in option.hosts]
    every, best = option.sync.steps if option.sync else 1, option
    tried = grid_placement.swapped(work, grid, micros, every, assumed.churn, others, by_money=by_money, is_own=is_own)
    for again in tried:
        if (len(again) == 1) != (option.ways == 1) or len(again) > min(WAYS_MOST, work.sequences):
            continue
        other = _best(work, (again,), option.kind, assumed)
        if isinstance(other, InfeasibleOption) or not is_allowed(other):
            continue
        if _worth(other, by_money) < _worth(best, by_money):
            best = other
    return best


def _worth(option: TrainingOption, by_money: bool) -> float:
    return float(option.price if by_money else option.seconds)


def _best(work: JobWork, tried: Iterable[Grid], kind: LayoutKind, assumed: OfferAssumptions) -> Found:
    best: TrainingOption | None = None
    nearest: InfeasibleOption | None = None
    for grid in tried:
        found = _laid(work, grid, kind, assumed)
        if isinstance(found, InfeasibleOption):
            nearest = found if nearest is None or found.nearness > nearest.nearness else nearest
            continue
        option = pipeline_sync.option(work, _coded(work, found, assumed), assumed)
        if isinstance(option, InfeasibleOption):
            nearest = option if nearest is None or option.nearness > nearest.nearness else nearest
        elif best is None or option.seconds < best.seconds:
            best = option
    too_few = "there are too few hosts for two pipelines of two"
    return best or nearest or InfeasibleOption(kind, "hosts", 0, 0.0, too_few, "four hosts of three owners")


def _coded(work: JobWork, timed: TimedPipelines, assumed: OfferAssumptions) -> TimedPipelines:
    """The same with fewer bits at its cuts, where that saves enough to be worth what it may cost in quality."""
    best, room = timed, min(map(_beside, (host for way in timed.grid for host in way)))
    for code in activation_bits.codes(work)[1:]:
        if min(2, len(timed.counts) - 1) * code.kept > room:
            continue
        runs = [
            timeline(
                _stages(work, way, timed.counts, timed.recompute, timed.micro, assumed),
                timed.micros,
                cuts=_cuts(work, way, timed.micro, code),
            )
            for way in timed.grid
        ]
        slowest = max(runs, key=lambda run: run.seconds)
        other = msgspec.structs.replace(timed, run=slowest, code=code, plain=timed.run.seconds)
        if other.step < (1.0 - ENOUGH) * best.step:
            best = other
    return best


def _beside(host: OfferedHost) -> float:
    """Bytes in RAM or on disk for what is kept of examples; any where neither is said."""
    said = [size for size in (host.memory_bytes, host.disk_bytes) if size is not None]
    return float(max(said)) if said else math.inf


def _laid(work: JobWork, grid: Grid, kind: LayoutKind, assumed: OfferAssumptions) -> TimedPipelines | InfeasibleOption:
    """The fastest way through a grid. What is computed again only costs time, so the least that fits."""
    if len(grid[0]) > work.model.layers:
        return InfeasibleOption(
            kind, "layers", 0, work.model.layers / len(grid[0]),
            f"{work.model.layers} layers for {len(grid[0])} hosts",
            "a deeper model" if work.model.layers else "repeated blocks to cut between: an nn.ModuleList of one class",
        )  # fmt: skip
    sequences = -(-work.sequences // len(grid))
    best: TimedPipelines | None = None
    nearest: InfeasibleOption | None = None
    for recompute in Recomputation:
        for micro in (size for size in range(1, sequences + 1) if sequences % size == 0):
            if sequences // micro > MICROS_MOST:
                continue
            found = _tried(work, grid, recompute, micro, assumed, best)
            if isinstance(found, InfeasibleOption):
                if nearest is None or (found.short, micro == 1) > (nearest.short, False):
                    nearest = found  # of equals the last recomputation, at its smallest micro-batch: what is least
            elif found is not None:
                best = found
        if best is not None:
            return best
    assert nearest is not None
    return nearest


def _tried(
    work: JobWork,
    grid: Grid,
    recompute: Recomputation,
    micro: int,
    assumed: OfferAssumptions,
    than: TimedPipelines | None,
) -> TimedPipelines | InfeasibleOption | None:
    """A grid with micro-batches of so many sequences; None where it is not faster `than` another."""
    sequences = -(-work.sequences // len(grid))
    is_wide = computes_wide(host for way in grid for host in way)
    micros, stack = sequences // micro, work.stack(micro, recompute, SINGLE if is_wide else WIRE)
    recipe = widened(_recipe(work, grid)) if is_wide else _recipe(work, grid)
    stages = list(zip(*grid, strict=True))
    memory = [min(float(host.cards * memory_of(host)) for host in members) for members in stages]
    rates = [min(host_speed.rate(host, assumed.utilisation) for host in members) for members in stages]
    start = StageTraining(PipelineStages((0,) * len(stages), micros), recipe, ZeroSplit())
    # All cards of a host hold its layers together, as one card of so much memory.
    caps = [fitting_layers(stack, start, at, have) for at, have in enumerate(memory)]
    if min(caps) < 0 or sum(max(0, cap) for cap in caps) < work.model.layers:
        return _too_small(work, grid, caps, recompute, micro)
    counts = dealt(work, rates, caps)
    if 0 in counts:  # who is given nothing is not needed
        used = tuple(tuple(host for host, count in zip(way, counts, strict=True) if count) for way in grid)
        if len(used[0]) == 1:
            return _alone(used)
        return _tried(work, used, recompute, micro, assumed, than)
    runs = []
    for way in grid:
        each, between = _stages(work, way, counts, recompute, micro, assumed), _cuts(work, way, micro)
        if than is not None and micros * _pace(each, between) >= than.run.seconds:
            return None
        runs.append(timeline(each, micros, cuts=between))
    slowest = max(runs, key=lambda run: run.seconds)
    if than is not None and slowest.seconds >= than.run.seconds:
        return None
    tight = worst(footprints(stack, StageTraining(PipelineStages(counts, micros), recipe, ZeroSplit())), memory)
    after, shared = _after(work, grid, counts, stack.copied, assumed)
    return TimedPipelines(grid, counts, recompute, micro, sequences, slowest, tight, after, shared)


def _recipe(work: JobWork, grid: Grid) -> StateRecipe:
    """Of several that agree now and then: with what the method keeps that needs most beside the weights."""
    return work.recipe if len(grid) == 1 else work.with_outer(LARGEST)


def _after(
    work: JobWork, grid: Grid, counts: Sequence[int], copied: float, assumed: OfferAssumptions
) -> tuple[tuple[StepTail, ...], float]:
    """The optimizer of the slowest stage; and the sum of the gradient of a table that first and last stage hold, which
    waits for both ends' lines. With the bytes that each of them sends for it.
    """
    found, shared = [], 0.0
    if work.optimizer_flop:
        flop, depth = work.optimizer_flop, work.model.layers
        taken, host, count = max(
            (
                (flop * count / depth / host_speed.rate(host, assumed.utilisation), host, count)
                for way in grid
                for host, count in zip(way, counts, strict=True)
            ),
            key=lambda each: each[0],
        )
        reached = host_speed.told(host, assumed.utilisation)
        text = f"{format_count(flop)}FLOP x {count} / {depth} / {reached}; by layers, the slowest stage: {host.name}"
        found.append(StepTail("optimizer", Seconds(taken), text, host_speed.MUON))
    if copied and len(counts) > 1:
        ends = [RankGroup((way[0].link, way[-1].link)) for way in grid]
        (term,) = tied_table(WIRE * copied, RankSpan(2))
        shared = term.sent
        text = f"rank by rank: {format_bytes(WIRE * copied)} summed by first and last stage: {term.formula}"
        summed = max(collective_times.ring(group, WIRE * copied) for group in ends)
        found.append(StepTail("gradient of the shared table", summed, text, term.source))
    return tuple(found), shared


def dealt(work: JobWork, rates: Sequence[float], caps: Sequence[int]) -> tuple[int, ...]:
    """Layers of each stage by advice/placement's bisection, the head's work with the last; `caps` suffice.

    A stage's memory is counted in layers: footprints have said how many it holds in its place, buffers and all.
    """
    m, head = work.model, work.model.head(work.context)
    flop = np.full(m.layers, (work.flop(work.context) - head) / m.layers)
    flop[-1] += head
    one, none = np.ones(m.layers), np.zeros(m.layers)
    cards = [uneven_layers.StageCard(rate, float(cap)) for rate, cap in zip(rates, caps, strict=True)]
    return uneven_layers.divide(chain(flop, one, none, none), cards, 1).units


def _stages(
    work: JobWork,
    way: Sequence[OfferedHost],
    counts: Sequence[int],
    recompute: Recomputation,
    micro: int,
    assumed: OfferAssumptions,
) -> list[StageTimes]:
    """Seconds of a micro-batch: a third forward, two thirds backward, and once more forward where all is recomputed;
    at least what its kernels take to launch.
    """
    tokens, m = micro * work.context, work.model
    head = m.head(tokens)
    layer = (work.flop(tokens) - head) / m.layers
    again = work.flop(tokens, recompute) / work.flop(tokens)
    found = []
    for at, (host, count) in enumerate(zip(way, counts, strict=True)):
        flop = layer * count + (head if at == len(way) - 1 else 0.0)
        whole = flop / host_speed.rate(host, assumed.utilisation)
        launched = host_speed.launching(count, recompute)
        forward = max(whole / 3, launched / 3)
        found.append(StageTimes(forward, max(whole * again, launched) - forward))
    return found


def _cuts(work: JobWork, way: Sequence[OfferedHost], micro: int, code: ActivationCode = PLAIN) -> list[CutTimes]:
    bits = 8.0 * work.model.handed(micro)
    forward, backward = code.forward * bits, code.backward * bits
    found = []
    for one, other in pairwise(way):
        route = host_routes.between(one, other)
        found.append(
            CutTimes(
                forward / min(_share(way, one) * one.link.up, _share(way, other) * other.link.down, route.rate),
                route.delay,
                backward / min(_share(way, other) * other.link.up, _share(way, one) * one.link.down, route.rate),
            )
        )
    return found


def _share(way: Sequence[OfferedHost], host: OfferedHost) -> float:
    """Of its line, what one neighbour has: an inner stage sends forward and backward at the same time."""
    return 1.0 if host in (way[0], way[-1]) else 0.5


def _pace(stages: Sequence[StageTimes], between: Sequence[CutTimes]) -> float:
    """Seconds that no schedule goes below, a micro-batch."""
    sent = [each for cut in between for each in (cut.seconds, cut.back_seconds)]
    return max(*(stage.forward + stage.backward for stage in stages), *sent, 0.0)


def _alone(grid: Grid) -> InfeasibleOption:
    """One host is no pipeline: what it comes to, buses and all, is calculated as one host alone."""
    kind, name = (LayoutKind.PIPELINE if len(grid) == 1 else LayoutKind.PIPELINES), grid[0][0].name
    return InfeasibleOption(
        kind, "similarity", 1, 0.0, f"{name} trains all layers sooner than another host of its pipeline one of them",
        "hosts nearer to its speed",
    )  # fmt: skip


def _too_small(
    work: JobWork, grid: Grid, caps: Sequence[int], recompute: Recomputation, micro: int
) -> InfeasibleOption:
    """Which cards hold how many layers, and what more it would take."""
    room = sum(max(0, cap) for cap in caps)
    named = [min(members, key=memory_of).name for members in zip(*grid, strict=True)]
    held = ", ".join(f"{name} {max(0, cap)}" for name, cap in zip(named, caps, strict=True))
    missing = work.model.layers - room
    kind, each = (
        (LayoutKind.PIPELINE, "") if len(grid) == 1 else (LayoutKind.PIPELINES, f"each of {len(grid)} pipelines of ")
    )
    recipe = _recipe(work, grid)
    return InfeasibleOption(
        kind, "memory", 2, room / work.model.layers,
        f"{each}{len(caps)} hosts {'has' if each else 'have'} room for {room} of {work.model.layers} layers ({held})"
        f" ({RECOMPUTED[recompute]}, micro-batches of {micro})",
        f"hosts for {missing} layers more, about"
        f" {recipe.whole * work.model.layer / 1e9:.3g} GB a layer: {math.ceil(missing / max(1, max(caps)))} more like"
        f" {named[int(np.argmax(caps))]}{' in each' if each else ''}",
    )  # fmt: skip
