"""Replays the run log: recomputes each round from the one before, and checks each record in its place.

    opened ── round ── committed ── (beaconed) ── accepted ── closed ── (audited) ── round ... ── finished

These are the tags of train.run_log. What is not derived from the terms is signed by the peer whose doing it is.
Lists of peers ascend strictly, so that one round has one form and nobody is in it twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from farflung.compress.merge import WeightedUpdate
from farflung.core.ids import ZERO_HASH, Hash, PeerId, Signature
from farflung.job.spec import JobTerms
from farflung.train import public_state, worker_messages
from farflung.train.public_state import PublicState
from farflung.train.rounds import REASON_COMPLETE, REASON_DIVERGED
from farflung.train.run_log import (
    AcceptSetRecord,
    AuditsRecord,
    BeaconRecord,
    Commitment,
    CommitmentsRecord,
    Contribution,
    Record,
    RoundEndRecord,
    RoundMember,
    RoundStartRecord,
    RunEndRecord,
    RunStartRecord,
    payload_hash,
)
from farflung.train.sync_arithmetic import Sync
from farflung.verify import speed_check
from farflung.verify.audit_replay import AuditReplay
from farflung.verify.audit_sample import anchor, beacon
from farflung.verify.commitment_check import is_commitment, is_root_signed, opens
from farflung.verify.export_reader import ExportedRun
from farflung.verify.replay_report import ReplayReport, require
from farflung.verify.submission_checks import flags

FOLLOWS: Final[Mapping[type[Record], tuple[type[Record] | None, ...]]] = {
    RunStartRecord: (None,),
    RoundStartRecord: (RunStartRecord, RoundEndRecord, AuditsRecord),
    CommitmentsRecord: (RoundStartRecord,),
    BeaconRecord: (CommitmentsRecord,),
    AcceptSetRecord: (CommitmentsRecord, BeaconRecord),
    RoundEndRecord: (AcceptSetRecord,),
    AuditsRecord: (RoundEndRecord, AuditsRecord, RoundStartRecord),  # a round that nobody can train is given up
    RunEndRecord: (RunStartRecord, RoundEndRecord, AuditsRecord, RoundStartRecord),
}


class LogReplay:
    """Public state before the current round, and what the round's records have said so far."""

    def __init__(self, terms: JobTerms, exported: ExportedRun, report: ReplayReport, audits: AuditReplay) -> None:
        self._terms, self._exported, self._report, self._audits = terms, exported, report, audits
        self._sync = Sync.of(terms.spec)
        initial = public_state.unpack(exported.initial, terms.layout)
        self._public = public_state.check(initial, terms.layout, 0, terms.initial_root)
        self._last: type[Record] | None = None
        self._members: Mapping[PeerId, int] = {}
        self._commitments: Mapping[PeerId, Commitment] = {}
        self._committed = CommitmentsRecord(0, (), ())
        self._block = ZERO_HASH
        self._accepted: tuple[Contribution, ...] = ()
        self._is_open = False

    def to_end(self, records: Sequence[Record]) -> PublicState:
        """The public state at the end. Raises VerificationError FF-VERI-007 to -019, or what a payload's codec says."""
        for record in records:
            is_next = self._last in FOLLOWS[type(record)]
            require(is_next, "FF-VERI-011", f"a record {record.__struct_config__.tag!r} is out of turn")
            self._one(record)
            self._last = type(record)
        return self._public

    def _one(self, record: Record) -> None:
        match record:
            case RunStartRecord(_, _, initial_root, rounds):
                is_same = rounds == self._terms.spec.rounds
                require(is_same, "FF-VERI-007", "the log opens for another number of rounds than the terms say")
                self._root(0, initial_root)
            case RoundStartRecord(round, members, steps, density):
                self._in_turn(round)
                self._open(round, members, (steps, density))
            case CommitmentsRecord(round, commitments, promised):
                self._in_turn(round)
                is_timed = speed_check.is_timed(self._terms.spec, record)
                require(is_timed, "FF-VERI-145", f"round {round} times its commitments as it must not")
                self._committed = record
                self._commit(round, commitments, promised)
            case BeaconRecord(round, block):
                self._in_turn(round)
                self._block = block
            case AcceptSetRecord(round, contributions):
                self._in_turn(round)
                self._accept(round, contributions)
            case RoundEndRecord(round, root, signatures):
                self._in_turn(round)
                self._close(round, root, signatures)
            case AuditsRecord():
                self._audits.judged(record, self._public.round)
            case RunEndRecord(rounds, root, reason):
                self._in_turn(rounds)
                self._audits.are_due(rounds)
                self._root(rounds, root)
                is_complete = rounds == self._terms.spec.rounds
                is_said = (reason == REASON_COMPLETE) == is_complete
                may_diverge = self._is_open or self._terms.spec.evaluate.stop_loss > 0
                is_said = is_said and (may_diverge if reason == REASON_DIVERGED else not self._is_open)
                require(is_said, "FF-VERI-008", "the log ends for another reason than it says")

    def _in_turn(self, round: int) -> None:
        require(round == self._public.round, "FF-VERI-011", f"round {round} is out of turn")

    def _root(self, round: int, root: Hash) -> None:
        held = self._public.root(self._terms.layout)
        require(held == root, "FF-VERI-012", f"the root before round {round} is not what the payloads give")
        self._report.roots += 1

    def _once(self, round: int, peers: Sequence[PeerId]) -> None:
        is_ascending = list(peers) == sorted(set(peers))
        require(is_ascending, "FF-VERI-014", f"round {round} counts a peer twice, or not in order")

    def _open(self, round: int, members: Sequence[RoundMember], how: tuple[int, int]) -> None:
        spec = self._terms.spec
        self._audits.are_due(max(0, round - 1))
        least = spec.segments if spec.churn.adaptive else spec.sync.steps
        is_same = least <= how[0] <= spec.sync.steps and how[1] == spec.sync.topk
        require(is_same, "FF-VERI-010", f"round {round} has another H or density")
        self._once(round, [m.peer for m in members])
        most = how[0] * spec.step_tokens
        are_light = all(spec.is_weight(m.weight) and m.weight <= most for m in members)
        is_even = spec.churn.adaptive or all(m.weight == most for m in members)
        require(are_light and is_even, "FF-VERI-009", f"a member of round {round} may weigh more than it trains on")
        self._members, self._is_open = {m.peer: m.weight for m in members}, True
        self._audits.check_members(round, self._members)

    def _commit(self, round: int, commitments: Sequence[Commitment], promised: Sequence[Contribution]) -> None:
        self._once(round, [c.peer for c in commitments])
        for commitment in commitments:
            is_in = commitment.peer in self._members
            is_good = is_in and is_commitment(commitment, self._terms.id, round)
            require(is_good, "FF-VERI-013", f"a commitment of round {round} is not signed by a member")
            self._report.signatures += 1
        self._commitments = {c.peer: c for c in commitments}
        is_each = [c.peer for c in promised] == list(self._commitments)
        require(is_each, "FF-VERI-130", f"round {round} does not say what each of its commitments stands for")
        for c in promised:
            is_kept = opens(c, self._commitments[c.peer], self._terms.id, round)
            require(is_kept, "FF-VERI-131", f"a commitment of round {round} stands for something else")
            is_light = c.weight <= self._members[c.peer] and self._terms.spec.is_weight(c.weight)
            require(is_light, "FF-VERI-016", f"a weight of round {round} is too large")

    def _accept(self, round: int, contributions: tuple[Contribution, ...]) -> None:
        is_drawn = self._last is BeaconRecord
        is_due = is_drawn == self._terms.spec.is_audited
        require(is_due, "FF-VERI-132", f"round {round} names no block that it is drawn from, or needs none")
        require(bool(contributions), "FF-VERI-017", f"round {round} accepts nothing")
        self._once(round, [c.peer for c in contributions])
        for c in contributions:
            commitment = self._commitments.get(c.peer)
            is_opened = commitment is not None and opens(c, commitment, self._terms.id, round)
            require(is_opened, "FF-VERI-015", f"a payload of round {round} is not the committed one")
            self._report.commitments += 1
        self._accepted = contributions

    def _close(self, round: int, root: Hash, signatures: Sequence[tuple[PeerId, Signature]]) -> None:
        parts = [self._part(c) for c in self._accepted]
        luck = beacon(anchor(self._terms.id, round, self._commitments.values()), self._block)
        self._audits.drawn(round, luck, self._committed.promised, self._accepted, self._flags(parts))
        self._is_open = False
        self._public = self._sync.apply(self._public, self._terms.layout, parts)
        self._report.merges += 1
        self._root(round + 1, root)
        self._once(round, [peer for peer, _ in signatures])
        stayed = {c.peer for c in self._accepted}
        for peer, signature in signatures:
            is_good = peer in stayed and is_root_signed(peer, signature, self._terms.id, round, root)
            require(is_good, "FF-VERI-018", f"a root of round {round} is not signed by who took part")
            self._report.signatures += 1
        self._report.rounds += 1

    def _flags(self, parts: Sequence[worker_messages.AcceptedPayload]) -> Mapping[PeerId, str]:
        """Who is suspicious among the accepted: it had to be audited whatever the draw said."""
        if not self._terms.spec.is_audited:
            return {}
        layout, sync, state = self._terms.layout, self._sync, self._public
        values = [sync.decode(sync.about(state, layout, p.peer), layout, p.payload) for p in parts]
        spread = [sync.spread(state.round, layout, v) for v in values]
        found = [WeightedUpdate(p.peer, p.weight, v) for p, v in zip(parts, spread, strict=True)]
        stated = {c.peer: c.stated for c in self._accepted}
        odd = flags(layout, found, is_chosen=sync.spec.sync.codec == "topk", stated=stated)
        return speed_check.suspected(self._terms.spec, self._committed, self._accepted, odd)

    def _part(self, c: Contribution) -> worker_messages.AcceptedPayload:
        payload = self._exported.payload(c.payload)
        is_same = payload_hash(payload) == c.payload
        require(is_same, "FF-VERI-019", "a payload is not the one that was accepted")
        return worker_messages.AcceptedPayload(c.peer, c.weight, payload)
