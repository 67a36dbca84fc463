"""What came of a plan, in words: on the screen and in plain lines, and whole wherever it is said."""

from __future__ import annotations

import functools

import pytest
from msgspec.structs import replace

from farflung.core import events
from farflung.core.events import AnyEvent, PlanComparisonEvent, SentBytesByKind
from farflung.core.money import MICRO
from farflung.watch import event_lines, plan_vs_run_text, screen_result
from farflung.watch.fold import RunTimeline, fold

CAUSE = (
    "mostly: the first round began after 7 min 21 s, not 9.00 s, and what was in its way"
    " was that this computer had others to serve; the end of the cause"
)
OFF = PlanComparisonEvent(quantity="time", unit="s", planned=10.0, measured=20.0, cause=CAUSE)
KEPT = PlanComparisonEvent(quantity="join", unit="B", planned=100.0, measured=110.0)
PLANNED = events.PlanEvent(
    name="n", run="r", model="m", parameters=1, rounds=12, steps=12, peers=2, tokens=1, sync_bytes=1, ring_bytes=1,
    memory_bytes=1, seconds=1.0, price=1 * MICRO, escrow=1 * MICRO, data_bytes=1, sync="s",
)  # fmt: skip
RESULT = events.RunResultEvent(
    loss=2.0, loss_start=5.0, loss_unigram=3.0, loss_baseline=None, bytes_sent=1, bytes_by=SentBytesByKind(),
    bytes_ring_bf16=0, segments_audited=0, caught=(), paid=1 * MICRO, slashed=0, refunded=0, sum=0, model_hash="",
        run="r",
    ledger_root="", seconds=1.0, rounds=12, tokens=1, reexecuted=0,
)  # fmt: skip


def told(*story: AnyEvent) -> RunTimeline:
    return functools.reduce(fold, story, RunTimeline())


def shown(*story: AnyEvent, verbose: bool = False, columns: int = 100) -> str:
    """The end of the screen, its rows joined."""
    rows = screen_result.result(told(PLANNED, *story), 0.0, columns, verbose=verbose, is_over=True)
    return " ".join(" ".join(row.text for row in rows).split())


def test_plain_lines_count_what_was_off_as_the_screen_does_and_leave_the_rest_to_the_report() -> None:
    """No line a figure before the result: one line after it says how many were off, and which command says why."""
    assert [event_lines.lines(row, told(PLANNED, row)) for row in (OFF, KEPT)] == [[], []]
    for story, said in (
        ((OFF, KEPT), "Result   1 of 2 estimates were off by over a quarter: farflung report r"),
        ((KEPT,), "Result   all within 0.8 to 1.25 of the plan"),
        ((), ""),
    ):
        rows = event_lines.lines(RESULT, told(PLANNED, *story, RESULT))
        assert [row for row in rows if "estimates" in row or "of the plan" in row] == [said] * bool(said)
        assert not [row for row in rows if "mostly" in row or len(row) > event_lines.COLUMNS]


def test_the_screen_counts_what_was_off_and_the_report_says_why() -> None:
    text = shown(OFF, KEPT, RESULT)
    assert "1 of 2 estimates were off by over a quarter: farflung report" in text
    assert CAUSE not in text


def test_all_is_as_planned_only_where_every_ratio_is_within_the_band() -> None:
    good = "all within 0.8 to 1.25 of the plan"
    assert good in shown(KEPT, RESULT)
    within = PlanComparisonEvent(
        quantity="sync", unit="B", planned=100.0, measured=200.0, most=300.0, cause="another way"
    )
    assert good not in shown(within, KEPT, RESULT)
    assert "1 of 2 estimates were off" in shown(within, KEPT, RESULT)


@pytest.mark.parametrize("verbose", [False, True])
def test_what_a_part_of_a_run_is_compared_with_is_said(verbose: bool) -> None:
    part, again = replace(RESULT, rounds=3), events.RunResumeEvent(round=2, session=2)
    whole = shown(KEPT, RESULT, verbose=verbose)
    assert "compared" not in whole
    assert "compared with the plan of 3 of 12 rounds" in shown(KEPT, part, verbose=verbose)
    assert "time is not compared: how long the run was stopped" in shown(again, KEPT, RESULT, verbose=verbose)
    line = "Result   all within 0.8 to 1.25 of the plan; compared with the plan of 3 of 12 rounds"
    assert line in event_lines.lines(part, told(PLANNED, KEPT, part))
    assert plan_vs_run_text.basis(told(PLANNED, RESULT)) == ("", "")


def test_a_session_that_takes_over_is_compared_anew() -> None:
    assert told(PLANNED, KEPT, events.RunResumeEvent(round=2, session=2)).compared == ()
