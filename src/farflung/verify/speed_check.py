"""Checks claimed speed: a peer that commits sooner than its machine could train did not train (verify.md,
section 7).

    flop of the work / seconds that the coordinator waited  >  audit.speed x what the node's benchmark says

Each part errs in the peer's favour. Seconds are the coordinator's own, from the round's opening to the commitment:
messages and waiting are in them. The work is counted as the products of a token with the model's weights, without
attention, norms and optimizer. The benchmark is a core's full rate in matrix products; training reaches a part of it.

So it finds who does next to nothing, and not who leaves out a third. The benchmark is the node's word: one that states
more than it has is never suspicious. Whole numbers only: every reader of the log finds the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from farflung.core.ids import PeerId
from farflung.job.gpt_shapes import gpt_products
from farflung.job.spec import JobSpec
from farflung.train.run_log import CommitmentsRecord, CommitmentTiming, Contribution

SPEED: Final = "speed"
FLOP: Final = 6  # a product costs two, and a backward pass two products for each of the forward pass
MILLIS: Final = 1000


def flop(spec: JobSpec, tokens: int) -> int:
    """The least floating-point operations with which the built-in model is trained on so many tokens."""
    return FLOP * gpt_products(spec.model) * tokens


def is_too_fast(spec: JobSpec, timed: CommitmentTiming, tokens: int) -> bool:
    """Whether so many tokens cannot have been trained on in that time. False where either figure is unknown (0)."""
    most = Fraction(spec.audit.speed) * timed.flops * timed.took
    return bool(most) and MILLIS * flop(spec, tokens) > most


def is_timed(spec: JobSpec, committed: CommitmentsRecord) -> bool:
    """Whether a round's commitments are timed where speed is judged, each of them, and nowhere else."""
    due = len(committed.commitments) if spec.audit.speed else 0
    return len(committed.timed) == due and all(t.took >= 0 and t.flops >= 0 for t in committed.timed)


def suspected(
    spec: JobSpec, committed: CommitmentsRecord, accepted: Sequence[Contribution], found: Mapping[PeerId, str]
) -> dict[PeerId, str]:
    """Whom the submission checks have `found`, and which of the accepted were too fast; ascending by peer."""
    timed = {c.peer: t for c, t in zip(committed.commitments, committed.timed, strict=bool(committed.timed))}
    fast = {c.peer: SPEED for c in accepted if c.peer in timed and is_too_fast(spec, timed[c.peer], c.weight)}
    return dict(sorted({**fast, **found}.items()))
