"""Decides who contributes to a round, what is accepted, and when public state moves on.

Theory. A round passes through these phases, and a record closes each; the record is on disk before the next
phase's first message leaves. Whatever happens between two records is repeated after a crash and gives the same
bits, because peers keep what they computed before they say that they have it.

    phase       waits for                        closed by          then
    TRAIN       members' commitments             CommitmentsRecord  payloads are shown
    REVEAL      a block of the ledger, if drawn  BeaconRecord       who is drawn opens its states
                their payloads                   AcceptSetRecord    everybody merges
    MERGE       their roots                      RoundEndRecord     its audits begin
    AUDIT       verdicts on the round before     AuditsRecord       the ledger hears of that round; next round

A phase waits for every live member, or for a quorum and a window (train.quorum_window); who is not in then is passed
over and takes part again from the next round on. RoundStartRecord assigns each member its tokens before the work; none
weighs more.

A member is lost only on evidence (`MemberLossInput`), never for being slow. What it committed but did not show is left
out; what was accepted stays accepted. A root that differs from the coordinator's own is evidence as well, unless all
members agree on it: then the coordinator is wrong, and halts before it writes anything.

A round that nobody can train, as all numbers are lost in it, is given up: the run has diverged and ends before it.

    step(state, event) -> (state, effects)

`WriteRecord` must be durable before any effect behind it in the same list is carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from farflung.core.errors import VerificationError
from farflung.core.ids import Hash, PeerId
from farflung.train.coordinator_state import (
    AuditRound,
    BeaconInput,
    BeginInput,
    CommitmentInput,
    ContributionInput,
    CoordinatorState,
    Effect,
    EndRun,
    Event,
    ExcludeMember,
    ExpelMember,
    HaltRun,
    MemberJoinInput,
    MemberLossInput,
    MemberRootInput,
    MergeLocally,
    OpenWindow,
    OwnRootInput,
    QuorumWindow,
    ReportRound,
    RequestBeacon,
    RequestMerge,
    RequestReveal,
    RequestTraining,
    RoundPhase,
    SkipMember,
    Step,
    StepAssignmentInput,
    StopInput,
    VerdictsInput,
    WindowEndInput,
    WriteRecord,
)
from farflung.train.quorum_window import phase_outcome
from farflung.train.run_log import (
    AcceptSetRecord,
    AuditsRecord,
    BeaconRecord,
    CommitmentsRecord,
    Record,
    RoundEndRecord,
    RoundMember,
    RoundStartRecord,
    RunEndRecord,
    RunStartRecord,
    excluded_by,
)

__all__ = [
    "REASON_ALONE",
    "REASON_COMPLETE",
    "REASON_DIVERGED",
    "REASON_STOPPED",
    "AuditRound",
    "BeaconInput",
    "BeginInput",
    "CommitmentInput",
    "ContributionInput",
    "CoordinatorState",
    "Effect",
    "EndRun",
    "Event",
    "ExcludeMember",
    "ExpelMember",
    "HaltRun",
    "MemberJoinInput",
    "MemberLossInput",
    "MemberRootInput",
    "MergeLocally",
    "OpenWindow",
    "OwnRootInput",
    "ReportRound",
    "RequestBeacon",
    "RequestMerge",
    "RequestReveal",
    "RequestTraining",
    "RoundPhase",
    "SkipMember",
    "Step",
    "StepAssignmentInput",
    "StopInput",
    "VerdictsInput",
    "WindowEndInput",
    "WriteRecord",
    "replay",
    "step",
]  # fmt: skip

REASON_COMPLETE: Final = "complete"
REASON_STOPPED: Final = "stopped"  # a person asked for it
REASON_DIVERGED: Final = "diverged"  # evaluate.stop_loss, or nobody could train a round: its numbers were lost
REASON_ALONE: Final = "no member is left"


_replace = msgspec.structs.replace


def step(state: CoordinatorState, event: Event) -> Step:
    """The one transition function."""
    match event:
        case BeginInput():
            return _resume_phase(state)
        case CommitmentInput(round, commitment, promised, timed):
            promise = (commitment, promised, timed)
            return _keep(state, RoundPhase.TRAIN, round, commitment.peer, "promises", promise)
        case ContributionInput(round, heavy) if heavy.weight > state.assigned.get(heavy.peer, heavy.weight):
            is_due = state.phase is RoundPhase.REVEAL and round == state.round
            return _lose(state, heavy.peer) if is_due else (state, [])
        case ContributionInput(round, contribution):
            return _keep(state, RoundPhase.REVEAL, round, contribution.peer, "contributions", contribution)
        case BeaconInput(round, block) if _is_awaited(state, round):
            return _advance(_replace(state, block=block), [WriteRecord(BeaconRecord(round, block))])
        case MemberRootInput(round, peer, root, signature):
            return _keep(state, RoundPhase.MERGE, round, peer, "roots", (root, signature))
        case OwnRootInput(round, root) if round == state.round and state.phase is RoundPhase.MERGE:
            return _advance(_replace(state, own_root=root), [])
        case VerdictsInput(round) if round >= state.audited and round not in state.verdicts:
            return _advance(_replace(state, verdicts={**state.verdicts, round: event}), [])
        case MemberLossInput(peer, has_diverged):
            return _lose(state, peer, has_diverged=has_diverged)
        case MemberJoinInput(peer) if peer not in state.members and peer not in state.excluded:
            return _replace(state, members=(*state.members, peer)), []
        case WindowEndInput(round, phase) if (round, phase, QuorumWindow.OPEN) == (
            state.round,
            state.phase,
            state.window,
        ):
            return _advance(_replace(state, window=QuorumWindow.OVER), [])
        case StepAssignmentInput(steps, weight, weights) if 1 <= steps <= weight:
            light = {peer: max(1, min(weight, each)) for peer, each in weights.items()}
            return _replace(state, steps=steps, weight=weight, pace=light), []
        case StopInput(reason):
            state = _replace(state, stopping=state.stopping or reason)
            return _advance(state, []) if state.phase is RoundPhase.AUDIT else (state, [])
    return state, []


def _keep(state: CoordinatorState, phase: RoundPhase, round: int, peer: PeerId, field: str, value: object) -> Step:
    is_due = state.phase is phase and round == state.round and peer in state.in_round
    known: Mapping[PeerId, object] = getattr(state, field)
    if not is_due or peer in known:
        return state, []
    return _advance(_replace(state, **{field: {**known, peer: value}}), [])


def _lose(state: CoordinatorState, peer: PeerId, *, has_diverged: bool = False) -> Step:
    if has_diverged and state.phase is RoundPhase.TRAIN and state.in_round == {peer}:
        state = _replace(state, stopping=REASON_DIVERGED)
    members = tuple(p for p in state.members if p != peer)
    state = _replace(state, members=members, in_round=state.in_round - {peer})
    return _advance(state, [])


def _advance(state: CoordinatorState, effects: list[Effect]) -> Step:
    """Closes the phase when nothing is missing any more."""
    if state.phase in (RoundPhase.IDLE, RoundPhase.DONE):
        return state, effects
    if state.phase is RoundPhase.AUDIT:
        return _settle_audits(state, effects)
    if not state.in_round and state.phase is not RoundPhase.MERGE:
        if state.phase is RoundPhase.TRAIN and state.stopping == REASON_DIVERGED:
            return _settle_audits(_given_up(state), effects)
        return _end(state, effects, REASON_ALONE)
    closers: dict[RoundPhase, Callable[[CoordinatorState, list[Effect]], Step]] = {
        RoundPhase.TRAIN: _close_train,
        RoundPhase.REVEAL: _close_reveal,
        RoundPhase.MERGE: _close_merge,
    }
    return closers[state.phase](state, effects)


def _given_up(state: CoordinatorState) -> CoordinatorState:
    """As before the round was opened, but for who is in it."""
    return _replace(state, phase=RoundPhase.IDLE) if state.phase is RoundPhase.TRAIN else state


def _close_train(state: CoordinatorState, effects: list[Effect]) -> Step:
    state, is_over, window_effects = phase_outcome(state, state.promises)
    if not is_over:
        return state, [*effects, *window_effects]
    promises = [state.promises[p] for p in sorted(state.in_round)]
    timed = tuple(t for _, _, t in promises if t is not None)
    record = CommitmentsRecord(state.round, tuple(c for c, _, _ in promises), tuple(p for _, p, _ in promises), timed)
    return _reveal(state, [*effects, WriteRecord(record), *window_effects], record)


def _reveal(state: CoordinatorState, effects: list[Effect], record: CommitmentsRecord) -> Step:
    commitments = {c.peer: c for c in record.commitments}
    state = _replace(
        state, phase=RoundPhase.REVEAL, window=QuorumWindow.SHUT, commitments=commitments, contributions={}
    )
    asks: list[Effect] = [RequestReveal(state.round, p) for p in sorted(state.in_round)]
    draw = [RequestBeacon(state.round)] if _is_awaited(state, state.round) else []
    return state, [*effects, *draw, *asks]


def _is_awaited(state: CoordinatorState, round: int) -> bool:
    """Whether the draw of a round cannot be made yet for want of a block."""
    return state.is_audited and (state.phase, state.round, state.block) == (RoundPhase.REVEAL, round, b"")


def _close_reveal(state: CoordinatorState, effects: list[Effect]) -> Step:
    if _is_awaited(state, state.round):
        return state, effects
    state, is_over, window_effects = phase_outcome(state, state.contributions)
    if not is_over:
        return state, [*effects, *window_effects]
    record = AcceptSetRecord(state.round, tuple(state.contributions[p] for p in sorted(state.contributions)))
    return _merge(state, [*effects, WriteRecord(record), *window_effects], record)


def _merge(state: CoordinatorState, effects: list[Effect], record: AcceptSetRecord) -> Step:
    accepted = record.contributions
    state = _replace(
        state, phase=RoundPhase.MERGE, window=QuorumWindow.SHUT, accepted=accepted, own_root=None, roots={}
    )
    asks: list[Effect] = [RequestMerge(state.round, p, accepted) for p in sorted(state.in_round)]
    return state, [*effects, MergeLocally(state.round, accepted), *asks]


def _close_merge(state: CoordinatorState, effects: list[Effect]) -> Step:
    if state.own_root is None:
        return state, effects
    state, is_over, window_effects = phase_outcome(state, state.roots)
    if not is_over:
        return state, [*effects, *window_effects]
    theirs = {state.roots[p][0] for p in state.in_round}
    if len(theirs) == 1 and len(state.in_round) > 1 and theirs != {state.own_root}:
        return state, [*effects, HaltRun(state.round, theirs.pop())]
    differing = sorted(p for p in state.in_round if state.roots[p][0] != state.own_root)
    for peer in differing:
        effects = [*effects, ExpelMember(peer, state.round, state.roots[peer][0])]
    if differing:
        members = tuple(p for p in state.members if p not in differing)
        state = _replace(state, members=members, in_round=state.in_round - set(differing))
    signatures = tuple((p, state.roots[p][1]) for p in sorted(state.in_round))
    record = RoundEndRecord(state.round, Hash(state.own_root or b""), signatures)
    state = _replace(state, root=record.root, round=state.round + 1, phase=RoundPhase.IDLE)
    effects = [*effects, WriteRecord(record), *window_effects, ReportRound(record, state.accepted)]
    if state.is_audited:
        effects = [*effects, AuditRound(record.round)]
    return _settle_audits(state, effects)


def _settle_audits(state: CoordinatorState, effects: list[Effect]) -> Step:
    """Writes the audits that are due; opens the next round when none is missing."""
    is_over = state.round >= state.rounds or bool(state.stopping)
    due = state.round if is_over else state.round - 1
    while state.is_audited and state.audited < due:
        found = state.verdicts.get(state.audited)
        if found is None:
            return _replace(state, phase=RoundPhase.AUDIT), effects
        state, effects = _conclude(state, effects, found)
    return _open(_replace(state, phase=RoundPhase.IDLE), effects)


def _conclude(state: CoordinatorState, effects: list[Effect], found: VerdictsInput) -> Step:
    """Writes one round's verdicts, and excludes whom they find false. Who is out already is judged no more."""
    kept = tuple(v for v in found.verdicts if v.verdict.node not in state.excluded)
    tests = tuple(c for c in found.canaries if c.verdict.verdict.node not in state.excluded)
    record = AuditsRecord(state.audited, kept, tests, found.scores)
    effects = [*effects, WriteRecord(record)]
    effects += [ExcludeMember(peer, record.round) for peer in sorted(excluded_by(record))]
    return _concluded(state, record), effects


