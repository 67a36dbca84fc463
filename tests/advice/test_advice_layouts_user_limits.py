"""A budget and a deadline: what keeps to them stays, and of a kind without any the nearest says what it would take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from plan_offers import hosts, sized

from farflung.advice.layouts import replica_layouts
from farflung.advice.layouts.layout_search import search
from farflung.advice.layouts.replica_layouts import OfferAssumptions
from farflung.advice.layouts.training_options import LayoutKind, TrainingOption
from farflung.advice.layouts.user_limits import UserLimits, within
from farflung.core.money import Credits
from farflung.core.units import Seconds

MIDDLE = sized({"model.layers": "12", "model.width": "768", "model.heads": "12", "model.context": "512"})
LONG = replace(MIDDLE, tokens=1000 * MIDDLE.tokens)


def ways(count: int) -> list[TrainingOption]:
    found = [replica_layouts.rounds(LONG, hosts(each), OfferAssumptions()) for each in range(2, 2 + count)]
    return [each for each in found if isinstance(each, TrainingOption)]


WAYS = ways(4)


@given(
    st.none() | st.integers(0, 2 * max(way.price for way in WAYS)),
    st.none() | st.floats(1.0, 2 * max(way.seconds for way in WAYS)),
)
def test_what_stays_keeps_to_both_and_what_is_needed_would_do(price: int | None, seconds: float | None) -> None:
    most = UserLimits(None if price is None else Credits(price), None if seconds is None else Seconds(seconds))
    kept, beyond = within({LayoutKind.ROUNDS: WAYS}, most)
    fine = [
        way for way in WAYS if (price is None or way.price <= price) and (seconds is None or way.seconds <= seconds)
    ]
    assert kept.get(LayoutKind.ROUNDS, []) == fine
    assert (LayoutKind.ROUNDS in beyond) == (not fine)
    for blocked in beyond.values():
        assert blocked.constraint in ("budget", "deadline")
        assert 0 <= blocked.short < 1
        assert ("budget" in blocked.help) or ("deadline" in blocked.help)


def test_where_a_budget_binds_the_cheapest_way_says_what_it_costs() -> None:
    free = search(LONG, hosts(4))
    cheapest = min(way.price for way in free.best)
    poor = search(LONG, hosts(4), user_limits=UserLimits(price=Credits(1)))
    assert poor.best == ()
    assert {each.constraint for each in poor.binding if each.kind in {way.kind for way in free.best}} == {"budget"}
    enough = search(LONG, hosts(4), user_limits=UserLimits(price=cheapest))
    assert enough.best
    assert all(way.price <= cheapest for way in enough.best)


def test_who_says_nothing_is_bound_by_nothing() -> None:
    assert search(LONG, hosts(4), user_limits=UserLimits()) == search(LONG, hosts(4))
