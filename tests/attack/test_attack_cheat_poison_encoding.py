"""The cheat `poison-encoding`: the work is honest, and what is sent is another change."""

from __future__ import annotations

import pytest
from cheat_play import SEEDS, SHORT, assert_found_and_nobody_else, is_measured, play

from farflung.verify import audit_verdict


@pytest.mark.whole
@pytest.mark.parametrize("seed", SEEDS)
def test_who_encodes_what_it_did_not_train_is_found_false_and_nobody_else(seed: int) -> None:
    run = play(seed, "poison-encoding", spec=SHORT)
    assert_found_and_nobody_else(run)
    assert not is_measured(run)  # the segment itself is right to the last bit


def test_it_is_the_encoding_that_gives_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = audit_verdict.finding_of

    def lenient(excess: int, **told: bool) -> audit_verdict.AuditFinding:
        return honest(excess, **{**told, "encoding_ok": True})

    monkeypatch.setattr("farflung.verify.segment_audit.finding_of", lenient)
    assert not play(1, "poison-encoding", spec=SHORT).guilty
