"""The report of a run of real processes says what the run said, and not where it ran."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from farflung.watch import report_series

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("tree")]


def test_the_page_of_a_real_run_says_what_its_result_says(tiny: Any) -> None:
    command, ended = tiny
    result = ended.result
    said = command("report", "--json")
    facts = json.loads(said.lines[-1])
    page = Path(facts["report"]).read_text()
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    for number in (result["tokens"], result["bytes_sent"], result["bytes_ring_bf16"], *result["bytes_by"].values()):
        assert f"{number:,}" in text
    for loss in (result["loss"], result["loss_start"], result["loss_baseline"]):
        assert f"{loss:.4f}" in text
    assert result["model_hash"] in text
    assert result["ledger_root"] in text
    assert all(event["root"] in text for event in ended.events if event["event"] == "round")
    assert "● finished" in " ".join(text.split())
    assert str(command.runs) not in page
    assert "127.0.0.1" not in page


def test_the_numbers_of_a_real_run_add_up(tiny: Any) -> None:
    from farflung.peers.rundir.folder import all_runs
    from farflung.peers.rundir.journal import read_timeline

    command, ended = tiny
    timeline = read_timeline(all_runs(command.runs)[0])
    money = report_series.money(timeline)
    assert money.held == 0
    assert money.paid == ended.result["paid"]
    assert (
        sum(getattr(report_series.sent(timeline).by, kind) for kind in ended.result["bytes_by"])
        == ended.result["bytes_sent"]
    )
    strips = report_series.member_rows(timeline)
    assert len(strips) == sum(len(opening.peers) for opening in timeline.openings.values())
    spent = sum(closed.seconds for closed in timeline.rounds.values())
    assert max(block.end for strip in strips for block in strip.blocks) <= spent + 0.01
