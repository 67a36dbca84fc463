"""Layers, whole steps, selection, losses and migration: placement of nodes that compute and have memory."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.advice.placement import failure_replan, grid_objective, node_selection, stage_rebalance, uneven_layers
from farflung.advice.placement.grid_objective import Fleet, PlacementGoal, StepWork
from farflung.advice.placement.layer_chain import DecoderShape, LayerChain, chain, decoder
from farflung.advice.placement.link_matrices import Floats, mesh
from farflung.advice.placement.stage_rebalance import StagePeer
from farflung.advice.placement.uneven_layers import StageCard
from farflung.core.errors import FarflungError, PolicyError

pytestmark = pytest.mark.xdist_group("placement")  # its loops are compiled in one process only

SEEDS = st.integers(0, 2**32 - 1)
GIB = 2.0**30


def uniform(units: int, flop: float = 1.0, state: float = 1.0, kept: float = 0.0) -> LayerChain:
    ones = np.ones(units)
    return chain(flop * ones, state * ones, kept * ones, ones)


def drawn_chain(seed: int, units: int) -> LayerChain:
    return chain(*np.random.default_rng(seed).integers(0, 9, (4, units)).astype(float) + 1.0)


def every_cut(units: int, stages: int) -> list[tuple[int, ...]]:
    """All numbers of units of stages in order."""
    cuts = itertools.combinations_with_replacement(range(units + 1), stages - 1)
    return [tuple(b - a for a, b in itertools.pairwise((0, *cut, units))) for cut in cuts]


def by_hand(of: LayerChain, cards: list[StageCard], units: tuple[int, ...], micro: int) -> float:
    """Seconds of the slowest stage, infinite where one does not fit."""
    slowest, first = 0.0, 0
    for at, (card, count) in enumerate(zip(cards, units, strict=True)):
        part = slice(first, first + count)
        flight = min(micro, len(cards) - at)
        if of.state[part].sum() + flight * of.kept[part].sum() > card.memory:
            return float("inf")
        slowest, first = max(slowest, of.flop[part].sum() / card.rate), first + count
    return slowest


def some_cards(seed: int, count: int) -> list[StageCard]:
    generator = np.random.default_rng(seed)
    return [StageCard(float(r), float(m)) for r, m in generator.integers((1, 5), (9, 60), (count, 2))]


@given(SEEDS, st.integers(1, 7), st.integers(1, 4), st.integers(1, 3))
def test_a_chain_is_cut_as_well_as_any_cut_under_memory(seed: int, units: int, count: int, micro: int) -> None:
    of, cards = drawn_chain(seed, units), some_cards(seed, count)
    best = min(by_hand(of, cards, cut, micro) for cut in every_cut(units, count))
    if best == float("inf"):
        with pytest.raises(PolicyError, match="memory binds") as error:
            uneven_layers.divide(of, cards, micro)
        assert error.value.code == "FF-PLAN-047"
    else:
        split = uneven_layers.divide(of, cards, micro)
        assert sum(split.units) == units
        assert split.seconds == pytest.approx(best)
        assert by_hand(of, cards, split.units, micro) == pytest.approx(best)


@given(SEEDS, st.integers(1, 6), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=40)
def test_no_order_and_no_subset_of_cards_is_better(seed: int, units: int, count: int, micro: int) -> None:
    of, cards = drawn_chain(seed, units), some_cards(seed, count)
    best = float("inf")
    for size in range(1, count + 1):
        for order in itertools.permutations(range(count), size):
            used = [cards[i] for i in order]
            best = min(best, *(by_hand(of, used, cut, micro) for cut in every_cut(units, size)))
    if best == float("inf"):
        with pytest.raises(PolicyError, match="memory binds"):
            uneven_layers.arrange(of, cards, micro)
    else:
        split = uneven_layers.arrange(of, cards, micro)
        used = [cards[i] for i in split.cards]
        assert split.seconds == pytest.approx(best)
        assert by_hand(of, used, split.units, micro) == pytest.approx(best)
        assert len(set(split.cards)) == len(split.cards)


def test_what_does_not_fit_says_how_much_does() -> None:
    with pytest.raises(PolicyError, match="these cards hold 5 of 9 units"):
        uneven_layers.divide(uniform(9), [StageCard(1.0, 3.5), StageCard(1.0, 2.9)], 1)


def test_equal_layers_leave_the_ends_to_the_ends_and_ask_for_no_memory() -> None:
    split = uneven_layers.equal(uniform(10), [StageCard(1.0, 0.0), StageCard(2.0, 0.0)])
    assert split.units == (5, 5)
    assert split.seconds == 5.0
    assert uneven_layers.equal(uniform(34), [StageCard(1.0, 0.0)] * 8).units == (5, 4, 4, 4, 4, 4, 4, 5)


def test_a_decoder_has_its_parameters_and_its_work() -> None:
    model = DecoderShape(32, 4096, 32, 8, 14336, 128256)  # Llama 3 8B: 8.03e9 parameters, norms left out
    of = decoder(model, 2048, 2048, state=16.0)
    assert of.state.sum() / 16 == pytest.approx(8.03e9, rel=0.001)
    assert len(of) == 34
    assert of.flop[0] == 0.0
    weights = of.state[1:].sum() / 16
    assert of.flop.sum() == pytest.approx(2048 * (8 * weights + 32 * 16 * 2048 * 4096))
    halves = decoder(model, 2048, 2048, state=16.0, halves=True)
    assert len(halves) == 66
    assert halves.flop.sum() == pytest.approx(of.flop.sum())
    frozen = decoder(model, 2048, 2048, state=2.0, trained=0.0)
    assert frozen.exchanged.sum() == 0.0
    assert frozen.flop[5] == pytest.approx(of.flop[5] - 2 * 2048 * of.state[5] / 16)


def small_fleet(seed: int, count: int, **other: Floats) -> Fleet:
    generator = np.random.default_rng(seed)
    delay, rate = generator.random((3, 3)) / 50, generator.uniform(1e8, 2e9, (3, 3))
    lines = generator.uniform(5e7, 1e9, (2, count))
    network = mesh(generator.integers(0, 3, count), delay, rate, lines[0], lines[1])
    values = {
        "rate": generator.choice([1e12, 2e12, 4e12], count), "memory": generator.uniform(6, 24, count) * 1e9,
        "price": generator.uniform(0.1, 1.0, count), "failures": generator.uniform(0.0, 0.1, count),
    }  # fmt: skip
    return grid_objective.fleet(network, **{**values, **other})


MODEL = DecoderShape(8, 1024, 16, 4, 4096, 32000)
WORK = StepWork(decoder(MODEL, 2048, 1024, state=16.0), 8, 2048, 4e6, every=10, repair=120.0, audited=0.1)


def sent(fleet: Fleet, i: int, j: int, size: float, own: float = 1.0, other: float = 1.0) -> float:
    """Seconds of `size` bytes on their way; `own`, `other`: of their lines, what they have for each other."""
    net, (a, b) = fleet.mesh, (fleet.mesh.site[i], fleet.mesh.site[j])
    return float(net.delay[a, b] + 8 * size / min(net.rate[a, b], own * net.up[i], other * net.down[j]))


def pipeline_by_hand(fleet: Fleet, work: StepWork, nodes: tuple[int, ...], compute: list[float]) -> float:
    """The first micro-batch, and the slowest of all ways in which the others may follow it."""
    last, m = len(nodes) - 1, work.micro_batches
    share = [0.5 if 0 < w < last else 1.0 for w in range(len(nodes))]
    delay = fleet.mesh.delay
    there = [sent(fleet, nodes[w], nodes[w + 1], work.handed, share[w], share[w + 1]) for w in range(last)]
    back = [sent(fleet, nodes[w + 1], nodes[w], work.handed, share[w + 1], share[w]) for w in range(last)]
    hops = [one + other for one, other in zip(there, back, strict=True)]
    on_way = [(delay[a, b], delay[b, a]) for a, b in itertools.pairwise(fleet.mesh.site[list(nodes)])]
    wires = [one - way[0] for one, way in zip(there, on_way, strict=True)]
    wires += [one - way[1] for one, way in zip(back, on_way, strict=True)]
    free = max(*(2 / 3 * each for each in compute), *wires, 0.0)
    longest = (m - 1) * free
    for u in range(last + 1):
        for v in range(u, last + 1):
            times = -(-(m - 1 - (last - u)) // (v - u + 1))
            if m - 1 > last - u:
                loop = sum(compute[u : v + 1]) + sum(hops[u:v])
                longest = max(longest, times * loop + (m - 1 - times * (v - u + 1)) * free)
    return sum(compute) + sum(hops) + longest


def step_by_hand(fleet: Fleet, work: StepWork, grid: list[list[int]], units: tuple[int, ...]) -> dict[str, float]:
    """The formulas of the module's head, written down once more."""
    ends = list(itertools.accumulate(units))
    part = [slice(end - count, end) for end, count in zip(ends, units, strict=True)]
    slowest, useful, price = 0.0, [], 0.0
    pipelines = list(zip(*grid, strict=True))
    for nodes in pipelines:
        compute = [work.chain.flop[part[w]].sum() / fleet.rate[i] for w, i in enumerate(nodes)]
        slowest = max(slowest, pipeline_by_hand(fleet, work, nodes, compute))
        price += sum(fleet.price[i] for i in nodes)
    exchange = 0.0
    for w, row in enumerate(grid):
        share = work.chain.exchanged[part[w]].sum() / len(row)
        ring = [sent(fleet, i, row[(p + 1) % len(row)], share) for p, i in enumerate(row)]
        exchange = max(exchange, 2 * (len(row) - 1) * max(ring))
    step = slowest + exchange / work.every
    for nodes in pipelines:
        failures = sum(fleet.failures[i] for i in nodes) / 3600
        useful.append(1 / (1 + failures * (work.repair + work.every * step / 2)))
    tokens = work.tokens * work.micro_batches * sum(useful) / step
    return {"step": step, "tokens": tokens, "price": price / 3600 * (1 + work.audited) / tokens * 1e6}


