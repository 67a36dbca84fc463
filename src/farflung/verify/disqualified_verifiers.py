"""Decides which verifiers are disqualified for accepting a planted segment, from when on, and how many are left.

A canary of round r is known when the audits of round r are in the log, which is before round r + 2 opens; those of
round r + 1 may be under way by then. So who is found out in round r is asked in no audit from round r + LAG on, and no
timing decides whom one asks. The ledger hears of it when round r + 1 is recorded: what that verifier said of others in
that round may be needed first.

No perjury is what the node's own audit explains: had a quorum found its commitment false, the planted end may have been
the true one, and the verifier right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from farflung.core.ids import PeerId
from farflung.ledger.canaries import is_perjury
from farflung.ledger.transactions import Canary
from farflung.train.run_log import AuditsRecord
from farflung.verify.audit_verdict import AuditConclusion

LAG: Final = 2  # rounds


class PerjuryRecord(NamedTuple):
    """Who said it first in which round, of whose planted segment."""

    verifier: PeerId
    round: int
    canary: Canary

    @property
    def planter(self) -> PeerId:
        """Whose segment it was."""
        return self.canary.verdict.verdict.node


class DisqualifiedVerifiers:
    """What the log has said so far of a job's verifiers."""

    def __init__(self) -> None:
        self.found: dict[PeerId, PerjuryRecord] = {}

    def note(self, audited: AuditsRecord, concluded: Mapping[PeerId, AuditConclusion]) -> None:
        """Reads one round's canaries; `concluded`: what its audits come to. Rounds are read in order."""
        for canary in audited.canaries:
            said = canary.verdict.verdict
            is_excused = said.node in concluded and concluded[said.node].is_guilty
            if is_perjury(canary) and not is_excused:
                self.found.setdefault(said.verifier, PerjuryRecord(said.verifier, audited.round, canary))

    def unasked(self, round: int) -> frozenset[PeerId]:
        """Whom the audits of a round leave out."""
        return frozenset(p.verifier for p in self.found.values() if p.round + LAG <= round)

    def left(self, hired: int, round: int) -> int:
        """How many verifiers the audits of a round have, of so many that were hired."""
        return hired - len(self.unasked(round))
