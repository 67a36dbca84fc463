"""Seconds of collectives on links that differ, are asymmetric, and are shared."""

import heapq

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core.errors import UsageError
from farflung.core.units import Seconds
from farflung.plan.links import Link
from farflung.plan.parallel import storage, timing
from farflung.plan.parallel.collectives import Span
from farflung.plan.parallel.group import Flow, Group, alike, finish, least
from farflung.plan.parallel.replicas import Sharding, replicated
from farflung.plan.parallel.storage import Storage
from farflung.plan.parallel.terms import Load

MB = 1e6
rates = st.floats(1e5, 1e10)
links = st.builds(Link, rates, rates, st.floats(0, 0.5).map(Seconds))
groups = st.lists(links, min_size=2, max_size=7).map(lambda found: Group(tuple(found)))
sizes = st.floats(1, 1e9)


@given(links, st.integers(2, 40), sizes)
def test_a_ring_of_equal_links_takes_what_alpha_and_beta_say(link: Link, count: int, size: float) -> None:
    beta = 8 / min(link.up, link.down)
    expected = 2 * (count - 1) * link.round_trip + 2 * (count - 1) / count * size * beta
    assert timing.ring(alike(link, count), size) == pytest.approx(expected)


def told_by_events(group: Group, size: float) -> float:
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
def test_a_ring_of_uneven_links_agrees_with_its_events(group: Group, size: float) -> None:
    assert timing.ring(group, size) == pytest.approx(told_by_events(group, size))


@given(groups, sizes)
@settings(max_examples=100)
def test_no_collective_is_faster_than_its_busiest_line(group: Group, size: float) -> None:
    n = group.ranks
    slowest = min(group.up().min(), group.down().min())
    bound = 8 * 2 * (n - 1) / n * size / slowest * (1 - 1e-9)
    assert timing.ring(group, size) >= bound
    assert timing.direct(group, size) >= bound
    assert timing.tree(group, size) >= bound
    assert timing.direct(group, size, in_turn=True) > 0


@given(groups, sizes, st.integers(0, 6), st.sampled_from(["up", "down", "round_trip"]))
@settings(max_examples=150)
def test_a_worse_link_never_makes_anything_faster(group: Group, size: float, at: int, what: str) -> None:
    at %= group.ranks
    values = {name: getattr(group.links[at], name) for name in ("up", "down", "round_trip")}
    values[what] *= 2.0 if what == "round_trip" else 0.5
    worse = Group((*group.links[:at], Link(**values), *group.links[at + 1 :]))
    hub = Link(1e8, 1e8)
    for seconds in (
        lambda one: timing.ring(one, size),
        lambda one: timing.tree(one, size),
        lambda one: timing.direct(one, size),
        lambda one: timing.direct(one, size, in_turn=True),
        lambda one: timing.all_to_all(one, size),
        lambda one: timing.star(one, hub, size),
        lambda one: timing.fan(one, hub, [size] * one.ranks),
        lambda one: timing.gather(one, [size] * one.ranks),
    ):
        assert seconds(worse) >= seconds(group) * (1 - 1e-9)


def test_an_access_link_is_shared_by_all_its_flows() -> None:
    """Eight homes of 20/100 Mbit/s gather 1 MB each: seven copies go up the same line."""
    homes = alike(Link(20e6, 100e6, Seconds(0.0)), 8)
    assert timing.gather(homes, [MB] * 8) == pytest.approx(7 * 8 * MB / 20e6)
    relay = Link(1e9, 1e9, Seconds(0.0))
    assert timing.fan(homes, relay, [MB] * 8) == pytest.approx(max(8 * MB / 20e6, 7 * 8 * MB / 100e6))


def test_a_relay_with_a_slow_line_is_what_a_fan_out_waits_for() -> None:
    homes = alike(Link(1e9, 1e9, Seconds(0.0)), 8)
    assert timing.fan(homes, Link(1e8, 1e9, Seconds(0.0)), [MB] * 8) == pytest.approx(7 * 8 * 8 * MB / 1e8)


def test_a_star_waits_for_its_hub() -> None:
    homes = alike(Link(1e9, 1e9, Seconds(0.02)), 10)
    hub = Link(1e8, 2e8, Seconds(0.0))
    assert timing.star(homes, hub, MB) == pytest.approx(10 * 8 * MB / 2e8 + 10 * 8 * MB / 1e8 + 2 * 0.01)


