"""How good placements are, and what they take: DT-FM's cases, drawn networks, layers, losses. Seconds of one core.

    python bench/place.py [--quick] [--only PART ...] [--out FILE]

Parts: cases, homes, large, exact, layers, lost, chosen, claim. Loops are compiled before anything is timed.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import dtfm_cases
import numpy as np

sys.path.insert(1, str(Path(__file__).with_suffix("")))
import place_claim
from place_genetic import genetic
from place_instances import fleet_of, homes
from reporting import Row, at_least, at_most, load, show, told

from farflung.advice.placement import (
    device_clusters,
    dtfm_objective,
    failure_replan,
    grid_objective,
    node_selection,
    simulated_annealing,
    uneven_layers,
)
from farflung.advice.placement.layer_chain import DecoderShape, decoder
from farflung.advice.placement.link_matrices import Indices
from farflung.advice.placement.uneven_layers import StageCard
from farflung.compress import kernels
from farflung.core.errors import PolicyError

T = TypeVar("T")
STAGES = 8
PRINTED = 0.00005  # half of the last digit that the least known costs were printed with
LLAMA = DecoderShape(32, 4096, 32, 8, 14336, 128256)
# Dense FP16 FLOP/s with FP32 sums of NVIDIA's data sheets (10^12), and GiB: 4090, 3090, 4070 Ti Super, 3060, 4060 Ti,
# A4000, 3080, 4080. Reached: 40 %. Left for states: 90 % of the memory less 1 GiB.
MIX = ((165, 24), (71, 24), (88, 16), (25.5, 12), (44, 16), (76.7, 16), (60, 10), (97.5, 16))
STATES = {"Adam, 16 B a parameter": (16.0, 1.0), "8-bit moments, 10 B": (10.0, 1.0), "LoRA, 2.05 B": (2.05, 0.01)}


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """What a call gives, and its seconds of the processor."""
    before = time.process_time()
    found = call()
    return found, time.process_time() - before


def printed_cases(quick: bool) -> Iterator[Row]:
    seeds = 2 if quick else 10
    for number, best in enumerate(dtfm_cases.BEST):
        of = dtfm_objective.costs(dtfm_cases.case(number), STAGES)
        runs = [timed(lambda of=of, seed=seed: simulated_annealing.search(of, seed)) for seed in range(seeds)]
        worst = max(layout.score.total for layout, _ in runs)
        peer = genetic(of, 0)
        yield at_most(
            f"DT-FM case {number}: cost, worst of {seeds} seeds",
            worst,
            "s",
            best + PRINTED,
            f"genetic search {peer:.4f}",
        )
        yield at_most(f"DT-FM case {number}: longest search", max(took for _, took in runs), "CPU s", 5.0, "")


def drawn_homes(quick: bool) -> Iterator[Row]:
    ratios, seconds, peers = [], [], []
    for seed in range(1 if quick else 20):
        of = dtfm_objective.costs(homes(64, seed), STAGES)
        layout, took = timed(lambda of=of, seed=seed: simulated_annealing.search(of, seed))
        cost, theirs = timed(lambda of=of, seed=seed: genetic(of, seed))
        ratios.append(layout.score.total / cost)
        seconds.append(took)
        peers.append(theirs)
    name = f"{len(ratios)} networks of 64 homes"
    peer = f"of genetic search, 5,000 evaluations, {statistics.mean(peers):.2f} CPU s each"
    yield at_most(f"{name}: mean cost", statistics.mean(ratios), "x", 0.95, peer)
    yield at_most(f"{name}: worst cost", max(ratios), "x", 1.0, peer)
    yield at_most(f"{name}: longest search", max(seconds), "CPU s", 15.0, "")


def large(quick: bool) -> Iterator[Row]:
    effort = simulated_annealing.SearchEffort(moves=5_000 if quick else 60_000, runs=1)
    for count, goal in ((512, 60.0), (1_200 if quick else 10_000, 120.0)):
        network = homes(count, 0)
        if count <= device_clusters.TOGETHER:
            of = dtfm_objective.costs(network, STAGES)
            layout, took = timed(lambda of=of: simulated_annealing.search(of, 0, effort))
        else:
            layout, took = timed(lambda network=network: device_clusters.place(network, STAGES, 0))
        chance = np.random.default_rng(0).permutation(count).reshape(STAGES, -1)
        random = device_clusters.score(network, chance).total
        yield at_most(f"{count} homes: search", took, "CPU s", goal, "")
        yield told(f"{count} homes: cost", layout.score.total / random, "x", "of a random layout")


def partitions(count: int, ways: int) -> Iterator[Indices]:
    """All ways to make groups of `ways` of so many devices, counted out plainly: the search has a faster way."""

    def groups(left: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
        if not left:
            yield []
            return
        for others in itertools.combinations(left[1:], ways - 1):
            rest = tuple(one for one in left[1:] if one not in others)
            for more in groups(rest):
                yield [(left[0], *others), *more]

    for found in groups(tuple(range(count))):
        yield np.array(found)


def against_all(quick: bool) -> Iterator[Row]:
    shapes = [(2, 2), (2, 3), (3, 2), (2, 4), (4, 2), (3, 3), (2, 5), (5, 2), (2, 6), (3, 4), (4, 3), (6, 2)]
    count, same, seconds = 6 if quick else 200, 0, []
    for seed in range(count):
        stages, ways = shapes[seed % len(shapes)]
        of = dtfm_objective.costs(homes(stages * ways, seed), stages)
        layout, took = timed(lambda of=of, seed=seed: simulated_annealing.search(of, seed))
        least = min(dtfm_objective.score(of, groups).total for groups in partitions(stages * ways, ways))
        same += layout.score.total <= least * (1 + 1e-12)
        seconds.append(took)
    yield at_least(f"{count} networks of 4 to 12 homes: as good as all layouts", same, "networks", count, "")
    yield told(f"{count} networks of 4 to 12 homes: longest search", max(seconds), "CPU s", "")


def uneven(quick: bool) -> Iterator[Row]:
    cards = [StageCard(0.4e12 * rate, (0.9 * memory - 1.0) * 2**30) for rate, memory in MIX]
    for halves in (False, True):
        units = "half layers" if halves else "layers"
        for name, (state, trained) in STATES.items():
            model = decoder(LLAMA, 2048, 2048, state=state, trained=trained, halves=halves)
            case = f"8 cards, {units}, {name}"
            try:
                split = uneven_layers.arrange(model, cards, 16)
            except PolicyError as error:
                yield told(f"{case}: {error.message}", 0.0, "of ideal", "infeasible")
                continue
            same, best = uneven_layers.equal(model, cards).seconds, uneven_layers.ideal(model, cards)
            dealt = "+".join(map(str, split.units))
            yield at_least(
                f"{case}: throughput", same / split.seconds, "x", 1.5, f"equal layers, memory aside; {dealt}"
            )
            yield at_least(f"{case}: of ideal", best / split.seconds, "share", 0.75, "work that is cut anywhere")


def lost(quick: bool) -> Iterator[Row]:
    """From grids that were searched for: what the most pipelines need, without a bound, and with swaps that pay."""
    needed, shares, seconds, bare, kept = [], [], [], [], []
    for count, stages in ((64, 8), (512, 8)):
        fleet, work = fleet_of(count, 0, LLAMA)
        chosen = node_selection.place(
            fleet, work, grid_objective.PlacementGoal(), stages, count // stages, 0, 20_000 if quick else 200_000
        )
        before, grid = chosen.verdict, chosen.grid
        begun = np.cumsum([0, *before.units])[:-1]
        for seed in range(3 if quick else 20):
            gone = np.random.default_rng(seed).choice(count, count // 10, replace=False).tolist()
            least = failure_replan.replan(fleet, work, grid, begun, gone, room=1.0, moves=0)
            new, took = timed(lambda gone=gone, begun=begun, grid=grid, work=work, fleet=fleet: failure_replan.replan(
                fleet, work, grid, begun, gone
            ))  # fmt: skip
            needed.append(least.share)
            bare.append(least.verdict.tokens / before.tokens)
            shares.append(new.share)
            seconds.append(took)
            kept.append(new.verdict.tokens / before.tokens)
    name = "a tenth of 64 and of 512 nodes lost"
    yield at_most(f"{name}: longest re-planning", max(seconds), "CPU s", 1.0, "")
    yield at_most(
        f"{name}: most state that had to move", max(needed), "share", 0.15, "for the most pipelines, unbounded"
    )
    yield told(f"{name}: tokens a second then, mean", statistics.mean(bare), "x", "of before")
    yield told(
        f"{name}: most state moved with swaps",
        max(shares),
        "share",
        f"{failure_replan.ROOM:g} is the bound itself; swaps pay within {failure_replan.HORIZON / 3600:g} h",
    )
    yield told(f"{name}: tokens a second with swaps, mean", statistics.mean(kept), "x", "of before")


def chosen(quick: bool) -> Iterator[Row]:
    """Which nodes, in how many stages and pipelines, under our objective: all numbers of stages."""
    for count, goal in ((128, 60.0),) if quick else ((64, None), (512, 60.0), (10_000, 120.0)):
        fleet, work = fleet_of(count, 0, LLAMA)
        moves = 3_000 if quick else node_selection.MOVES
        found, took = timed(
            lambda fleet=fleet, work=work, moves=moves: node_selection.choose(fleet, work, moves=moves)[0]
        )
        used, name = found.grid.size, f"{count} homes chosen from by our objective"
        yield (
            at_most(f"{name}: search", took, "CPU s", goal, "") if goal else told(f"{name}: search", took, "CPU s", "")
        )
        yield told(
            f"{name}: used", used / count, "share", f"{found.grid.shape[0]} stages, {found.grid.shape[1]} pipelines"
        )


PARTS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "cases": printed_cases, "homes": drawn_homes, "large": large, "exact": against_all, "layers": uneven, "lost": lost,
    "chosen": chosen, "claim": place_claim.rows,
}  # fmt: skip


def warm() -> None:
    """Compiles every loop."""
    small = homes(24, 0)
    of = dtfm_objective.costs(small, 4)
    simulated_annealing.search(of, 0, simulated_annealing.SearchEffort(moves=10, runs=1))
    genetic(of, 0, 2)
    device_clusters.score(
        small,
        device_clusters.place(small, 4, 0, block=12, effort=simulated_annealing.SearchEffort(moves=5, runs=1)).grid,
    )
    uneven_layers.arrange(decoder(LLAMA, 1, 1, state=1.0), [StageCard(1.0, 1e12)], 1)
    fleet, work = fleet_of(16, 0, LLAMA)
    grid = np.arange(16).reshape(8, 2)
    begun = np.arange(8)
    grid_objective.judge(fleet, work, grid)
    failure_replan.replan(fleet, work, grid, begun, [0], room=1.0, moves=1)
    node_selection.place(fleet, work, grid_objective.PlacementGoal(), 8, 2, 0, moves=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cache", default="", help="a folder that keeps compiled loops")
    chosen = parser.parse_args()
    before = load()
    kernels.use("auto", cache=chosen.cache)
    warm()
    for name in chosen.only:
        for row in PARTS[name](chosen.quick):
            show("place", row, before, chosen.out)


if __name__ == "__main__":
    main()
