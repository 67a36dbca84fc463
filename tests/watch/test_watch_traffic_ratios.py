"""The metric: bytes of a provider and step at its sockets against a ring, and the papers' ratio beside it."""

from __future__ import annotations

import functools

import msgspec
import pytest

from farflung.core import events
from farflung.core.events import AnyEvent
from farflung.watch import traffic_ratios
from farflung.watch.fold import RunTimeline, fold

PARAMETERS, PEERS, ROUNDS, STEPS = 1_000_000, 4, 10, 20
RING = 2 * (PEERS - 1) * 2 * PARAMETERS * ROUNDS * STEPS  # of all ranks, in all steps
PAYLOAD = 200_000

PLAN = events.PlanEvent(
    name="n", run="r", model="m", parameters=PARAMETERS, rounds=ROUNDS, steps=ROUNDS * STEPS, peers=PEERS,
    tokens=1, sync_bytes=1, ring_bytes=RING, memory_bytes=1, seconds=1.0, price=1, escrow=1, data_bytes=1,
    sync="s",
)  # fmt: skip


def told(*story: AnyEvent) -> RunTimeline:
    return functools.reduce(fold, story, RunTimeline())


def story(rounds: int = 1) -> list[AnyEvent]:
    """Each provider sends its payload to all and takes three; the requester takes four and sends none."""
    names = [f"provider-{i}" for i in range(PEERS)]
    up, down = rounds * PEERS * PAYLOAD, rounds * (PEERS - 1) * PAYLOAD
    counted: list[AnyEvent] = [
        events.TrafficEvent(session=1, process=name, sync=up, audit=9, join=9, control=rounds * 1000, received=down)
        for name in names
    ]
    return [
        PLAN,
        *[events.ProcessStartEvent(role="provider", name=name, pid=1, peer=name) for name in names],
        events.ProcessStartEvent(role="requester", name="requester", pid=1, peer="q"),
        *[
            events.RoundEndEvent(
                round=i,
                rounds=ROUNDS,
                peers=PEERS,
                loss=1.0,
                tokens=1,
                root="",
                waited_for="",
                seconds=1.0,
                train_seconds=1.0,
                sync_bytes=1,
            )
            for i in range(rounds)
        ],
        events.TrafficEvent(session=1, process="requester", sync=0, audit=0, join=9, control=77, received=10**9),
        *counted,
    ]


def test_a_payload_that_a_relay_copied_was_sent_once_and_counts_once() -> None:
    once = [msgspec.structs.replace(e, way="fan-out") if isinstance(e, events.RoundEndEvent) else e for e in story()]
    less = [
        msgspec.structs.replace(e, sync=PAYLOAD) if isinstance(e, events.TrafficEvent) and e.sync else e for e in once
    ]
    pairs, copied = traffic_ratios.ratio_per_peer(told(*story())), traffic_ratios.ratio_per_peer(told(*less))
    assert pairs is not None
    assert copied is not None
    assert copied.papers == pytest.approx(pairs.papers)  # it is the same payload, however it went


def test_a_plan_promises_no_more_than_what_it_takes_at_most() -> None:
    plan = msgspec.structs.replace(PLAN, sync_bytes=1_000_000, sync_most=4_000_000, way="fan-out")
    own, ring = traffic_ratios.planned_traffic(plan)
    assert own == "sync traffic: 1 MB expected (fan-out), 4 MB at most"
    assert f"{RING / 1_000_000:,.0f}x less" in ring


@pytest.mark.parametrize("rounds", [1, 7])
def test_the_metric_is_a_providers_bytes_a_step_against_what_a_ring_moves_each_way(rounds: int) -> None:
    found = traffic_ratios.ratio_per_peer(told(*story(rounds)))
    assert found is not None
    assert found.up == pytest.approx((PEERS * PAYLOAD + 1000) / STEPS)
    assert found.down == pytest.approx(3 * PAYLOAD / STEPS)
    assert found.ring == pytest.approx(2 * 3 / 4 * 2 * PARAMETERS)
    assert found.below == pytest.approx(found.ring / found.up)  # the direction that moves more
    assert found.papers == pytest.approx(4 * PARAMETERS * STEPS / PAYLOAD)


def test_both_ratios_are_said_and_the_papers_one_is_labelled() -> None:
    words = "; ".join(traffic_ratios.ratio_lines(told(*story())))
    assert "a provider sends 40 kB and receives 30 kB a step" in words
    assert "that ring 3 MB each way: 74.9 times" in words
    assert "as papers count, float32 gradients over payloads one way: 400" in words


@pytest.mark.parametrize(
    "left_out", [events.PlanEvent, events.ProcessStartEvent, events.RoundEndEvent, events.TrafficEvent]
)
def test_where_nobody_counted_nothing_is_said(left_out: type[events.Event]) -> None:
    timeline = told(*[event for event in story() if not isinstance(event, left_out)])
    assert traffic_ratios.ratio_per_peer(timeline) is None
    assert traffic_ratios.ratio_lines(timeline) == ()


def test_an_old_log_without_received_bytes_says_nothing() -> None:
    without = [msgspec.structs.replace(e, received=0) if isinstance(e, events.TrafficEvent) else e for e in story()]
    assert traffic_ratios.ratio_per_peer(told(*without)) is None


def test_a_report_that_comes_late_or_twice_changes_nothing() -> None:
    once, again = told(*story()), told(*story(), *story()[-PEERS:])
    assert traffic_ratios.ratio_per_peer(once) == traffic_ratios.ratio_per_peer(again)
    late = msgspec.structs.replace(story()[-1], received=1)
    assert traffic_ratios.ratio_per_peer(told(*story(), late)) == traffic_ratios.ratio_per_peer(once)
