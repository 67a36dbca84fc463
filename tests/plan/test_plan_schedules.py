"""Timelines of pipelines: bubbles, micro-batches that are alive, and uneven stages."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core.errors import UsageError
from farflung.plan.parallel.schedules import Cut, Schedule, Stage, timeline

counts, passes = st.integers(1, 7), st.floats(0.01, 10)
uneven = st.lists(st.builds(Stage, passes, passes), min_size=1, max_size=6)


@given(counts, st.integers(1, 12), passes, passes)
def test_even_stages_lose_p_minus_one_over_m(
    count: int, micros: int, forward: float, backward: float
) -> None:
    for schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B):
        found = timeline([Stage(forward, backward)] * count, micros, schedule)
        assert found.bubble == pytest.approx((count - 1) / micros, abs=1e-9)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), passes)
@settings(max_examples=60)
def test_interleaved_stages_lose_v_times_less(count: int, groups: int, virtual: int, forward: float) -> None:
    stages = [Stage(forward, 2 * forward)] * count
    found = timeline(stages, groups * count, Schedule.INTERLEAVED, virtual=virtual)
    assert found.bubble == pytest.approx((count - 1) / (virtual * groups * count), abs=1e-9)


@given(uneven, st.integers(1, 12))
def test_gpipe_of_uneven_stages_is_two_pipelines_one_after_the_other(
    stages: list[Stage], micros: int
) -> None:
    forward, backward = [one.forward for one in stages], [one.backward for one in stages]
    expected = sum(forward) + (micros - 1) * max(forward) + sum(backward) + (micros - 1) * max(backward)
    assert timeline(stages, micros, Schedule.GPIPE).seconds == pytest.approx(expected)


@given(st.integers(1, 7), st.integers(1, 12))
def test_1f1b_keeps_at_most_the_stages_that_follow_alive(count: int, micros: int) -> None:
    found = timeline([Stage(1.0, 2.0)] * count, micros)
    assert found.alive == tuple(min(micros, count - at) for at in range(count))
    assert timeline([Stage(1.0, 2.0)] * count, micros, Schedule.GPIPE).alive == (micros,) * count


def test_interleaving_keeps_a_bounded_number_of_parts_alive() -> None:
    """Narayanan et al. 2021, section 2.2: p + (p - 1)/v parts of the depth; here 2 (p - 1) + (v - 1) p + 1 parts."""
    found = timeline([Stage(1.0, 2.0)] * 4, 16, Schedule.INTERLEAVED, virtual=2)
    assert found.alive == (11, 9, 7, 5)


@given(uneven, st.integers(1, 10), st.sampled_from([Schedule.GPIPE, Schedule.ONE_F_ONE_B]))
def test_no_timeline_is_shorter_than_its_busiest_rank_or_one_batch(
    stages: list[Stage], micros: int, schedule: Schedule
) -> None:
    found = timeline(stages, micros, schedule)
    through = sum(one.forward + one.backward for one in stages)
    assert found.seconds >= max(*found.work, through) * (1 - 1e-9)
    assert found.work == tuple(pytest.approx(micros * (one.forward + one.backward)) for one in stages)


@given(uneven, st.integers(1, 8), st.integers(0, 5), st.floats(0, 3))
def test_slower_stages_and_cuts_never_help(stages: list[Stage], micros: int, at: int, more: float) -> None:
    at %= len(stages)
    before = timeline(stages, micros).seconds
    slower = [*stages[:at], Stage(stages[at].forward + more, stages[at].backward), *stages[at + 1 :]]
    assert timeline(slower, micros).seconds >= before * (1 - 1e-9)
    cuts = [Cut(more, more / 2, more)] * len(stages)
    assert timeline(stages, micros, cuts=cuts).seconds >= before * (1 - 1e-9)


def test_a_cut_passes_one_transfer_at_a_time() -> None:
    """Forward passes of 1 s, transfers of 3 s: the cut is the pipeline's slowest part."""
    stages = [Stage(1.0, 0.0)] * 2
    found = timeline(stages, 5, Schedule.GPIPE, cuts=[Cut(3.0, 0.5)])
    assert found.seconds == pytest.approx(1 + 5 * 3 + 0.5 + 1 + 0.5)  # and the way back of the last gradient


def test_both_directions_of_a_cut_are_apart() -> None:
    cut = Cut(seconds=1.0, delay=0.0, back_seconds=2.0)
    found = timeline([Stage(1.0, 1.0)] * 2, 1, cuts=[cut])
    assert found.seconds == pytest.approx(1 + 1 + 1 + 1 + 2 + 1)


def test_a_pipeline_of_very_many_stages_comes_to_its_end() -> None:
    """Each of 2^17 operations is looked at a few times, not once for every other one."""
    found = timeline([Stage(1.0, 1.0)] * (1 << 16), 2, Schedule.GPIPE)
    assert found.seconds == pytest.approx(2 * ((1 << 16) + 1))


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("FF-PLAN-020", lambda: timeline([], 4)),
        ("FF-PLAN-020", lambda: timeline([Stage(1, 1)], 0)),
        ("FF-PLAN-020", lambda: timeline([Stage(1, 1)] * 64, 1 << 19)),
        ("FF-PLAN-020", lambda: timeline([Stage(1, 1)] * 4, 4, cuts=[Cut()])),
        (
            "FF-PLAN-020",
            lambda: timeline([Stage(1, 1)] * 2, 4, Schedule.INTERLEAVED, virtual=2, cuts=[Cut()]),
        ),
        ("FF-PLAN-021", lambda: Stage(-1, 1)),
        ("FF-PLAN-021", lambda: Stage(1, float("nan"))),
        ("FF-PLAN-021", lambda: Cut(delay=float("inf"))),
        ("FF-PLAN-023", lambda: timeline([Stage(1, 1)] * 4, 6, Schedule.INTERLEAVED, virtual=2)),
        ("FF-PLAN-025", lambda: timeline([Stage(1, 1)] * 4, 4, Schedule.GPIPE, virtual=2)),
    ],
)
def test_pipelines_that_cannot_be_are_refused(code: str, call: object) -> None:
    with pytest.raises(UsageError) as error:
        call()  # type: ignore[operator]
    assert error.value.code == code
