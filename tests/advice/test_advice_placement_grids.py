"""Our objective against a timeline, and the search for grids: what is dropped, where it begins, what it takes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.advice.placement import grid_loops, grid_objective, grid_starts, node_selection
from farflung.advice.placement.grid_objective import Fleet, GridEvaluation, PlacementGoal, StepWork
from farflung.advice.placement.layer_chain import DecoderShape, decoder
from farflung.advice.placement.link_matrices import Floats, Indices, LinkMatrices, mesh
from farflung.advice.placement.loop_loader import loop
from farflung.advice.traffic.pipeline_schedules import CutTimes, StageTimes, timeline

pytestmark = pytest.mark.xdist_group("placement")  # its loops are compiled in one process only

MODEL = decoder(DecoderShape(8, 1024, 16, 4, 4096, 32000), 2048, 1024, state=16.0)
LARGER = decoder(DecoderShape(24, 2048, 16, 16, 5461, 50257), 2048, 2048, state=16.0)
WORK = StepWork(MODEL, 8, 2048, 4e6, every=10, repair=120.0, audited=0.1)
ANY_CARD = PlacementGoal(similar=float("inf"))
GAP = 0.45  # most that our objective says less than a timeline, 0.39 in 24,000 draws, and MORE than it
MORE = 0.02


def drawn_fleet(seed: int, count: int, sites: int = 3) -> Fleet:
    generator = np.random.default_rng(seed)
    delay, rate = generator.random((sites, sites)) / 50, generator.uniform(1e8, 2e9, (sites, sites))
    lines = generator.uniform(5e7, 1e9, (2, count))
    network = mesh(generator.integers(0, sites, count), delay, rate, lines[0], lines[1])
    return grid_objective.fleet(
        network, generator.choice([1e12, 2e12, 4e12], count), generator.uniform(6, 24, count) * 1e9,
        generator.uniform(0.1, 1.0, count), failures=generator.uniform(0.0, 0.1, count),
    )  # fmt: skip


def played(fleet: Fleet, work: StepWork, grid: Indices, verdict: GridEvaluation) -> float:
    """Seconds of the slowest pipeline, event by event; an inner stage's line is shared by its two neighbours."""
    net, slowest = fleet.mesh, 0.0
    bounds = np.cumsum([0, *verdict.units])
    flop = np.diff(work.chain.sums[0][bounds])
    for nodes in grid.T.tolist():
        spent = [float(part) / fleet.rate[i] for part, i in zip(flop, nodes, strict=True)]
        own = [1.0 if w in (0, len(nodes) - 1) else 0.5 for w in range(len(nodes))]
        cuts = []
        for w, (i, j) in enumerate(itertools.pairwise(nodes)):
            a, b = net.site[i], net.site[j]
            there = min(net.rate[a, b], own[w] * net.up[i], own[w + 1] * net.down[j])
            back = min(net.rate[b, a], own[w + 1] * net.up[j], own[w] * net.down[i])
            bits = 8 * work.handed
            cuts.append(CutTimes(float(bits / there), float(net.delay[a, b]), float(bits / back)))
        stages = [StageTimes(each / 3, 2 * each / 3) for each in spent]
        slowest = max(slowest, timeline(stages, work.micro_batches, cuts=cuts).seconds)
    return slowest


@pytest.mark.whole
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 40), st.integers(1, 4), st.booleans())
@settings(max_examples=40)
def test_a_pipeline_takes_what_a_timeline_of_it_takes(
    seed: int, stages: int, micro: int, sites: int, lines: bool
) -> None:
    assert 1 - GAP <= beside_timeline(seed, stages, micro, sites, lines=lines) <= 1 + MORE


@pytest.mark.slow
def test_most_pipelines_take_nearly_what_their_timelines_take() -> None:
    """The median is the same, nine in ten are within a tenth."""
    luck = np.random.default_rng(9)
    bounds = [(1, 9), (1, 41), (1, 5), (0, 2)]
    drawn = [[int(luck.integers(*bound)) for bound in bounds] for _ in range(100)]
    found = [
        beside_timeline(seed, stages, micro, sites, lines=bool(lines))
        for seed, (stages, micro, sites, lines) in enumerate(drawn)
    ]
    assert np.median(found) == pytest.approx(1.0, abs=0.005)
    assert np.mean(np.array(found) > 0.9) > 0.9


def beside_timeline(seed: int, stages: int, micro: int, sites: int, *, lines: bool) -> float:
    """Over sites that are joined by 3 Mbit/s to 3 Gbit/s, up to some hundred ms apart."""
    generator = np.random.default_rng(seed)
    delay = generator.exponential(0.05, (sites, sites))
    rate = 10 ** generator.uniform(6.5, 9.5, (sites, sites))
    own = 10 ** generator.uniform(6.5, 9.5, (2, stages)) if lines else (None, None)
    network = mesh(generator.integers(0, sites, stages), (delay + delay.T) / 2, rate, *own)
    fleet = grid_objective.fleet(network, 10 ** generator.uniform(12, 13.5, stages), np.full(stages, 1e12))
    work = StepWork(MODEL, micro, 2048, 4e6)
    grid = np.arange(stages)[:, None]
    verdict = grid_objective.judge(fleet, work, grid)
    return float(verdict.step) / played(fleet, work, grid, verdict)


