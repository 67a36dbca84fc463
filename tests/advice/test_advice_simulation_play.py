"""Simulated networks: money, the hash of a seed, the market's price, audits, relays, and what nodes cost in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from plan_networks import HOUR, network

from farflung.advice.simulation import node_steps
from farflung.advice.simulation import simulation_rules as kinds
from farflung.advice.simulation.simulate import KERNELS, _SimulatedMarket, play, prepare, settled, total
from farflung.advice.simulation.simulation_rules import HIRED, ODDS, SimulationRules, classes, odds
from farflung.compress import kernels

SMALL = network(nodes=300, periods=3, death=30 * 24 * HOUR, snapshot=2_000_000_000)
GOLDEN = "d24591468ed9ce8ba80d7b4d35fd6d5065b6989a3865f63f186a2864a155b664"


@pytest.fixture
def plain() -> Iterator[None]:
    """The loops as plain Python."""
    before = KERNELS.settled
    KERNELS.settled = "numpy"
    yield
    KERNELS.settled = before


@pytest.fixture
def fast() -> Iterator[None]:
    """The loops compiled."""
    before = KERNELS.settled
    KERNELS.settled = "numba"
    assert KERNELS.loop("walk") is not None
    yield
    KERNELS.settled = before


def test_a_seed_has_the_hash_that_it_always_had(plain: None) -> None:
    """Golden: it changes only with the rules of the simulation, and then on every machine alike."""
    assert play(SMALL).hash == GOLDEN


@pytest.mark.slow
def test_compiled_loops_give_the_same_hash(fast: None) -> None:
    assert play(SMALL).hash == GOLDEN


def test_another_seed_gives_another_network() -> None:
    assert play(structs.replace(SMALL, key=2)).hash != GOLDEN


CHANCE = st.integers(0, ODDS)


@st.composite
def networks(draw: st.DrawFn) -> SimulationRules:
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
        funded=draw(st.sampled_from([0, ODDS // 2, ODDS])),
        snapshot=draw(st.sampled_from([0, 400_000_000, 20_000_000_000])),
        budget=draw(st.sampled_from([0, 1, 10**6, 10**8, 10**10])),
        ceiling=draw(st.sampled_from([20, 100])),
        fare=draw(st.sampled_from([0, 1, 10**6])),
        taken=draw(st.integers(0, 1000)),
        bounty=draw(st.integers(0, 1000)),
        voices=draw(st.integers(1, 3)),
        segments=draw(st.integers(1, 7)),
        key=draw(st.integers(0, (1 << 32) - 1)),
    )


@pytest.mark.whole
@settings(max_examples=60)
@given(networks())
def test_no_money_is_made_or_lost_and_no_account_is_below_zero(rules: SimulationRules) -> None:
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


@pytest.mark.whole
@settings(max_examples=60)
@given(networks())
def test_every_round_of_a_member_ends_in_one_way(rules: SimulationRules) -> None:
    tally = play(rules).tally
    ways = tally[:, [kinds.ACCEPTED, kinds.DROPPED, kinds.LATE, kinds.FETCHING, kinds.CAUGHT]].sum(axis=1)
    assert np.array_equal(ways, tally[:, kinds.MEMBERS])
    assert (tally[:, kinds.JOINED] <= tally[:, kinds.MEMBERS]).all()
    assert (tally[:, kinds.CAUGHT] <= tally[:, kinds.AUDITED]).all()
    assert (tally >= 0).all()


@pytest.mark.whole
@settings(max_examples=60)
@given(networks())
def test_shares_of_hired_nodes_rounds_add_up_to_the_whole(rules: SimulationRules) -> None:
    outcome = play(rules)
    hired = np.repeat([period.hired for period in outcome.periods], rules.rounds)
    counted = outcome.tally[:, [kinds.MEMBERS, kinds.AWAY, kinds.EXCLUDED]].sum(axis=1)
    assert np.array_equal(counted, hired)
    assert outcome.goodput + sum(outcome.losses.values()) == pytest.approx(1 if outcome.hired else 0)


def test_who_is_caught_is_not_told_as_away() -> None:
    """All cheat, all are caught in the first round of a day, and all are there."""
    certain = {"cheaters": ODDS, "caught": ODDS, "caught_known": ODDS, "up": 1 << 40, "down": 1, "late": 0}
    losses = play(network(**certain, snapshot=0, nodes=200, periods=2)).losses
    assert losses == {"away": 0, "left": 0, "late": 0, "joining": 0, "caught": 1}


# A steady network's lines: 20 Mbit/s up, 100 down. A payload of 25 MB takes 10 s up, three of them 6 s down, so of the
# exchange of 120 s there are 110 to fetch the state in: 1,375 MB.
STEADY = {
    "up": 1 << 40, "down": 1, "late": 0, "cheaters": 0, "uplink_sigma": 0, "downlink_sigma": 0, "nodes": 200,
    "periods": 1, "hidden": 0,
}  # fmt: skip
ROUND = 30_000_000_000  # bytes that the line fetches in a round


@pytest.mark.parametrize(
    ("state", "missed"),
    [
        (0, 0), (1_375_000_000, 0), (1_375_000_001, 1), (1_375_000_000 + ROUND, 1),
        (1_375_000_001 + ROUND, 2), (1_375_000_000 + 7 * ROUND, 7),
    ],
)  # fmt: skip
def test_who_joins_is_late_until_the_state_leaves_time_to_train_and_exchange(state: int, missed: int) -> None:
    outcome = play(network(**STEADY, snapshot=state))
    hired = outcome.periods[0].hired
    assert outcome.of(kinds.JOINED) == hired
    assert outcome.of(kinds.FETCHING) == outcome.of(kinds.MEMBERS) - outcome.of(kinds.ACCEPTED) == missed * hired
    assert outcome.tally[missed:, kinds.FETCHING].sum() == 0


def test_a_state_that_takes_longer_than_a_day_is_fetched_on_into_the_next() -> None:
    outcome = play(network(**STEADY | {"periods": 3}, snapshot=1_375_000_000 + 40 * ROUND))
    assert outcome.of(kinds.JOINED) == outcome.periods[0].hired
    assert outcome.of(kinds.FETCHING) == 40 * outcome.periods[0].hired


def auctioned(rules: SimulationRules) -> tuple[_SimulatedMarket, list[list[int]], list[list[int]]]:
    """By class: asks of the hired, and asks of those who could have been and are not."""
    nodes = settled(rules)
    market = _SimulatedMarket(rules, nodes, classes())
    market.clear(nodes)
    hired: list[list[int]] = [[] for _ in classes()]
    others: list[list[int]] = [[] for _ in classes()]
    for node in range(rules.nodes):
        if node_steps.able(nodes, node, rules.stake, rules.ceiling) == 5:
            side = hired if int(nodes.flags[node]) & HIRED else others
            side[int(nodes.kind[node])].append(int(nodes.ask[node]))
    return market, hired, others


@settings(max_examples=40)
@given(networks())
def test_each_class_clears_at_the_lowest_ask_that_is_not_hired(rules: SimulationRules) -> None:
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
    steady = network(nodes=200, periods=2, up=1 << 40, down=1, late=0, cheaters=0, snapshot=0)
    outcome = play(steady)
    assert outcome.goodput == 1
    assert outcome.utilisation == pytest.approx(38 / 40)
    assert outcome.of(kinds.JOINED) == outcome.periods[0].hired


@pytest.mark.slow
def test_who_is_caught_is_hired_no_more_and_loses_what_it_earned_that_day() -> None:
    rules = network(
        nodes=300, periods=5, cheaters=ODDS, caught=ODDS, caught_known=ODDS, audited=ODDS, up=1 << 40, down=1, late=0,
        fare=0, snapshot=0,
    )  # fmt: skip
    outcome = play(rules)
    first = outcome.periods[0]
    assert first.flows.paid == 0
    assert outcome.of(kinds.ACCEPTED) == 0
    assert first.flows.taken > 0
    assert outcome.of(kinds.CAUGHT) == sum(period.hired for period in outcome.periods)
    assert [p.funnel[0] - p.funnel[1] for p in outcome.periods][:2] == [0, first.hired]


def test_probation_draws_the_first_contributions_and_no_others() -> None:
    outcome = play(network(audited=0, caught=0, cheaters=0, nodes=400, periods=2, wanted=odds(0.3), probation=3))
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


@pytest.mark.parametrize(("direction", "slow", "enough"), [("uplink", 1666, 1667), ("downlink", 4999, 5000)])
def test_lines_that_cannot_carry_a_round_are_not_hired(direction: str, slow: int, enough: int) -> None:
    """Kbit/s: 25 MB up, or those of three others down, in 120 s."""
    steady = {f"{direction}_sigma": 0, "nodes": 200, "periods": 1}
    refused, hired = (play(network(**steady, **{direction: rate})).periods[0] for rate in (slow, enough))
    assert (refused.funnel[2], refused.hired) == (0, 0)
    assert hired.funnel[2] == hired.funnel[1] > 100
    assert hired.hired > 0


def test_who_cannot_put_up_its_stake_is_not_hired() -> None:
    assert play(network(opening=399, stake=400, nodes=200, periods=1)).periods[0].funnel[3:] == (0, 0, 0)


@pytest.mark.whole
def test_a_share_of_nodes_has_no_stake_and_is_not_hired() -> None:
    first = play(network(funded=odds(0.25), nodes=2000, periods=1)).periods[0]
    assert first.funnel[3] / first.funnel[2] == pytest.approx(0.25, abs=0.03)


def test_the_last_condition_leaves_only_classes_that_are_wanted_and_have_enough_for_a_job() -> None:
    rules = network(nodes=200, periods=1)
    market, hired, others = auctioned(rules)
    enough = [len(of) + len(rest) for of, rest, wanted in zip(hired, others, market.wanted, strict=True) if wanted]
    first = play(rules).periods[0]
    assert first.funnel[5] == sum(count for count in enough if count > rules.members)
    assert 0 < first.hired <= first.wanted == int(market.wanted.sum())
    assert play(network(nodes=200, periods=1, wanted=0)).periods[0].funnel[4:][1] == 0


def test_sums_of_money_are_exact_beyond_64_bits() -> None:
    values = np.array([(1 << 62) - 1] * 5 + [-7], np.int64)
    assert total(values) == 5 * ((1 << 62) - 1) - 7


def test_a_node_takes_52_bytes_of_its_table() -> None:
    assert sum(column.itemsize for column in settled(network(nodes=10))) <= 52


def test_loops_are_compiled_before_a_network_that_is_worth_it_and_not_for_a_small_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels._settings, "asked", "auto")
    for name, value in (("settled", None), ("spent", 0), ("loops", None), ("module", "farflung.no_such_module")):
        monkeypatch.setattr(KERNELS, name, value)
    prepare([SMALL])
    assert KERNELS.ready("settle", 1) is None
    assert KERNELS.loops is None, "the twins run, and nothing was loaded"
    prepare([network(nodes=10_000)])
    KERNELS.ready("settle", 1)
    assert KERNELS.loops == {}, "it was tried, before anything was played"


def test_what_will_be_played_is_told_before_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[SimulationRules]] = []
    monkeypatch.setattr("farflung.advice.simulation.simulate.prepare", told.append)
    play(SMALL)
    assert told == [[SMALL]]