@given(SEEDS, st.sampled_from([(1, 1), (1, 3), (2, 2), (3, 2), (4, 1)]))
def test_a_verdict_is_its_formulas_by_hand(seed: int, shape: tuple[int, int]) -> None:
    fleet = small_fleet(seed, shape[0] * shape[1])
    grid = np.random.default_rng(seed).permutation(len(fleet)).reshape(shape)
    verdict = grid_objective.judge(fleet, WORK, grid)
    hand = step_by_hand(fleet, WORK, grid.tolist(), verdict.units)
    assert sum(verdict.units) == len(WORK.chain)
    assert verdict.step == pytest.approx(hand["step"])
    assert verdict.step == pytest.approx(verdict.first + verdict.rest + verdict.exchange)
    assert verdict.tokens == pytest.approx(hand["tokens"])
    assert verdict.price == pytest.approx(hand["price"])


def test_layers_are_dealt_by_the_worst_card_of_each_stage() -> None:
    fleet = small_fleet(1, 4, rate=np.array([1e12, 8e12, 4e12, 4e12]), memory=np.full(4, 1e12))
    units = grid_objective.judge(fleet, WORK, np.array([[0, 1], [2, 3]])).units
    apart = uneven_layers.divide(WORK.chain, [StageCard(1e12, 1e12), StageCard(4e12, 1e12)], WORK.micro_batches).units
    assert units == apart
    small = small_fleet(1, 4, memory=np.array([1e12, 1.0, 1e12, 1e12]))
    assert grid_objective.judge(small, WORK, np.array([[0, 1], [2, 3]])).units[0] == 0


