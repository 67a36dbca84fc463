"""Timelines of pipelines: bubbles, micro-batches that are alive, and uneven stages."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.advice.traffic.collectives import CollectiveBackend
from farflung.advice.traffic.pipeline_schedules import CutTimes, PipelineSchedule, StageTimes, timeline
from farflung.core.errors import UsageError

counts, passes = st.integers(1, 7), st.floats(0.01, 10)
uneven = st.lists(st.builds(StageTimes, passes, passes), min_size=1, max_size=6)


@given(counts, st.integers(1, 12), passes, passes)
def test_even_stages_lose_p_minus_one_over_m(count: int, micros: int, forward: float, backward: float) -> None:
    for schedule in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B):
        found = timeline([StageTimes(forward, backward)] * count, micros, schedule)
        assert found.bubble == pytest.approx((count - 1) / micros, abs=1e-9)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), passes)
@settings(max_examples=60)
def test_interleaved_stages_lose_v_times_less(count: int, groups: int, virtual: int, forward: float) -> None:
    stages = [StageTimes(forward, 2 * forward)] * count
    found = timeline(stages, groups * count, PipelineSchedule.INTERLEAVED, virtual=virtual)
    assert found.bubble == pytest.approx((count - 1) / (virtual * groups * count), abs=1e-9)


@given(uneven, st.integers(1, 12))
def test_gpipe_of_uneven_stages_is_two_pipelines_one_after_the_other(stages: list[StageTimes], micros: int) -> None:
    forward, backward = [one.forward for one in stages], [one.backward for one in stages]
    expected = sum(forward) + (micros - 1) * max(forward) + sum(backward) + (micros - 1) * max(backward)
    assert timeline(stages, micros, PipelineSchedule.GPIPE).seconds == pytest.approx(expected)


@given(st.integers(1, 7), st.integers(1, 12))
def test_1f1b_keeps_at_most_the_stages_that_follow_alive(count: int, micros: int) -> None:
    found = timeline([StageTimes(1.0, 2.0)] * count, micros)
    assert found.alive == tuple(min(micros, count - at) for at in range(count))
    assert timeline([StageTimes(1.0, 2.0)] * count, micros, PipelineSchedule.GPIPE).alive == (micros,) * count


def test_interleaving_keeps_a_bounded_number_of_parts_alive() -> None:
    """Narayanan et al. 2021, section 2.2: p + (p - 1)/v parts of the depth; here 2 (p - 1) + (v - 1) p + 1 parts."""
    found = timeline([StageTimes(1.0, 2.0)] * 4, 16, PipelineSchedule.INTERLEAVED, virtual=2)
    assert found.alive == (11, 9, 7, 5)


@given(uneven, st.integers(1, 10), st.sampled_from([PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B]))
def test_no_timeline_is_shorter_than_its_busiest_rank_or_one_batch(
    stages: list[StageTimes], micros: int, schedule: PipelineSchedule
) -> None:
    found = timeline(stages, micros, schedule)
    through = sum(one.forward + one.backward for one in stages)
    assert found.seconds >= max(*found.work, through) * (1 - 1e-9)
    assert found.work == tuple(pytest.approx(micros * (one.forward + one.backward)) for one in stages)


@given(uneven, st.integers(1, 8), st.integers(0, 5), st.floats(0, 3))
def test_slower_stages_and_cuts_never_help(stages: list[StageTimes], micros: int, at: int, more: float) -> None:
    at %= len(stages)
    before = timeline(stages, micros).seconds
    slower = [*stages[:at], StageTimes(stages[at].forward + more, stages[at].backward), *stages[at + 1 :]]
    assert timeline(slower, micros).seconds >= before * (1 - 1e-9)
    cuts = [CutTimes(more, more / 2, more)] * len(stages)
    assert timeline(stages, micros, cuts=cuts).seconds >= before * (1 - 1e-9)


def test_a_cut_passes_one_transfer_at_a_time() -> None:
    """Forward passes of 1 s, transfers of 3 s: the cut is the pipeline's slowest part."""
    stages = [StageTimes(1.0, 0.0)] * 2
    found = timeline(stages, 5, PipelineSchedule.GPIPE, cuts=[CutTimes(3.0, 0.5)])
    assert found.seconds == pytest.approx(1 + 5 * 3 + 0.5 + 1 + 0.5)  # and the way back of the last gradient


def test_both_directions_of_a_cut_are_apart() -> None:
    cut = CutTimes(seconds=1.0, delay=0.0, back_seconds=2.0)
    found = timeline([StageTimes(1.0, 1.0)] * 2, 1, cuts=[cut])
    assert found.seconds == pytest.approx(1 + 1 + 1 + 1 + 2 + 1)


