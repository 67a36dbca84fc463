"""A run as tables: equal columns, the numbers of the series, and what a person sees of them."""

from __future__ import annotations

import math

import pytest

from farflung.core import events
from farflung.core.events import AnyEvent
from farflung.watch import report_series, run_tables
from farflung.watch.fold import RunTimeline, fold
from farflung.watch.run_tables import RunTable

PEER, OTHER, JUDGE = ("a1" * 32, "b2" * 32, "c3" * 32)


def closed(round: int) -> events.RoundEndEvent:
    return events.RoundEndEvent(
        at=10.0 + round,
        round=round,
        rounds=4,
        peers=2,
        loss=4.0 - round,
        tokens=100,
        root=f"{round:064x}",
        waited_for=PEER,
        seconds=2.0,
        train_seconds=1.0,
        sync_bytes=1000 * (round + 1),
    )


TOLD: tuple[AnyEvent, ...] = (
    events.ProcessStartEvent(role="provider", name="provider-0", pid=7, peer=PEER),
    events.ProcessStartEvent(role="verifier", name="verifier-0", pid=8, peer=JUDGE),
    events.TrafficEvent(session=1, process="provider-0", sync=900, audit=50, join=30, control=20),
    events.EvaluationEvent(round=0, loss=5.5, tokens=64),
    closed(0),
    events.AuditDrawEvent(round=0, peer=OTHER, segment=2, flagged="its loss stands out"),
    events.AuditDrawEvent(round=1, peer=PEER, segment=1),
    events.AuditEndEvent(
        round=0, peer=OTHER, segment=2, verifiers=(JUDGE,), finding="false", excess=31.0, tokens=10, seconds=1.0
    ),
    events.SlashEvent(
        peer=OTHER, round=0, segment=2, why="false", slashed=500, bounty=250, burnt=250, evidence="d4" * 32
    ),
    closed(1),
    events.EvaluationEvent(round=2, loss=3.25, tokens=64),
    events.LeasePaymentEvent(peer=PEER, units=200, paid=200),
    events.LeasePaymentEvent(peer=JUDGE, units=10, paid=10),
)


def timeline() -> RunTimeline:
    t = RunTimeline()
    for event in TOLD:
        t = fold(t, event)
    return t


def test_rounds_are_the_points_of_the_curves_that_a_report_draws() -> None:
    t = timeline()
    table = run_tables.rounds(t)
    assert list(table) == list(run_tables.ROUNDS) == list(table.units)
    assert table.height == 2
    assert (table["round"], table["tokens"], table["seconds"]) == ([0, 1], [100, 200], [2.0, 4.0])
    assert [report_series.losses(t).train[i].sent for i in (0, 1)] == table["sent_bytes"] == [1000, 1000]
    assert math.isnan(table["heldout_loss"][0])  # the state before round 0 is no round's
    assert table["heldout_loss"][1] == 3.25
    assert next(table.rows())["root"] == f"{0:064x}"


def test_audits_name_who_what_and_what_it_cost_and_say_which_are_not_over() -> None:
    table = run_tables.audits(timeline())
    assert list(table) == list(run_tables.AUDITS)
    assert table["finding"] == ["false", report_series.OPEN]
    assert table["slashed"] == [500, 0]
    assert table["flagged"] == ["its loss stands out", ""]
    assert table["verifiers"] == [(JUDGE,), ()]


def test_payments_are_whole_numbers_and_one_who_lost_its_stake_is_among_them() -> None:
    table = run_tables.payments(timeline())
    assert table["name"] == ["", "provider-0", "verifier-0"]
    assert (table["paid"], table["slashed"]) == ([0, 200, 10], [500, 0, 0])


def test_a_run_without_rounds_is_a_table_without_rows() -> None:
    table = run_tables.rounds(RunTimeline())
    assert table.height == 0
    assert "0 rows" in repr(table)
    assert "<table>" in table._repr_html_()


def test_columns_of_different_lengths_are_no_table() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        RunTable({"a": [1], "b": []}, {})


def test_a_table_shows_short_keys_and_the_ends_of_many_rows() -> None:
    long = RunTable({"n": list(range(100)), "key": [PEER] * 100, "x": [0.123456] * 100}, {})
    lines = repr(long).splitlines()
    assert len(lines) == 1 + run_tables.SHOWN_ROWS + 1 + 1
    assert lines[1].split() == ["0", "a1a1a1a1", "0.123"]
    assert lines[-2].split()[0] == "99"
    assert "100 rows" in lines[-1]


def test_nothing_from_elsewhere_becomes_markup_or_a_control_character() -> None:
    table = RunTable({"<b>": ["<script>alert(1)</script>", "\x1b[31m"]}, {"<b>": 'a "unit"'})
    page = table._repr_html_()
    assert "<script>" not in page
    assert "<b>" not in page
    assert 'title="a &quot;unit&quot;"' in page
    assert "\x1b" not in page + repr(table)
