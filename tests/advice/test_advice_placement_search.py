"""Groups under DT-FM's objective: matchings, tours, starts and annealing against looking at everything."""

from __future__ import annotations

import importlib.util
import itertools
import types
from collections.abc import Callable
from typing import Any

import dtfm_cases
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.advice.placement import (
    device_clusters,
    dtfm_objective,
    exhaustive_search,
    group_search_loops,
    group_starts,
    open_tsp,
    simulated_annealing,
)
from farflung.advice.placement.dtfm_objective import matching
from farflung.advice.placement.link_matrices import Floats, LinkMatrices, mesh
from farflung.advice.placement.loop_loader import loop
from farflung.core.errors import UsageError

pytestmark = pytest.mark.xdist_group("placement")  # its loops are compiled in one process only

SEEDS = st.integers(0, 2**32 - 1)
BEST_PRINTED = (3.4398, 31.6342, 16.0868, 34.8020, 49.2184)


def symmetric(seed: int, count: int, kinds: int = 0) -> Floats:
    """Random times between all pairs, a diagonal of 0; of few different values where `kinds` says."""
    generator = np.random.default_rng(seed)
    values = generator.integers(1, kinds + 1, (count, count)) if kinds else generator.random((count, count))
    half = np.triu(values.astype(np.float64), 1)
    return half + half.T


def random_costs(seed: int, stages: int, ways: int) -> dtfm_objective.DtfmCosts:
    kinds = seed % 3 * 2
    count = stages * ways
    return dtfm_objective.DtfmCosts(symmetric(seed, count, kinds), symmetric(seed + 1, count, kinds), stages, ways)


def drawn(seed: int, count: int, sites: int = 4) -> LinkMatrices:
    generator = np.random.default_rng(seed)
    delay, rate = generator.random((sites, sites)) / 10, generator.uniform(1e8, 2e9, (sites, sites))
    lines = generator.uniform(5e7, 1e9, (2, count))
    return mesh(generator.integers(0, sites, count), delay, rate, lines[0], lines[1])


@pytest.mark.slow
@given(SEEDS, st.integers(1, 6), st.integers(0, 4))
@settings(max_examples=40)
def test_a_matching_is_perfect_and_its_slowest_pair_as_fast_as_any(seed: int, ways: int, kinds: int) -> None:
    hop = symmetric(seed, 2 * ways, kinds)
    left, right = np.arange(ways), np.arange(ways, 2 * ways)
    pair, slowest = matching(hop, left, right)
    every = itertools.permutations(range(ways))
    assert sorted(pair) == list(range(ways))
    assert slowest == max(hop[i, right[k]] for i, k in zip(left, pair, strict=True))
    assert slowest == min(max(hop[i, right[k]] for i, k in enumerate(one)) for one in every)


@given(SEEDS, st.integers(1, 7), st.integers(0, 4))
@settings(max_examples=60)
def test_a_tour_of_few_stages_is_the_shortest(seed: int, count: int, kinds: int) -> None:
    between = symmetric(seed, count, kinds)
    order, length = open_tsp.shortest(between)

    def long(one: tuple[int, ...]) -> float:
        return sum(between[a, b] for a, b in itertools.pairwise(one))

    assert sorted(order) == list(range(count))
    assert length == pytest.approx(long(tuple(order)))
    assert length == pytest.approx(min(long(one) for one in itertools.permutations(range(count))))


@pytest.mark.whole
def test_longer_tours_are_found_where_stages_stand_in_a_line() -> None:
    places = np.random.default_rng(3).permutation(40)
    order, length = open_tsp.shortest(np.abs(places[:, None] - places).astype(float))
    assert length == 39.0
    assert list(np.diff(places[order])) in ([1] * 39, [-1] * 39)