def _concluded(state: CoordinatorState, record: AuditsRecord) -> CoordinatorState:
    out = state.excluded | excluded_by(record)
    return _replace(
        state,
        audited=record.round + 1,
        verdicts={r: v for r, v in state.verdicts.items() if r > record.round},
        excluded=out,
        members=tuple(p for p in state.members if p not in out),
    )


def _open(state: CoordinatorState, effects: list[Effect]) -> Step:
    """Opens the next round, or ends the run."""
    if state.round >= state.rounds:
        return _end(state, effects, REASON_COMPLETE)
    if state.stopping:
        return _end(state, effects, state.stopping)
    if not state.members:
        return _end(state, effects, REASON_ALONE)
    members = tuple(RoundMember(p, state.pace.get(p, state.weight)) for p in sorted(state.members))
    record = RoundStartRecord(state.round, members, state.steps, state.density)
    return _train(state, [*effects, WriteRecord(record)], record)


def _train(state: CoordinatorState, effects: list[Effect], record: RoundStartRecord) -> Step:
    assigned = {m.peer: m.weight for m in record.members}
    state = _replace(
        state,
        phase=RoundPhase.TRAIN,
        window=QuorumWindow.SHUT,
        in_round=frozenset(assigned) & frozenset(state.members),
        assigned=assigned,
        pace={**state.pace, **assigned},
        steps=record.steps,
        weight=state.weight * record.steps // state.steps,
        promises={},
        commitments={},
        block=Hash(b""),
        contributions={},
        accepted=(),
        own_root=None,
        roots={},
    )
    asks: list[Effect] = [RequestTraining(state.round, p) for p in sorted(state.in_round)]
    return _advance(state, [*effects, *asks]) if not state.in_round else (state, [*effects, *asks])


