"""Rounds: who contributes, what is accepted, and when public state moves on.

Theory. A round passes through three phases, and a record closes each; the record is on disk before the next
phase's first message leaves. Whatever happens between two records is repeated after a crash and gives the same
bits, because peers keep what they computed before they say that they have it.

    phase       waits for                        closed by          then
    TRAIN       every live member's commitment   Committed          payloads are shown
    REVEAL      every live member's payload      Accepted           everybody merges
    MERGE       every live member's root         Closed             the ledger hears of it; next round

A member leaves only on evidence (`Lost`), never for being slow. What it committed but did not show is left
out; what was accepted stays accepted. A root that differs from the coordinator's own is evidence as well, unless all
members agree on it: then the coordinator is wrong, and halts before it writes anything.

    step(state, event) -> (state, effects)

`Write` must be durable before any effect behind it in the same list is carried out.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from farflung.core.errors import VerificationError
from farflung.core.ids import Hash, PeerId, Signature
from farflung.train.roundlog import (
    Accepted,
    Closed,
    Commitment,
    Committed,
    Contribution,
    Finished,
    Member,
    Opened,
    Record,
    RoundOpened,
)


class Phase(enum.Enum):
    """What the round waits for."""

    IDLE = "idle"
    TRAIN = "train"
    REVEAL = "reveal"
    MERGE = "merge"
    DONE = "done"


class State(msgspec.Struct, frozen=True):
    """All that the coordinator of a run knows. A fold over the log, plus what has arrived since its last record."""

    job: Hash
    rounds: int
    steps: int
    density: int
    weight: int
    members: tuple[PeerId, ...]
    round: int = 0
    phase: Phase = Phase.IDLE
    root: Hash = Hash(b"")
    in_round: frozenset[PeerId] = frozenset()
    commitments: Mapping[PeerId, Commitment] = {}
    contributions: Mapping[PeerId, Contribution] = {}
    accepted: tuple[Contribution, ...] = ()
    own_root: Hash | None = None
    roots: Mapping[PeerId, tuple[Hash, Signature]] = {}
    is_stopping: bool = False
    finished: Finished | None = None


# Events: what reaches the coordinator.


class Begin(msgspec.Struct, frozen=True):
    """The network is up: take the run on from where its log ends."""


class GotCommitment(msgspec.Struct, frozen=True):
    """A member has trained; its signature was checked by the shell."""

    round: int
    commitment: Commitment


class GotContribution(msgspec.Struct, frozen=True):
    """A member's payload is in its own store and one replica, and agrees with its commitment."""

    round: int
    contribution: Contribution


class GotOwnRoot(msgspec.Struct, frozen=True):
    """The coordinator has merged the accepted payloads itself."""

    round: int
    root: Hash


class GotRoot(msgspec.Struct, frozen=True):
    """A member has merged; its signature was checked by the shell."""

    round: int
    peer: PeerId
    root: Hash
    signature: Signature


class Lost(msgspec.Struct, frozen=True):
    """Evidence that a member is gone: its process ended, its lease lapsed, its root differs."""

    peer: PeerId


class Came(msgspec.Struct, frozen=True):
    """A peer holds public state and takes part from the next round on."""

    peer: PeerId


class Stop(msgspec.Struct, frozen=True):
    """Finish the round that is open, then end."""


Event = Begin | GotCommitment | GotContribution | GotOwnRoot | GotRoot | Lost | Came | Stop


# Effects: what the shell does.


class Write(msgspec.Struct, frozen=True):
    """Append the record to the log and wait until it is durable."""

    record: Record


class AskTrain(msgspec.Struct, frozen=True):
    """Ask a member for its commitment."""

    round: int
    peer: PeerId


class AskReveal(msgspec.Struct, frozen=True):
    """Ask a member to replicate and show its payload."""

    round: int
    peer: PeerId


class AskMerge(msgspec.Struct, frozen=True):
    """Tell a member the accept set; it answers with its root."""

    round: int
    peer: PeerId
    accepted: tuple[Contribution, ...]


class MergeOwn(msgspec.Struct, frozen=True):
    """Merge in the coordinator's own process."""

    round: int
    accepted: tuple[Contribution, ...]


class Report(msgspec.Struct, frozen=True):
    """A round is closed: tell the ledger and whoever watches."""

    closed: Closed
    accepted: tuple[Contribution, ...]


class Expel(msgspec.Struct, frozen=True):
    """A member's root differs from everybody's: it is out, with this as evidence."""

    peer: PeerId
    round: int
    root: Hash


class Halt(msgspec.Struct, frozen=True):
    """All members agree on a root that is not the coordinator's own: it is the coordinator that is wrong."""

    round: int
    root: Hash