@given(SEEDS)
@settings(max_examples=15)
def test_a_window_finds_what_two_opt_does_not_and_never_loses(seed: int) -> None:
    between = symmetric(seed, 12)
    rough = np.random.default_rng(seed).permutation(12)
    improve, long = loop("group_search_loops", "improve_tour"), loop("group_search_loops", "tour_length")
    local = improve(between, rough)
    before = rough.copy()
    for first in range(12 - open_tsp.WINDOW + 1):
        open_tsp._window(between, rough, first)
        assert sorted(rough) == list(range(12))
        assert long(between, rough) <= long(between, before) + 1e-9
        before = rough.copy()
    exactly = open_tsp.shortest(between)[1]
    assert exactly <= long(between, rough) + 1e-9 <= local + 2e-9


@pytest.mark.whole
@pytest.mark.parametrize("number", range(5))
def test_dtfm_cases_reach_the_least_known_cost_to_four_digits(number: int) -> None:
    of = dtfm_objective.costs(dtfm_cases.case(number), 8)
    layout = simulated_annealing.search(of, number, simulated_annealing.SearchEffort(moves=200, runs=1))
    assert layout.score.total < BEST_PRINTED[number] + 0.00005
    assert dtfm_cases.BEST == BEST_PRINTED


@pytest.mark.slow
def test_a_score_is_what_its_grid_costs_hop_by_hop() -> None:
    network = drawn(5, 24)
    of = dtfm_objective.costs(network, 4)
    layout = simulated_annealing.search(of, 1, simulated_annealing.QUICK)
    again = device_clusters.score(network, layout.grid)
    assert sorted(layout.grid.reshape(-1)) == list(range(24))
    assert again.exchange == pytest.approx(layout.score.exchange)
    assert again.pipeline == pytest.approx(layout.score.pipeline)
    assert dtfm_objective.score(of, layout.grid).total == pytest.approx(layout.score.total)


def test_times_count_both_ways_and_the_slowest_of_three_lines() -> None:
    network = mesh([0, 1], [[0.0, 0.01], [0.03, 0.0]], [[1e9, 8e6], [8e7, 1e9]], [4e6, 1e9], [1e9, 2e6])
    of = dtfm_objective.costs(network, 1, exchanged=2e6, handed=1e6)
    there, back = 0.01 + 8e6 / 2e6, 0.03 + 8e6 / 8e7
    assert of.lateral[0, 1] == of.lateral[1, 0] == pytest.approx(there + back)
    assert of.hop[0, 1] == pytest.approx(there + back)
    assert of.hop[0, 0] == 0.0


@pytest.mark.whole
@given(SEEDS, st.sampled_from([(2, 2), (2, 3), (3, 2), (2, 4)]))
@settings(max_examples=20)
def test_of_few_devices_the_search_finds_the_best_of_all_layouts(seed: int, shape: tuple[int, int]) -> None:
    """Every order of the devices as a grid: each layout many times over, and none left out."""
    stages, ways = shape
    of, every = random_costs(seed, *shape), itertools.permutations(range(stages * ways))
    exchanged = {
        group: max(sum(of.lateral[i, j] for j in group) for i in group)
        for group in itertools.combinations(range(stages * ways), ways)
    }
    hops = {
        (one, other): min(
            max(of.hop[i, j] for i, j in zip(one, order, strict=True)) for order in itertools.permutations(other)
        )
        for one in exchanged
        for other in exchanged
        if not set(one) & set(other)
    }
    least = np.inf
    for order in every:
        groups = [tuple(sorted(order[at : at + ways])) for at in range(0, stages * ways, ways)]
        along = sum(hops[one, other] for one, other in itertools.pairwise(groups))
        least = min(least, max(exchanged[group] for group in groups) + along)
    assert simulated_annealing.search(of, seed).score.total == pytest.approx(least)


