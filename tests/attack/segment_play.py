"""One segment of one peer, played and judged without a network: what a way around the work comes to once drawn."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as moved
from functools import cache

from cheat_play import SPEC, Worker, tolerance
from msgspec.structs import replace

from farflung.core.crypto import local_key
from farflung.job.spec import OptimizerSpec, Tolerance
from farflung.ledger.transactions import VerdictFinding
from farflung.train.segments import BorderState
from farflung.train.shortcuts import SHORTCUTS, SegmentTask, apart
from farflung.verify.audit_verdict import AuditFinding, compare, finding_of

ADAMW, SGD = OptimizerSpec(name="adamw", lr=3e-3), OptimizerSpec(name="sgd", lr=0.1)
OPTIMIZERS = (SPEC.optimizer, ADAMW, SGD)
FALSE, HOLDS, UNPAID = VerdictFinding.FALSE, VerdictFinding.HOLDS, VerdictFinding.UNPAID


@dataclass(frozen=True)
class Stage:
    """A segment in the middle of a peer's second round, its honest end, and the job's own tolerances."""

    segment: SegmentTask
    right: BorderState
    limits: Tolerance

    def judged(self, claimed: BorderState) -> AuditFinding:
        """What a verifier finds whose own end is `right`, of a claim whose payload and losses fit."""
        distances = dict(apart(self.segment, self.right, claimed))
        excess = compare(self.limits, self.segment.job.model.layout, distances)
        return finding_of(excess, encoding_ok=True, statistics_ok=True)

    def played(self, name: str) -> AuditFinding:
        """The finding on a shortcut."""
        return self.judged(SHORTCUTS[name].play(self.segment).end)


@cache
def stage(seed: int, optimizer: OptimizerSpec = SPEC.optimizer) -> Stage:
    """The segment of a seed, two steps long."""
    spec = replace(SPEC, seed=seed, optimizer=optimizer)
    job = Worker(spec, local_key(seed, "segment"), 0).engine._job
    assert job is not None
    first = SegmentTask(job, spec, BorderState(0, 0, job.start), 0, range(spec.sync.steps))
    begin = moved(first.honest().end, round=1)
    segment = SegmentTask(job, spec, begin, 0, range(spec.borders[1], spec.borders[2]))
    return Stage(segment, segment.honest().end, tolerance(replace(SPEC, optimizer=optimizer)))


def assert_false(name: str, least: int = 2) -> None:
    """Found false, far beyond the line, whatever the seed and the optimizer."""
    for seed, optimizer in enumerate(OPTIMIZERS):
        found = stage(seed, optimizer).played(name)
        assert found.finding is FALSE, (name, optimizer.name, found)
        assert found.excess > 1000 * least, (name, optimizer.name, found)
