"""Which hosts are tried together: nobody lends more than a third, and the order of offers decides nothing."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from plan_offers import host, hosts

from farflung.core.money import Credits
from farflung.plan.advice import speed
from farflung.plan.advice.crews import SIZES, crews, spread
from farflung.plan.advice.offers import Host

CARDS = ("RTX 4090", "RTX 3090", "RTX 3060 12GB")


@st.composite
def offered(draw: st.DrawFn) -> list[Host]:
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
def test_no_owner_lends_more_than_a_third_of_three_or_more(found: list[Host], least: int) -> None:
    for crew in crews(found, speed.rate, least):
        assert len(crew) >= least
        assert len(crew) in SIZES
        assert len({each.name for each in crew}) == len(crew)
        if len(crew) >= 3:
            assert max(Counter(each.owner for each in crew).values()) <= max(1, len(crew) // 3)


@given(offered(), st.randoms(use_true_random=False))
def test_crews_do_not_depend_on_the_order_of_offers(found: list[Host], luck: object) -> None:
    mixed = list(found)
    luck.shuffle(mixed)  # type: ignore[attr-defined]
    assert set(crews(found, speed.rate)) == set(crews(mixed, speed.rate))


def test_the_fastest_and_the_cheapest_are_both_tried() -> None:
    fast = [host(f"f{at}", "RTX 4090", price=Credits(9_000_000)) for at in range(2)]
    cheap = [host(f"c{at}", "RTX 3060 12GB", price=Credits(1)) for at in range(2)]
    tried = {frozenset(each.name for each in crew) for crew in crews([*fast, *cheap], speed.rate, 2)}
    assert {frozenset({"f0", "f1"}), frozenset({"c0", "c1"})} <= tried


def test_one_owner_alone_makes_no_crew_of_three() -> None:
    assert len(spread(hosts(9, owner="one"), 3)) == 1
    assert len(spread(hosts(9), 9)) == 9
