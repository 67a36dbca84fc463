"""A quote says who would be hired at which price, what more would cost, and where hosts are lost."""

from __future__ import annotations

import numpy as np
import pytest
from market_stand import DAY, EMPTY, NOW, UNIT, bid, crowd, named, numbers, offers, stand
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.money import Credits
from farflung.core.units import Millis
from farflung.market.asks import market
from farflung.market.filter_report import OfferConstraint
from farflung.market.price_history import BundleSale, last_day, tape
from farflung.market.quote import quote
from farflung.market.work_units import CALIBRATED, MemberWork


def sale(age: int, ask: int, *, card: str = "rtx 3060", hosts: int = 4) -> BundleSale:
    return BundleSale(Millis(NOW - age), card, hosts, Credits(ask))


def test_members_and_spares_are_all_paid_the_first_ask_behind_them() -> None:
    told = quote(offers(7, 3, 5, 9, 4), bid(2, 1), EMPTY, NOW)
    assert (numbers(told.hired), told.setter, told.ask, told.price) == ([2, 3, 5], named(1), 7, 7)
    assert told.total == 2 * 10 * 7
    work = MemberWork(4, replace(UNIT, flop=CALIBRATED * 3 // 2))
    assert quote(offers(7, 3, 5), bid(2, work=work), EMPTY, NOW).price == 11


def test_without_an_ask_to_set_the_price_the_answer_names_what_to_relax() -> None:
    assert (
        "3 hosts are needed, one of them to set the price, and 2 offer" in quote(offers(1, 2), bid(2), EMPTY, NOW).hint
    )
    cases = [
        (bid(2, price=1), crowd(1, 2, 3), "relax price"),
        (bid(2, memory_bytes=13 << 30), crowd(1, 2, 3), "relax memory: 14 GB is asked of each"),
        (bid(2, deadline=NOW + 1000), crowd(1, 2, 3), "relax deadline"),
        (bid(2), [stand(i, 1, speed=10**13 * i) for i in (1, 2, 3)], "relax similarity"),
        (bid(2, cards=("a100",), price=0), crowd(1, 2, 3), "not the only constraint"),
    ]
    for asked, standing, words in cases:
        found = quote(market(standing), asked, EMPTY, NOW)
        assert (found.ask, found.price, found.total, found.hired, found.setter) == (None, None, None, (), None)
        assert words in found.hint


def test_one_owner_has_at_most_a_third_of_the_members() -> None:
    whale = stand(1, 1).ask.peer
    standing = [stand(i, 1, owner=whale) for i in range(1, 8)] + [stand(i, i) for i in range(8, 20)]
    assert sum(peer[-1] < 8 for peer in quote(market(standing), bid(6, 2), EMPTY, NOW).hired) == 2
    assert quote(market(standing), bid(2), EMPTY, NOW).ask == 9


def test_the_supply_curve_rises_ends_where_supply_does_and_goes_beyond_the_budget() -> None:
    told = quote(offers(*range(1, 12)), bid(2, price=4), EMPTY, NOW)
    assert [(point.members, point.ask) for point in told.curve] == [(1, 2), (2, 3), (4, 5), (8, 9), (16, None)]
    with_spares = quote(offers(*range(1, 12)), bid(2, 1, price=4), EMPTY, NOW)
    assert [(point.members, point.ask) for point in with_spares.curve] == [(1, 3), (2, 4), (4, 7), (8, None)]


def test_a_curve_asks_for_no_more_spares_than_a_bid_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PEERS", 256)
    told = quote(offers(*range(1, 270)), bid(1, 256), EMPTY, NOW)
    asks = [(point.members, point.ask) for point in told.curve]
    assert asks == [(1, 258), (2, 259), (4, 261), (8, 265), (16, None)]


def test_losses_name_who_each_constraint_removes_and_who_it_alone_keeps_out() -> None:
    standing = [
        *crowd(5, 5, 5), stand(4, 5, memory_bytes=1), stand(5, 5, memory_bytes=1, cores=0), stand(6, 5, cores=0),
        stand(7, 2000), stand(8, 2000),
    ]  # fmt: skip
    told = quote(market(standing), bid(2, memory_bytes=1 << 30, cores=2), EMPTY, NOW)
    seen = {loss.name: (loss.removed, loss.alone) for loss in told.losses if loss.removed or loss.alone}
    assert seen == {"memory": (2, 1), "cores": (1, 1), "price": (2, 2)}
    assert told.funnel.text() == "8 offers → 6 memory → 5 cores → 3 price → 3 similar"
    assert told.ask == 5


def test_what_is_asked_for_beyond_a_bid_is_a_constraint_like_the_others() -> None:
    asks = offers(1, 2, 3, 4, 2000)
    even = OfferConstraint(
        "even", "an even number", np.array([int.from_bytes(p, "big") % 2 == 0 for p in asks.asks.peers])
    )
    told = quote(asks, bid(1), EMPTY, NOW, [even])
    assert told.hired == (named(2),)
    assert told.setter == named(4)
    seen = {loss.name: (loss.value, loss.removed, loss.alone) for loss in told.losses if loss.removed}
    assert seen["even"] == ("an even number", 3, 2)
    assert [name for name, _ in told.funnel.steps][-3:] == ["even", "price", "similar"]
    assert quote(asks, bid(2), EMPTY, NOW, [even]).hint == "relax even: an even number is asked of each"
    assert [point.ask for point in told.curve] == [4, None]  # the curve keeps to it, too


def test_where_money_is_too_little_the_price_that_would_do_is_told() -> None:
    told = quote(offers(5, 6, 7), bid(2, price=4), EMPTY, NOW)
    assert (told.ask, told.beyond) == (None, 7)
    assert quote(offers(5, 6, 7), bid(2, price=7), EMPTY, NOW).beyond is None
    assert quote(offers(5, 6), bid(2, price=4), EMPTY, NOW).beyond is None


def test_where_two_constraints_keep_everybody_out_one_of_them_is_named() -> None:
    told = quote(offers(5, 6, 7), bid(2, price=4, memory_bytes=1 << 45), EMPTY, NOW)
    assert told.hint.startswith("relax memory first (35.2 TB is asked of each)")
    assert "not the only constraint" in told.hint


def test_a_market_without_asks_has_a_quote_that_says_so() -> None:
    told = quote(market([]), bid(2), EMPTY, NOW)
    assert (told.ask, told.day) == (None, None)
    assert "0 offer" in told.hint


def test_the_last_day_counts_a_day_and_the_classes_that_are_asked_for() -> None:
    sold = tape(
        [
            sale(DAY + 1, 1), sale(DAY, 2), sale(DAY - 1, 30), sale(500, 10, hosts=3), sale(400, 99, card="a100"),
            sale(300, 20, hosts=2), sale(0, 25), sale(-1, 77),
        ]
    )  # fmt: skip
    day = last_day(sold, ("rtx 3060",), NOW)
    assert day is not None
    assert (day.low, day.median, day.high, day.bundles, day.hosts) == (10, 25, 30, 4, 13)
    everything = last_day(sold, (), NOW)
    assert everything is not None
    assert (everything.high, everything.bundles) == (99, 5)
    assert last_day(sold, ("h100",), NOW) is None
    assert quote(offers(1, 2, 3), bid(2, cards=("rtx 3060",)), sold, NOW).day == day


def test_half_of_all_hosts_were_hired_at_the_median_or_below() -> None:
    day = last_day(tape([sale(3, 5, hosts=1), sale(2, 7, hosts=2), sale(1, 9, hosts=3)]), (), NOW)
    assert day is not None
    assert day.median == 7


@pytest.mark.parametrize(
    "bad", [sale(0, -1), sale(0, 1, hosts=0), sale(0, 1, card=""), sale(NOW + 1, 1), sale(0, 1 << 63)]
)
def test_a_sale_that_cannot_be_is_refused(bad: BundleSale) -> None:
    with pytest.raises(UsageError) as error:
        tape([bad])
    assert error.value.code == "FF-MARK-019"


def test_sales_out_of_order_are_refused_and_old_ones_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError):
        tape([sale(1, 5), sale(2, 5)])
    monkeypatch.setattr(limits, "PRICES", 2)
    kept = tape([sale(3, 1), sale(2, 2), sale(1, 3)])
    assert np.array_equal(kept.ask, [2, 3])


def test_where_only_an_owners_share_stands_in_the_way_it_is_named() -> None:
    one = [stand(number, 10, owner=named(1)) for number in range(1, 10)]
    found = quote(market(one), bid(2), EMPTY, NOW)
    assert found.ask is None
    assert "9 hosts of similar speed meet all that is asked, and of one owner 1 may be among 2 members" in found.hint
    assert "1 of 3 that are needed. Hosts of other owners would do it" in found.hint
    others = [stand(number, 10) for number in range(10, 13)]
    assert quote(market([*one, *others]), bid(2), EMPTY, NOW).hint == ""


def test_where_hosts_are_too_few_or_unlike_an_owners_share_is_not_blamed() -> None:
    unlike = [stand(number, 10, speed=10**12 * 2**number, owner=named(1)) for number in range(1, 5)]
    assert "relax similarity" in quote(market(unlike), bid(2), EMPTY, NOW).hint
    dear = [stand(number, 5000, owner=named(number)) for number in range(1, 5)]
    assert "relax price" in quote(market(dear), bid(2), EMPTY, NOW).hint
