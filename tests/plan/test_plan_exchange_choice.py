"""Which way the payloads of a round go, and how long each way should take."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core.units import Seconds
from farflung.plan import exchange_choice
from farflung.plan.exchange_choice import ExchangeMember, ExchangeRound, ExchangeWay
from farflung.plan.link_syntax import Link

MB = 1_000_000
HOME = Link(20e6, 100e6, Seconds(0.04))
SERVER = Link(1e9, 1e9, Seconds(0.002))

rates = st.floats(1e4, 1e11)
links = st.builds(Link, rates, rates, st.floats(0, 2).map(Seconds))
parties = st.lists(st.builds(ExchangeMember, links, st.integers(1, 1 << 33)), min_size=1, max_size=9)
rounds = st.builds(ExchangeRound, parties, links, st.none() | links, st.booleans())


def homes(count: int, size: int = MB, link: Link = HOME) -> ExchangeRound:
    return ExchangeRound([ExchangeMember(link, size)] * count, SERVER, SERVER, True)


def forecasts(round: ExchangeRound) -> list[exchange_choice.ExchangeForecast]:
    by_relay = exchange_choice.fan(round)
    found = [
        exchange_choice.gather(round),
        *(exchange_choice.peer(round, via) for via in range(-1, len(round.members))),
    ]
    return found + ([] if by_relay is None else [by_relay])


@given(rounds)
@settings(max_examples=200)
def test_no_way_is_predicted_faster_than_a_line_can_carry(round: ExchangeRound) -> None:
    for found in forecasts(round):
        assert found.seconds >= exchange_choice.bound(round) * (1 - 1e-9)


@given(rounds, st.data())
@settings(max_examples=200)
def test_a_slower_line_or_a_longer_payload_never_makes_it_faster(round: ExchangeRound, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(round.members) - 1))
    link, size = round.members[at]
    what = data.draw(st.sampled_from(["up", "down", "round_trip", "size"]))
    worse = ExchangeMember(link, 2 * size)
    if what != "size":
        factor = 2.0 if what == "round_trip" else 0.5
        worse = ExchangeMember(msgspec.structs.replace(link, **{what: factor * getattr(link, what)}), size)
    members = [*round.members[:at], worse, *round.members[at + 1 :]]
    after = round._replace(members=members)
    for before, later in zip(forecasts(round), forecasts(after), strict=True):
        assert later.seconds >= before.seconds * (1 - 1e-9)
    assert exchange_choice.choose(after).seconds >= exchange_choice.choose(round).seconds * (1 - 1e-9)


@given(rounds)
@settings(max_examples=100)
def test_what_is_chosen_is_the_fastest_and_of_equals_the_simplest(round: ExchangeRound) -> None:
    chosen = exchange_choice.choose(round)
    assert chosen.seconds == min(found.seconds for found in forecasts(round))
    if exchange_choice.gather(round).seconds == chosen.seconds:
        assert chosen.way is ExchangeWay.GATHER


def test_eight_homes_on_a_relay_choose_fan_out_and_each_uplink_carries_its_payload_once() -> None:
    round = homes(8)
    chosen = exchange_choice.choose(round)
    assert chosen.way is ExchangeWay.FAN
    assert chosen.seconds == pytest.approx(7 * 8 * MB / 100e6 + 8 * 16384 / 20e6 + 0.08)
    assert exchange_choice.gather(round).seconds > 8 * 8 * MB / 20e6  # eight payloads up each line


def test_without_a_relay_a_peer_with_a_fast_line_collects_for_the_others() -> None:
    members = [ExchangeMember(HOME, MB)] * 7 + [ExchangeMember(SERVER, MB)]
    chosen = exchange_choice.choose(ExchangeRound(members, HOME))
    assert (chosen.way, chosen.via) == (ExchangeWay.PEER, 7)
    at_requester = exchange_choice.choose(ExchangeRound([ExchangeMember(HOME, MB)] * 8, SERVER))
    assert (at_requester.way, at_requester.via) == (ExchangeWay.PEER, -1)


def test_equal_peers_without_a_relay_gather_in_pairs() -> None:
    assert exchange_choice.choose(ExchangeRound([ExchangeMember(HOME, MB)] * 6, HOME)).way is ExchangeWay.GATHER


def test_a_relay_with_a_thin_line_is_not_chosen() -> None:
    thin = Link(5e6, 5e6, Seconds(0.002))
    assert exchange_choice.choose(ExchangeRound([ExchangeMember(HOME, MB)] * 6, HOME, thin)).way is not ExchangeWay.FAN


def test_one_member_has_nobody_to_exchange_with_but_the_requester() -> None:
    chosen = exchange_choice.choose(ExchangeRound([ExchangeMember(HOME, MB)], SERVER))
    assert chosen.way is ExchangeWay.GATHER
    assert chosen.seconds == pytest.approx(8 * MB / 20e6 + 4 * 0.042)
