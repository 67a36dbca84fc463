from __future__ import annotations

import heapq
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.ids import Hash
from farflung.store.fetch_plan import SLOWEST_SECONDS, STALL_SECONDS, FetchPlan
from farflung.store.sealed_objects import ObjectManifest


def manifest(count):
    return ObjectManifest(Hash(bytes(32)), count << 20, (Hash(bytes(32)),) * count)


def test_one_way_is_asked_for_every_chunk_in_order():
    plan = FetchPlan(manifest(3), ["a"])
    for index in range(3):
        assert plan.next(index) == ("a", index)
        plan.received(index, "a", index)
    assert plan.next(3) is None
    assert plan.is_complete


def test_questions_are_spread_and_no_window_is_overrun():
    plan = FetchPlan(manifest(10), ["a", "b"], window=2)
    assert [plan.next(0) for _ in range(5)] == [("a", 0), ("b", 1), ("a", 2), ("b", 3), None]
    plan.received(1, "b", 1)
    assert plan.next(1) == ("b", 4)


def test_work_goes_on_over_another_way_when_one_fails():
    plan = FetchPlan(manifest(3), ["liar", "honest"])
    assert plan.next(0) == ("liar", 0)
    assert plan.next(0) == ("honest", 1)
    plan.failed("liar")
    plan.failed("liar")
    plan.received(1, "honest", 1)
    assert plan.next(1) == ("honest", 0)
    assert plan.next(1) == ("honest", 2)
    assert plan.ways == ("honest",)


def test_without_ways_the_plan_is_stuck_until_one_is_offered():
    plan = FetchPlan(manifest(2), ["a"], have=[0])
    assert plan.missing == (1,)
    plan.failed("a")
    assert not plan.ways
    assert plan.next(0) is None
    plan.offered("b")
    assert plan.next(0) == ("b", 1)


def test_a_late_answer_of_a_failed_way_counts_and_is_not_asked_for_again():
    plan = FetchPlan(manifest(1), ["a", "b"])
    assert plan.next(0) == ("a", 0)
    plan.failed("a")
    plan.received(0, "a", 1)
    assert plan.next(1) is None
    assert plan.is_complete


def carry(plan, seconds, trips, slot, slowed=None):
    """Lets ways answer, each chunk after the one before it and not before its round trip, until nothing is left.

    `slowed`: from which time on which way takes how many times as long. The plan is looked at every 0.25 s, too.
    """
    queue, free, now, brought = [], dict.fromkeys(seconds, 0.0), 0.0, Counter()
    while not plan.is_complete:
        while (step := plan.next(now)) is not None:
            way, index = step
            begins = max(now + trips[way], free[way])
            more = slowed[2] if slowed and way == slowed[1] and begins >= slowed[0] else 1
            free[way] = begins + seconds[way] * more
            heapq.heappush(queue, (free[way], way, index))
        if queue[0][0] > now + 0.25:
            now += 0.25
            continue
        now, way, index = heapq.heappop(queue)
        slot[way] = max(slot.get(way, 0), plan.window(way))
        plan.received(index, way, now)
        brought[way] += 1
    return now, brought


def test_a_window_grows_until_the_line_is_full_and_no_further():
    """100 chunks a second and a round trip of 0.1 s are 10 chunks under way."""
    windows = {}
    spent, _ = carry(FetchPlan(manifest(400), ["a"]), {"a": 0.01}, {"a": 0.1}, windows)
    assert 10 <= windows["a"] <= 24
    assert spent < 4.0 + 1.0


def test_no_more_is_asked_for_at_a_time_than_the_limit_over_all_ways():
    plan = FetchPlan(manifest(1000), range(50), window=8)
    steps = 0
    while plan.next(0) is not None:
        steps += 1
    assert steps == limits.TRANSFER_CHUNKS


def test_a_fast_way_takes_the_work_of_a_slow_one_and_little_is_asked_for_twice():
    plan = FetchPlan(manifest(200), ["slow", "fast"])
    spent, brought = carry(plan, {"slow": 2.0, "fast": 0.02}, {"slow": 0.1, "fast": 0.1}, {})
    assert brought["fast"] > 190
    assert spent < 4.5
    assert plan.repeated <= 3


