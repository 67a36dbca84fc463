"""Seconds of collectives on links that differ, are asymmetric, and are shared."""

import heapq

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.advice.traffic import collective_times, storage_traffic
from farflung.advice.traffic.access_links import RankFlow, RankGroup, alike, finish, least
from farflung.advice.traffic.collectives import RankSpan
from farflung.advice.traffic.data_parallel import ReplicaSharding, replicated
from farflung.advice.traffic.storage_traffic import StorageNodes
from farflung.advice.traffic.traffic_terms import TrafficLoad
from farflung.core.errors import UsageError
from farflung.core.units import Seconds
from farflung.plan.link_syntax import Link

MB = 1e6
rates = st.floats(1e5, 1e10)
links = st.builds(Link, rates, rates, st.floats(0, 0.5).map(Seconds))
groups = st.lists(links, min_size=2, max_size=7).map(lambda found: RankGroup(tuple(found)))
sizes = st.floats(1, 1e9)


@given(links, st.integers(2, 40), sizes)
def test_a_ring_of_equal_links_takes_what_alpha_and_beta_say(link: Link, count: int, size: float) -> None:
    beta = 8 / min(link.up, link.down)
    expected = 2 * (count - 1) * link.round_trip + 2 * (count - 1) / count * size * beta
    assert collective_times.ring(alike(link, count), size) == pytest.approx(expected)


def told_by_events(group: RankGroup, size: float) -> float:
    """A ring played with a heap of arrivals: rank r forwards its k-th chunk once the k-1-th has come and left."""
    n = group.ranks
    rate, delay = group.rate(), group.delay()
    free, sent, ready = [0.0] * n, [0] * n, [[0.0] for _ in range(n)]
    events: list[tuple[float, int]] = [(0.0, at) for at in range(n)]
    last = 0.0
    while events:
        _, at = heapq.heappop(events)
        while sent[at] < 2 * (n - 1) and len(ready[at]) > sent[at]:
            to = (at + 1) % n
            start = max(free[at], ready[at][sent[at]])
            free[at] = start + 8 * size / n / rate[at, to]
            sent[at] += 1
            ready[to].append(free[at] + delay[at, to])
            last = max(last, ready[to][-1])
            heapq.heappush(events, (ready[to][-1], to))
    return last


@given(groups, sizes)
@settings(max_examples=100)
def test_a_ring_of_uneven_links_agrees_with_its_events(group: RankGroup, size: float) -> None:
    assert collective_times.ring(group, size) == pytest.approx(told_by_events(group, size))


@given(groups, sizes)
@settings(max_examples=100)
def test_no_collective_is_faster_than_its_busiest_line(group: RankGroup, size: float) -> None:
    n = group.ranks
    slowest = min(group.up().min(), group.down().min())
    bound = 8 * 2 * (n - 1) / n * size / slowest * (1 - 1e-9)
    assert collective_times.ring(group, size) >= bound
    assert collective_times.direct(group, size) >= bound
    assert collective_times.tree(group, size) >= bound
    assert collective_times.direct(group, size, in_turn=True) > 0


@given(groups, sizes, st.integers(0, 6), st.sampled_from(["up", "down", "round_trip"]))
@settings(max_examples=150)
def test_a_worse_link_never_makes_anything_faster(group: RankGroup, size: float, at: int, what: str) -> None:
    at %= group.ranks
    values = {name: getattr(group.links[at], name) for name in ("up", "down", "round_trip")}
    values[what] *= 2.0 if what == "round_trip" else 0.5
    worse = RankGroup((*group.links[:at], Link(**values), *group.links[at + 1 :]))
    hub = Link(1e8, 1e8)
    for seconds in (
        lambda one: collective_times.ring(one, size),
        lambda one: collective_times.tree(one, size),
        lambda one: collective_times.direct(one, size),
        lambda one: collective_times.direct(one, size, in_turn=True),
        lambda one: collective_times.all_to_all(one, size),
        lambda one: collective_times.star(one, hub, size),
        lambda one: collective_times.fan(one, hub, [size] * one.ranks),
        lambda one: collective_times.gather(one, [size] * one.ranks),
    ):
        assert seconds(worse) >= seconds(group) * (1 - 1e-9)