def test_a_grid_that_cannot_hold_the_model_names_what_is_left_over() -> None:
    fleet = small_fleet(2, 4, memory=np.full(4, 4e8))
    verdict = grid_objective.judge(fleet, WORK, np.array([[0, 1], [2, 3]]))
    assert verdict.infeasible > 0
    assert verdict.tokens == 0.0
    with pytest.raises(PolicyError, match="memory binds") as error:
        node_selection.choose(fleet, WORK, moves=50)
    assert error.value.code == "FF-PLAN-047"


@pytest.mark.slow
def test_a_node_that_costs_more_than_it_does_is_left_out() -> None:
    rate = np.array([4e12] * 6 + [2e10] * 2)
    fleet = small_fleet(3, 8, rate=rate, memory=np.full(8, 3e10), failures=np.zeros(8), price=np.ones(8))
    best = node_selection.choose(fleet, WORK, stages=(1, 2, 4), moves=2000)[0]
    assert set(best.spares) >= {6, 7}
    everybody = grid_objective.judge(fleet, WORK, np.arange(8).reshape(1, 8))
    assert best.verdict.tokens > 3 * everybody.tokens


def test_money_and_time_choose_differently() -> None:
    rate, price = np.array([4e12] * 4 + [3.5e12] * 4), np.array([10.0] * 4 + [1.0] * 4)
    fleet = small_fleet(4, 8, rate=rate, price=price, memory=np.full(8, 3e10), failures=np.zeros(8))
    cheap = node_selection.choose(fleet, WORK, PlacementGoal(by_money=True), stages=(1, 2), moves=4000)[0]
    fast = node_selection.choose(fleet, WORK, stages=(1, 2), moves=4000)[0]
    assert cheap.verdict.price < fast.verdict.price
    assert fast.verdict.tokens > cheap.verdict.tokens
    assert set(cheap.grid.reshape(-1)) <= {4, 5, 6, 7}