@given(st.sampled_from([(4, 2), (3, 3), (6, 2), (4, 3)]))
@settings(max_examples=4)
def test_every_partition_is_looked_at_once(shape: tuple[int, int]) -> None:
    stages, ways = shape
    seen = [frozenset(map(frozenset, one)) for one in exhaustive_search.partitions(tuple(range(stages * ways)), ways)]
    counted = 1
    for left in range(stages * ways, 0, -ways):
        counted *= len(list(itertools.combinations(range(left - 1), ways - 1)))
    assert len(set(seen)) == len(seen) == counted


@pytest.mark.slow
@given(SEEDS, st.sampled_from([(2, 5), (4, 3), (8, 2)]), st.floats(0.0, 0.2))
@settings(max_examples=25)
def test_what_annealing_says_is_what_its_groups_cost(seed: int, shape: tuple[int, int], tie: float) -> None:
    of = random_costs(seed, *shape)
    generator = np.random.default_rng(seed)
    groups = generator.permutation(shape[0] * shape[1]).reshape(shape)
    before = dtfm_objective.score(of, groups).total
    draws = generator.random((300, 4))
    run = loop("group_search_loops", "anneal")
    said = run(of.lateral, of.hop, np.arange(groups.size), groups, draws, 0.5, 0.001, tie)
    assert sorted(groups.reshape(-1)) == list(range(groups.size))
    assert said == pytest.approx(dtfm_objective.score(of, groups).total)
    assert said <= before + 1e-9


def plain(name: str) -> types.ModuleType:
    """A module of loops as it is where numba is not installed."""
    found = importlib.util.spec_from_file_location(
        name, group_search_loops.__file__.replace("group_search_loops", name)
    )
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.whole
def test_without_numba_the_search_goes_the_same_way() -> None:
    of = random_costs(11, 4, 3)
    generator = np.random.default_rng(11)
    draws = generator.random((80, 4))
    first, second = (np.arange(12).reshape(4, 3).copy() for _ in range(2))
    compiled, as_it_stands = loop("group_search_loops", "anneal"), plain("group_search_loops").anneal
    assert isinstance(as_it_stands, types.FunctionType)
    costs = [
        run(of.lateral, of.hop, np.arange(12), groups, draws, 0.5, 0.01, 0.1)
        for run, groups in ((compiled, first), (as_it_stands, second))
    ]
    assert costs[0] == costs[1]
    assert (first == second).all()


def test_swaps_find_what_no_start_has_and_more_runs_more_of_it() -> None:
    costs: dict[int, list[float]] = {0: [], 1: [], 6: []}
    for seed in range(4):
        of = dtfm_objective.costs(drawn(seed, 24, 8), 4)
        for runs, found in costs.items():
            effort = simulated_annealing.SearchEffort(moves=1_500, runs=runs, patience=6)
            found.append(simulated_annealing.search(of, seed, effort).score.total)
    none, one, six = (np.array(found) for found in costs.values())
    assert (six <= one).all()
    assert (one <= none).all()
    assert one.mean() < 0.98 * none.mean()
    assert (six < 0.999 * one).any()


def test_no_reversal_and_no_move_of_a_stage_shortens_an_improved_tour(subtests: pytest.Subtests) -> None:
    for seed in range(30):
        with subtests.test(seed=seed):
            count = 20
            between = symmetric(seed, count)
            order = np.random.default_rng(seed).permutation(count)
            length = loop("group_search_loops", "improve_tour")(between, order)
            long, tour_ = loop("group_search_loops", "tour_length"), list(order)
            for i, j in itertools.combinations(range(count), 2):
                turned = [*tour_[:i], *tour_[i : j + 1][::-1], *tour_[j + 1 :]]
                assert long(between, np.array(turned)) >= length - 1e-9
            for i, j in itertools.permutations(range(count), 2):
                moved = tour_[:i] + tour_[i + 1 :]
                moved.insert(j, tour_[i])
                assert long(between, np.array(moved)) >= length - 1e-9


