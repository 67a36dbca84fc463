"""Decides what a round's scores (train.scores) do to pay and to later draws: a pure rule over the log, in
integers.

    unpaid     outcome-only jobs. The contribution alone makes the validation loss worse by more than 1/MARGIN of it, is
               by more than that worse than the better median of its round, and gains nothing on its own data; or it is
               worse by more than 1/GROSS, whatever it gains. And PANEL verifiers say so, where the job has them. It
               loses its pay of the round, and nothing else.
    suspected  every job with probes. RUN times in a row it gained no more on its own data than on others': it is drawn
               as long as that goes on (verify.md section 7, step 6).

Few windows may lie in such a way that honest work makes them worse, but they are the same for all: hence the median.
What was learnt of one's own data shows on them, be the rest as it may: hence the third condition. A loss says nothing
about whether the work was done (verify.md, finding 3): nobody is punished for one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from farflung.core import limits
from farflung.core.ids import Hash, PeerId
from farflung.job.proof_class import LossProbeConfig
from farflung.train.run_log import AuditsRecord, Contribution, contributions_root
from farflung.train.scores import RoundScores, SignedRoundScores, are_scores_signed, by_peer, lot_of, order_of
from farflung.verify.replay_report import ReplayReport, require

MARGIN: Final = 16
GROSS: Final = 4
PANEL: Final = 2
RUN: Final = 3
PROBE: Final = "probe"  # as a flag of the draw


def harmful(scores: RoundScores) -> frozenset[PeerId]:
    """Whose contribution one verifier finds so much worse than nothing, and than what others sent."""
    gains = by_peer(scores)
    if not gains:
        return frozenset()
    ceiling = min(0, sorted(held for held, _ in gains.values())[len(gains) // 2])
    margins = {peer: MARGIN if own <= 0 else GROSS for peer, (_, own) in gains.items()}
    before = scores.held_before
    return frozenset(p for p, (held, _) in gains.items() if margins[p] * (ceiling - held) > before)


def panel_of(probe: LossProbeConfig | None, beacon: Hash, verifiers: Collection[PeerId]) -> tuple[PeerId, ...]:
    """Who may score a round: the first is asked, and the next one where the first is not there or finds harm. Nobody
    in a round that is not drawn for it.
    """
    is_drawn = probe is not None and lot_of(beacon) < probe.odds
    return order_of(beacon, verifiers)[:PANEL] if is_drawn else ()


def unpaid(signed_scores: Sequence[SignedRoundScores], hired: int) -> frozenset[PeerId]:
    """Who is not paid for a round: all of its panel find harm, and it is whole."""
    if len(signed_scores) < min(PANEL, hired) or not signed_scores:
        return frozenset()
    return frozenset.intersection(*(harmful(signed.scores) for signed in signed_scores))


class LossStreaks:
    """How often in a row each peer gained no more on its own data than on validation data, folded over the log."""

    def __init__(self) -> None:
        self._lengths: dict[PeerId, int] = {}

    def add(self, audited: AuditsRecord) -> None:
        """The scores of the next round; those of no round are passed over, and so is what changes nothing."""
        signed_scores = [by_peer(signed.scores) for signed in audited.scores]
        for peer in signed_scores[0] if signed_scores else ():
            gains = [each[peer] for each in signed_scores if peer in each]
            if any(any(gain) for gain in gains):
                is_odd = all(own <= held for held, own in gains)
                self._lengths[peer] = self._lengths.get(peer, 0) + 1 if is_odd else 0

    @property
    def suspected(self) -> dict[PeerId, str]:
        """Who is to be drawn, as a flag of the draw; ascending."""
        return {peer: PROBE for peer, length in sorted(self._lengths.items()) if length >= RUN}


class ScoreContext(NamedTuple):
    """What the scores of a round are about. `probe`: None where the job has none."""

    chain: Hash
    job: Hash
    round: int
    beacon: Hash
    accepted: Sequence[Contribution]
    probe: LossProbeConfig | None


def scores_fault(context: ScoreContext, signed: SignedRoundScores, verifier: PeerId) -> str:
    """What keeps scores from being those that `verifier` gives of this round, or the empty text."""
    signed_scores = signed.scores
    if signed_scores.verifier != verifier or not are_scores_signed(signed):
        return "their verifier did not sign them"
    told = (
        signed_scores.chain,
        signed_scores.job,
        signed_scores.round,
        signed_scores.beacon,
        signed_scores.contributions,
    )
    asked = (context.chain, context.job, context.round, context.beacon, contributions_root(context.accepted))
    if told != asked or [s.peer for s in signed_scores.each] != [c.peer for c in context.accepted]:
        return "they are about something else"
    figures = (signed_scores.held_before, *(x for s in signed_scores.each for x in (s.held, s.before, s.own)))
    return "" if all(abs(x) <= limits.STATED for x in figures) else "a figure is no loss"


def check_scores(
    context: ScoreContext,
    signed_scores: Sequence[SignedRoundScores],
    verifiers: frozenset[PeerId],
    report: ReplayReport,
) -> None:
    """Scores are by whom the round's beacon names, and about what was accepted.

    Raises VerificationError FF-VERI-140 (nobody was to be asked, or somebody else), -141 (they do not hold).
    """
    panel = panel_of(context.probe, context.beacon, verifiers)
    signers = [signed.scores.verifier for signed in signed_scores]
    is_asked = signers == [v for v in panel if v in signers]
    require(is_asked, "FF-VERI-140", f"round {context.round} is scored by others than its draw names")
    for signed in signed_scores:
        fault = scores_fault(context, signed, signed.scores.verifier)
        require(not fault, "FF-VERI-141", f"scores of round {context.round} do not hold", fault)
        report.signatures += 1
        report.scores += len(signed.scores.each)


def gains_of(signed_scores: Sequence[SignedRoundScores]) -> Mapping[PeerId, tuple[int, int]]:
    """What is shown of a round: the gains that the first of its verifiers states, on validation data and on its own."""
    return by_peer(signed_scores[0].scores) if signed_scores else {}
