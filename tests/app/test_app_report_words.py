"""The report says what is so: waiting for audits is waiting, a cheater is not paid, a table that scrolls shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.app.views import report_page, report_text
from farflung.watch.phrases import less_than
from farflung.watch.report_series import MemberTimeShare

ROWS = tuple(MemberTimeShare(f"{n:02d}" * 32, 10, n, 80.0, 5.0, 5.0, 10.0) for n in range(5))


def test_the_wait_for_audits_between_rounds_is_a_wait_of_all_members() -> None:
    alone = report_text.waiting(ROWS[4], ROWS, {})
    assert "All members together spent 10% of their time waiting." in alone
    paused = report_text.waiting(ROWS[4], ROWS, {}, between=50.0)
    assert "spent 40% of their time waiting, 50 s each for audits before a round opened." in paused


@pytest.mark.parametrize("state", [report_page.FINISHED, report_page.STOPPED])
def test_nobody_says_that_a_cheater_is_paid(state: report_page.RunStatus) -> None:
    assert "the work that passed is paid" in state.means
    assert "everybody" not in state.means


@pytest.mark.parametrize(
    ("ring", "own", "said"),
    [
        (3200, 640, "5x less than a bf16 ring all-reduce (3.2 kB, calculated)"),
        (640, 3200, "5x more than a bf16 ring all-reduce (640 B, calculated)"),
        (0, 640, ""),
        (640, 0, ""),
    ],
)
def test_traffic_has_one_multiple_and_says_to_which_side(ring: int, own: int, said: str) -> None:
    assert less_than(ring, own) == said


def test_a_table_that_scrolls_has_shadows_at_its_hidden_ends() -> None:
    css = (Path(report_page.__file__).parent / "report.css").read_text(encoding="utf-8")
    rule = css.partition(".wide-table {")[2].partition("}")[0]
    assert "overflow-x: auto" in rule
    assert rule.count("no-repeat local") == rule.count("no-repeat scroll") == 2