def test_devices_that_are_alike_are_not_swapped_and_less_is_tried_where_many_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of, groups = random_costs(5, 4, 3), np.arange(12).reshape(4, 3)
    draws = np.random.default_rng(0).random((300, 4))
    loop("group_search_loops", "anneal")(of.lateral, of.hop, np.zeros(12, np.int64), groups, draws, 9.0, 1.0, 0.1)
    assert (groups == np.arange(12).reshape(4, 3)).all()
    tried = []
    run = loop("group_search_loops", "anneal")

    def counted(module: str, name: str) -> Callable[..., Any]:
        def seen(*arguments: Any) -> Any:
            tried.append(len(arguments[4]))
            return run(*arguments)

        return seen if name == "anneal" else loop(module, name)

    monkeypatch.setattr(simulated_annealing, "loop", counted)
    effort = simulated_annealing.SearchEffort(moves=400, runs=1)
    simulated_annealing.search(dtfm_objective.costs(dtfm_cases.case(0), 8), 0, effort)
    simulated_annealing.search(dtfm_objective.costs(drawn(1, 16), 4), 0, effort)
    assert tried == [100, 400]


def test_on_a_plateau_the_means_decide() -> None:
    """One device is far from all, so that every layout costs the same; the others make pairs that are near or not."""
    far = np.full((6, 6), 5.0)
    far[0, :] = far[:, 0] = 10.0
    far[1, 2] = far[2, 1] = far[3, 4] = far[4, 3] = 1.0
    draws, kinds = np.random.default_rng(1).random((200, 4)), np.arange(6)
    for tie, expected in ((simulated_annealing.TIE, {(0, 5), (1, 2), (3, 4)}), (0.0, {(0, 1), (2, 3), (4, 5)})):
        groups = np.arange(6).reshape(3, 2)
        loop("group_search_loops", "anneal")(far, np.ones((6, 6)), kinds, groups, draws, 1e-3, 1e-6, tie)
        assert {tuple(sorted(int(i) for i in group)) for group in groups} == expected


