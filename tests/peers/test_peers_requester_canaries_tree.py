"""Canaries in a whole network of processes: the same bits after a kill between a canary and its record."""

from __future__ import annotations

import pytest
from app_trees import Farflung, outcome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

TESTED = (
    *("run", "--preset", "tiny", "--json", "--set", "sync.steps=5", "--set", "audit.rate=1"),
    *("--set", "audit.canaries=0.5", "--set", "audit.jackpot=2"),
)
AUDITED = "run.log.write@18"  # the audits of round 1 are over, and half written


def test_a_run_with_canaries_is_proved_and_the_same_after_a_kill(farflung: Farflung) -> None:
    whole = farflung(*TESTED)
    found = [event for event in whole.events if event["event"] == "canary"]
    assert found
    assert {event["finding"] for event in found} == {"false"}
    told = farflung("verify-run", str(farflung.newest()))
    assert told.code == 0, told.errors
    assert f"{len(found)} canaries hold; nobody guessed" in "\n".join(told.lines)
    assert farflung(*TESTED, FARFLUNG_FAILPOINT=AUDITED).was_killed
    assert outcome(farflung("resume", "--json").result) == outcome(whole.result)
