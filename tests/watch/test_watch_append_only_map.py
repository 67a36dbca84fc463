"""Every state of a growing mapping stays what it was, as if each were a dictionary of its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farflung.core import events
from farflung.watch.append_only_map import AppendOnlyMap
from farflung.watch.fold import RunTimeline, fold

# Which earlier state goes on (from the end), and what is added to it.
STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers()), max_size=30)


@given(STEPS)
def test_each_state_is_a_dictionary_of_its_own_whichever_state_it_came_from(steps: list[tuple[int, int, int]]) -> None:
    states: list[tuple[AppendOnlyMap[int, int], dict[int, int]]] = [(AppendOnlyMap(), {})]
    for back, key, value in steps:
        kept, plain = states[max(0, len(states) - 1 - back)]
        states.append((kept.having(key, value), {**plain, key: value}))
    for kept, plain in states:
        assert list(kept.items()) == list(plain.items())
        assert (len(kept), kept == plain, bool(kept)) == (len(plain), True, bool(plain))
        assert [kept.get(key) for key in range(6)] == [plain.get(key) for key in range(6)]


def test_a_state_that_is_walked_through_does_not_see_what_another_thread_adds() -> None:
    first = AppendOnlyMap({1: "a", 2: "b"})
    walking = iter(first)
    next(walking)
    later = first.having(3, "c").having(1, "z")
    assert list(walking) == [2]
    assert (dict(first), dict(later)) == ({1: "a", 2: "b"}, {1: "z", 2: "b", 3: "c"})


def test_two_runs_that_are_read_at_once_know_nothing_of_each_other() -> None:
    one = fold(RunTimeline(), events.EvaluationEvent(round=1, loss=1.0, tokens=1))
    other = fold(RunTimeline(), events.EvaluationEvent(round=2, loss=2.0, tokens=1))
    assert (dict(one.losses), dict(other.losses), dict(RunTimeline().losses)) == ({1: 1.0}, {2: 2.0}, {})
    assert isinstance(nothing := RunTimeline().losses, AppendOnlyMap)
    assert not nothing._shared.cells  # what every timeline begins with holds nothing of any run


def test_an_event_copies_nothing_of_what_came_before() -> None:
    timeline = RunTimeline()
    for number in range(1000):
        closed = events.RoundEndEvent(
            round=number, rounds=1000, peers=1, loss=2.0, tokens=1, root="", waited_for="", seconds=1.0,
            train_seconds=1.0, sync_bytes=1,
        )  # fmt: skip
        before, timeline = timeline, fold(timeline, closed)
        if number:
            assert isinstance(timeline.rounds, AppendOnlyMap)
            assert isinstance(before.rounds, AppendOnlyMap)
            assert timeline.rounds._shared is before.rounds._shared
    assert (len(timeline.rounds), timeline.last_round) == (1000, timeline.rounds[999])
