"""advice.simulation against a model on SimPy that shares nothing with it but the rules and what nodes are, and
against what is known exactly.

One thousand nodes for thirty days, with fixed seeds. The standard errors of all sums of six such networks (`make soak`)
are below 0.4 %, and of two below 0.7 %. RARE is what happens to some hundreds of nodes: its standard error is its own.
"""

from __future__ import annotations

import math
from collections import Counter

import pytest
from plan_networks import DAY, HOUR, busy, counted, lines, network
from plan_oracle import Network

from farflung.advice.simulation.simulate import play, settled
from farflung.compress import kernels

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("oracle")]

CLOSE = 0.01
SEEN = (
    "hired", "members", "away", "accepted", "dropped", "late", "fetching", "joined", "lost", "audited", "up", "downs",
    "paid", "fees", "relayed", "relay 0", "relay 1",
)  # fmt: skip
RARE = ("caught", "taken", "excluded", "cheated")  # once a cheater, or what comes of it


@pytest.fixture(scope="module", params=[2, pytest.param(6, marks=pytest.mark.soak)])
def both(request: pytest.FixtureRequest) -> tuple[int, Counter[str], Counter[str]]:
    """How many networks, and the sums over them: by advice.simulation, and by the oracle."""
    ours, theirs = Counter[str](), Counter[str]()
    for seed in range(request.param):
        rules = busy(key=seed)
        oracle = Network(rules, settled(rules), lines(rules), seed)
        oracle.run()
        theirs += oracle.counted()
        ours += counted(play(rules))
    return request.param, ours, theirs


def test_what_is_often_agrees_with_the_oracle_within_three_standard_errors(
    both: tuple[int, Counter[str], Counter[str]],
) -> None:
    networks, ours, theirs = both
    for name in SEEN:
        assert theirs[name] > 8_000 * networks, name
        assert ours[name] == pytest.approx(theirs[name], rel=CLOSE * math.sqrt(6 / networks)), name


def test_what_is_rare_agrees_with_the_oracle_within_four_standard_errors(
    both: tuple[int, Counter[str], Counter[str]],
) -> None:
    """All four follow from some hundreds of cheaters that are caught: the sum of n such has an error of 1 / sqrt(n)."""
    networks, ours, theirs = both
    few = min(ours["caught"], theirs["caught"])
    assert few > 50 * networks
    for name in RARE:
        assert ours[name] == pytest.approx(theirs[name], rel=4 * math.sqrt(2 / few)), name


def test_every_tally_is_compared() -> None:
    assert set(counted(play(busy(nodes=300, periods=3, death=10 * DAY)))) == {*SEEN, *RARE, "deaths"}


def test_hardware_dies_as_often_as_the_oracles_where_nodes_come_and_go() -> None:
    """Up for 10 hours on the average, and dead after 40 days of being up: 4 standard errors of some 460 each."""
    rules = network(death=40 * DAY, wanted=0)
    oracle = Network(rules, settled(rules), lines(rules), 3)
    oracle.run()
    ours, theirs = counted(play(rules))["deaths"], oracle.count["deaths"]
    assert theirs > 400
    assert abs(ours - theirs) <= 4 * math.sqrt(ours + theirs)


@pytest.mark.parametrize(("up", "down", "death"), [(10, 2, 0), (1, 1, 0), (2, 20, 0), (0.1, 0.3, 0)])
def test_the_share_of_time_up_is_the_exact_one(up: float, down: float, death: int) -> None:
    outcome = play(network(nodes=4000, wanted=0, up=int(up * HOUR), down=int(down * HOUR), death=death, periods=10))
    assert outcome.availability == pytest.approx(up / (up + down), rel=CLOSE)


def test_hardware_dies_at_the_rate_that_is_asked_for() -> None:
    """Nodes that are up all the time: e^(-t / mean) of them are left after t."""
    mean = 30 * DAY
    outcome = play(network(nodes=20_000, wanted=0, down=1, up=1 << 39, death=mean))
    deaths = sum(period.deaths for period in outcome.periods)
    end = 30 * 36 * 40 * 60_000
    assert deaths == pytest.approx(20_000 * (1 - math.exp(-end / mean)), rel=0.02)
    assert outcome.availability == pytest.approx((1 - math.exp(-end / mean)) / (end / mean), rel=CLOSE)


def test_the_oracle_is_compared_with_compiled_loops_where_there_are_any() -> None:
    assert kernels.installed(), "numba comes with the tools for development"
