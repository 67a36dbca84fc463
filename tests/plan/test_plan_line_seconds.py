"""What lines add to a run's seconds, and that they add nothing where everybody is on one computer."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Seconds
from farflung.job.spec import AuditSpec, JobSpec, NetworkSpec
from farflung.plan.exchange_paths import HERE, RunLinks
from farflung.plan.line_seconds import NOTHING, LineSeconds, waits
from farflung.plan.link_syntax import Link
from farflung.plan.machine import MachineMeasurements
from farflung.plan.run_plan import advise
from farflung.plan.run_traffic import (
    HIDDEN_SECOND,
    KEYS_OTHERS,
    KEYS_SECOND,
    NODE_SECOND,
    PAIR_APART,
    RunTraffic,
    traffic,
)

HOME = Link(20e6, 100e6, Seconds(0.04))
HOMES = RunLinks(HOME, is_apart=True, told="homes", building=Seconds(3.0))
LAYOUT = TensorLayout.of({"a.weight": (512, 512), "b.bias": (512,)})
MACHINE = MachineMeasurements(2, 1e11, 1 << 34)


class Fixed:
    """A codec whose payloads have one length."""

    def expect(self, layout: TensorLayout) -> float:
        return 100_000.0


def spec(rate: float = 0.25, rounds: int = 12, verifiers: int = 2) -> JobSpec:
    network = NetworkSpec(providers=5, hidden=5, verifiers=verifiers)
    return JobSpec(rounds=rounds, network=network, audit=AuditSpec(4, rate, 1))


def sent(job: JobSpec, network: RunLinks, data: int = 1_000_000) -> RunTraffic:
    return traffic(job, LAYOUT, data, Fixed(), network)


def waited(job: JobSpec, link: Link = HOME, data: int = 1_000_000, opened: float = 1e6) -> LineSeconds:
    network = msgspec.structs.replace(HOMES, member=link)
    return waits(job, network, sent(job, network, data), opened, 0.1)


def test_on_one_computer_nothing_is_waited_for_but_processors() -> None:
    assert waits(spec(), HERE, sent(spec(), HERE), 1e9, 1.0) == NOTHING
    plan = advise(spec(), LAYOUT, 1_000_000, MACHINE)
    assert not plan.duration.lines
    assert advise(spec(), LAYOUT, 1_000_000, MACHINE, HOMES).duration.total > plan.duration.total + 3


def test_the_data_set_comes_down_every_line_at_once() -> None:
    job = spec()
    more = waited(job, data=13_500_000).start - waited(job, data=1_000_000).start
    assert more == pytest.approx(8 * 12_500_000 / 100e6, rel=0.01)


def test_rounds_take_their_exchange_and_audits_the_way_up_their_peers_line() -> None:
    job = spec(rate=1.0)
    one, two = waited(job), waited(job, opened=3.5e6)
    assert one.exchange > job.rounds * sent(job, HOMES).forecast.seconds
    for before, after in zip(one.audit, two.audit, strict=True):
        busiest = (after - before) / (8 * 2.5e6 / 20e6)
        # of five audits, each with one of two verifiers by lot: (2 x 5 + 10 x 4 + 20 x 3) / 32
        assert busiest == pytest.approx(110 / 32, rel=0.01)


def test_audits_beside_longer_rounds_cost_nothing_but_the_last_ones() -> None:
    job = spec(rate=1.0)
    found = waited(job)
    assert found.beyond(1e9) == pytest.approx(found.audit[-1])
    assert found.beyond(0.0) == pytest.approx(sum(found.audit))
    assert waited(spec(rate=0.0, verifiers=0)).beyond(0.0) == 0.0


@given(st.sampled_from(["up", "down", "round_trip"]), st.floats(1.01, 50.0))
def test_a_worse_line_never_makes_it_faster(what: str, factor: float) -> None:
    job = spec()
    worse = msgspec.structs.replace(
        HOME, **{what: getattr(HOME, what) * (factor if what == "round_trip" else 1 / factor)}
    )
    before, after = waited(job), waited(job, worse)
    assert after.start >= before.start
    assert after.exchange >= before.exchange
    assert after.beyond(1.0) >= before.beyond(1.0)


def test_what_stands_talks_for_as_long_as_the_run_takes() -> None:
    """Five members, two verifiers, four others; hidden ones sign for what relays carry; lines of their own add more."""
    here = advise(spec(), LAYOUT, 1_000_000, MACHINE)
    there = advise(spec(), LAYOUT, 1_000_000, MACHINE, HOMES)
    each = KEYS_SECOND * (7 + KEYS_OTHERS) + HIDDEN_SECOND * spec().hidden
    assert spec().hidden
    more = here.duration.total * each
    assert here.traffic.control - sent(spec(), HERE).control == pytest.approx(more, abs=1)
    pairs, nodes = 7 + 10 + 10, 7
    more = pairs * PAIR_APART + there.duration.total * (nodes * NODE_SECOND + each)
    assert there.traffic.control - sent(spec(), HOMES).control == pytest.approx(more, abs=1)
