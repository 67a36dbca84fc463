from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core.ids import Hash
from farflung.store.fetch import FetchPlan
from farflung.store.objects import Manifest


def manifest(count):
    return Manifest(Hash(bytes(32)), count << 20, (Hash(bytes(32)),) * count)


def test_one_source_is_asked_for_every_chunk_in_order():
    plan = FetchPlan(manifest(3), ["a"])
    for index in range(3):
        assert plan.next() == ("a", index)
        plan.received(index)
    assert plan.next() is None
    assert plan.is_complete


def test_questions_are_spread_and_no_window_is_overrun():
    plan = FetchPlan(manifest(10), ["a", "b"], window=2)
    assert [plan.next() for _ in range(5)] == [("a", 0), ("b", 1), ("a", 2), ("b", 3), None]
    plan.received(1)
    assert plan.next() == ("b", 4)


def test_work_goes_on_with_another_source_when_one_fails():
    plan = FetchPlan(manifest(3), ["liar", "honest"])
    assert plan.next() == ("liar", 0)
    assert plan.next() == ("honest", 1)
    plan.failed("liar")
    plan.failed("liar")
    plan.received(1)
    assert plan.next() == ("honest", 0)
    assert plan.next() == ("honest", 2)
    assert plan.sources == ("honest",)


def test_without_sources_the_plan_is_stuck_until_one_is_offered():
    plan = FetchPlan(manifest(2), ["a"], have=[0])
    assert plan.missing == (1,)
    plan.failed("a")
    assert not plan.sources
    assert plan.next() is None
    plan.offered("b")
    assert plan.next() == ("b", 1)


def test_a_late_answer_of_a_failed_source_counts_and_is_not_asked_for_again():
    plan = FetchPlan(manifest(1), ["a", "b"])
    assert plan.next() == ("a", 0)
    plan.failed("a")
    plan.received(0)
    assert plan.next() is None
    assert plan.is_complete


def test_chunks_that_do_not_exist_are_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="no chunk 2"):
        FetchPlan(manifest(2), ["a"]).received(2)
    with pytest.raises(ValueError, match="no chunk -1"):
        FetchPlan(manifest(2), ["a"], have=[-1])


def test_an_empty_object_needs_nobody():
    plan = FetchPlan(manifest(0), [])
    assert plan.is_complete
    assert plan.next() is None


@given(data=st.data(), count=st.integers(0, 12), window=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_while_one_source_is_honest_every_chunk_comes_whatever_the_others_do(data, count, window):
    plan = FetchPlan(manifest(count), ["x", "y", "honest"], window=window)
    asked: list[tuple[str, int]] = []
    here: set[int] = set()
    for _ in range(1000):
        step = plan.next()
        if step is not None:
            assert step[1] not in here
            assert step[1] not in [index for _, index in asked]
            asked.append(step)
            if data.draw(st.booleans()):
                continue
        if not asked:
            break
        source, index = asked.pop(data.draw(st.integers(0, len(asked) - 1)))
        if source == "honest" or data.draw(st.booleans()):
            plan.received(index)
            here.add(index)
        else:
            plan.failed(source)
            asked = [one for one in asked if one[0] != source]
    assert plan.is_complete
    assert here == set(range(count))
