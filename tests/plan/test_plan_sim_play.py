"""Simulated networks: money, the hash of a seed, the market's price, audits, relays, and what nodes cost in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from plan_networks import HOUR, network

from farflung.plan.sim import rules as kinds
from farflung.plan.sim import steps
from farflung.plan.sim.play import SHELF, _Market, play, settled, total
from farflung.plan.sim.rules import HIRED, ODDS, SLOW, Rules, classes, odds, shape

SMALL = network(nodes=300, periods=3)
GOLDEN = "37dfd133fb4b82f8b773092cd1e3bedc236f8ff7fd29d35400494870b6d11800"


@pytest.fixture
def plain() -> Iterator[None]:
    """The loops as plain Python."""
    before = SHELF.settled
    SHELF.settled = "numpy"
    yield
    SHELF.settled = before


@pytest.fixture
def fast() -> Iterator[None]:
    """The loops compiled."""
    before = SHELF.settled
    SHELF.settled = "numba"
    assert SHELF.loop("walk") is not None
    yield
    SHELF.settled = before


def test_a_seed_has_the_hash_that_it_always_had(plain: None) -> None:
    """Golden: it changes only with the rules of the simulation, and then on every machine alike."""
    assert play(SMALL).hash == GOLDEN


def test_compiled_loops_give_the_same_hash(fast: None) -> None:
    assert play(SMALL).hash == GOLDEN


def test_another_seed_gives_another_network() -> None:
    assert play(network(nodes=300, periods=3, key=2)).hash != GOLDEN


CHANCE = st.integers(0, ODDS)


@st.composite
def networks(draw: st.DrawFn) -> Rules:
    return network(
        nodes=draw(st.sampled_from([1, 30, 60, 120])),
        periods=draw(st.integers(1, 3)),
        rounds=draw(st.integers(1, 8)),
        up=draw(st.integers(60_000, 100 * HOUR)),
        down=draw(st.integers(60_000, 100 * HOUR)),
        death=draw(st.sampled_from([0, HOUR, 1000 * HOUR])),
        members=draw(st.integers(1, 3)),
        wanted=draw(st.sampled_from([0, ODDS // 3, ODDS])),
        late=draw(CHANCE),
        cheaters=draw(CHANCE),
        audited=draw(CHANCE),
        caught=draw(CHANCE),
        caught_known=draw(CHANCE),
        probation=draw(st.integers(0, 4)),
        hidden=draw(CHANCE),
        budget=draw(st.sampled_from([0, 1, 10**6, 10**8, 10**10])),
        ceiling=draw(st.sampled_from([20, 100])),
        fare=draw(st.sampled_from([0, 1, 10**6])),
        taken=draw(st.integers(0, 1000)),
        bounty=draw(st.integers(0, 1000)),
        voices=draw(st.integers(1, 3)),
        segments=draw(st.integers(1, 7)),
        key=draw(st.integers(0, (1 << 32) - 1)),
    )


@settings(max_examples=60)
@given(networks())
def test_no_money_is_made_or_lost_and_no_account_is_below_zero(rules: Rules) -> None:
    outcome = play(rules)
    assert outcome.ended.total == outcome.began.total
    ended = outcome.ended
    assert min(ended.requesters, ended.nodes, ended.verifiers, ended.relays, ended.burnt) >= 0
    for period in outcome.periods:
        flows = period.flows
        assert flows.escrow == flows.paid + flows.fees + flows.fares + flows.refunded
        assert flows.refunded >= 0
        assert flows.taken == flows.bounties + flows.burnt
        assert not rules.budget or flows.escrow <= rules.budget


def test_money_is_conserved_where_every_kind_of_it_moves() -> None:
    outcome = play(SMALL)
    flows = outcome.flows
    assert min(flows.paid, flows.fees, flows.fares, flows.refunded, flows.bounties, flows.burnt) > 0
    assert outcome.ended.total == outcome.began.total
    assert outcome.ended.nodes == outcome.began.nodes + flows.paid - flows.taken
    assert outcome.ended.verifiers == flows.fees + flows.bounties


@settings(max_examples=60)
@given(networks())
def test_every_round_of_a_member_ends_in_one_way(rules: Rules) -> None:
    tally = play(rules).tally
    ways = tally[:, [kinds.ACCEPTED, kinds.DROPPED, kinds.LATE, kinds.CAUGHT]].sum(axis=1)
    assert np.array_equal(ways, tally[:, kinds.MEMBERS])
    outcome = play(rules)
    shares = (outcome.goodput, *outcome.losses.values())
    assert min(shares) >= 0
    assert sum(shares) == pytest.approx(1.0 if outcome.hired else 0.0)
    assert (tally[:, kinds.JOINED] <= tally[:, kinds.MEMBERS]).all()
    assert (tally[:, kinds.CAUGHT] <= tally[:, kinds.AUDITED]).all()
    assert (tally >= 0).all()


def auctioned(rules: Rules) -> tuple[_Market, list[list[int]], list[list[int]]]:
    """By class: asks of the hired, and asks of those who could have been and are not."""
    nodes = settled(rules)
    market = _Market(rules, nodes, classes())
    market.clear(nodes)
    hired: list[list[int]] = [[] for _ in classes()]
    others: list[list[int]] = [[] for _ in classes()]
    for node in range(rules.nodes):
        if steps.able(nodes, node, rules.stake, rules.ceiling) == 5:
            side = hired if int(nodes.flags[node]) & HIRED else others
            side[int(nodes.kind[node])].append(int(nodes.ask[node]))
    return market, hired, others


@settings(max_examples=40)
@given(networks())
def test_each_class_clears_at_the_lowest_ask_that_is_not_hired(rules: Rules) -> None:
    market, hired, others = auctioned(rules)
    for kind, asks in enumerate(hired):
        assert len(asks) == market.hired[kind]
        assert len(asks) % rules.members == 0
        assert len(asks) <= market.wanted[kind]
        if asks:
            assert max(asks) <= market.prices[kind] == min(others[kind]) <= rules.ceiling


def test_speeds_of_one_class_differ_by_at_most_a_quarter() -> None:
    nodes = settled(network(nodes=5000))
    for kind in set(nodes.kind.tolist()):
        speeds = nodes.speed[nodes.kind == kind]
        assert 4 * int(speeds.max()) < 5 * int(speeds.min()) + 5


def test_no_budget_is_overdrawn_and_a_larger_one_hires_more() -> None:
    few, many = (play(network(budget=budget, nodes=500, periods=1)) for budget in (10**8, 10**9))
    assert 0 < few.periods[0].hired < many.periods[0].hired
    assert few.flows.escrow <= 10**8
    assert many.flows.escrow <= 10**9


def test_without_churn_and_lateness_all_rounds_are_accepted() -> None:
    steady = network(nodes=200, periods=2, up=1 << 40, down=1, late=0, cheaters=0)
    outcome = play(steady)
    assert outcome.goodput == 1
    assert outcome.utilisation == pytest.approx(38 / 40)
    assert outcome.of(kinds.JOINED) == outcome.periods[0].hired


def test_who_is_caught_is_hired_no_more_and_loses_what_it_earned_that_day() -> None:
    rules = network(
        cheaters=ODDS, caught=ODDS, caught_known=ODDS, audited=ODDS, up=1 << 40, down=1, late=0, fare=0
    )
    outcome = play(rules)
    first = outcome.periods[0]
    assert first.flows.paid == 0
    assert outcome.of(kinds.ACCEPTED) == 0
    assert first.flows.taken > 0
    assert outcome.of(kinds.CAUGHT) == sum(period.hired for period in outcome.periods)
    assert [p.funnel[0] - p.funnel[1] for p in outcome.periods][:2] == [0, first.hired]


def test_the_rest_of_the_day_of_who_is_caught_is_not_called_away() -> None:
    """Nobody ever leaves: all that is not accepted is of those that were found out."""
    rules = network(
        cheaters=ODDS // 5, caught=ODDS, caught_known=ODDS, audited=ODDS, up=1 << 40, down=1, late=0
    )
    losses = play(rules).losses
    assert losses["caught"] > 0.001
    assert losses["away"] == losses["left"] == losses["late"] == 0


@pytest.mark.parametrize("way", ["uplink", "downlink"])
def test_a_line_is_too_slow_from_the_first_bit_that_does_not_fit_and_each_way_counts(way: str) -> None:
    """Bits of a round against kbit/s times ms."""
    rules = network(nodes=50, uplink=10**9, downlink=10**9, uplink_sigma=0, downlink_sigma=0)
    bits = {"uplink": shape(rules).sent, "downlink": shape(rules).fetched}[way]
    assert bits in (8 * rules.payload, 8 * rules.payload * (rules.members - 1))
    enough = -(-bits // rules.exchange)
    for rate, is_slow in ((enough, False), (enough - 1, True)):
        flags = settled(replace(rules, **{way: rate})).flags
        assert ((flags & SLOW) != 0).all() if is_slow else not (flags & SLOW).any()


def test_probation_draws_the_first_contributions_and_no_others() -> None:
    outcome = play(
        network(audited=0, caught=0, cheaters=0, nodes=400, periods=2, wanted=odds(0.3), probation=3)
    )
    nodes = 400
    assert 0 < outcome.of(kinds.AUDITED) <= 3 * nodes
    assert outcome.tally[6:36, kinds.AUDITED].sum() < 0.05 * outcome.tally[:6, kinds.AUDITED].sum()


def test_relays_carry_payloads_to_all_other_members_and_states_to_who_joins() -> None:
    rules = network(hidden=ODDS, cheaters=0, late=0, relays=1, nodes=200, periods=1)
    outcome = play(rules)
    given_ = outcome.of(kinds.ACCEPTED) * rules.payload * (rules.members - 1)
    assert int(outcome.relayed.sum()) == given_ + outcome.of(kinds.JOINED) * rules.snapshot
    assert outcome.flows.fares == int(outcome.relayed.sum()) * rules.fare >> 30
    assert play(network(hidden=0, nodes=200, periods=1)).relayed.sum() == 0


def test_lines_that_cannot_carry_a_round_are_not_hired() -> None:
    outcome = play(network(uplink=1, uplink_sigma=0, nodes=200, periods=1))
    assert outcome.periods[0].funnel[2] == 0
    assert outcome.periods[0].hired == 0


def test_who_cannot_put_up_its_stake_is_not_hired() -> None:
    assert play(network(opening=399, stake=400, nodes=200, periods=1)).periods[0].funnel[3:] == (0, 0)


def test_sums_of_money_are_exact_beyond_64_bits() -> None:
    values = np.array([(1 << 62) - 1] * 5 + [-7], np.int64)
    assert total(values) == 5 * ((1 << 62) - 1) - 7


def test_a_node_takes_44_bytes_of_its_table() -> None:
    assert sum(column.itemsize for column in settled(network(nodes=10))) <= 44