def _end(state: CoordinatorState, effects: list[Effect], reason: str) -> Step:
    """Ends the session. Without members the run itself is not over: phase and log stay open for their return."""
    record = RunEndRecord(state.round, state.root, reason)
    if reason == REASON_ALONE:
        return state, [*effects, EndRun(record)]
    state = _replace(state, phase=RoundPhase.DONE, finished=record)
    return state, [*effects, WriteRecord(record), EndRun(record)]


def _resume_phase(state: CoordinatorState) -> Step:
    """The effects that the phase in which the log ends still needs."""
    match state.phase:
        case RoundPhase.IDLE | RoundPhase.AUDIT:
            return _settle_audits(state, _audits(state))
        case RoundPhase.TRAIN:
            members = tuple(RoundMember(p, state.assigned[p]) for p in sorted(state.in_round))
            opened = RoundStartRecord(state.round, members, state.steps, state.density)
            return _train(state, _audits(state), opened)
        case RoundPhase.REVEAL:
            committed = CommitmentsRecord(state.round, tuple(state.commitments.values()), ())
            return _advance(*_reveal(state, _audits(state), committed))
        case RoundPhase.MERGE:
            return _merge(state, _audits(state), AcceptSetRecord(state.round, state.accepted))
        case RoundPhase.DONE:
            return state, [EndRun(state.finished)] if state.finished is not None else []