def test_owners_are_spread_and_cards_kept_similar_where_it_is_asked() -> None:
    owner = np.array([0, 0, 0, 0, 1, 1, 2, 2])
    rate = np.array([4e12, 1e12] * 4)
    fleet = small_fleet(5, 8, owner=owner, rate=rate, memory=np.full(8, 3e10))
    grid = np.array([[0, 2, 4, 6], [1, 3, 5, 7]])
    assert grid_objective.judge(fleet, WORK, grid).breach == 0.0
    assert grid_objective.judge(fleet, WORK, grid, PlacementGoal(of_one_owner=0.25)).breach == pytest.approx(2.0)
    mixed = np.array([[0, 1, 4, 6], [2, 3, 5, 7]])
    assert grid_objective.judge(fleet, WORK, mixed).breach == pytest.approx(4 / 1.25 - 1)
    wish = PlacementGoal(of_one_owner=0.5, similar=1.0)
    chosen = node_selection.place(fleet, WORK, wish, 2, 4, seed=1, moves=4000)
    assert chosen.verdict.breach == 0.0


def test_failures_cost_what_they_interrupt() -> None:
    quiet = small_fleet(6, 4, failures=np.zeros(4))
    restless = small_fleet(6, 4, failures=np.full(4, 3600.0))
    grid = np.arange(4).reshape(2, 2)
    assert grid_objective.judge(quiet, WORK, grid).useful == 1.0
    assert grid_objective.judge(restless, WORK, grid).useful < 0.01


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=8)
def test_after_losses_little_state_moves_and_all_of_it_is_counted(seed: int) -> None:
    generator = np.random.default_rng(seed)
    fleet = small_fleet(seed, 42, memory=np.full(42, 3e10))
    grid = np.arange(40).reshape(4, 10)
    units = grid_objective.judge(fleet, WORK, grid).units
    begun = np.cumsum([0, *units])[:-1]
    lost = generator.choice(40, 4, replace=False)
    new = failure_replan.replan(fleet, WORK, grid, begun, lost.tolist(), spares=(40, 41), moves=300, seed=seed % 1000)
    inside = {int(i) for i in new.grid.reshape(-1)}
    assert not inside & set(lost.tolist())
    assert sorted([*inside, *new.spares]) == sorted(set(range(42)) - set(lost.tolist()))
    state = [sum(WORK.chain.state[b : b + n]) for b, n in zip(begun, units, strict=True)]
    came = [(i, w) for w, row in enumerate(new.grid.tolist()) for i in row if i >= 40 or i // 10 != w]
    assert new.moved == pytest.approx(sum(state[w] for _, w in came))
    assert new.fetching == tuple(sorted(i for i, _ in came))
    assert new.share <= failure_replan.ROOM
    assert new.grid.shape[1] >= 7


@pytest.mark.slow
def test_swaps_after_a_loss_gain_and_keep_to_their_room() -> None:
    fleet = small_fleet(7, 24, memory=np.full(24, 3e10))
    grid = np.arange(24).reshape(4, 6)
    begun = np.cumsum([0, *grid_objective.judge(fleet, WORK, grid).units])[:-1]
    any_card = PlacementGoal(similar=float("inf"))
    still = failure_replan.replan(fleet, WORK, grid, begun, [0], any_card, moves=0)
    assert still.share == 0.0
    tokens = [still.verdict.tokens]
    for room in (0.0, 0.3):
        after = failure_replan.replan(fleet, WORK, grid, begun, [0], any_card, room=room, horizon=1e9, moves=3000)
        assert after.share <= room
        assert after.needed == 0.0
        tokens.append(after.verdict.tokens)
    assert tokens[0] < tokens[1] < tokens[2]


@pytest.mark.whole
def test_state_is_moved_only_where_that_pays_within_the_horizon() -> None:
    """What is left of the room is no reason to fetch anything."""
    fleet = small_fleet(7, 24, memory=np.full(24, 3e10))
    grid = np.arange(24).reshape(4, 6)
    begun = np.cumsum([0, *grid_objective.judge(fleet, WORK, grid).units])[:-1]
    any_card, found = PlacementGoal(similar=float("inf")), []
    for horizon in (0.0, 60.0, 1e9):
        after = failure_replan.replan(fleet, WORK, grid, begun, [0], any_card, room=0.5, horizon=horizon, moves=3000)
        found.append((after.moved, after.verdict.tokens))
    assert found[0][0] == 0.0 < found[2][0]
    assert found[0][0] <= found[1][0] <= found[2][0]
    assert found[0][1] < found[2][1]
    alone = [i for i in range(24) if i % 6 > 3]  # two of six of each stage, and all of the last but one
    needy = failure_replan.replan(fleet, WORK, grid, begun, [*alone, 18, 19], any_card, room=1.0, horizon=0.0)
    assert needy.grid.shape == (4, 3)
    assert needy.moved == needy.needed > 0


def test_nobody_comes_to_a_stage_that_is_too_large_for_it() -> None:
    memory = np.array([3e10] * 4 + [3e10] * 4 + [1e6] * 2)
    fleet = small_fleet(8, 10, memory=memory)
    grid = np.arange(8).reshape(2, 4)
    begun = np.cumsum([0, *grid_objective.judge(fleet, WORK, grid).units])[:-1]
    new = failure_replan.replan(fleet, WORK, grid, begun, [0], spares=(8, 9), room=1.0, moves=2000)
    assert new.grid.shape == (2, 3)
    assert not {8, 9} & set(new.grid.reshape(-1).tolist())


def test_a_stage_that_nobody_can_take_over_ends_the_run() -> None:
    fleet = small_fleet(9, 4, memory=np.full(4, 3e10))
    grid = np.arange(4).reshape(2, 2)
    begun = np.cumsum([0, *grid_objective.judge(fleet, WORK, grid).units])[:-1]
    with pytest.raises(PolicyError, match="cannot go on") as error:
        failure_replan.replan(fleet, WORK, grid, begun, [0, 1], room=0.0)
    assert error.value.code == "FF-PLAN-043"


def refused(code: str, field: str, call: object) -> None:
    with pytest.raises(FarflungError, match=field) as error:
        call()  # type: ignore[operator]
    assert error.value.code == code


def test_wrong_numbers_are_refused_by_name() -> None:
    ones, nan = np.ones(3), float("nan")
    fleet = small_fleet(0, 4)
    grid = np.arange(4).reshape(2, 2)
    refused("FF-PLAN-046", "`state`", lambda: chain(ones, -ones, ones, ones))
    refused("FF-PLAN-046", "`kept`", lambda: chain(ones, ones, ones * nan, ones))
    refused("FF-PLAN-046", "`exchanged`", lambda: chain(ones, ones, ones, np.ones(2)))
    refused("FF-PLAN-046", "`flop`", lambda: chain(0 * ones, ones, ones, ones))
    refused("FF-PLAN-046", "`model`", lambda: decoder(DecoderShape(0, 1, 1, 1, 1, 1), 1, 1, state=1.0))
    refused("FF-PLAN-046", "`tokens`", lambda: decoder(MODEL, 0, 1, state=1.0))
    refused("FF-PLAN-048", "no card", lambda: uneven_layers.divide(uniform(3), [], 1))
    refused("FF-PLAN-048", "micro-batches", lambda: uneven_layers.divide(uniform(3), [StageCard(1.0, 1.0)], 0))
    refused("FF-PLAN-048", "rate", lambda: uneven_layers.divide(uniform(3), [StageCard(nan, 9.0)], 1))
    refused("FF-PLAN-048", "13 cards", lambda: uneven_layers.arrange(uniform(3), [StageCard(1.0, 9.0)] * 13, 1))
    refused("FF-PLAN-049", "`rate`", lambda: small_fleet(0, 4, rate=np.zeros(4)))
    refused("FF-PLAN-049", "`price`", lambda: small_fleet(0, 4, price=np.ones(3)))
    refused("FF-PLAN-049", "`failures`", lambda: small_fleet(0, 4, failures=np.full(4, np.inf)))
    refused("FF-PLAN-049", "`grid`", lambda: grid_objective.judge(fleet, WORK, np.zeros((2, 2), np.int64)))
    refused("FF-PLAN-049", "`grid`", lambda: grid_objective.judge(fleet, WORK, grid + 1))
    for field, value in (("every", 0), ("micro_batches", -1), ("handed", nan), ("repair", -1.0)):
        work = msgspec.structs.replace(WORK, **{field: value})
        refused("FF-PLAN-049", f"`{field}`", lambda work=work: grid_objective.judge(fleet, work, grid))
    refused("FF-PLAN-049", "`similar`", lambda: grid_objective.judge(fleet, WORK, grid, PlacementGoal(similar=0.5)))
    refused(
        "FF-PLAN-049", "`of_one_owner`", lambda: grid_objective.judge(fleet, WORK, grid, PlacementGoal(of_one_owner=0))
    )
    refused("FF-PLAN-049", "`room`", lambda: failure_replan.replan(fleet, WORK, grid, np.zeros(2), [0], room=2.0))
    refused(
        "FF-PLAN-049",
        "`horizon`",
        lambda: failure_replan.replan(fleet, WORK, grid, np.zeros(2), [0], horizon=float("nan")),
    )
    refused("FF-PLAN-049", "`stage`", lambda: stage_rebalance.throughput([StagePeer("a", 2, 1.0)], (1.0,)))
    refused("FF-PLAN-049", "`rates`", lambda: stage_rebalance.BatchDispatch({}).next({}))
