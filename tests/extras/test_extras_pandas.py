"""Tables of a run as pandas takes them: no conversion, and types that one can compute with."""

from __future__ import annotations

import math
from typing import Any

import pytest

from farflung.core import events
from farflung.watch import run_tables
from farflung.watch.fold import RunTimeline, fold

pytestmark = pytest.mark.extra(name="notebook")

PEER = "a1" * 32


@pytest.fixture
def pandas() -> Any:
    """Pandas, which is not imported while tests are collected."""
    return pytest.importorskip("pandas", reason="pip install 'farflung[notebook]'")


def timeline(rounds: int) -> RunTimeline:
    t = RunTimeline()
    for round in range(rounds):
        closed = events.RoundEndEvent(
            at=float(round), round=round, rounds=rounds, peers=2, loss=5.0 - round, tokens=100, root="00" * 32,
            waited_for=PEER, seconds=1.5, train_seconds=1.0, sync_bytes=10 * round,
        )  # fmt: skip
        t = fold(t, closed)
    return fold(t, events.EvaluationEvent(round=rounds, loss=2.5, tokens=64))


def test_metrics_are_a_data_frame_with_numbers_to_compute_with(pandas: Any) -> None:
    frame = pandas.DataFrame(run_tables.rounds(timeline(3))).set_index("round")
    assert frame.shape == (3, len(run_tables.ROUNDS) - 1)
    assert frame["tokens"].tolist() == [100, 200, 300]
    assert frame["loss"].min() == 3.0
    assert frame["heldout_loss"].count() == 1
    assert math.isnan(frame["heldout_loss"].iloc[0])
    assert frame.dtypes[["tokens", "sync_bytes", "peers"]].astype(str).unique().tolist() == ["int64"]


def test_a_run_without_rounds_is_an_empty_frame_with_all_columns(pandas: Any) -> None:
    frame = pandas.DataFrame(run_tables.rounds(RunTimeline()))
    assert frame.empty
    assert list(frame.columns) == list(run_tables.ROUNDS)


def test_audits_and_payments_are_frames_as_well(pandas: Any) -> None:
    t = fold(timeline(1), events.AuditDrawEvent(round=0, peer=PEER, segment=1))
    t = fold(t, events.LeasePaymentEvent(peer=PEER, units=100, paid=100))
    assert pandas.DataFrame(run_tables.audits(t))["peer"].tolist() == [PEER]
    assert pandas.DataFrame(run_tables.payments(t))["paid"].sum() == 100