def test_starts_put_one_of_every_clique_into_each_group_and_those_alone_together() -> None:
    of = dtfm_objective.costs(dtfm_cases.case(1), 8)
    begun = group_starts.starts(of)
    totals = [dtfm_objective.score(of, groups).total for groups in begun]
    best = begun[int(np.argmin(totals))]
    assert min(totals) < BEST_PRINTED[1] + 0.00005
    spot = [sorted(i // 4 for i in group) for group in best if (group < 32).all()]
    assert spot == [list(range(8))] * 4
    for groups in begun:
        assert sorted(groups.reshape(-1)) == list(range(64))


def test_one_of_every_clique_in_each_group_is_among_the_orders() -> None:
    """Cliques of three, and one alone: spread, the alone last; what is said to go first goes first."""
    clique = np.array([0, 1, 0, 1, 2, 0, 1])
    orders = [order.tolist() for order in group_starts.spread(clique)]
    assert [0, 1, 2, 3, 5, 6, 4] in orders
    assert [0, 2, 5, 1, 3, 6, 4] in orders
    kept = [order.tolist() for order in group_starts.spread(clique, np.array([1, 1, 1, 1, 0, 1, 1]))]
    assert [4, 0, 1, 2, 3, 5, 6] in kept


def test_inside_a_site_those_with_a_poor_line_are_last() -> None:
    up = [1e6, 9e6, 5e6, 2e6]
    network = mesh([0, 0, 0, 0], [[0.01]], [[1e9]], up, [1e7] * 4)
    assert device_clusters.line(network, 1e6).tolist() == [1, 2, 3, 0]


def test_interchangeable_devices_have_one_number() -> None:
    kinds = group_starts.alike(dtfm_objective.costs(dtfm_cases.case(2), 8))
    assert (kinds[:32] == 0).all()
    assert (kinds[32:] == 32).all()
    kinds = group_starts.alike(dtfm_objective.costs(drawn(1, 16), 4))
    assert len(set(kinds)) == 16


def test_the_same_seed_gives_the_same_layout_and_another_seed_another_way() -> None:
    of = dtfm_objective.costs(drawn(2, 24), 4)
    one, two = (simulated_annealing.search(of, 7, simulated_annealing.QUICK) for _ in range(2))
    assert (one.grid == two.grid).all()
    assert one.score == two.score


def test_blocks_hold_every_device_once_and_only_whole_pipelines() -> None:
    network = drawn(3, 120)
    parts = list(device_clusters.blocks(network, 4, 1e6, 30))
    assert sorted(np.concatenate(parts)) == list(range(120))
    assert all(len(part) % 4 == 0 and len(part) <= 32 for part in parts)


def test_a_layout_of_blocks_holds_everybody_and_beats_chance() -> None:
    network = drawn(4, 96, 6)
    layout = device_clusters.place(network, 4, 1, effort=simulated_annealing.SearchEffort(moves=500, runs=1), block=24)
    chance = np.random.default_rng(0).permutation(96).reshape(4, 24)
    assert sorted(layout.grid.reshape(-1)) == list(range(96))
    assert layout.score == device_clusters.score(network, layout.grid)
    assert layout.score.pipeline < 0.8 * device_clusters.score(network, chance).pipeline


def test_a_wrong_mesh_is_refused_by_the_name_of_its_field(subtests: pytest.Subtests) -> None:
    for field, change in [
        ("site", {"site": []}),
        ("site", {"site": [0, 2]}),
        ("site", {"site": [0, -1]}),
        ("delay", {"delay": [[0.0, 0.1]]}),
        ("delay", {"delay": [[0.0, -0.1], [0.1, 0.0]]}),
        ("delay", {"delay": [[0.0, float("nan")], [0.1, 0.0]]}),
        ("delay", {"delay": [[0.0, 1e9], [0.1, 0.0]]}),
        ("rate", {"rate": [[1e9, 0.0], [1e9, 1e9]]}),
        ("rate", {"rate": [[1e9, float("nan")], [1e9, 1e9]]}),
        ("rate", {"rate": [[1e9]]}),
        ("up", {"up": [1e6]}),
        ("up", {"up": [1e6, -1.0]}),
        ("down", {"down": [1e6, 0.0]}),
        ("down", {"down": ["fast", 1.0]}),
    ]:
        with subtests.test(field=field, change=change):
            right = {"site": [0, 1], "delay": [[0.0, 0.1], [0.1, 0.0]], "rate": [[1e9, 1e8], [1e8, 1e9]]}
            with pytest.raises(UsageError, match=f"`{field}`") as error:
                mesh(**{**right, **change})  # type: ignore[arg-type]
            assert error.value.code == "FF-PLAN-040"


def test_layouts_that_cannot_be_are_refused() -> None:
    def code(call: object) -> str:
        with pytest.raises(UsageError) as error:
            call()  # type: ignore[operator]
        return error.value.code

    many = mesh(np.zeros(2049, np.int64), [[0.0]], [[1e9]])
    assert code(lambda: dtfm_objective.costs(many, 1)) == "FF-PLAN-041"
    assert code(lambda: dtfm_objective.costs(drawn(0, 10), 3)) == "FF-PLAN-042"
    assert code(lambda: dtfm_objective.costs(drawn(0, 10), 0)) == "FF-PLAN-042"
    assert code(lambda: device_clusters.place(drawn(0, 10), 3, 0)) == "FF-PLAN-042"
    assert code(lambda: dtfm_objective.costs(drawn(0, 10), 5, handed=-1.0)) == "FF-PLAN-049"
    assert code(lambda: dtfm_objective.costs(drawn(0, 10), 5, exchanged=float("nan"))) == "FF-PLAN-049"
    assert code(lambda: exhaustive_search.best(random_costs(0, 7, 2))) == "FF-PLAN-045"