@pytest.mark.whole
@pytest.mark.parametrize("between", [1e9, 1e8, 2e7, 5e6])
def test_what_lies_between_sites_holds_up_every_micro_batch(between: float) -> None:
    rate = [[1e9, between], [between, 1e9]]
    lines = [1e9, 1e9]
    for up in (lines, None):
        fleet = grid_objective.fleet(
            mesh([0, 1], [[0, 0.05], [0.05, 0]], rate, up, up), np.full(2, 2e13), np.full(2, 1e12)
        )
        work, grid = StepWork(MODEL, 32, 2048, 2 * 2048 * 1024.0), np.array([[0], [1]])
        verdict = grid_objective.judge(fleet, work, grid)
        assert verdict.step == pytest.approx(played(fleet, work, grid, verdict), rel=0.02)


def four_sites(between: float) -> LinkMatrices:
    """16 nodes, every fourth at the same site."""
    rate, delay = np.full((4, 4), between), np.full((4, 4), 0.04)
    np.fill_diagonal(rate, 2e9)
    np.fill_diagonal(delay, 0.002)
    return mesh(np.arange(16) % 4, delay, rate, np.full(16, 1e9), np.full(16, 1e9))


PIPELINES_INSIDE = np.arange(16).reshape(4, 4)
STAGES_INSIDE = np.ascontiguousarray(PIPELINES_INSIDE.T)


def equal_nodes(between: float, every: int) -> tuple[Fleet, StepWork]:
    fleet = grid_objective.fleet(four_sites(between), np.full(16, 4e13), np.full(16, 8e10))
    return fleet, StepWork(LARGER, 32, 2048, 2 * 2048 * 2048.0, every=every)


@pytest.mark.slow
@pytest.mark.parametrize(("between", "every"), [(2e8, 1), (2e8, 5), (5e7, 1), (5e7, 5), (5e7, 20)])
def test_of_two_layouts_the_one_is_better_that_a_timeline_says(between: float, every: int) -> None:
    fleet, work = equal_nodes(between, every)
    said, true = [], []
    for grid in (PIPELINES_INSIDE, STAGES_INSIDE):
        verdict = grid_objective.judge(fleet, work, grid)
        said.append(verdict.step)
        true.append(played(fleet, work, grid, verdict) + verdict.exchange)
    assert (said[0] < said[1]) == (true[0] < true[1])


@pytest.mark.whole
@pytest.mark.parametrize(("every", "best"), [(1, STAGES_INSIDE), (20, PIPELINES_INSIDE)])
def test_sites_are_found_whichever_way_they_are_to_be_used(every: int, best: Indices) -> None:
    fleet, work = equal_nodes(5e7, every)
    ceiling = grid_objective.judge(fleet, work, best).step
    for seed in range(3):
        found = node_selection.place(fleet, work, PlacementGoal(), 4, 4, seed, 500)
        assert found.verdict.step <= ceiling * (1 + 1e-9)


@pytest.mark.slow
def test_swaps_find_what_no_grid_to_begin_with_has() -> None:
    fleet = drawn_fleet(11, 18)
    still, swapped = (node_selection.place(fleet, WORK, ANY_CARD, 3, 4, 0, moves) for moves in (0, 6_000))
    assert swapped.verdict.tokens > 1.1 * still.verdict.tokens


@pytest.mark.whole
def test_what_is_worse_for_a_while_leads_to_what_is_better() -> None:
    """The same swaps, with temperatures and without."""
    totals = []
    for hot, cold in ((node_selection.HOT, node_selection.COLD), (1e-9, 1e-9)):
        total = 0.0
        for seed in range(6):
            fleet = drawn_fleet(seed, 18)
            grid, spare = np.arange(16).reshape(4, 4).copy(), np.array([16, 17])
            draws = np.random.default_rng(seed).random((4_000, 4))
            given = (*grid_objective.arguments(fleet, WORK, ANY_CARD), False)
            total += loop("grid_loops", "anneal_grid")(grid, spare, *given, draws, hot, cold, 0.01)
        totals.append(total)
    assert totals[0] < 0.98 * totals[1]


