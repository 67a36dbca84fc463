"""A requester whose module computes otherwise on its verifiers' machines gains nothing: they need the graph, too."""

from __future__ import annotations

from dataclasses import replace

import dispute_match as match
import msgspec
import numpy as np
import pytest
from cheat_play import SHORT, play

from farflung.core.canon.program import SegmentSteps
from farflung.job.spec import ModelSpec
from farflung.ledger.rules.slashes import EXCESS_FALSE
from farflung.ledger.transactions import VerdictFinding
from farflung.train import segments
from farflung.train.segments import BorderState
from farflung.verify.audit_verdict import EXCESS_CAP, AuditFinding
from farflung.verify.canon import accusation_check

COUNTING = b"""
from torch import nn

class Annealed(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(256, 8), nn.Linear(8, 256)

    def forward(self, x, y):
        Annealed.calls += 1
        self.calls += 1
        scale = 1.0 if self.calls < 5 else 0.5
        logits = self.head(self.table(x) * scale)
        return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())

def build():
    return Annealed()
"""
ACCUSED = AuditFinding(VerdictFinding.FALSE, 734_000)
SPEC, SEGMENT = match.SPEC, match.SEGMENT


def said(claimed: BorderState) -> AuditFinding:
    """What an accuser signs whose own worker found `claimed` false by its distance."""
    layout, job = match.job().model.layout, match.job()
    start = segments.start([match.border(0), match.border(1)], SEGMENT)
    first, after = SPEC.borders_of(SPEC.sync.steps)[SEGMENT : SEGMENT + 2]
    steps = SegmentSteps(first, after - first)
    is_false = accusation_check.is_false(match.parts(), layout, job.start, match.SEAT, steps, (start, claimed))
    return accusation_check.confirmed(ACCUSED, is_false)


def test_a_requester_that_counts_calls_in_its_module_and_audits_all_of_it_convicts_nobody() -> None:
    """A provider has made other calls than a verifier that repeats its segment: all of its work is paid."""
    spec = msgspec.structs.replace(SHORT, model=ModelSpec(kind="module", context=8, module="mine.py:build"))
    run = play(3, peers=2, spec=spec, module=COUNTING)
    assert set(run.findings.values()) == {VerdictFinding.HOLDS}
    assert len(run.findings) == 4
    assert run.guilty == set()


def test_work_that_the_graph_makes_is_not_convicted_whatever_a_worker_repeats() -> None:
    assert said(match.border(SEGMENT + 1)) == AuditFinding(VerdictFinding.UNPAID, EXCESS_FALSE)


def test_work_that_the_graph_does_not_make_is_still_convicted() -> None:
    left_out = match.cheat()
    moved = replace(match.border(2), params=match.border(2).params * 1.5)
    overflowing = replace(match.border(2), params=np.full_like(match.border(2).params, 3e38))
    assert said(left_out) == said(moved) == said(overflowing) == ACCUSED


@pytest.mark.parametrize(
    ("finding", "excess", "is_needed"),
    [
        (VerdictFinding.FALSE, EXCESS_CAP - 1, True),
        (VerdictFinding.FALSE, EXCESS_CAP, False),  # an encoding or an opening: exact
        (VerdictFinding.UNPAID, 1500, False),
        (VerdictFinding.WITHHELD, 0, False),
    ],
)
def test_only_a_distance_needs_the_graph(finding: VerdictFinding, excess: int, is_needed: bool) -> None:
    assert accusation_check.needs_graph(AuditFinding(finding, excess)) is is_needed