def _audits(state: CoordinatorState) -> list[Effect]:
    """Closed rounds whose audits are not in the log."""
    return [AuditRound(r) for r in range(state.audited, state.round)] if state.is_audited else []


def replay(fresh: CoordinatorState, records: Iterable[Record]) -> CoordinatorState:
    """The state at the end of a log; `fresh` gives the terms and the members of a new run.

    Raises VerificationError FF-TRAIN-011 when a record does not fit where it stands.
    """
    state = fresh
    for record in records:
        state = _replayed(state, record)
    return state


def _replayed(state: CoordinatorState, record: Record) -> CoordinatorState:
    match record:
        case RunStartRecord(job, _, initial_root) if job == state.job and not state.root:
            return _replace(state, root=initial_root)
        case RoundStartRecord(round, members) if round == state.round and _is_judged(state, round - 1):
            peers = tuple(m.peer for m in members)
            return _train(_replace(state, members=peers), [], record)[0]
        case CommitmentsRecord(round, commitments, _) if round == state.round and state.phase is RoundPhase.TRAIN:
            return _reveal(_narrowed(state, (c.peer for c in commitments)), [], record)[0]
        case BeaconRecord(round, block) if _is_awaited(state, round):
            return _replace(state, block=block)
        case AcceptSetRecord(round) if round == state.round and _is_awaited(state, round):
            pass
        case AcceptSetRecord(round, contributions) if round == state.round and state.phase is RoundPhase.REVEAL:
            return _merge(_narrowed(state, (c.peer for c in contributions)), [], record)[0]
        case RoundEndRecord(round, root, signatures) if round == state.round and state.phase is RoundPhase.MERGE:
            state = _narrowed(state, (p for p, _ in signatures))
            return _replace(state, root=root, round=round + 1, phase=RoundPhase.IDLE)
        case AuditsRecord(round) if round == state.audited < state.round and _given_up(state).phase is RoundPhase.IDLE:
            return _concluded(_given_up(state), record)
        case RunEndRecord(rounds, root, reason) if (rounds, root) == (state.round, state.root):
            ended = _given_up(state) if reason == REASON_DIVERGED else state
            if _is_judged(ended, rounds):
                return _replace(ended, phase=RoundPhase.DONE, finished=record)
    raise VerificationError(
        "FF-TRAIN-011",
        f"the run log does not fit together at a record {record.__struct_config__.tag!r}",
        cause=f"it is in round {state.round}, phase {state.phase.value}",
        hint="restore the run's folder from a copy",
    )


def _is_judged(state: CoordinatorState, due: int) -> bool:
    """Whether a record may stand here that follows the audits of all rounds below `due`."""
    return state.phase is RoundPhase.IDLE and (not state.is_audited or state.audited >= due)


def _narrowed(state: CoordinatorState, peers: Iterable[PeerId]) -> CoordinatorState:
    """Only these peers are still in: the others were lost before the record was written."""
    stayed = frozenset(peers) & state.in_round
    members = tuple(p for p in state.members if p in stayed)
    return _replace(state, in_round=stayed, members=members)
