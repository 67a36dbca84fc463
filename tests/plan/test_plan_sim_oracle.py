"""plan.sim against a model on SimPy that shares nothing with it but the rules, and against what is known exactly.

One thousand nodes for thirty days: of 10^5 events the standard error is below 0.4 %, and the seeds are fixed.
Cheaters that are caught are some dozens, whose standard error is theirs.
"""

from __future__ import annotations

import math

import pytest
from plan_networks import HOUR, network
from plan_oracle import Network

from farflung.compress import kernels
from farflung.plan.sim import rules as kinds
from farflung.plan.sim.outcome import Outcome
from farflung.plan.sim.play import play, settled
from farflung.plan.sim.rules import odds

CLOSE = 0.01


@pytest.fixture(scope="module")
def both() -> tuple[Outcome, Network]:
    rules = network(cheaters=odds(0.1))
    oracle = Network(rules, settled(rules), seed=5)
    oracle.run()
    return play(rules), oracle


SEEN = {
    "members": kinds.MEMBERS, "accepted": kinds.ACCEPTED, "dropped": kinds.DROPPED, "joined": kinds.JOINED,
    "lost": kinds.LOST,
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN)
def test_rounds_agree_with_the_oracle(both: tuple[Outcome, Network], name: str) -> None:
    outcome, oracle = both
    assert outcome.of(SEEN[name]) == pytest.approx(oracle.count[name], rel=CLOSE)


def test_churn_agrees_with_the_oracle(both: tuple[Outcome, Network]) -> None:
    outcome, oracle = both
    assert sum(p.up_time for p in outcome.periods) == pytest.approx(oracle.count["up"], rel=CLOSE)
    assert sum(p.downs for p in outcome.periods) == pytest.approx(oracle.count["downs"], rel=CLOSE)


def test_hiring_pay_and_relays_agree_with_the_oracle(both: tuple[Outcome, Network]) -> None:
    outcome, oracle = both
    assert sum(p.hired for p in outcome.periods) == pytest.approx(oracle.count["hired"], rel=CLOSE)
    assert outcome.flows.paid == pytest.approx(oracle.count["paid"], rel=CLOSE)
    assert int(outcome.relayed.sum()) == pytest.approx(oracle.relayed.total(), rel=CLOSE)
    for relay in range(4):
        assert int(outcome.relayed[:, relay].sum()) == pytest.approx(oracle.relayed[relay], rel=2 * CLOSE)


def test_audits_and_fees_agree_with_the_oracle(both: tuple[Outcome, Network]) -> None:
    outcome, oracle = both
    assert outcome.of(kinds.AUDITED) == pytest.approx(oracle.count["audited"], rel=CLOSE)
    assert outcome.flows.fees == pytest.approx(oracle.count["fees"], rel=2 * CLOSE)
    assert outcome.of(kinds.LATE) == pytest.approx(oracle.count["late"], rel=0.05)


def test_cheaters_are_caught_as_often_as_the_oracles(both: tuple[Outcome, Network]) -> None:
    outcome, oracle = both
    caught, theirs = outcome.of(kinds.CAUGHT), oracle.count["caught"]
    assert caught > 40
    assert abs(caught - theirs) <= 4 * math.sqrt(caught + theirs)
    few, many = sorted((outcome.of(kinds.CHEATED), oracle.count["cheated"]))
    assert many <= 1.5 * few


@pytest.mark.parametrize(("up", "down", "death"), [(10, 2, 0), (1, 1, 0), (2, 20, 0), (0.1, 0.3, 0)])
def test_the_share_of_time_up_is_the_exact_one(up: float, down: float, death: int) -> None:
    outcome = play(
        network(nodes=4000, wanted=0, up=int(up * HOUR), down=int(down * HOUR), death=death, periods=10)
    )
    assert outcome.availability == pytest.approx(up / (up + down), rel=CLOSE)


def test_hardware_dies_at_the_rate_that_is_asked_for() -> None:
    """Nodes that are up all the time: e^(-t / mean) of them are left after t."""
    mean = 30 * 24 * HOUR
    outcome = play(network(nodes=20_000, wanted=0, down=1, up=1 << 39, death=mean))
    deaths = sum(period.deaths for period in outcome.periods)
    end = 30 * 36 * 40 * 60_000
    assert deaths == pytest.approx(20_000 * (1 - math.exp(-end / mean)), rel=0.02)
    assert outcome.availability == pytest.approx((1 - math.exp(-end / mean)) / (end / mean), rel=CLOSE)


def test_the_oracle_is_compared_with_compiled_loops_where_there_are_any() -> None:
    assert kernels.installed(), "numba comes with the tools for development"


def test_hardware_dies_as_often_as_it_is_up_for() -> None:
    """Nodes that die half of the times that they go away: of N with a mean of u hours up, half the departures."""
    rules = network(nodes=4000, wanted=0, up=10 * HOUR, down=2 * HOUR, death=10 * HOUR, periods=3)
    outcome = play(rules)
    downs, deaths = (sum(getattr(each, name) for each in outcome.periods) for name in ("downs", "deaths"))
    assert deaths == pytest.approx(downs / 2, abs=4 * math.sqrt(downs / 4))
