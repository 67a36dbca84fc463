"""A poisoner in a whole network of real processes, in a job of which nothing is proven and that hardly audits.

Its losses are measured, it is not paid for the rounds in which it does harm, and a reader of the log comes to the same.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from app_trees import Farflung

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SETTINGS = (
    "network.providers=3",
    "network.verifiers=2",
    "rounds=3",
    "batch=4",
    "sync.steps=64",  # so many tokens that every round is scored
    "audit.proof=outcome",
    "audit.rate=0.000001",  # nobody is drawn
    "audit.probation=0",
)


def test_a_poisoner_is_not_paid_by_its_scores_and_verify_run_agrees(tmp_path: Path) -> None:
    command = Farflung(tmp_path / "runs")
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    ended = command("run", "--preset", "tiny", "--json", "--cheat", "poison-encoding", *settings)
    result, told = ended.result, [e for e in ended.events if e["event"] == "scored"]
    (cheater,) = {peer for each in told for peer in each["unpaid"]}
    assert [each["unpaid"] for each in told] == [[], [cheater], [cheater]]  # it is honest in round 0
    assert [len(each["verifiers"]) for each in told] == [1, 2, 2]
    assert result["probed"] == {"scored": 9, "unpaid": 2}
    assert (result["caught"], result["slashed"], result["sum"]) == ([], 0, 0)
    paid = {e["peer"]: e["units"] for e in ended.events if e["event"] == "settled"}
    assert paid[cheater] == 4 * 32 * 64 == paid[next(p for p in told[0]["peers"] if p != cheater)] / 3
    run = command.newest()
    assert run is not None
    proved = command("verify-run", run.name, "--json").events[0]
    assert (proved["scores"], proved["unpaid"]) == (9 + 6, 2)
    shown = "\n".join(command("watch", run.name).lines)
    assert re.search(rf"\({cheater[:8]}\).*round 1 is not paid", shown)
    assert "loss of 9 contributions probed, 2 unpaid for it" in "\n".join(command("status", run.name).lines)
