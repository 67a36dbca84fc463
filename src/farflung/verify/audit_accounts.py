"""Keeps the accounts of an audited run, folded over its log: what each round earned whom, who is out, who is
guilty.

    a round's units = accepted contributions, except of those whom its audit found anything but good, of those who
                      are out already, and in an outcome-only job of those whom its scores find harmful
                    + tokens that a verifier trained again and is honoured for, and of what it read to score others
                    + 1 + jackpot times those of a planted segment that it found false
                      and nothing from there on where it said that one holds (verify.disqualified_verifiers)

The coordinator pays by it and the second reader checks by it. What a guilty node, or such a verifier, earned in earlier
rounds is on its lease; the slash forfeits it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from farflung.core.ids import PeerId
from farflung.job.proof_class import probe_of
from farflung.job.spec import JobSpec, JobTerms
from farflung.ledger.rules.verifiers import quorum_of
from farflung.ledger.transactions import SignedVerdict, Verdict, VerdictFinding
from farflung.train.run_log import (
    AcceptSetRecord,
    AuditsRecord,
    CommitmentsRecord,
    Contribution,
    Record,
    RoundEndRecord,
    excluded_by,
)
from farflung.verify.audit_verdict import AuditConclusion, conclusions
from farflung.verify.disqualified_verifiers import LAG, DisqualifiedVerifiers, PerjuryRecord
from farflung.verify.score_rules import unpaid


class SlashRecord(NamedTuple):
    """Who is slashed, for which round, and the verdicts that say so alike."""

    node: PeerId
    round: int
    verdicts: tuple[SignedVerdict, ...]


class AuditAccounts:
    """What the log has said so far. `verifiers`: how many the job has hired; `unpaid`: contributions that are not paid
    for what their scores say.
    """

    def __init__(self, terms: JobTerms, verifiers: int) -> None:
        self._spec, self._is_proven, self._verifiers = terms.spec, terms.is_proven, verifiers
        self.unpaid = 0
        self.out: frozenset[PeerId] = frozenset()
        self.guilty: dict[PeerId, SlashRecord] = {}
        self.discredited: set[PeerId] = set()
        self.disqualified = DisqualifiedVerifiers()
        self._accepted: dict[int, tuple[Contribution, ...]] = {}  # of rounds that are not judged yet
        self._promised: dict[int, tuple[Contribution, ...]] = {}

    def extend(self, records: Iterable[Record]) -> dict[int, dict[PeerId, int]]:
        """Reads on in a run log, from where it was read to; the units of each round that these records judge.

        In a job without audits a round is judged when it is closed.
        """
        units = {}
        for record in records:
            if isinstance(record, CommitmentsRecord):
                self._promised[record.round] = record.promised
            elif isinstance(record, AcceptSetRecord):
                self._accepted[record.round] = record.contributions
            elif (audited := self._judgement(record)) is not None:
                round = audited.round
                units[round] = self.add(self._accepted.pop(round), audited, self._promised.pop(round))
        return units

    def _judgement(self, record: Record) -> AuditsRecord | None:
        if isinstance(record, RoundEndRecord) and not self._spec.is_audited:
            return AuditsRecord(record.round, ())
        return record if isinstance(record, AuditsRecord) else None

    def add(
        self, accepted: Sequence[Contribution], audited: AuditsRecord, promised: Sequence[Contribution]
    ) -> dict[PeerId, int]:
        """Units of a round, ascending by peer. Rounds are added in order; of a job without audits, with no verdicts.

        `promised`: all that was committed to. What was not accepted is not paid, and audited anyway.
        """
        verdicts = [signed.verdict for signed in audited.verdicts]
        weights = {c.peer: c.weight for c in promised}
        quorum = quorum_of(self.disqualified.left(self._verifiers, audited.round))
        found = conclusions(verdicts, quorum, is_proven=self._is_proven)
        self._convict(found, audited)
        self.disqualified.note(audited, found)
        good = {c.peer: c.weight for c in accepted if c.peer not in self.out and _is_good(found, c.peer)}
        units = self._scored(accepted, audited, good)
        paid = [(v, 1) for v in verdicts if v.verifier in found[v.node].honoured]
        tests = [canary.verdict.verdict for canary in audited.canaries]
        paid += [(v, 1 + self._spec.audit.jackpot) for v in tests if v.finding is VerdictFinding.FALSE]
        for verdict, times in paid:
            tokens = times * rerun_tokens(self._spec, verdict, weights[verdict.node])
            if tokens and verdict.verifier not in self.disqualified.found:
                units[verdict.verifier] = units.get(verdict.verifier, 0) + tokens
        self.out |= excluded_by(audited)
        return dict(sorted(units.items()))

    def _scored(
        self, accepted: Sequence[Contribution], audited: AuditsRecord, good: Mapping[PeerId, int]
    ) -> dict[PeerId, int]:
        """The units of good work without what its scores cost, and those of who scored it."""
        hired = self.disqualified.left(self._verifiers, audited.round)
        harmful = frozenset[PeerId]() if self._is_proven else unpaid(audited.scores, hired)
        self.unpaid += len(harmful & good.keys())
        units = {peer: weight for peer, weight in good.items() if peer not in harmful}
        probe = probe_of(self._spec, is_proven=self._is_proven)
        read = probe.tokens(len(accepted), self._spec.model.context) if probe is not None else 0
        for scorer in {signed.scores.verifier for signed in audited.scores} - self.disqualified.found.keys():
            units[scorer] = units.get(scorer, 0) + read
        return units

    def owed(self, verifier: PeerId) -> PerjuryRecord | None:
        """Why this verifier loses its stake, if it does.

        It does not where who planted was itself found out before the ledger could hear of it: that takes no accusation
        by a node that trains no more.
        """
        perjury = self.disqualified.found.get(verifier)
        guilty = self.guilty.get(perjury.planter) if perjury is not None else None
        is_late = perjury is not None and guilty is not None and guilty.round < perjury.round + LAG
        return None if is_late else perjury

    def _convict(self, found: Mapping[PeerId, AuditConclusion], audited: AuditsRecord) -> None:
        for node, concluded in found.items():
            self.discredited |= set(concluded.discredited)
            if concluded.is_guilty and not self._spec.audit.verifiers:  # named ones take no stake: it is out
                alike = tuple(
                    signed
                    for signed in audited.verdicts
                    if (signed.verdict.node, signed.verdict.finding) == (node, concluded.finding)
                )
                self.guilty[node] = SlashRecord(node, audited.round, alike)


def _is_good(found: Mapping[PeerId, AuditConclusion], peer: PeerId) -> bool:
    return peer not in found or found[peer].finding is VerdictFinding.HOLDS


def rerun_tokens(spec: JobSpec, verdict: Verdict, weight: int) -> int:
    """What a verifier trained again of a contribution of this weight, in tokens.

    0 when nothing was opened to it (its result is then ZERO_HASH).
    """
    return segment_tokens(spec, verdict.segment, weight) if any(verdict.result) else 0


def segment_tokens(spec: JobSpec, segment: int, weight: int) -> int:
    """Tokens in one segment of a contribution of this weight."""
    begin, end = spec.borders_of(spec.steps_of(weight))[segment : segment + 2]
    return spec.step_tokens * (end - begin)