def test_an_access_link_is_shared_by_all_its_flows() -> None:
    """Eight homes of 20/100 Mbit/s gather 1 MB each: seven copies go up the same line."""
    homes = alike(Link(20e6, 100e6, Seconds(0.0)), 8)
    assert collective_times.gather(homes, [MB] * 8) == pytest.approx(7 * 8 * MB / 20e6)
    relay = Link(1e9, 1e9, Seconds(0.0))
    assert collective_times.fan(homes, relay, [MB] * 8) == pytest.approx(max(8 * MB / 20e6, 7 * 8 * MB / 100e6))


def test_a_relay_with_a_slow_line_is_what_a_fan_out_waits_for() -> None:
    homes = alike(Link(1e9, 1e9, Seconds(0.0)), 8)
    assert collective_times.fan(homes, Link(1e8, 1e9, Seconds(0.0)), [MB] * 8) == pytest.approx(7 * 8 * 8 * MB / 1e8)


def test_a_star_waits_for_its_hub() -> None:
    homes = alike(Link(1e9, 1e9, Seconds(0.02)), 10)
    hub = Link(1e8, 2e8, Seconds(0.0))
    assert collective_times.star(homes, hub, MB) == pytest.approx(10 * 8 * MB / 2e8 + 10 * 8 * MB / 1e8 + 2 * 0.01)


