"""A run's plan before it and after it: of all rounds, and of those that were done."""

from __future__ import annotations

import pytest

from farflung.core import events, relay_passes
from farflung.core.errors import PolicyError
from farflung.job.job_loader import load
from farflung.local.network.forecast import RunForecast
from farflung.local.network.placement import LoopbackPlacement
from farflung.local.network.run_end import JobEndReport
from farflung.local.network.stage import LocalStage
from farflung.peers.rundir.folder import RunIdentity
from farflung.peers.rundir.inputs import known_layout
from farflung.plan.machine import MachineMeasurements
from farflung.watch.fold import RunTimeline, fold

DATA = 400_045
COMPUTER = MachineMeasurements(2, 1.5e11, 8 << 30)


def foreseen(*, hidden: int = 0, price: int = 0) -> RunForecast:
    flags = {"rounds": "12", "network.hidden": str(hidden), "network.providers": "2"}
    spec = load(None, preset="tiny", flags=flags, environment={}).spec
    layout = known_layout(spec)
    assert layout is not None
    network = LocalStage(spec, relays=2, relay_price=price).network
    identity = RunIdentity(1, 0.0, "", ".", relays=2, relay_price=price)
    return RunForecast(network, LoopbackPlacement(), identity, layout, DATA, COMPUTER)


def outcome(rounds: int, paid: int = 1408) -> JobEndReport:
    return JobEndReport(rounds=rounds, root="", reason="", escrow=0, paid=paid, refunded=0, output="")


def test_a_part_of_the_rounds_is_planned_by_the_same_formulas_and_not_by_proportion() -> None:
    whole, part = foreseen().plan(), foreseen().plan(3)
    assert part.traffic.sync * 4 == whole.traffic.sync
    assert part.traffic.join == whole.traffic.join
    assert part.memory == whole.memory
    assert part.traffic.control * 4 > whole.traffic.control
    assert part.duration.start == whole.duration.start
    assert part.duration.total * 4 > whole.duration.total
    assert foreseen().plan(12) == whole


def test_a_run_that_was_stopped_is_compared_with_its_own_rounds() -> None:
    sent = foreseen().plan(3).traffic.sync
    counted = events.TrafficEvent(session=1, process="p", sync=sent, audit=0, join=0, control=0, received=0)
    timeline = fold(RunTimeline(), counted)
    rows = {row.quantity: row for row in foreseen().compared(timeline, outcome(3), 11.0)}
    assert (rows["sync"].planned, rows["sync"].measured) == (sent, sent)
    assert rows["price"].planned == foreseen().plan(3).price.price
    assert rows["time"].measured == 11.0


def test_a_run_that_was_resumed_is_compared_but_for_its_time() -> None:
    timeline = fold(RunTimeline(), events.RunResumeEvent(round=2, session=2))
    rows = {row.quantity: row for row in foreseen().compared(timeline, outcome(12), 11.0)}
    assert "time" not in rows
    assert {"sync", "join", "control", "price"} <= set(rows)


def test_without_a_round_there_is_nothing_to_compare() -> None:
    assert foreseen().compared(RunTimeline(), outcome(0), 11.0) == ()


@pytest.mark.parametrize("hidden", [0, 2])
def test_relays_that_are_paid_are_planned_and_compared(hidden: int) -> None:
    found = foreseen(hidden=hidden, price=100_000)
    fees = found.plan().fees
    if not hidden:
        assert fees is None
        return
    assert fees is not None
    assert fees.planned == relay_passes.cost(found.plan().traffic.relay, 100_000) > 0
    assert fees.most == found.reserve(found.plan()).most == found.event(found.plan(), "r").relay_funds
    timeline = fold(RunTimeline(), events.RelayPaymentEvent(peer="a1", bytes=1 << 22, price=100_000, paid=390))
    (row,) = [row for row in found.compared(timeline, outcome(12), 11.0) if row.quantity == "relay fees"]
    assert (row.planned, row.measured, row.most) == (fees.planned, 390, fees.most)


def test_relays_beyond_what_there_is_for_them_are_refused() -> None:
    found = foreseen(hidden=2, price=10**17)
    with pytest.raises(PolicyError, match="relays cost up to"):
        found.event(found.plan(), "r")
