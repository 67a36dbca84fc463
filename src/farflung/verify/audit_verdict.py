"""Decides what an audit finds and what follows (V3): distances give a finding, verdicts give pay and punishment.

    excess e = distance / tolerance, of the worst tensor
    e <= 1        HOLDS      paid
    e <= 2        UNPAID     not paid, not punished: an honest machine of another class may lie there
    e >  2        FALSE      slashed, if two of at most three verifiers agree; an only verifier decides alone where the
                             job is proven, for then its graph says so, too; elsewhere it takes the pay

A payload that the claimed end does not encode to, and an opening that does not fit what was committed, are exact
matters and FALSE at any distance. Others have a verifier's word for it, as for a distance, so without a graph two say
it, or nobody is slashed. Stated losses that the segment does not give are not worth a stake: UNPAID.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from farflung.core.ids import PeerId
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import Tolerance
from farflung.ledger.rules.slashes import EXCESS_EXACT, EXCESS_FALSE
from farflung.ledger.rules.verifiers import QUORUM, quorum_of
from farflung.ledger.transactions import DAMNING, Verdict, VerdictFinding
from farflung.verify.tolerance import UNIT_BITS

Distances = Mapping[str, Iterable[float]]  # train.segments.distances: of each vector, tensors in layout order

WHOLE: Final = 1000  # thousandths: an excess of one tolerance
EXCESS_CAP: Final = EXCESS_EXACT  # a million tolerances, or no distance at all
PANEL: Final = 3  # verifiers of one contribution at most: of three that contradict each other two agree


class AuditFinding(NamedTuple):
    """A finding, and the excess in thousandths of the tolerance that is in its verdict."""

    finding: VerdictFinding
    excess: int


def compare(tolerance: Tolerance, layout: TensorLayout, distances: Distances) -> int:
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


def finding_of(excess: int, *, encoding_ok: bool, statistics_ok: bool) -> AuditFinding:
    """What a verifier signs."""
    if not encoding_ok:
        return AuditFinding(VerdictFinding.FALSE, EXCESS_CAP)
    if excess > EXCESS_FALSE:
        return AuditFinding(
            VerdictFinding.FALSE, min(excess, EXCESS_CAP - 1)
        )  # of a distance, whatever it is: a game decides
    holds = excess <= WHOLE and statistics_ok
    return AuditFinding(VerdictFinding.HOLDS if holds else VerdictFinding.UNPAID, excess)


class AuditConclusion(NamedTuple):
    """What the verdicts on one contribution come to: whom of its verifiers one pays, and whom, being contradicted, one
    does not pay for it and asks last from then on.
    """

    finding: VerdictFinding
    honoured: tuple[PeerId, ...]
    discredited: tuple[PeerId, ...]

    @property
    def is_guilty(self) -> bool:
        """Whether the node is slashed."""
        return self.finding in DAMNING


def panel_of(hired: int) -> int:
    """How many of a job's verifiers judge one contribution at most: the third, where there is one, decides."""
    return max(1, min(PANEL, hired))


def is_distance(finding: VerdictFinding, excess: int) -> bool:
    """Whether this accuses of a distance, which a repetition has measured; all else that is punished is exact."""
    return finding is VerdictFinding.FALSE and excess < EXCESS_CAP


def needs_another(verdicts: Sequence[Verdict], hired: int, *, is_proven: bool) -> bool:
    """Whether the next verifier of the order must be asked, of `hired` that the job has.

    An accusation is open until a quorum of the panel makes it alike, or denies it, or nobody is left to ask.
    """
    denials = sum(v.finding not in DAMNING for v in verdicts)
    quorum = quorum_of(hired)
    is_open = denials < len(verdicts) and denials < quorum and _agreed(verdicts, quorum, is_proven) is None
    return is_open and len(verdicts) < panel_of(hired)


def _agreed(verdicts: Sequence[Verdict], quorum: int, is_proven: bool) -> VerdictFinding | None:
    """What enough of them accuse of. Without a graph, one verifier alone convicts nobody (ledger.rules.slashes)."""
    needed = max(1, quorum) if is_proven else QUORUM
    return next((f for f in DAMNING if sum(v.finding is f for v in verdicts) >= needed), None)


def conclude(verdicts: Sequence[Verdict], quorum: int, *, is_proven: bool) -> AuditConclusion:
    """The verdicts on one contribution, in any order, at least one.

    A quorum that accuses of one thing is trusted, and who found false work good is discredited. Short of that, whoever
    accuses what another finds good is discredited, and the claim stands, unless more accuse than do not. Accusations
    that too few confirm, or of different things, take the pay and nothing else. One verifier, one voice.

    `is_proven`: whether the job has a graph; without one nothing but two verifiers that agree is trusted.
    """
    last = {v.verifier: v for v in verdicts}
    said = {verifier: v.finding for verifier, v in last.items()}
    accusers = tuple(sorted(v for v, finding in said.items() if finding in DAMNING))
    good = tuple(sorted(v for v, finding in said.items() if finding is VerdictFinding.HOLDS))
    agreed, outvoted = _agreed(list(last.values()), quorum, is_proven), tuple[PeerId, ...]()
    finding = agreed if agreed is not None else VerdictFinding.UNPAID
    if agreed is VerdictFinding.FALSE:  # what was shown to one may be withheld from others
        outvoted = good
    elif agreed is None and good and 2 * len(accusers) <= len(said):
        finding, outvoted = VerdictFinding.HOLDS, accusers
    return AuditConclusion(finding, tuple(sorted(said.keys() - set(outvoted))), outvoted)


def conclusions(verdicts: Iterable[Verdict], quorum: int, *, is_proven: bool) -> dict[PeerId, AuditConclusion]:
    """`conclude` for each node that a round's verdicts are about."""
    about: dict[PeerId, list[Verdict]] = {}
    for verdict in verdicts:
        about.setdefault(verdict.node, []).append(verdict)
    return {node: conclude(each, quorum, is_proven=is_proven) for node, each in sorted(about.items())}