class End(msgspec.Struct, frozen=True):
    """The run is over, or (REASON_ALONE) cannot go on until members come back."""

    finished: Finished


Effect = Write | AskTrain | AskReveal | AskMerge | MergeOwn | Report | Expel | Halt | End
Step = tuple[State, list[Effect]]

REASON_COMPLETE: Final = "complete"
REASON_STOPPED: Final = "stopped"
REASON_ALONE: Final = "no member is left"


def step(state: State, event: Event) -> Step:
    """The one transition function."""
    match event:
        case Begin():
            return _resume_phase(state)
        case GotCommitment(round, commitment):
            return _keep(state, Phase.TRAIN, round, commitment.peer, "commitments", commitment)
        case GotContribution(round, contribution):
            return _keep(state, Phase.REVEAL, round, contribution.peer, "contributions", contribution)
        case GotRoot(round, peer, root, signature):
            return _keep(state, Phase.MERGE, round, peer, "roots", (root, signature))
        case GotOwnRoot(round, root) if round == state.round and state.phase is Phase.MERGE:
            return _advance(msgspec.structs.replace(state, own_root=root), [])
        case Lost(peer):
            return _lose(state, peer)
        case Came(peer) if peer not in state.members:
            return msgspec.structs.replace(state, members=(*state.members, peer)), []
        case Stop():
            return msgspec.structs.replace(state, is_stopping=True), []
    return state, []


def _keep(state: State, phase: Phase, round: int, peer: PeerId, field: str, value: object) -> Step:
    is_due = state.phase is phase and round == state.round and peer in state.in_round
    known: Mapping[PeerId, object] = getattr(state, field)
    if not is_due or peer in known:
        return state, []
    return _advance(msgspec.structs.replace(state, **{field: {**known, peer: value}}), [])


def _lose(state: State, peer: PeerId) -> Step:
    members = tuple(p for p in state.members if p != peer)
    state = msgspec.structs.replace(state, members=members, in_round=state.in_round - {peer})
    return _advance(state, [])


def _advance(state: State, effects: list[Effect]) -> Step:
    """Closes the phase when nothing is missing any more."""
    if state.phase in (Phase.IDLE, Phase.DONE):
        return state, effects
    if not state.in_round and state.phase is not Phase.MERGE:
        return _end(state, effects, REASON_ALONE)
    closers: dict[Phase, Callable[[State, list[Effect]], Step]] = {
        Phase.TRAIN: _close_train,
        Phase.REVEAL: _close_reveal,
        Phase.MERGE: _close_merge,
    }
    return closers[state.phase](state, effects)


def _close_train(state: State, effects: list[Effect]) -> Step:
    if not state.in_round <= set(state.commitments):
        return state, effects
    record = Committed(state.round, tuple(state.commitments[p] for p in sorted(state.in_round)))
    return _reveal(state, [*effects, Write(record)], record)


def _reveal(state: State, effects: list[Effect], record: Committed) -> Step:
    commitments = {c.peer: c for c in record.commitments}
    state = msgspec.structs.replace(state, phase=Phase.REVEAL, commitments=commitments, contributions={})
    asks: list[Effect] = [AskReveal(state.round, p) for p in sorted(state.in_round)]
    return state, [*effects, *asks]


def _close_reveal(state: State, effects: list[Effect]) -> Step:
    if not state.in_round <= set(state.contributions):
        return state, effects
    record = Accepted(state.round, tuple(state.contributions[p] for p in sorted(state.contributions)))
    return _merge(state, [*effects, Write(record)], record)


def _merge(state: State, effects: list[Effect], record: Accepted) -> Step:
    accepted = record.contributions
    state = msgspec.structs.replace(state, phase=Phase.MERGE, accepted=accepted, own_root=None, roots={})
    asks: list[Effect] = [AskMerge(state.round, p, accepted) for p in sorted(state.in_round)]
    return state, [*effects, MergeOwn(state.round, accepted), *asks]


def _close_merge(state: State, effects: list[Effect]) -> Step:
    if state.own_root is None or not state.in_round <= set(state.roots):
        return state, effects
    theirs = {state.roots[p][0] for p in state.in_round}
    if len(theirs) == 1 and len(state.in_round) > 1 and theirs != {state.own_root}:
        return state, [*effects, Halt(state.round, theirs.pop())]
    differing = sorted(p for p in state.in_round if state.roots[p][0] != state.own_root)
    for peer in differing:
        effects = [*effects, Expel(peer, state.round, state.roots[peer][0])]
    if differing:
        members = tuple(p for p in state.members if p not in differing)
        state = msgspec.structs.replace(state, members=members, in_round=state.in_round - set(differing))
    signatures = tuple((p, state.roots[p][1]) for p in sorted(state.in_round))
    record = Closed(state.round, Hash(state.own_root or b""), signatures)
    state = msgspec.structs.replace(state, root=record.root, round=state.round + 1, phase=Phase.IDLE)
    return _open(state, [*effects, Write(record), Report(record, state.accepted)])


