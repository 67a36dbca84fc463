"""A member that skips all work and answers at once: no machine like the one it offers can have trained by then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import attack_run
import attack_world
import msgspec
import pytest
from attack_run import EVE, HONEST, Run

from farflung.core.events import AuditDrawEvent
from farflung.job.spec import AuditSpec
from farflung.train.run_log import CommitmentsRecord
from farflung.verify.speed_check import SPEED

replace = msgspec.structs.replace
SLOW, QUICK = 10, 10**18  # FLOP/s: a round is worth hours of one, and nothing of the other
RARE = AuditSpec(segments=2, rate=2.0**-33, probation=1)


def drawn(folder: Path, monkeypatch: pytest.MonkeyPatch, speed: float) -> tuple[Run, dict[str, set[str]]]:
    """A run in which all answer within seconds, and one offers a machine that cannot; why each was drawn."""
    spec = replace(attack_world.SPEC, audit=replace(RARE, speed=speed))
    terms = replace(attack_world.TERMS, spec=spec)
    for module in (attack_world, attack_run):
        monkeypatch.setattr(module, "SPEC", spec)
        monkeypatch.setattr(module, "TERMS", terms)
    run = Run(folder, benchmarks={EVE.public: SLOW, **{key.public: QUICK for key in HONEST}})
    asyncio.run(run.go())
    why: dict[str, set[str]] = {}
    for event in run.events:
        if isinstance(event, AuditDrawEvent) and event.round >= RARE.probation:
            why.setdefault(event.peer, set()).add(event.flagged)
    return run, why


def test_who_answers_at_once_is_drawn_in_every_round_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, why = drawn(tmp_path, monkeypatch, 1.3)
    assert why == {EVE.public.hex(): {SPEED}}
    records = [r for r in run.log.records if isinstance(r, CommitmentsRecord)]
    assert len(records) == attack_run.SPEC.rounds
    for record in records:
        assert all(timed.took > 0 for timed in record.timed)
        assert [t.flops for t in record.timed] == [SLOW if c.peer == EVE.public else QUICK for c in record.commitments]


def test_where_speed_is_not_judged_nobody_is_drawn_for_it_and_no_time_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, why = drawn(tmp_path, monkeypatch, 0.0)
    assert why == {}
    assert all(r.timed == () for r in run.log.records if isinstance(r, CommitmentsRecord))