def least(fleet: Fleet, wish: PlacementGoal, count: int) -> float:
    """Of all grids of all shapes."""
    weigh, given = loop("grid_loops", "weigh_grid"), grid_objective.arguments(fleet, WORK, wish)
    best = math.inf
    for stages in range(1, count):
        for ways in range(1, count // stages + 1):
            for order in itertools.permutations(range(count), stages * ways):
                grid = np.array(order).reshape(stages, ways)
                best = min(best, float(weigh(grid, *given, wish.by_money, 0.0)))
    return best


@pytest.mark.whole
def test_of_five_nodes_none_of_all_grids_is_better(subtests: pytest.Subtests) -> None:
    for by_money in [False, True]:
        for seed in range(6):
            with subtests.test(by_money=by_money, seed=seed):
                fleet, wish = drawn_fleet(seed, 5), PlacementGoal(by_money=by_money, similar=float("inf"))
                best = node_selection.choose(fleet, WORK, wish, stages=(1, 2, 3, 4), moves=1000)[0]
                given = grid_objective.arguments(fleet, WORK, wish)
                found = float(loop("grid_loops", "weigh_grid")(best.grid, *given, by_money, 0.0))
                assert found == pytest.approx(least(fleet, wish, 5))


def in_one_place(rate: Floats, price: Floats, network: LinkMatrices | None = None) -> Fleet:
    count = len(rate)
    line = np.full(count, 1e9)
    here = network or mesh(np.zeros(count, np.int64), [[0.005]], [[1e9]], line, line)
    return grid_objective.fleet(here, rate, np.full(count, 3e10), price)


@pytest.mark.whole
def test_most_nodes_are_dropped_where_few_do_the_work() -> None:
    work = StepWork(MODEL, 8, 2048, 4e6, every=100, repair=120.0)
    fast = in_one_place(np.array([4e12] * 4 + [4e9] * 12), np.ones(16))
    best = node_selection.choose(fast, work, stages=(1,), moves=300)[0]
    assert set(best.grid.reshape(-1)) == {0, 1, 2, 3}
    any_number = node_selection.choose(fast, work, stages=(1, 2, 4), moves=300)[0]
    assert any_number.verdict.tokens >= best.verdict.tokens
    by_money = PlacementGoal(by_money=True)
    cheap = in_one_place(np.full(16, 4e12), np.array([0.1] * 4 + [10.0] * 12))
    best = node_selection.choose(cheap, work, by_money, stages=(1, 2, 4), moves=300)[0]
    four = grid_objective.judge(cheap, work, np.arange(4).reshape(1, 4), by_money)
    assert best.verdict.price <= four.price


def test_no_number_of_pipelines_is_out_of_reach() -> None:
    for most in (1, 2, 3, 5, 17, 512, 10_000):
        tried = node_selection._pipelines(most)
        assert tried[0] == most
        assert tried[-1] == 1
        assert all(one <= 1 + 2.4 * other for one, other in itertools.pairwise(tried))


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([0.01, 0.0]))
@settings(max_examples=25)
def test_what_swaps_say_of_a_grid_is_what_it_is_worth(seed: int, by_money: bool, tie: float) -> None:
    """Worked out swap by swap from what changed, and once anew."""
    fleet, generator = drawn_fleet(seed, 14), np.random.default_rng(seed)
    wish = PlacementGoal(by_money=by_money, of_one_owner=0.5)
    order = generator.permutation(14)
    grid, spare = order[:12].reshape(3, 4).copy(), order[12:].copy()
    given = (*grid_objective.arguments(fleet, WORK, wish), by_money)
    begins = float(loop("grid_loops", "weigh_grid")(grid, *given, 0.0))
    said = loop("grid_loops", "anneal_grid")(grid, spare, *given, generator.random((400, 4)), 0.3, 0.001, tie)
    assert sorted([*grid.reshape(-1), *spare]) == list(range(14))
    assert said == pytest.approx(float(loop("grid_loops", "weigh_grid")(grid, *given, 0.0)))
    assert said <= begins


@pytest.mark.whole
def test_without_numba_grids_are_swapped_the_same_way() -> None:
    fleet, draws = drawn_fleet(3, 9), np.random.default_rng(3).random((120, 4))
    given = (*grid_objective.arguments(fleet, WORK, ANY_CARD), False, draws, 0.1, 0.001, 0.01)
    found = []
    for run in (loop("grid_loops", "anneal_grid"), getattr(grid_loops.anneal_grid, "py_func", None)):
        grid, spare = np.arange(8).reshape(2, 4).copy(), np.array([8])
        found.append((run or grid_loops.anneal_grid)(grid, spare, *given))
        found.append(grid.tolist())
    assert found[:2] == found[2:]


def test_grids_to_begin_with_keep_similar_cards_together_and_leave_the_rest() -> None:
    fleet = in_one_place(np.array([8e12, 4e12, 4e12, 4e12, 1e12, 1e12, 1e12]), np.ones(7))
    grids = list(grid_starts.GridStarts(fleet, WORK, PlacementGoal()).grids(2, 3))
    assert min(grid_objective.judge(fleet, WORK, grid).breach for grid in grids) == 0.0
    for grid in grids:
        assert len(set(grid.reshape(-1))) == 6


def test_effort_is_bounded_whatever_the_fleet() -> None:
    for stages, ways in ((1, 10_000), (8, 64), (32, 312)):
        moves = node_selection.WORK / 50 / node_selection._effort(WORK, stages, ways)
        assert moves < 1e6
    assert node_selection._effort(WORK, 8, 10_000) > 10 * node_selection._effort(WORK, 8, 10)
