"""What a run shows, as its timeline has it: a whole recorded one, and how it is compared with the plan of its job."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from farflung.core import events
from farflung.core.events import AnyEvent, PlanComparisonEvent
from farflung.core.money import MICRO
from farflung.job.job_loader import load
from farflung.peers.rundir.inputs import known_layout
from farflung.plan.machine import MachineMeasurements
from farflung.plan.plan_comparison import compare
from farflung.plan.run_plan import RunPlan, advise
from farflung.plan.run_signs import RunObservations
from farflung.watch import run_measurements
from farflung.watch.fold import RunTimeline, fold

PEERS = ("9a" * 32, "da" * 32)
PAYLOAD = 5689  # bytes of one object, as it was
SENT = 71_616  # bytes of three rounds: two members, and each payload twice
TOOK = 15.276  # seconds
# Of each round: when it was opened and closed, seconds, of training, of waiting before, by the lines, taken, and sent
# so far by all: these are cumulative, and come late.
ROUNDS = (
    (12.015, 12.667, 0.654, 0.049, 0.002, 0.009, 0.210, 12_172),
    (12.669, 12.996, 0.329, 0.067, 0.002, 0.218, 0.078, 36_044),
    (13.143, 13.419, 0.423, 0.088, 0.147, 0.084, 0.072, 59_916),
)


def recorded(way: str = "aggregating peer") -> Iterator[AnyEvent]:
    """`farflung run --preset tiny --cheat none` on a busy computer: slow to start."""
    yield events.RunStartEvent(at=0.03, run="r", name="tiny", seed=1, version="0.1.0", python="3.11", torch="2.13")
    yield events.ProviderMatchEvent(at=9.0, peers=PEERS, offers=2, unit_price=MICRO)
    for peer in PEERS:
        yield events.PeerJoinEvent(at=12.0, peer=peer, round=0, replayed=0, seconds=2.5)
    for round, (opened, closed, seconds, trained, waited, told, taken, sent) in enumerate(ROUNDS):
        yield events.RoundStartEvent(at=opened, round=round, rounds=3, peers=PEERS, waited=waited)
        yield events.RoundEndEvent(
            at=closed, round=round, rounds=3, peers=2, loss=4.0, tokens=384, root="", waited_for="", seconds=seconds,
            train_seconds=trained, sync_bytes=sent, way=way, way_predicted=told, way_taken=taken,
            payload_bytes=PAYLOAD,
        )  # fmt: skip
    for round, peer, segment in ((0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 2)):
        yield events.AuditDrawEvent(at=13.0, round=round, peer=PEERS[peer], segment=segment)
        yield events.AuditEndEvent(
            at=14.0, round=round, peer=PEERS[peer], segment=segment, verifiers=("57" * 32,), finding="holds",
            excess=0.0, tokens=64, seconds=0.2,
        )  # fmt: skip
    for process, sync, audit, join in (
        ("requester", 12_044, 352_538, 1_618_505), ("provider-0", 29_786, 440_629, 258),
        ("provider-1", 29_786, 616_898, 258), ("verifier-0", 0, 602, 172),
    ):  # fmt: skip
        yield events.TrafficEvent(
            at=14.9, session=1, process=process, sync=sync, audit=audit, join=join, control=35_060, received=0
        )
    for process, peak in (
        ("requester worker", 293_302_272), ("provider-0 worker", 272_875_520), ("provider-1 worker", 270_000_000),
        ("verifier-0 worker", 271_593_472), ("supervisor", 81_297_408),
    ):  # fmt: skip
        yield events.ProcessUsageEvent(at=15.0, process=process, peak_bytes=peak, cpu_seconds=1.0)


def told(*more: AnyEvent, way: str = "aggregating peer") -> RunTimeline:
    return functools.reduce(fold, (*recorded(way), *more), RunTimeline())


def seen(*more: AnyEvent, way: str = "aggregating peer") -> RunObservations:
    return run_measurements.observations(told(*more, way=way), TOOK)


def plan(rounds: int = 3) -> RunPlan:
    spec = replace(load(None, preset="tiny", environment={}).spec, rounds=rounds)
    layout = known_layout(spec)
    assert layout is not None
    return advise(spec, layout, 400_045, MachineMeasurements(2, 1.5e11, 8 << 30))


def rows(*more: AnyEvent) -> dict[str, PlanComparisonEvent]:
    timeline = told(*more)
    measured = run_measurements.measured_run(timeline, TOOK, 1408)
    return {row.quantity: row for row in compare(plan(), measured, run_measurements.observations(timeline, TOOK))}


@pytest.mark.parametrize("way", ["aggregating peer", "all-gather", "fan-out"])
def test_a_payload_is_as_long_as_its_object_however_often_it_was_sent(way: str) -> None:
    found = seen(way=way)
    assert found.payload_bytes == PAYLOAD
    assert pytest.approx(PAYLOAD, rel=0.06) == SENT / 12  # at the sockets, in one of its twelve copies


def test_payloads_of_a_log_that_does_not_tell_them_are_not_guessed() -> None:
    silent = [replace(each, payload_bytes=0) for each in recorded() if isinstance(each, events.RoundEndEvent)]
    assert seen(*silent).payload_bytes == 0.0
    more = events.TrafficEvent(session=1, process="x", sync=SENT, audit=0, join=0, control=0, received=0)
    assert rows(*silent, more)["sync"].cause == ""


def test_all_that_a_run_shows_is_read_from_its_timeline() -> None:
    found = seen()
    assert (found.rounds, found.members, found.joined, found.sessions) == (3, 2.0, 2, 1)
    assert found.drawn == ((0, 0), (0, 0), (1, 1), (1, 2))
    assert found.ways == {"aggregating peer": 3}
    assert found.peaks == {"requester": 293_302_272, "provider": 272_875_520, "verifier": 271_593_472}
    assert (found.unit_price, found.repeated, found.caught, found.restarted) == (MICRO, 0, 0, 0)


def test_the_parts_of_the_time_are_all_of_it() -> None:
    found = seen()
    assert found.starting == pytest.approx(11.985)
    assert found.training == pytest.approx(0.204)
    assert found.agreeing == pytest.approx(1.406 - 0.204 - 0.151)
    parts = found.starting + found.training + found.agreeing + found.checking
    assert parts == pytest.approx(found.lasted) == pytest.approx(TOOK)


def test_each_cause_of_a_recorded_run_is_one_that_explains_it() -> None:
    found = rows()
    assert {name: row.cause for name, row in found.items() if row.cause} == {
        "audit": "segments were drawn whose states are 0.78 times the average ones",
        "time": "the first round began after 12 s, not 9.00 s",
    }


def test_of_a_run_that_was_resumed_all_but_its_time_is_compared() -> None:
    again = events.RunResumeEvent(at=20.0, round=2, session=2)
    assert set(rows()) - set(rows(again)) == {"time"}
    more = events.TrafficEvent(session=2, process="provider-0", sync=0, audit=0, join=900_000, control=0, received=0)
    found = rows(again, more)
    assert "resumed 1 time, and all processes began again" in found["join"].cause
    assert seen(again).lasted == 0.0


def test_what_relays_got_is_compared_where_there_are_any() -> None:
    assert run_measurements.measured_run(told(), TOOK, 1).fees is None
    paid = [events.RelayPaymentEvent(peer=peer, bytes=1 << 20, price=100_000, paid=97) for peer in PEERS]
    assert run_measurements.measured_run(told(*paid), TOOK, 1).fees == 194
    assert seen(*paid).carried == 2 << 20


def test_audits_are_told_by_the_names_of_processes_and_those_without_any_are_there() -> None:
    started = [
        events.ProcessStartEvent(at=1.0, role="provider", name=f"provider-{at}", pid=1 + at, peer=peer)
        for at, peer in enumerate((*PEERS, "ee" * 32))
    ]
    worker = events.ProcessStartEvent(at=1.0, role="worker", name="provider-0 worker", pid=9, peer="")
    assert seen(*started, worker).drawn_of == {
        "provider-0": ((0, 0), (1, 1)),
        "provider-1": ((0, 0), (1, 2)),
        "provider-2": (),
    }
    assert seen().drawn_of == {}
