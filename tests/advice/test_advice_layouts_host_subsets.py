"""The search beside all subsets: what is looked at is enough, and more offers are no worse."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from plan_offers import LARGE, host, hosts, sized

from farflung.advice.layouts import host_speed, host_subsets, layout_search, pipeline_layouts
from farflung.advice.layouts.layout_candidates import LAYOUTS
from farflung.advice.layouts.layout_search import AdviceGoal
from farflung.advice.layouts.training_options import InfeasibleOption, LayoutKind, TrainingOption
from farflung.advice.offers.offer_file import OfferedHost
from farflung.advice.placement.loop_loader import as_it_stands
from farflung.core.money import Credits
from farflung.core.units import Bytes, Seconds
from farflung.plan.link_syntax import Link

BIG = sized(LARGE)
MIDDLE = sized(
    {"model.layers": "24", "model.width": "2048", "model.heads": "16", "model.context": "1024", "rounds": "200"}
)
CARDS = ("RTX 4090", "RTX 3090", "RTX 3060 12GB", "M2 Ultra", "RTX A6000", "RTX 3070", "H100 SXM", "GTX 1660")
# Each seed with one goal, both works with both; in `make soak` with the other one, too.
DRAWS = [
    pytest.param(seed, goal, marks=() if (seed // 2 + at) % 2 else pytest.mark.soak)
    for seed in range(8)
    for at, goal in enumerate(AdviceGoal)
]
NEAR = 1.02  # times the best of all subsets: what the subsets of this search may miss, in these draws


def drawn(seed: int, count: int) -> list[OfferedHost]:
    """Cards, lines, owners and prices that have nothing to do with each other."""
    luck = random.Random(seed)
    return [
        host(
            f"h{at:02}",
            luck.choice(CARDS),
            owner=luck.choice("abcdefgh"),
            cards=luck.choice([1, 1, 1, 2]),
            link=Link(
                luck.choice([5e6, 2e7, 1e8, 1e9]),
                luck.choice([2e7, 1e8, 1e9]),
                Seconds(luck.choice([0.001, 0.02, 0.1])),
            ),
            price=Credits(luck.randrange(10**6)),
            memory_bytes=luck.choice([None, Bytes(64 * 10**9), Bytes(256 * 10**9)]),
            churn=Seconds(luck.choice([3e4, 3e5])),
        )
        for at in range(count)
    ]


def value(option: TrainingOption, goal: AdviceGoal) -> float:
    return float(option.seconds if goal is AdviceGoal.TIME else option.price)


def advised(found: Sequence[OfferedHost], seed: int, goal: AdviceGoal) -> float:
    best = layout_search.search((MIDDLE, BIG)[seed % 2], found, goal).best
    return min((value(each, goal) for each in best), default=float("inf"))


def counted_out(found: Sequence[OfferedHost], seed: int, goal: AdviceGoal) -> float:
    """Every subset that the owners' rule allows, in every layout."""
    least = float("inf")
    with as_it_stands():
        for size in range(1, len(found) + 1):
            for subset in itertools.combinations(found, size):
                if len(host_subsets.spread(subset, size)) < size:
                    continue
                for layout in LAYOUTS:
                    if layout.least <= size <= (layout.most or size):
                        one = layout.lay((MIDDLE, BIG)[seed % 2], subset, layout_search.USUAL, 0)
                        least = min(least, value(one, goal)) if isinstance(one, TrainingOption) else least
    return least


@pytest.mark.whole
@pytest.mark.parametrize(("seed", "goal"), DRAWS)
def test_few_hosts_are_advised_as_well_as_by_looking_at_all_subsets(seed: int, goal: AdviceGoal) -> None:
    found = drawn(seed, 5)
    assert advised(found, seed, goal) <= NEAR * counted_out(found, seed, goal)


@pytest.mark.whole
@pytest.mark.parametrize(("seed", "goal"), DRAWS[:8])
def test_more_offers_never_make_the_best_worse(seed: int, goal: AdviceGoal) -> None:
    found = drawn(100 + seed, 9)
    each = [advised(found[:count], seed, goal) for count in (3, 6, 9)]
    assert each == sorted(each, reverse=True)


@pytest.mark.whole
def test_many_small_hosts_do_not_hide_a_few_large_ones() -> None:
    large = tuple(host(f"big{at}", "M2 Ultra") for at in range(4))
    alone, beside = (layout_search.search(BIG, found) for found in (large, (*large, *hosts(16, "RTX 3070"))))
    assert alone.today is not None
    assert beside.today == alone.today
    assert beside.best[0].seconds <= alone.best[0].seconds
    assert not {LayoutKind.ALONE, LayoutKind.DATA, LayoutKind.ROUNDS} & {each.kind for each in beside.binding}


@pytest.mark.slow
def test_one_host_is_no_pipeline() -> None:
    """Whoever trains all layers sooner than another one of them is calculated as one host alone."""
    one = pipeline_layouts.pipeline(
        MIDDLE, (host("fast", "H100 SXM", cards=8), host("slow", "GTX 1660")), layout_search.USUAL
    )
    assert isinstance(one, InfeasibleOption)
    assert one.constraint == "similarity"
    assert "fast trains all layers sooner" in one.cause


# What is not timed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_no_layout_is_faster_than_its_bound(seed: int) -> None:
    """Where all hosts are used: what is left out of a pipeline makes another subset."""
    found, work = drawn(200 + seed, 6), (MIDDLE, BIG)[seed % 2]
    with as_it_stands():
        for layout in LAYOUTS:
            for ways in layout.ways(work, found[: layout.most or 6]):
                subset = found[: layout.most or 6]
                one = layout.lay(work, subset, layout_search.USUAL, ways)
                if isinstance(one, TrainingOption) and len(one.hosts) == len(subset):
                    assert layout.bound(work, subset, host_speed.rate, ways) <= one.seconds * (1 + 1e-9)


@pytest.mark.whole
def test_offers_that_no_bound_tells_apart_do_not_keep_the_search_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    found = drawn(7, 24)
    whole = layout_search.search(MIDDLE, found)
    monkeypatch.setattr(layout_search, "TIMED", 16)
    few = layout_search.search(MIDDLE, found)
    assert few.tried < whole.tried
    assert few.best


@pytest.mark.parametrize("kind", [LayoutKind.ALONE, LayoutKind.ROUNDS, LayoutKind.DATA, LayoutKind.SHARDED])
@pytest.mark.parametrize("rate", [1e6, 1e8, 1e10, 1e13])
def test_bounds_of_like_hosts_are_near_what_binds(kind: LayoutKind, rate: float) -> None:
    """Where lines bind a step is little more than its bytes, where nothing does little more than computing."""
    (layout,) = (each for each in LAYOUTS if each.kind is kind)
    subset = hosts(layout.most or 4, "RTX A6000", link=Link(rate, rate, Seconds(1e-6)), churn=Seconds(1e9))
    one = layout.lay(MIDDLE, subset, layout_search.USUAL, 1)
    assert isinstance(one, TrainingOption)
    least = layout.bound(MIDDLE, subset, host_speed.rate, 1)
    assert least <= one.seconds * (1 + 1e-9)
    if layout.is_alike:  # rounds wait for lines, which their bound leaves out
        assert least >= one.seconds / 3