def test_one_peer_after_another_is_the_cost_of_dt_fm() -> None:
    """Two regions of two: 5 Gbit/s and 1 ms inside, 1.12 Gbit/s and 11 ms between; 0.65 GB."""
    inside, between = (0.001, 5e9), (0.011, 1.12e9)
    pairs = [[inside if a // 2 == b // 2 else between for b in range(4)] for a in range(4)]
    group = RankGroup(
        (Link(1e13, 1e13, Seconds(0.0)),) * 4,
        tuple(tuple(delay for delay, _ in row) for row in pairs),
        tuple(tuple(rate for _, rate in row) for row in pairs),
    )
    size = 0.65e9
    one, far = (delay + 8 * size / 4 / rate for delay, rate in (inside, between))
    assert collective_times.direct(group, size, in_turn=True) == pytest.approx(2 * (one + 2 * far))


@given(groups, st.lists(st.floats(1, 1e8), min_size=1, max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_shared_flows_end_no_sooner_than_lines_allow(group: RankGroup, amounts: list[float], random: object) -> None:
    pairs = [(a, b) for a in range(group.ranks) for b in range(group.ranks) if a != b]
    flows = [RankFlow(*random.choice(pairs), size) for size in amounts]  # type: ignore[attr-defined]
    ended = finish(group, flows)
    matrix = np.zeros((group.ranks, group.ranks))
    for flow in flows:
        matrix[flow.source, flow.target] += flow.size
    delay = group.delay()
    lines = least(group, matrix) - max(delay[flow.source, flow.target] for flow in flows)
    assert max(ended) >= lines * (1 - 1e-9)
    for flow, end in zip(flows, ended, strict=True):
        alone = 8 * flow.size / group.rate()[flow.source, flow.target] + delay[flow.source, flow.target]
        assert end >= alone * (1 - 1e-9)
    total = sum(8 * flow.size / group.rate()[flow.source, flow.target] for flow in flows)
    assert max(ended) <= (total + delay.max()) * (1 + 1e-9)


def test_flows_share_by_max_min_fairness() -> None:
    """Two flows leave rank 0 (10 Mbit/s), one of them to rank 1, which rank 2 sends to as well (down 20 Mbit/s)."""
    group = RankGroup(
        (
            Link(10e6, 1e9, Seconds(0.0)),
            Link(1e9, 20e6, Seconds(0.0)),
            Link(1e9, 1e9, Seconds(0.0)),
            Link(1e9, 1e9, Seconds(0.0)),
        )
    )
    first, second, third = finish(group, [RankFlow(0, 1, MB), RankFlow(0, 3, MB), RankFlow(2, 1, MB)])
    assert (first, second) == (pytest.approx(1.6), pytest.approx(1.6))  # 5 Mbit/s each
    assert third == pytest.approx(8 * MB / 15e6)  # the rest of 20


def test_a_flow_speeds_up_when_another_has_ended() -> None:
    group = alike(Link(8e6, 8e6, Seconds(0.0)), 3)
    short, long = finish(group, [RankFlow(0, 1, MB), RankFlow(0, 2, 3 * MB)])
    assert (short, long) == (pytest.approx(2.0), pytest.approx(4.0))


@given(links, st.integers(2, 40), sizes)
def test_a_step_s_load_keeps_a_link_busy_as_long_as_its_collectives_take(link: Link, count: int, size: float) -> None:
    even = Link(link.up, link.up, link.round_trip)
    step = TrafficLoad(count, replicated(size, RankSpan(count), ReplicaSharding(3)))
    alone = collective_times.ring(alike(even, count), size, rounds=1)
    assert collective_times.on_link(step, even) == pytest.approx(3 * alone)
    assert collective_times.on_link(step, Link(link.up, link.up / 2, link.round_trip)) > collective_times.on_link(
        step, even
    )


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("FF-PLAN-020", lambda: RankGroup(())),
        ("FF-PLAN-020", lambda: alike(Link(1e6, 1e6), 1 << 12)),
        ("FF-PLAN-020", lambda: collective_times.gather(alike(Link(1e6, 1e6), 3), [1.0, 2.0])),
        ("FF-PLAN-020", lambda: finish(alike(Link(1e6, 1e6), 2), [RankFlow(0, 1, 1.0)] * 513)),
        ("FF-PLAN-021", lambda: RankGroup((Link(0.0, 1e6),))),
        ("FF-PLAN-021", lambda: RankGroup((Link(1e6, float("nan")),))),
        ("FF-PLAN-021", lambda: RankGroup((Link(1e6, 1e6, Seconds(-1.0)),))),
        ("FF-PLAN-021", lambda: RankGroup((Link(1e6, 1e6),) * 2, ((0.0, -1.0), (0.0, 0.0)))),
        ("FF-PLAN-021", lambda: collective_times.ring(alike(Link(1e6, 1e6), 3), -1.0)),
        ("FF-PLAN-021", lambda: finish(alike(Link(1e6, 1e6), 2), [RankFlow(0, 1, -1.0)])),
        ("FF-PLAN-021", lambda: collective_times.gather(alike(Link(1e6, 1e6), 2), [1.0, float("inf")])),
        ("FF-PLAN-022", lambda: RankGroup((Link(1e6, 1e6),) * 2, ((0.0,), (0.0, 0.0)))),
        ("FF-PLAN-022", lambda: RankGroup((Link(1e6, 1e6),) * 2, None, ((0.0, 0.0),))),
        ("FF-PLAN-024", lambda: finish(alike(Link(1e6, 1e6), 2), [RankFlow(0, 2, 1.0)])),
        ("FF-PLAN-024", lambda: finish(alike(Link(1e6, 1e6), 2), [RankFlow(1, 1, 1.0)])),
    ],
)
def test_links_that_make_no_sense_are_refused(code: str, call: object) -> None:
    with pytest.raises(UsageError) as error:
        call()  # type: ignore[operator]
    assert error.value.code == code


@pytest.mark.parametrize(
    ("field", "link"),
    [
        (field, msgspec.structs.replace(Link(1e6, 1e6), **{field: value}))
        for field in ("up", "down", "round_trip")
        for value in (float("nan"), float("inf"), -1.0, *((0.0,) if field != "round_trip" else ()))
    ],
    ids=repr,
)
def test_a_line_that_cannot_be_is_refused_by_its_field_wherever_it_is_handed_in(field: str, link: Link) -> None:
    group, step = alike(Link(1e6, 1e6), 3), TrafficLoad(2, replicated(1.0, RankSpan(2), ReplicaSharding()))
    shelf = StorageNodes(2, Link(1e9, 1e9))
    for name, call in (
        ("hub", lambda: collective_times.star(group, link, 1.0)),
        ("relay", lambda: collective_times.fan(group, link, [1.0] * 3)),
        ("link", lambda: collective_times.on_link(step, link)),
        ("link", lambda: StorageNodes(2, link)),
        ("link", lambda: storage_traffic.writing(1e9, 2, link, shelf)),
        ("link", lambda: storage_traffic.restoring(1e9, 1, 2, link, shelf)),
    ):
        with pytest.raises(UsageError, match=rf"{name}\.{field} cannot be") as error:
            call()
        assert error.value.code == "FF-PLAN-021"


def test_nothing_to_send_takes_no_flow_s_time() -> None:
    assert finish(alike(Link(1e6, 1e6), 2), []) == ()
    assert finish(alike(Link(1e6, 1e6, Seconds(0.5)), 2), [RankFlow(0, 1, 0.0)]) == (pytest.approx(0.5),)