def test_equal_ways_ask_for_nothing_twice():
    plan = FetchPlan(manifest(200), ["a", "b"])
    carry(plan, {"a": 0.05, "b": 0.05}, {"a": 0.1, "b": 0.1}, {})
    assert not plan.repeated


def test_a_window_holds_no_more_than_fills_a_round_trip_that_somebody_else_has_measured():
    """In TCP's start the first answers take long, and the shortest of them is no round trip."""
    plan, windows = FetchPlan(manifest(400), ["a"]), {}
    plan.round_trip("a", 0.1)
    carry(plan, {"a": 0.3}, {"a": 0.9}, windows)
    assert windows["a"] == 2
    plan, windows = FetchPlan(manifest(400), ["a"]), {}
    plan.round_trip("a", 0.1)
    spent, _ = carry(plan, {"a": 0.01}, {"a": 0.1}, windows)
    assert 10 <= windows["a"] <= 24
    assert spent < 4.0 + 1.0


def test_near_the_end_a_way_is_asked_only_for_what_it_brings_while_the_others_are_busy():
    plan = FetchPlan(manifest(8), ["a", "b"])
    assert [plan.next(0) for _ in range(4)] == [("a", 0), ("b", 1), ("a", 2), ("b", 3)]
    plan.received(0, "a", 1)
    plan.received(2, "a", 2)  # a second for a chunk
    assert [plan.next(2), plan.next(2)] == [("a", 4), ("a", 5)]
    plan.received(1, "b", 4)  # four
    plan.received(4, "a", 4)
    assert [plan.next(4), plan.next(4)] == [("a", 6), None]  # b is busy for four, and two chunks are left
    plan.received(5, "a", 5)
    assert [plan.next(5), plan.next(5)] == [("a", 7), None]


def test_an_idle_way_asks_for_what_another_would_bring_clearly_later():
    plan = FetchPlan(manifest(5), ["a", "b"])
    assert [plan.next(0) for _ in range(4)] == [("a", 0), ("b", 1), ("a", 2), ("b", 3)]
    plan.received(0, "a", 0.5)
    assert plan.next(0.5) == ("a", 4)
    plan.received(1, "b", 0.5)
    plan.received(2, "a", 1.0)
    plan.received(4, "a", 1.5)  # b had brought its second in 1.0, as `a` does
    assert plan.next(1.5) is None
    assert plan.next(1.9) is None
    assert plan.next(2.1) == ("a", 3)
    assert plan.repeated == 1
    assert plan.next(9) is None


def test_no_more_than_a_share_of_an_object_is_asked_for_twice():
    ways = [*range(8)]
    plan = FetchPlan(manifest(48), ways, window=2)
    for _ in range(16):
        plan.next(0)
    for now in range(1, 50):  # the first is as fast as all should be, the others have brought one chunk each
        for way in ways if now == 1 else [0]:
            for index in list(plan._ways[way].asked)[:1]:
                plan.received(index, way, now)
        while plan.next(now) is not None:
            pass
    assert plan.repeated == 3
    assert not plan.is_complete


