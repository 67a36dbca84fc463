"""What an audit finds, and what is made of it (V3): from distances to a finding, from verdicts to pay and punishment.

    excess e = distance / tolerance, of the worst tensor
    e <= 1        HOLDS      paid
    e <= 2        UNPAID     not paid, not punished: an honest machine of another class may lie there
    e >  2        FALSE      slashed, if a second verifier agrees

A payload that the claimed end does not encode to, and an opening that does not fit what was committed, are exact
matters and FALSE at any distance. Stated losses that the segment does not give are not worth a stake: UNPAID.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from farflung.core.ids import PeerId
from farflung.core.layout import Layout
from farflung.job.spec import Tolerance
from farflung.ledger.rules.slash import EXCESS_EXACT, EXCESS_FALSE
from farflung.ledger.tx import DAMNING, Finding, Verdict
from farflung.verify.tolerance import UNIT_BITS

Distances = Mapping[str, Iterable[float]]  # train.segments.distances: of each vector, tensors in layout order

WHOLE: Final = 1000  # thousandths: an excess of one tolerance
EXCESS_CAP: Final = EXCESS_EXACT  # a million tolerances, or no distance at all


class Found(NamedTuple):
    """A finding, and the excess in thousandths of the tolerance that stands in its verdict."""

    finding: Finding
    excess: int


def compare(tolerance: Tolerance, layout: Layout, distances: Distances) -> int:
    """The worst tensor's excess in thousandths of its limit, rounded up; noise tensors do not count.

    Vectors or tensors that are missing, or are no numbers, lie as far apart as can be.
    """
    measured = {name: tuple(float(value) for value in values) for name, values in distances.items()}
    if measured.keys() != {name for name, _ in tolerance.limits}:
        return EXCESS_CAP
    worst = 0
    for name, limits in tolerance.limits:
        values = measured[name]
        if not len(values) == len(limits) == len(layout.tensors):
            return EXCESS_CAP
        for value, limit in zip(values, limits, strict=True):
            worst = max(worst, _excess(value, limit) if limit else 0)
    return worst


def _excess(value: float, limit: int) -> int:
    thousandths = value * (WHOLE << UNIT_BITS) / limit
    return math.ceil(thousandths) if 0 <= thousandths < EXCESS_CAP else EXCESS_CAP


def finding_of(excess: int, *, encoding_ok: bool, statistics_ok: bool) -> Found:
    """What a verifier signs."""
    if not encoding_ok:
        return Found(Finding.FALSE, EXCESS_CAP)
    if excess > EXCESS_FALSE:
        return Found(
            Finding.FALSE, min(excess, EXCESS_CAP - 1)
        )  # of a distance, whatever it is: a game decides
    holds = excess <= WHOLE and statistics_ok
    return Found(Finding.HOLDS if holds else Finding.UNPAID, excess)


class Concluded(NamedTuple):
    """What the verdicts on one contribution come to: whom of its verifiers one pays, and whom, having accused what
    another found good, one does not pay for it and asks last from then on.
    """

    finding: Finding
    honoured: tuple[PeerId, ...]
    discredited: tuple[PeerId, ...]

    @property
    def is_guilty(self) -> bool:
        """Whether the node is slashed."""
        return self.finding in DAMNING


def needs_another(verdicts: Sequence[Verdict], quorum: int) -> bool:
    """Whether the next verifier of the order must be asked: an accusation that nobody has confirmed or denied."""
    accusers = [v for v in verdicts if v.finding in DAMNING]
    return len(accusers) == len(verdicts) < quorum


def conclude(verdicts: Sequence[Verdict], quorum: int) -> Concluded:
    """The verdicts on one contribution, in any order, at least one.

    Whoever accuses and is contradicted by a verifier that finds the claim good is discredited, and the claim stands.
    Accusations that too few confirm, or of different things, take the pay and nothing else. One verifier, one voice.
    """
    said = {v.verifier: v.finding for v in verdicts}
    accusers = tuple(sorted(v for v, finding in said.items() if finding in DAMNING))
    others = tuple(sorted(said.keys() - set(accusers)))
    if any(said[v] is Finding.HOLDS for v in others):
        return Concluded(Finding.HOLDS, others, accusers)
    agreed = [f for f in DAMNING if list(said.values()).count(f) >= max(1, quorum)]
    finding = agreed[0] if agreed and not others else Finding.UNPAID
    return Concluded(finding, tuple(sorted(said)), ())


def conclusions(verdicts: Iterable[Verdict], quorum: int) -> dict[PeerId, Concluded]:
    """`conclude` for each node that a round's verdicts are about."""
    about: dict[PeerId, list[Verdict]] = {}
    for verdict in verdicts:
        about.setdefault(verdict.node, []).append(verdict)
    return {node: conclude(each, quorum) for node, each in sorted(about.items())}