def test_over_gloo_nothing_is_sent_before_it_is_asked_for() -> None:
    """Forward passes of 1 s, transfers of 3 s: the second stage asks when it has computed, each time."""
    stages = [StageTimes(1.0, 0.0)] * 2
    found = timeline(stages, 5, PipelineSchedule.GPIPE, cuts=[CutTimes(3.0)], backend=CollectiveBackend.GLOO)
    assert found.seconds == pytest.approx(1 + 5 * (3 + 1))


def test_over_gloo_what_is_asked_for_waits_behind_what_is_sent() -> None:
    """Two stages, two micro-batches, 1F1B, passes of 1 s, transfers of 3 s; seconds in brackets.

    F0 1 to 4 on the line; the first stage computes F1 (2) and asks for B0 behind F0 (4). F0 (5) and B0 (6) in the
    second stage; B0 6 to 9, the word that asks for F1 behind it (9); F1 9 to 12. The first stage turns only when F1
    has left: B0 12 to 13; B1 in the second 13 to 14, on the line to 17, in the first to 18.
    """
    found = timeline([StageTimes(1.0, 1.0)] * 2, 2, cuts=[CutTimes(3.0, 0.0, 3.0)], backend=CollectiveBackend.GLOO)
    assert found.seconds == pytest.approx(18.0)


def test_bubbles_over_gloo_are_those_that_were_seen() -> None:
    """Four stages, four micro-batches, lines of 44.6 ms, passes of 2.9 and 5.8 ms: bench/plan.py, docs/plan/traffic.md.

    Traced there, GPipe took 0.60 to 0.62 s and 1F1B 0.74 to 0.78 s, of which the schedule alone explains 0.50 s.
    """
    stages, cuts = [StageTimes(0.0029, 0.0058)] * 4, [CutTimes(0.0446, 0.0, 0.0446)] * 3
    gpipe = timeline(stages, 4, PipelineSchedule.GPIPE, cuts=cuts, backend=CollectiveBackend.GLOO).seconds
    other = timeline(stages, 4, cuts=cuts, backend=CollectiveBackend.GLOO).seconds
    assert 0.58 < gpipe < 0.64
    assert 0.71 < other < 0.80
    assert timeline(stages, 4, cuts=cuts).seconds < 0.52


@given(uneven, st.integers(1, 8), st.floats(0, 3), st.floats(0, 1))
def test_asking_costs_never_less_than_sending_at_once(
    stages: list[StageTimes], micros: int, busy: float, delay: float
) -> None:
    cuts = [CutTimes(busy, delay, busy)] * len(stages)
    for schedule in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B):
        free = timeline(stages, micros, schedule, cuts=cuts)
        asked = timeline(stages, micros, schedule, cuts=cuts, backend=CollectiveBackend.GLOO)
        assert asked.seconds >= free.seconds * (1 - 1e-9)
        assert asked.alive == free.alive


@pytest.mark.whole
def test_a_pipeline_of_very_many_stages_comes_to_its_end() -> None:
    """Each of 2^15 operations is looked at a few times, not once for every other one."""
    found = timeline([StageTimes(1.0, 1.0)] * (1 << 14), 2, PipelineSchedule.GPIPE)
    assert found.seconds == pytest.approx(2 * ((1 << 14) + 1))


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("FF-PLAN-020", lambda: timeline([], 4)),
        ("FF-PLAN-020", lambda: timeline([StageTimes(1, 1)], 0)),
        ("FF-PLAN-020", lambda: timeline([StageTimes(1, 1)] * 64, 1 << 19)),
        ("FF-PLAN-020", lambda: timeline([StageTimes(1, 1)] * 4, 4, cuts=[CutTimes()])),
        (
            "FF-PLAN-020",
            lambda: timeline([StageTimes(1, 1)] * 2, 4, PipelineSchedule.INTERLEAVED, virtual=2, cuts=[CutTimes()]),
        ),
        ("FF-PLAN-021", lambda: StageTimes(-1, 1)),
        ("FF-PLAN-021", lambda: StageTimes(1, float("nan"))),
        ("FF-PLAN-021", lambda: CutTimes(delay=float("inf"))),
        ("FF-PLAN-023", lambda: timeline([StageTimes(1, 1)] * 4, 6, PipelineSchedule.INTERLEAVED, virtual=2)),
        ("FF-PLAN-026", lambda: timeline([StageTimes(1, 1)] * 2, 2, "x")),
        ("FF-PLAN-026", lambda: timeline([StageTimes(1, 1)] * 2, 2, backend="x")),
        (
            "FF-PLAN-027",
            lambda: timeline([StageTimes(1, 1)] * 2, 2, PipelineSchedule.INTERLEAVED, backend=CollectiveBackend.GLOO),
        ),
        ("FF-PLAN-025", lambda: timeline([StageTimes(1, 1)] * 4, 4, PipelineSchedule.GPIPE, virtual=2)),
    ],
)
def test_pipelines_that_cannot_be_are_refused(code: str, call: object) -> None:
    with pytest.raises(UsageError) as error:
        call()  # type: ignore[operator]
    assert error.value.code == code
