"""Which hosts are tried together: nobody lends more than a third, and the order of offers decides nothing."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from plan_offers import LAN, host, hosts

from farflung.advice.layouts import host_speed
from farflung.advice.layouts.host_subsets import SIZES, HostSubsetLimits, spread, subsets
from farflung.advice.offers.offer_file import OfferedHost
from farflung.core.money import Credits
from farflung.core.units import Seconds
from farflung.plan.link_syntax import Link

CARDS = ("RTX 4090", "RTX 3090", "RTX 3060 12GB")


@st.composite
def offered(draw: st.DrawFn) -> list[OfferedHost]:
    count = draw(st.integers(1, 14))
    return [
        host(
            f"h{at}",
            draw(st.sampled_from(CARDS)),
            owner=draw(st.sampled_from("abcd")),
            price=Credits(draw(st.integers(0, 5))),
        )
        for at in range(count)
    ]


@given(offered(), st.integers(1, 4))
def test_no_owner_lends_more_than_a_third_of_three_or_more(found: list[OfferedHost], least: int) -> None:
    for subset in subsets(found, host_speed.rate, HostSubsetLimits(least)):
        assert len(subset) >= least
        assert len(subset) in SIZES
        assert len({each.name for each in subset}) == len(subset)
        if len(subset) >= 3:
            assert max(Counter(each.owner for each in subset).values()) <= max(1, len(subset) // 3)


@given(offered(), st.randoms(use_true_random=False))
def test_crews_do_not_depend_on_the_order_of_offers(found: list[OfferedHost], luck: object) -> None:
    mixed = list(found)
    luck.shuffle(mixed)  # type: ignore[attr-defined]
    assert set(subsets(found, host_speed.rate)) == set(subsets(mixed, host_speed.rate))


def test_the_fastest_and_the_cheapest_are_both_tried() -> None:
    fast = [host(f"f{at}", "RTX 4090", price=Credits(9_000_000)) for at in range(2)]
    cheap = [host(f"c{at}", "RTX 3060 12GB", price=Credits(1)) for at in range(2)]
    tried = {
        frozenset(each.name for each in subset)
        for subset in subsets([*fast, *cheap], host_speed.rate, HostSubsetLimits(2))
    }
    assert {frozenset({"f0", "f1"}), frozenset({"c0", "c1"})} <= tried


def test_one_owner_alone_makes_no_crew_of_three() -> None:
    assert len(spread(hosts(9, owner="one"), 3)) == 1
    assert len(spread(hosts(9), 9)) == 9


def test_over_machines_of_one_s_own_no_share_is_bounded() -> None:
    own = hosts(8, owner="me")
    assert max(map(len, subsets(own, host_speed.rate))) == 2
    assert max(map(len, subsets(own, host_speed.rate, HostSubsetLimits(is_own=True)))) == 8


def test_who_cannot_hold_the_layout_is_not_counted_among_the_first() -> None:
    """Twenty faster cards without room do not hide four that have it."""
    crowd = [*hosts(20, "RTX 4090"), *(host(f"big{at}", "M2 Ultra") for at in range(4))]
    asked = HostSubsetLimits(4, holds=lambda each, size: each.name.startswith("big"))
    assert [[each.name for each in subset] for subset in subsets(crowd, host_speed.rate, asked)] == [
        ["big0", "big1", "big2", "big3"]
    ]


def test_of_similar_cards_those_of_every_speed_are_tried() -> None:
    """Beside one card that is much faster the eight others are a subset, too."""
    mixed = [host("fast", "H100 SXM"), *hosts(8, "RTX 3090")]
    asked = HostSubsetLimits(2, is_alike=True)
    tried = {frozenset(each.name for each in subset) for subset in subsets(mixed, host_speed.rate, asked)}
    assert frozenset(f"h{at:02}" for at in range(8)) in tried
    assert not any("fast" in names for names in tried)


def test_those_with_a_good_line_are_tried_among_faster_ones_with_a_bad_one() -> None:
    """A subset waits for its slowest line: the eight fastest and the eight best connected are neither the best."""
    slow = Link(1e6, 1e6, Seconds(0.03))
    crowd = [*hosts(20, "RTX 4090", link=slow), *(host(f"lab{at}", "RTX 4090") for at in range(4))]
    crowd += [host(f"office{at}", "RTX 3060 12GB", link=LAN) for at in range(8)]
    tried = {tuple(each.name for each in subset) for subset in subsets(crowd, host_speed.rate, HostSubsetLimits(2))}
    assert ("lab0", "lab1", "lab2", "lab3") in tried


def test_alone_each_host_is_tried_that_has_room() -> None:
    """Whichever is best in no order may fail least."""
    found = [*hosts(6), host("small", "GTX 1660")]
    asked = HostSubsetLimits(most=1, holds=lambda each, size: each.name != "small")
    assert [each.name for (each,) in subsets(found, host_speed.rate, asked)] == [f"h{at:02}" for at in range(6)]