@given(
    seconds=st.lists(st.floats(0.1, 1.0), min_size=1, max_size=5), trip=st.floats(0.01, 0.3), count=st.integers(40, 150)
)
@settings(max_examples=80)
def test_the_end_comes_within_a_chunk_of_when_all_ways_kept_busy_would_be_done(seconds, trip, count):
    plan = FetchPlan(manifest(count), range(len(seconds)))
    for way in range(len(seconds)):
        plan.round_trip(way, trip)
    spent, _ = carry(plan, dict(enumerate(seconds)), dict.fromkeys(range(len(seconds)), trip), {})
    assert spent <= count / sum(1 / each for each in seconds) + 3 * trip + max(seconds)
    assert plan.repeated <= max(2, count // 16)


@given(
    seconds=st.lists(st.floats(0.02, 2.0), min_size=1, max_size=5),
    count=st.integers(1, 100),
    slowed=st.tuples(st.floats(0, 10), st.integers(0, 4), st.floats(1, 20)),
)
@settings(max_examples=80)
def test_whatever_becomes_of_a_way_all_comes_and_little_of_it_twice(seconds, count, slowed):
    plan = FetchPlan(manifest(count), range(len(seconds)))
    carry(plan, dict(enumerate(seconds)), dict.fromkeys(range(len(seconds)), 0.1), {}, slowed)
    assert plan.repeated <= max(2, count // 16)


def test_a_way_of_which_nothing_comes_gives_back_what_it_owes_and_is_asked_again_when_it_is_heard():
    plan = FetchPlan(manifest(4), ["a", "b"], window=1)
    assert [plan.next(10), plan.next(10)] == [("a", 0), ("b", 1)]
    plan.heard("b", 12)
    late = 10 + STALL_SECONDS + 1
    assert plan.stalled(late) == ("a",)
    plan.parked("a")
    plan.received(1, "b", late)
    assert plan.next(late) == ("b", 0)
    plan.received(0, "a", late)  # after all
    assert plan.next(late) == ("a", 2)


def test_a_way_that_is_spared_brings_what_it_owes_and_is_asked_again_only_when_it_is_alone():
    plan = FetchPlan(manifest(6), ["a", "b"], window=1)
    assert [plan.next(0), plan.next(0)] == [("a", 0), ("b", 1)]
    plan.spared("a", True)
    plan.received(0, "a", 1)
    assert plan.next(1) is None
    plan.received(1, "b", 1)
    assert plan.next(1) == ("b", 2)
    plan.failed("b")
    assert plan.next(2) == ("a", 2)
    plan.offered("b")
    plan.spared("a", False)
    plan.received(2, "a", 3)
    assert {plan.next(3), plan.next(3)} == {("a", 3), ("b", 4)}


def test_a_way_that_is_heard_is_not_stalled_but_may_be_stuck():
    plan = FetchPlan(manifest(1), ["a"])
    plan.next(0)
    plan.heard("a", SLOWEST_SECONDS)
    assert not plan.stalled(SLOWEST_SECONDS + 1)
    assert plan.stuck(SLOWEST_SECONDS + 1) == ("a",)


def test_a_way_that_was_idle_has_its_time_from_the_question_on():
    plan = FetchPlan(manifest(1), ["a"])
    plan.heard("a", 1)
    plan.next(100)
    assert not plan.stalled(101)


def test_chunks_that_do_not_exist_are_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="no chunk 2"):
        FetchPlan(manifest(2), ["a"]).received(2)
    with pytest.raises(ValueError, match="no chunk -1"):
        FetchPlan(manifest(2), ["a"], have=[-1])


def test_an_empty_object_needs_nobody():
    plan = FetchPlan(manifest(0), [])
    assert plan.is_complete
    assert plan.next(0) is None


@given(data=st.data(), count=st.integers(0, 12), window=st.integers(1, 3))
@settings(max_examples=60)
def test_while_one_way_is_honest_every_chunk_comes_whatever_the_others_do(data, count, window):
    plan = FetchPlan(manifest(count), ["x", "y", "honest"], window=window)
    asked: list[tuple[str, int]] = []
    here: set[int] = set()
    for now in range(1000):
        if plan.ways:
            plan.spared(data.draw(st.sampled_from(plan.ways)), data.draw(st.booleans()))
        step = plan.next(now)
        if step is not None:
            assert step[1] not in here
            assert [index for _, index in asked].count(step[1]) < 2
            assert plan.repeated or step[1] not in [index for _, index in asked]
            asked.append(step)
            if data.draw(st.booleans()):
                continue
        if not asked:
            break
        way, index = asked.pop(data.draw(st.integers(0, len(asked) - 1)))
        if way == "honest" or data.draw(st.booleans()):
            others = plan.received(index, way, now)
            asked = [one for one in asked if one not in [(other, index) for other in others]]
            here.add(index)
        elif data.draw(st.booleans()):
            plan.parked(way)
            asked = [one for one in asked if one[0] != way]
        else:
            plan.failed(way)
            asked = [one for one in asked if one[0] != way]
    assert plan.is_complete
    assert here == set(range(count))
