"""Trains sampled segments of a finished run again (V4): draws them, and decides what may be concluded about
them.

A run keeps no private state. What it keeps is enough anyway: a peer begins fresh, its rounds chain, and all
else is public, so a peer's contributions are trained again from its first one on, each under its committed trace.

    the whole trace is equal   every segment of the contribution is: weights, optimizer, residual, losses, payload
    it is another              nothing is known: an honest machine of another class gives other bits, and without the
                               state that was claimed there is no distance to measure; nor of what the peer did later

The reader's draw is its own, by a seed that nobody knew while the work was done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from farflung.core.commitments import number
from farflung.core.crypto import NS_REEXECUTION, digest
from farflung.core.ids import Hash, PeerId
from farflung.ledger.rules.verifiers import quorum_of
from farflung.train.run_log import AuditsRecord, Contribution, Record
from farflung.verify.audit_verdict import conclusions
from farflung.verify.disqualified_verifiers import DisqualifiedVerifiers
from farflung.verify.replay_report import ReexecutionReport, RetrialReport

ODDS: Final = 1 << 64

Accepted = Mapping[int, Sequence[Contribution]]


class SegmentKey(NamedTuple):
    """One segment of one contribution."""

    round: int
    peer: PeerId
    segment: int


class ChainRerun(NamedTuple):
    """What became of one peer's chain: rounds whose whole trace came out again, and the first one that did not."""

    peer: PeerId
    equal: frozenset[int]
    broken: int | None

    @property
    def trained(self) -> int:
        """Contributions that were trained again."""
        return len(self.equal) + (self.broken is not None)


def condemned_in(records: Sequence[Record], hired: int, *, is_proven: bool) -> frozenset[tuple[int, PeerId]]:
    """Round and node of each contribution that the log's verdicts come to find false or withheld.

    `hired`: verifiers of the job; `is_proven`: whether it has a graph.
    """
    disqualified, condemned = DisqualifiedVerifiers(), set[tuple[int, PeerId]]()
    for record in (r for r in records if isinstance(r, AuditsRecord)):
        quorum = quorum_of(disqualified.left(hired, record.round))
        found = conclusions([s.verdict for s in record.verdicts], quorum, is_proven=is_proven)
        condemned |= {(record.round, node) for node, each in found.items() if each.is_guilty}
        disqualified.note(record, found)
    return frozenset(condemned)


def segment_keys(accepted: Accepted, segments: int, condemned: frozenset[tuple[int, PeerId]]) -> tuple[SegmentKey, ...]:
    """Every segment that the run stands behind, by round, peer and segment."""
    good = [(r, c.peer) for r in accepted for c in accepted[r] if (r, c.peer) not in condemned]
    return tuple(SegmentKey(r, peer, k) for r, peer in sorted(good) for k in range(segments))


def drawn(job: Hash, seed: int, rate: float, among: Sequence[SegmentKey]) -> tuple[SegmentKey, ...]:
    """The sample: each place by itself with probability `rate`, above 0; one at least, where there is any."""

    def lot(place: SegmentKey) -> int:
        where = (number(place.round), place.peer, number(place.segment))
        return int.from_bytes(digest(NS_REEXECUTION, job, number(seed), *where)[:8], "little")

    lucky = tuple(place for place in among if lot(place) < int(rate * ODDS))
    return lucky or tuple(sorted(among, key=lot)[:1])


def lasts(sample: Sequence[SegmentKey]) -> dict[PeerId, int]:
    """Whose chains are trained again, each up to which round."""
    return {peer: max(p.round for p in sample if p.peer == peer) for peer in sorted({p.peer for p in sample})}


def condemned_places(accepted: Accepted, condemned: frozenset[tuple[int, PeerId]]) -> tuple[SegmentKey, ...]:
    """Of each condemned contribution that its round went on with, by round and peer: what a juror looks at again."""
    bad = [(r, c.peer) for r in accepted for c in accepted[r] if (r, c.peer) in condemned]
    return tuple(SegmentKey(r, peer, 0) for r, peer in sorted(bad))


def retrial_reports(sample: Sequence[SegmentKey], reruns: Sequence[ChainRerun]) -> tuple[RetrialReport, ...]:
    """What may be said of condemned contributions. The same bits acquit; others are what an honest machine of another
    class may come to as well.
    """
    by_peer = {rerun.peer: rerun for rerun in reruns}

    def came(place: SegmentKey) -> str:
        rerun = by_peer[place.peer]
        if place.round in rerun.equal:
            return "same"
        return "other" if rerun.broken == place.round else "untold"

    return tuple(RetrialReport(place.round, place.peer.hex(), came(place)) for place in sample)


def cost(accepted: Accepted, until: Mapping[PeerId, int]) -> int:
    """Contributions that are trained again for it, at most."""
    return sum(r <= until.get(c.peer, -1) for r in accepted for c in accepted[r])


def reexecution_report(
    how: tuple[float, int],
    among: Sequence[SegmentKey],
    sample: Sequence[SegmentKey],
    reruns: Sequence[ChainRerun],
    accepted: Accepted,
) -> ReexecutionReport:
    """What may be said of the sample. `how`: rate and seed."""
    equal = {(r, rerun.peer) for rerun in reruns for r in rerun.equal}
    held = sum((place.round, place.peer) in equal for place in sample)
    breaks = tuple(f"round {r.broken} of {r.peer[:4].hex()}" for r in reruns if r.broken is not None)
    trained, every = sum(r.trained for r in reruns), sum(len(each) for each in accepted.values())
    return ReexecutionReport(*how, len(among), len(sample), held, len(sample) - held, trained, every, breaks)
