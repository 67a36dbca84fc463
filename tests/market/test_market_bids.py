"""What a bid asks for: each constraint keeps out exactly who does not meet it, and money is bounded both ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from market_stand import DAY, HOST, HOUR, LARGEST, NOW, UNIT, bid, stand
from msgspec.structs import replace

from farflung.core.errors import UsageError
from farflung.core.money import MAX_CREDITS
from farflung.market.asks import ALL_DAY, market
from farflung.market.bids import open_ms, rules
from farflung.market.filter_report import pour
from farflung.market.work_units import CALIBRATED, MemberWork

EDGES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    # rule, the bid's change, a host that just meets it, one that just does not
    ("card", {"cards": ("rtx 3060", "a4000")}, {"card": "a4000"}, {"card": "rtx 3070"}),
    ("standing", {}, {"until": NOW + 1}, {"until": NOW}),
    ("memory", {"memory_bytes": 12 << 30}, {"memory_bytes": 12 << 30}, {"memory_bytes": (12 << 30) - 1}),
    ("disk", {"disk_bytes": 100}, {"disk_bytes": 100}, {"disk_bytes": 99}),
    ("cores", {"cores": 4}, {"cores": 4}, {"cores": 3}),
    ("upload", {"up": 10**7}, {"up": 10**7}, {"up": 10**7 - 1}),
    ("download", {"down": 10**7}, {"down": 10**7}, {"down": 10**7 - 1}),
    ("reliability", {"reliability": 900}, {"reliability": 900}, {"reliability": 899}),
    ("stake", {"stake": 500}, {"stake": 500}, {"stake": 499}),
    ("speed", {"speed": 10**12}, {"speed": 10**12}, {"speed": 10**12 - 1}),
    ("unit", {}, {"bounds": UNIT}, {"bounds": replace(UNIT, seconds=UNIT.seconds - 1)}),
    ("job", {}, {"minimum": 10}, {"minimum": 11}),
    ("job", {}, {"most": 10}, {"most": 9}),
    ("price", {"price": 700}, {"price": 700}, {"price": 701}),
    ("price", {"budget": 20 * 700 + 19}, {"price": 700}, {"price": 701}),
]


def opened(hours: int, start: int, end: int) -> int:
    return int(open_ms(np.array([hours]), start, end)[0])


@pytest.mark.parametrize(("rule", "asked", "meets", "fails"), EDGES)
def test_a_constraint_keeps_out_who_misses_it_by_one(
    rule: str, asked: dict[str, Any], meets: dict[str, Any], fails: dict[str, Any]
) -> None:
    def host(number: int, changes: dict[str, Any]) -> Any:
        return stand(number, **({"price": 5} | changes))

    found = rules(bid(**asked), market([host(1, meets), host(2, fails), host(3, {})]))
    where = {
        peer[-1]: place for place, peer in enumerate(market([host(1, meets), host(2, fails), host(3, {})]).asks.peers)
    }
    failed = {each.name: not each.met[where[2]] for each in found}
    assert [name for name, is_failed in failed.items() if is_failed] == [rule]
    assert all(each.met[where[1]] for each in found)


@pytest.mark.parametrize("name", UNIT.__struct_fields__)
def test_every_bound_of_a_unit_is_held_to_what_a_host_takes(name: str) -> None:
    largest = replace(LARGEST, **{name: getattr(UNIT, name) - 1})
    left, _ = pour(1, rules(bid(), market([stand(1, 5, bounds=largest)])))
    assert not left.any()


def test_who_cannot_be_done_in_its_hours_is_left_out() -> None:
    work = MemberWork(24, replace(UNIT, flop=4 * CALIBRATED))  # 96 PFLOP: 9,600 s at 10 TFLOP/s
    asked = bid(work=work, price=4000, budget=10**9, deadline=NOW + 9_600_000)
    one_hour_a_day = 1 << (NOW // HOUR % 24)
    hosts = [stand(1, 5), stand(2, 5, speed=HOST.speed - 10**6), stand(3, 5, hours=one_hour_a_day)]
    met = {rule.name: rule.met.tolist() for rule in rules(asked, market(hosts))}
    assert met["deadline"] == [True, False, False]
    later = replace(asked, deadline=NOW + 2 * DAY + 2 * HOUR)
    met = {rule.name: rule.met.tolist() for rule in rules(later, market(hosts))}
    assert met["deadline"] == [True, True, True]


@given(
    hours=st.integers(1, ALL_DAY), start=st.integers(0, 3 * 24), minutes=st.integers(0, 59), span=st.integers(1, 4000)
)
@settings(max_examples=60)
def test_open_time_is_that_of_the_minutes_whose_hour_is_open(hours: int, start: int, minutes: int, span: int) -> None:
    begin = start * HOUR + minutes * 60_000
    by_minute = sum(hours >> (begin + minute * 60_000) // HOUR % 24 & 1 for minute in range(span))
    assert opened(hours, begin, begin + span * 60_000) == by_minute * 60_000


def test_open_time_counts_milliseconds_and_years() -> None:
    assert opened(1, HOUR - 3, HOUR + 5) == 3
    assert opened(0b11, HOUR - 3, HOUR + 5) == 8
    assert opened(1 << 23, 0, 3650 * DAY) == 3650 * HOUR


@given(
    price=st.integers(0, 10**9),
    budget=st.integers(0, 10**12),
    units=st.integers(1, 10**4),
    flop=st.integers(1, 1 << 62),
)
@settings(max_examples=80)
def test_the_reserve_is_the_highest_ask_that_price_and_budget_allow(
    price: int, budget: int, units: int, flop: int
) -> None:
    if units * flop > CALIBRATED << 40:
        return
    asked = bid(3, work=MemberWork(units, replace(UNIT, flop=flop)), price=price, budget=budget)

    def is_paid(ask: int) -> bool:
        each = -(-ask * flop // CALIBRATED)
        return each <= price and each * 3 * units <= budget

    assert is_paid(asked.reserve)
    assert asked.reserve == MAX_CREDITS or not is_paid(asked.reserve + 1)
    assert asked.total(asked.reserve) <= budget


def test_spares_stand_by_and_take_nothing_of_the_budget() -> None:
    assert bid(3, 4, budget=3 * 10 * 50).reserve == bid(3, budget=3 * 10 * 50).reserve == 50
    assert bid(3, 4).total(50) == 3 * 10 * 50


def test_an_absurd_bid_is_refused_and_the_field_is_named(subtests: pytest.Subtests) -> None:
    for name, value in [
        ("members", 0),
        ("members", 1025),
        ("members", 2.0),
        ("spares", -1),
        ("price", -1),
        ("budget", 1 << 63),
        ("start", -1),
        ("deadline", NOW),
        ("deadline", NOW + (1000 << 30) + 1),
        ("cards", ("x",) * 65),
        ("cards", ("a", "x" * 65)),
        ("similarity", 99),
        ("similarity", 10_001),
        ("speed", -1),
        ("memory_bytes", 1 << 60),
        ("disk_bytes", -1),
        ("cores", -1),
        ("up", 1 << 51),
        ("down", float("inf")),
        ("reliability", 1001),
        ("stake", -1),
    ]:
        with subtests.test(name=name, value=value):
            with pytest.raises(UsageError) as error:
                bid(**{name: value})
            assert error.value.code == "FF-MARK-017"
            assert name in error.value.cause
