"""Replays the audits of a run: repeats the draw, and checks each verdict against it.

Audits of round r are written after round r + 1 is closed and before the next one opens, at the end of a run all of
them; so whom they find false is out at a place of the log that no timing decides. A round of an audited job has its
record even when nobody was drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.job.proof_class import probe_of
from farflung.job.spec import JobTerms
from farflung.ledger import canaries
from farflung.ledger.rules.slashes import EXCESS_FALSE
from farflung.ledger.rules.verifiers import quorum_of
from farflung.ledger.transactions import DAMNING, Canary, SignedVerdict, Verdict, VerdictFinding, is_verdict_signed
from farflung.train.run_log import AuditsRecord, Contribution, excluded_by
from farflung.verify.audit_sample import AuditSample, draw, verifier_order
from farflung.verify.audit_verdict import EXCESS_CAP, WHOLE, conclusions, needs_another, panel_of
from farflung.verify.disqualified_verifiers import DisqualifiedVerifiers
from farflung.verify.replay_report import ReplayReport, require
from farflung.verify.score_rules import LossStreaks, ScoreContext, check_scores

EXCESSES = {
    VerdictFinding.HOLDS: range(WHOLE + 1),
    VerdictFinding.UNPAID: range(EXCESS_FALSE + 1),
    VerdictFinding.FALSE: range(EXCESS_FALSE + 1, EXCESS_CAP + 1),
    VerdictFinding.WITHHELD: range(1),
}


class AuditReplay:
    """What was drawn and not judged yet, who is out, and how often a peer's work was accepted."""

    def __init__(self, chain: Hash, terms: JobTerms, verifiers: frozenset[PeerId], report: ReplayReport) -> None:
        self._chain, self._terms, self._verifiers, self._report = chain, terms, verifiers, report
        self._accepted: dict[PeerId, int] = {}
        self._drawn: dict[int, Mapping[PeerId, tuple[AuditSample, Contribution]]] = {}
        self._owed: dict[int, frozenset[PeerId]] = {}
        self._beacons: dict[int, Hash] = {}
        self._disqualified = DisqualifiedVerifiers()
        self._judged = 0
        self._probe = probe_of(terms.spec, is_proven=terms.is_proven)
        self._scored: dict[int, ScoreContext] = {}
        self._loss_streaks = LossStreaks()
        self._out: frozenset[PeerId] = frozenset()

    def drawn(
        self,
        round: int,
        beacon: Hash,
        promised: Sequence[Contribution],
        accepted: Sequence[Contribution],
        flagged: Mapping[PeerId, str],
    ) -> None:
        """Draws among all that was committed to in a round: what was not accepted is owed, and judged like the rest.

        `beacon` is its beacon.
        """
        spec = self._terms.spec
        if spec.is_audited:
            flagged = {**self._loss_streaks.suspected, **flagged}
            about = (self._chain, self._terms.id, round, beacon, accepted)
            self._scored[round] = ScoreContext(*about, self._probe)
            known = [(c.peer, self._accepted.get(c.peer, 0)) for c in promised]
            found = draw(spec.audit, spec.segments, beacon, known, flagged)
            by_peer = {c.peer: c for c in promised}
            self._drawn[round] = {d.peer: (d, by_peer[d.peer]) for d in found}
            shown = {c.peer for c in accepted}
            self._beacons[round] = beacon
            self._owed[round] = frozenset(d.peer for d in found if d.peer not in shown)
        # Rounds in a row, for sample.standing.
        self._accepted = {c.peer: self._accepted.get(c.peer, 0) + 1 for c in accepted}

    def are_due(self, rounds: int) -> None:
        """Audits of the first `rounds` rounds are written, and of no others. Raises FF-VERI-033."""
        is_due = self._judged == (rounds if self._terms.spec.is_audited else 0)
        require(is_due, "FF-VERI-033", f"the audits of {self._judged} rounds are written, not of {rounds}")

    def check_members(self, round: int, members: Iterable[PeerId]) -> None:
        """Nobody takes part that was found false. Raises FF-VERI-034."""
        require(self._out.isdisjoint(members), "FF-VERI-034", f"round {round} counts on who was found false")

    def judged(self, record: AuditsRecord, closed: int) -> None:
        """One round's verdicts, of `closed` rounds so far. Raises VerificationError FF-VERI-033, -035 to -038, -135 to
        -137, -139, -140, -141.
        """
        is_next = record.round == self._judged < closed and self._terms.spec.is_audited
        require(is_next, "FF-VERI-033", f"the audits of round {record.round} are out of turn")
        drawn = self._drawn.pop(record.round)
        asked = self._verifiers - self._disqualified.unasked(record.round)
        names = [(v.verdict.node, v.verdict.verifier) for v in record.verdicts]
        is_ascending = names == sorted(set(names))
        require(is_ascending, "FF-VERI-035", f"round {record.round} has a verdict twice, or not in order")
        due = drawn.keys() - self._out if asked else set()
        is_whole = {node for node, _ in names} == due
        require(is_whole, "FF-VERI-036", f"round {record.round} does not judge exactly whom its draw names")
        for signed in record.verdicts:
            self._check(record.round, signed, *drawn[signed.verdict.node])
        is_trusted = all(verifier in asked for _, verifier in names)
        require(is_trusted, "FF-VERI-139", f"round {record.round} is judged by who was found to guess")
        self._check_quorum(record, len(asked))
        self._check_canaries(record, drawn, asked)
        check_scores(self._scored.pop(record.round), record.scores, asked, self._report)
        self._loss_streaks.add(record)
        self._out |= excluded_by(record)
        self._judged += 1
        self._report.audits += len(drawn.keys() & {node for node, _ in names})
        self._report.owed += len(self._owed.pop(record.round) & {node for node, _ in names})

    def _check(self, round: int, signed: SignedVerdict, drawn: AuditSample, c: Contribution) -> None:
        verdict = signed.verdict
        place = (self._chain, self._terms.id, round, c.peer, drawn.segment, c.trace)
        told = (verdict.chain, verdict.job, verdict.round, verdict.node, verdict.segment, verdict.trace)
        is_theirs = verdict.verifier in self._verifiers and is_verdict_signed(signed)
        require(is_theirs, "FF-VERI-037", f"no verifier of the job signed a verdict of round {round}")
        is_about = told == place and is_sound(verdict)
        require(is_about, "FF-VERI-038", f"a verdict of round {round} is about something else, or contradicts itself")
        self._report.signatures += 1
        self._report.verdicts += 1

    def _check_canaries(
        self, record: AuditsRecord, drawn: Mapping[PeerId, tuple[AuditSample, Contribution]], asked: frozenset[PeerId]
    ) -> None:
        """Each was planted in what the log says was committed to and drawn, for the verifier that is asked first."""
        beacon, round = self._beacons.pop(record.round), record.round
        nodes = [canary.verdict.verdict.node for canary in record.canaries]
        possible = {v.verdict.node for v in record.verdicts} - self._owed[round]
        is_due = self._terms.spec.audit.canaries > 0 and nodes == sorted(set(nodes)) and possible >= set(nodes)
        require(is_due or not nodes, "FF-VERI-135", f"round {round} has canaries where none can be")
        for node, canary in zip(nodes, record.canaries, strict=True):
            self._check_canary(canary, *drawn[node])
            first = verifier_order(beacon, node, asked)[0]
            is_first = canary.verdict.verdict.verifier == first
            require(is_first, "FF-VERI-137", f"a canary of round {round} was shown to another than the first")
        verdicts = [signed.verdict for signed in record.verdicts]
        found = conclusions(verdicts, quorum_of(len(asked)), is_proven=self._terms.is_proven)
        self._disqualified.note(record, found)
        self._report.canaries += len(nodes)

    def _check_canary(self, canary: Canary, drawn: AuditSample, c: Contribution) -> None:
        said, plant = canary.verdict.verdict, canary.plant
        told = (plant.trace, plant.truth.payload, plant.truth.weight, plant.truth.nonce, said.segment)
        is_theirs = told == (c.trace, c.payload, c.weight, c.nonce, drawn.segment)
        fault = canaries.fault(canary, self._chain, self._terms.id) if is_theirs else "it is of other work"
        is_whole = not fault and is_sound(said)
        require(is_whole, "FF-VERI-136", f"a canary of round {said.round} does not hold", fault)
        self._report.signatures += 1

    def _check_quorum(self, record: AuditsRecord, hired: int) -> None:
        verdicts, is_proven = [signed.verdict for signed in record.verdicts], self._terms.is_proven
        for node, about in groupby(verdicts, key=lambda verdict: verdict.node):
            judges = list(about)
            is_panel = len(judges) <= panel_of(hired) and not needs_another(judges, hired, is_proven=is_proven)
            require(is_panel, "FF-VERI-043", f"too few or too many verifiers judge {node[:4].hex()}")


def is_sound(verdict: Verdict) -> bool:
    """Whether the finding follows from the excess, and whoever found work good had trained it again.

    The ledger's law asks for the same of what it punishes: a verdict that it would refuse must not reach the log.
    """
    is_accusing = verdict.finding in DAMNING
    return verdict.excess in EXCESSES[verdict.finding] and (is_accusing or verdict.result != ZERO_HASH)