def _open(state: State, effects: list[Effect]) -> Step:
    """Opens the next round, or ends the run."""
    if state.round >= state.rounds:
        return _end(state, effects, REASON_COMPLETE)
    if state.is_stopping:
        return _end(state, effects, REASON_STOPPED)
    if not state.members:
        return _end(state, effects, REASON_ALONE)
    members = tuple(Member(p, state.weight) for p in sorted(state.members))
    record = RoundOpened(state.round, members, state.steps, state.density)
    return _train(state, [*effects, Write(record)], record)


def _train(state: State, effects: list[Effect], record: RoundOpened) -> Step:
    state = msgspec.structs.replace(
        state,
        phase=Phase.TRAIN,
        in_round=frozenset(m.peer for m in record.members) & frozenset(state.members),
        commitments={},
        contributions={},
        accepted=(),
        own_root=None,
        roots={},
    )
    asks: list[Effect] = [AskTrain(state.round, p) for p in sorted(state.in_round)]
    return _advance(state, [*effects, *asks]) if not state.in_round else (state, [*effects, *asks])


def _end(state: State, effects: list[Effect], reason: str) -> Step:
    """Ends the session. Without members the run itself is not over: phase and log stay open for their return."""
    record = Finished(state.round, state.root, reason)
    if reason == REASON_ALONE:
        return state, [*effects, End(record)]
    state = msgspec.structs.replace(state, phase=Phase.DONE, finished=record)
    return state, [*effects, Write(record), End(record)]


def _resume_phase(state: State) -> Step:
    """The effects that the phase in which the log ends still needs."""
    match state.phase:
        case Phase.IDLE:
            return _open(state, [])
        case Phase.TRAIN:
            members = tuple(Member(p, state.weight) for p in sorted(state.in_round))
            return _train(state, [], RoundOpened(state.round, members, state.steps, state.density))
        case Phase.REVEAL:
            return _advance(*_reveal(state, [], Committed(state.round, tuple(state.commitments.values()))))
        case Phase.MERGE:
            return _merge(state, [], Accepted(state.round, state.accepted))
        case Phase.DONE:
            return state, [End(state.finished)] if state.finished is not None else []


def replay(fresh: State, records: Iterable[Record]) -> State:
    """The state at the end of a log; `fresh` gives the terms and the members of a new run.

    Raises VerificationError FF-TRAIN-011 when a record does not fit where it stands.
    """
    state = fresh
    for record in records:
        state = _replayed(state, record)
    return state


def _replayed(state: State, record: Record) -> State:
    replace = msgspec.structs.replace
    match record:
        case Opened(job, _, initial_root) if job == state.job and not state.root:
            return replace(state, root=initial_root)
        case RoundOpened(round, members) if round == state.round and state.phase is Phase.IDLE:
            peers = tuple(m.peer for m in members)
            return _train(replace(state, members=peers), [], record)[0]
        case Committed(round, commitments) if round == state.round and state.phase is Phase.TRAIN:
            return _reveal(_narrowed(state, (c.peer for c in commitments)), [], record)[0]
        case Accepted(round, contributions) if round == state.round and state.phase is Phase.REVEAL:
            return _merge(_narrowed(state, (c.peer for c in contributions)), [], record)[0]
        case Closed(round, root, signatures) if round == state.round and state.phase is Phase.MERGE:
            state = _narrowed(state, (p for p, _ in signatures))
            return replace(state, root=root, round=round + 1, phase=Phase.IDLE)
        case Finished(rounds, root) if (rounds, root, state.phase) == (state.round, state.root, Phase.IDLE):
            return replace(state, phase=Phase.DONE, finished=record)
    raise VerificationError(
        "FF-TRAIN-011",
        f"the run log does not fit together at a {type(record).__name__} record",
        cause=f"it stands in round {state.round}, phase {state.phase.value}",
        hint="restore the run's folder from a copy",
    )


def _narrowed(state: State, peers: Iterable[PeerId]) -> State:
    """Only these peers are still in: the others were lost before the record was written."""
    stayed = frozenset(peers) & state.in_round
    members = tuple(p for p in state.members if p in stayed)
    return msgspec.structs.replace(state, in_round=stayed, members=members)
