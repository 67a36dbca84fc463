"""Bundles: the right hosts at the price of the first that is left over, spares among the winners, nobody twice."""

from __future__ import annotations

import numpy as np
import pytest
from market_stand import BEACON, DAY, NOW, UNIT, bid, crowd, numbers, offers, stand
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.errors import PolicyError
from farflung.core.ids import Hash
from farflung.market.asks import StandingOffer, market
from farflung.market.auction import Bundle, UnmetBid, clear, drawn
from farflung.market.bids import Bid
from farflung.market.work_units import CALIBRATED, MemberWork


def one(standing: list[StandingOffer], asked: Bid, beacon: bytes = BEACON) -> Bundle:
    (found,) = clear(market(standing), [asked], beacon)
    assert isinstance(found, Bundle)
    return found


def test_members_and_spares_are_all_paid_the_first_ask_behind_them() -> None:
    found = one(crowd(7, 3, 5, 9, 4), bid(2, 1))
    assert numbers((*found.members, *found.spares)) == [2, 3, 5]
    assert (len(found.members), len(found.spares)) == (2, 1)
    assert (numbers([found.setter]), found.ask, found.price) == ([1], 7, 7)


def test_a_unit_of_the_job_is_priced_by_its_work() -> None:
    work = MemberWork(4, replace(UNIT, flop=CALIBRATED * 3 // 2))
    assert one(crowd(7, 3, 5), bid(2, work=work)).price == 11


def test_who_begins_is_drawn_and_not_asked() -> None:
    asked = bid(3, 3)
    found = one(crowd(1, 2, 3, 4, 5, 6, 7), asked)
    for standing in (crowd(6, 5, 4, 3, 2, 1, 7), crowd(0, 0, 0, 0, 0, 0, 7)):
        assert one(standing, asked).members == found.members
    orders = {one(crowd(1, 2, 3, 4, 5, 6, 7), asked, bytes([i])).members for i in range(20)}
    assert len(orders) > 5
    assert drawn(asked, BEACON, found.members[::-1]) == found.members


def test_without_an_ask_to_set_the_price_there_is_no_bundle_and_the_answer_says_so() -> None:
    (found,) = clear(offers(1, 2), [bid(2)], BEACON)
    assert isinstance(found, UnmetBid)
    assert "3 hosts are needed, one of them to set the price, and 2 offer" in found.hint
    assert found.funnel.text().startswith("2 offers")


def test_an_unmet_bid_names_what_to_relax() -> None:
    cases = [
        (bid(2, price=1), crowd(1, 2, 3), "relax price"),
        (bid(2, memory_bytes=13 << 30), crowd(1, 2, 3), "relax memory: 14 GB is asked of each"),
        (bid(2, deadline=NOW + 1000), crowd(1, 2, 3), "relax deadline"),
        (bid(2), [stand(i, 1, speed=10**13 * i) for i in (1, 2, 3)], "relax similarity"),
        (bid(2), crowd(1, 2, 3, owner=stand(1, 1).ask.peer), "one owner may have a third"),
        (bid(2, cards=("a100",), price=0), crowd(1, 2, 3), "not the only constraint"),
    ]
    for asked, standing, words in cases:
        (found,) = clear(market(standing), [asked], BEACON)
        assert isinstance(found, UnmetBid)
        assert words in found.hint


def test_nobody_is_hired_twice_in_an_epoch() -> None:
    jobs = [bid(2, 1, job=Hash(bytes([number]) * 32)) for number in range(4)]
    answers = clear(offers(*range(1, 11)), jobs, BEACON)
    made = [found for found in answers if isinstance(found, Bundle)]
    hired = [peer for found in made for peer in (*found.members, *found.spares)]
    assert (len(made), len(hired), len(set(hired))) == (3, 9, 9)
    assert [found.ask for found in made] == [4, 7, 10]


def test_bids_are_served_by_what_they_would_pay_for_the_same_work() -> None:
    double = MemberWork(10, replace(UNIT, flop=2 * CALIBRATED))
    poor = bid(2, job=Hash(bytes(32)), price=100)
    rich = bid(2, job=Hash(bytes([1]) * 32), price=150)
    large = bid(2, job=Hash(bytes([2]) * 32), price=240, work=double)
    answers = clear(offers(*range(1, 10)), [large, poor, rich], BEACON)
    assert [found.job for found in answers] == [rich.job, large.job, poor.job]


def test_equal_bids_are_served_in_an_order_that_the_beacon_draws() -> None:
    jobs = [bid(2, job=Hash(bytes([number]) * 32)) for number in range(5)]
    asks = offers(*range(1, 30))
    orders = {tuple(found.job for found in clear(asks, jobs, bytes([i]))) for i in range(10)}
    assert len(orders) > 5
    assert clear(asks, jobs[::-1], BEACON) == clear(asks, jobs, BEACON)


def test_an_epoch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BIDS", 1)
    with pytest.raises(PolicyError) as error:
        clear(offers(1, 2, 3), [bid(2), bid(2)], BEACON)
    assert error.value.code == "FF-MARK-018"


def test_one_owner_has_at_most_a_third_of_the_members() -> None:
    whale = stand(1, 1).ask.peer
    standing = [stand(i, 1, owner=whale) for i in range(1, 8)] + [stand(i, i) for i in range(8, 20)]
    found = one(standing, bid(6, 2))
    owned = [peer for peer in (*found.members, *found.spares) if peer[-1] < 8]
    assert len(owned) == 2
    assert one(standing, bid(2)).ask == 9


def test_every_bundle_of_a_crowded_epoch_pays_an_ask_behind_all_its_winners() -> None:
    draws = np.random.Generator(np.random.Philox(5))
    standing = [
        stand(
            i + 1, int(draws.integers(1, 900)), speed=int(draws.integers(4, 30)) * 10**12,
            owner=stand(1 + i % 40, 1).ask.peer, card=f"class {draws.integers(0, 3)}",
            up=int(draws.integers(1, 30)) * 10**6,
            hours=int(draws.integers(1, 1 << 24)), until=NOW + int(draws.integers(0, DAY)),
        )
        for i in range(200)
    ]  # fmt: skip
    jobs = [
        bid(
            int(draws.integers(1, 9)), int(draws.integers(0, 4)), job=Hash(bytes([number]) * 32), up=5 * 10**6,
            price=int(draws.integers(100, 1000)), cards=("class 0", "class 1") if number % 2 else (),
        )
        for number in range(25)
    ]  # fmt: skip
    offers, by_job = market(standing), {asked.job: asked for asked in jobs}
    price = dict(zip(offers.asks.peers, offers.asks.prices, strict=True))  # the dearest of an owner's
    answers = clear(offers, jobs, BEACON)
    made = [found for found in answers if isinstance(found, Bundle)]
    assert len(made) > 8
    for found in made:
        asks = [int(price[peer]) for peer in (*found.members, *found.spares)]
        assert max(asks) <= found.ask == price[found.setter] <= by_job[found.job].price
    hired = [peer for found in made for peer in (*found.members, *found.spares)]
    assert len(hired) == len(set(hired))
