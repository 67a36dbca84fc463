"""What was measured between two hosts: how it is written, and what it changes."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace
from plan_offers import LAN, LARGE, SMALL, host, hosts, sized

from farflung.advice.io import card_files
from farflung.advice.layouts import grid_placement, host_routes, pipeline_layouts, replica_layouts
from farflung.advice.layouts.layout_search import search
from farflung.advice.layouts.replica_layouts import OfferAssumptions
from farflung.advice.layouts.training_options import TrainingOption
from farflung.advice.layouts.user_limits import UserLimits
from farflung.advice.offers.measured_pairs import MeasuredPair
from farflung.advice.offers.offer_file import OfferedHost, parse
from farflung.advice.placement import loop_loader
from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.units import Seconds

BIG, TINY = sized(LARGE), sized(SMALL)
USUAL = OfferAssumptions()
TABLE = card_files.read()


def written(*pairs: str) -> str:
    """Three hosts in two regions, and pairs."""
    rows = [
        f'[[host]]\nname = "{name}"\nregion = "{region}"\ncard = "RTX 4090"\nlink = "100/100/10ms"\nprice = "1"\n'
        for name, region in (("attic", "eu"), ("barn", "us"), ("cellar", "us"))
    ]
    return "".join([*rows, *(f"[[pair]]\n{pair}\n" for pair in pairs)])


def test_of_pairs_that_speak_of_two_hosts_the_nearest_counts() -> None:
    attic, barn, cellar = parse(
        written(
            'between = ["us", "eu"]\nrate = 40',
            'between = ["barn", "attic"]\nrate = 20\ndelay = 80',
            'between = ["us", "us"]\nrate = 50\ndelay = 3',
        ),
        TABLE,
    )
    assert (
        host_routes.between(attic, barn)
        == host_routes.between(barn, attic)
        == host_routes.HostRoute(20e6, Seconds(0.08))
    )
    assert host_routes.between(cellar, attic) == host_routes.HostRoute(40e6, Seconds(0.01))
    assert host_routes.between(barn, cellar) == host_routes.HostRoute(50e6, Seconds(0.003))
    alone = parse(written(), TABLE)
    assert host_routes.between(*alone[:2]) == host_routes.HostRoute(host_routes.FREE, Seconds(0.01))


def test_a_pair_that_cannot_be_is_refused_by_what_is_wrong(subtests: pytest.Subtests) -> None:
    for row, words in [
        ('between = ["attic", "bran"]\nrate = 1', "'bran' is no host and no region"),
        ('between = ["attic", ""]\nrate = 1', "no host and no region"),
        ('between = ["attic", "attic"]\nrate = 1', "one and the same host"),
        ('between = ["attic"]\nrate = 1', "two names"),
        ('between = "attic"\nrate = 1', "two names"),
        ('between = ["attic", "barn"]', "above 0"),
        ('between = ["attic", "barn"]\nrate = 0', "above 0"),
        ('between = ["attic", "barn"]\nrate = -3', "above 0"),
        ('between = ["attic", "barn"]\nrate = inf', "above 0"),
        ('between = ["attic", "barn"]\nrate = nan', "above 0"),
        ('between = ["attic", "barn"]\nrate = true', "above 0"),
        ('between = ["attic", "barn"]\nrate = 1\ndelay = -1', "from 0 to"),
        ('between = ["attic", "barn"]\nrate = 1\ndelay = nan', "from 0 to"),
        ('between = ["attic", "barn"]\nrate = 1\nspeed = 2', "no pair has that"),
        ('between = ["eu", "us"]\nrate = 1\n[[pair]]\nbetween = ["us", "eu"]\nrate = 2', "the same two"),
    ]:
        with subtests.test(row=row, words=words):
            with pytest.raises(UsageError) as raised:
                parse(written(row), TABLE)
            assert raised.value.code == "FF-PLAN-061"
            assert words in (raised.value.cause or "")
            assert raised.value.message.startswith("pair ")


def test_pairs_are_bounded_in_number_and_are_tables() -> None:
    row = 'between = ["eu", "us"]\nrate = 1'
    with pytest.raises(UsageError, match="cannot be planned with"):
        parse(written(*[row] * (limits.OFFERED_PAIRS + 1)), TABLE)
    with pytest.raises(UsageError, match="cannot be planned with"):
        parse("pair = 3\n" + written(), TABLE)


def joined(subset: tuple[OfferedHost, ...], rate: float, apart: tuple[str, ...]) -> tuple[OfferedHost, ...]:
    """The subset, with so much between those named and all others."""
    found = tuple(
        MeasuredPair((one, other.name), rate, Seconds(0.04))
        for one in apart
        for other in subset
        if other.name not in apart
    )
    return tuple(replace(each, pairs=tuple(p for p in found if each.name in p.ends)) for each in subset)


def option(found: object) -> TrainingOption:
    assert isinstance(found, TrainingOption), found
    return found


def test_a_pipeline_crosses_what_is_slow_once_and_waits_for_it() -> None:
    subset = joined(hosts(6, "RTX A6000", link=LAN), 20e6, ("h01", "h03", "h05"))
    with loop_loader.as_it_stands():
        order = [each.name in ("h01", "h03", "h05") for each in grid_placement.line(subset, 4e6)]
        free = option(pipeline_layouts.pipeline(BIG, hosts(6, "RTX A6000", link=LAN), USUAL))
        slow = option(pipeline_layouts.pipeline(BIG, subset, USUAL))
    assert sum(one != other for one, other in itertools.pairwise(order)) == 1
    assert slow.step > 1.5 * free.step


def test_every_layout_waits_for_a_pair_that_is_slower_than_both_lines() -> None:
    free = hosts(4, link=LAN)
    slow = joined(free, 2e6, ("h00",))
    for layout in (replica_layouts.rounds, replica_layouts.data, replica_layouts.sharded):
        assert option(layout(TINY, slow, USUAL)).step > option(layout(TINY, free, USUAL)).step
        assert option(layout(TINY, joined(free, 2e9, ("h00",)), USUAL)).step >= option(layout(TINY, free, USUAL)).step
    assert host_routes.line(slow[0], slow, 3).up == 6e6
    assert host_routes.line(slow[1], slow, 1).up == 2e6
    assert host_routes.line(slow[1], slow, 1).round_trip == 0.08
    assert host_routes.line(slow[1], slow[1:], 1) == LAN
    assert host_routes.line(slow[0], slow[:1], 0) == LAN


def test_the_winners_places_go_to_spares_and_to_fewer_hosts_where_that_is_better() -> None:
    """A slow card among the chosen and a fast one outside; and money, where a dear host does little."""
    subset = (*hosts(3, "RTX A6000", link=LAN), host("slow", "RTX A4000", link=LAN))
    outside = (host("fast", "RTX A6000", link=LAN),)
    with loop_loader.as_it_stands():
        found = option(pipeline_layouts.pipeline(BIG, subset, USUAL))
        better = pipeline_layouts.improved(BIG, found, USUAL, (*subset, *outside))
    assert better.seconds < found.seconds
    assert "fast" in {each.name for each in better.hosts}
    dear = tuple(replace(each, price=type(each.price)(40 * each.price)) for each in subset[:1])
    with loop_loader.as_it_stands():
        found = option(pipeline_layouts.pipeline(BIG, (*dear, *subset[1:]), USUAL))
        cheaper = pipeline_layouts.improved(BIG, found, USUAL, (*dear, *subset[1:], *outside), by_money=True)
    assert cheaper.price < found.price
    assert not {each.price for each in dear} & {each.price for each in cheaper.hosts}


def test_a_spare_of_whom_there_are_too_many_is_not_taken() -> None:
    subset = tuple(host(f"h{at}", "RTX A4000" if at < 2 else "RTX A6000", link=LAN) for at in range(4))
    same = host("more", "RTX A6000", link=LAN, owner="h3")
    with loop_loader.as_it_stands():
        for found in grid_placement.swapped(BIG, (subset,), 8, 1, 36_000.0, (same,)):
            owners = [each.owner for way in found for each in way]
            assert max(owners.count(owner) for owner in owners) <= max(1, len(owners) // 3)


def test_no_spare_takes_a_way_beyond_what_it_may_cost() -> None:
    """A fast host outside the winner's, at a price at which the budget has no room for it."""
    subset = (*hosts(3, "RTX A6000", link=LAN), host("slow", "RTX A4000", link=LAN))
    with loop_loader.as_it_stands():
        found = option(pipeline_layouts.pipeline(BIG, subset, USUAL))
        dear = host("fast", "RTX A6000", link=LAN, price=type(subset[0].price)(50 * subset[0].price))
        most = UserLimits(price=found.price)
        free = pipeline_layouts.improved(BIG, found, USUAL, (*subset, dear))
        kept = pipeline_layouts.improved(
            BIG, found, USUAL, (*subset, dear), is_allowed=lambda each: max(most.needs(each)) <= 1.0
        )
    assert free.price > found.price
    assert kept.price <= found.price
    bound = UserLimits(price=found.price)
    assert all(each.price <= found.price for each in search(BIG, (*subset, dear), user_limits=bound).best)