def test_one_peer_after_another_is_the_cost_of_dt_fm() -> None:
    """Two regions of two: 5 Gbit/s and 1 ms inside, 1.12 Gbit/s and 11 ms between; 0.65 GB."""
    inside, between = (0.001, 5e9), (0.011, 1.12e9)
    pairs = [[inside if a // 2 == b // 2 else between for b in range(4)] for a in range(4)]
    group = Group(
        (Link(1e13, 1e13, Seconds(0.0)),) * 4,
        tuple(tuple(delay for delay, _ in row) for row in pairs),
        tuple(tuple(rate for _, rate in row) for row in pairs),
    )
    size = 0.65e9
    one, far = (delay + 8 * size / 4 / rate for delay, rate in (inside, between))
    assert timing.direct(group, size, in_turn=True) == pytest.approx(2 * (one + 2 * far))


@given(groups, st.lists(st.floats(1, 1e8), min_size=1, max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_shared_flows_end_no_sooner_than_lines_allow(
    group: Group, amounts: list[float], random: object
) -> None:
    pairs = [(a, b) for a in range(group.ranks) for b in range(group.ranks) if a != b]
    flows = [Flow(*random.choice(pairs), size) for size in amounts]  # type: ignore[attr-defined]
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
    group = Group(
        (
            Link(10e6, 1e9, Seconds(0.0)),
            Link(1e9, 20e6, Seconds(0.0)),
            Link(1e9, 1e9, Seconds(0.0)),
            Link(1e9, 1e9, Seconds(0.0)),
        )
    )
    first, second, third = finish(group, [Flow(0, 1, MB), Flow(0, 3, MB), Flow(2, 1, MB)])
    assert (first, second) == (pytest.approx(1.6), pytest.approx(1.6))  # 5 Mbit/s each
    assert third == pytest.approx(8 * MB / 15e6)  # the rest of 20


def test_a_flow_speeds_up_when_another_has_ended() -> None:
    group = alike(Link(8e6, 8e6, Seconds(0.0)), 3)
    short, long = finish(group, [Flow(0, 1, MB), Flow(0, 2, 3 * MB)])
    assert (short, long) == (pytest.approx(2.0), pytest.approx(4.0))


@given(links, st.integers(2, 40), sizes)
def test_a_step_s_load_keeps_a_link_busy_as_long_as_its_collectives_take(
    link: Link, count: int, size: float
) -> None:
    even = Link(link.up, link.up, link.round_trip)
    step = Load(count, replicated(size, Span(count), Sharding(3)))
    alone = timing.ring(alike(even, count), size, rounds=1)
    assert timing.on_link(step, even) == pytest.approx(3 * alone)
    assert timing.on_link(step, Link(link.up, link.up / 2, link.round_trip)) > timing.on_link(step, even)


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("FF-PLAN-020", lambda: Group(())),
        ("FF-PLAN-020", lambda: alike(Link(1e6, 1e6), 1 << 12)),
        ("FF-PLAN-020", lambda: timing.gather(alike(Link(1e6, 1e6), 3), [1.0, 2.0])),
        ("FF-PLAN-020", lambda: finish(alike(Link(1e6, 1e6), 2), [Flow(0, 1, 1.0)] * 513)),
        ("FF-PLAN-021", lambda: Group((Link(0.0, 1e6),))),
        ("FF-PLAN-021", lambda: Group((Link(1e6, float("nan")),))),
        ("FF-PLAN-021", lambda: Group((Link(1e6, 1e6, Seconds(-1.0)),))),
        ("FF-PLAN-021", lambda: Group((Link(1e6, 1e6),) * 2, ((0.0, -1.0), (0.0, 0.0)))),
        ("FF-PLAN-021", lambda: timing.ring(alike(Link(1e6, 1e6), 3), -1.0)),
        ("FF-PLAN-021", lambda: finish(alike(Link(1e6, 1e6), 2), [Flow(0, 1, -1.0)])),
        ("FF-PLAN-021", lambda: timing.gather(alike(Link(1e6, 1e6), 2), [1.0, float("inf")])),
        ("FF-PLAN-022", lambda: Group((Link(1e6, 1e6),) * 2, ((0.0,), (0.0, 0.0)))),
        ("FF-PLAN-022", lambda: Group((Link(1e6, 1e6),) * 2, None, ((0.0, 0.0),))),
        ("FF-PLAN-024", lambda: finish(alike(Link(1e6, 1e6), 2), [Flow(0, 2, 1.0)])),
        ("FF-PLAN-024", lambda: finish(alike(Link(1e6, 1e6), 2), [Flow(1, 1, 1.0)])),
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
def test_a_line_that_cannot_be_is_refused_by_its_field_wherever_it_is_handed_in(
    field: str, link: Link
) -> None:
    group, step = alike(Link(1e6, 1e6), 3), Load(2, replicated(1.0, Span(2), Sharding()))
    shelf = Storage(2, Link(1e9, 1e9))
    for name, call in (
        ("hub", lambda: timing.star(group, link, 1.0)),
        ("relay", lambda: timing.fan(group, link, [1.0] * 3)),
        ("link", lambda: timing.on_link(step, link)),
        ("link", lambda: Storage(2, link)),
        ("link", lambda: storage.writing(1e9, 2, link, shelf)),
        ("link", lambda: storage.restoring(1e9, 1, 2, link, shelf)),
    ):
        with pytest.raises(UsageError, match=rf"{name}\.{field} cannot be") as error:
            call()
        assert error.value.code == "FF-PLAN-021"


def test_nothing_to_send_takes_no_flow_s_time() -> None:
    assert finish(alike(Link(1e6, 1e6), 2), []) == ()
    assert finish(alike(Link(1e6, 1e6, Seconds(0.5)), 2), [Flow(0, 1, 0.0)]) == (pytest.approx(0.5),)
