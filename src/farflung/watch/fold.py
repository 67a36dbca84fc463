"""Folds events into a timeline: the state of a run at any moment (requirement J5).

Screens, reports and bills render it.

A timeline is a value: `fold` returns a new one and never changes the old. The same events give the same timeline,
live or replayed from the event log. Mappings in it are not to be changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from farflung.core import events
from farflung.core.events import AnyEvent, SentBytesByKind
from farflung.watch.append_only_map import AppendOnlyMap

_K = TypeVar("_K")
_V = TypeVar("_V")


Segment = tuple[int, str, int]  # round, peer, segment: what one audit is about
LISTED: Final = 1024
SPREAD: Final = 0.1  # of a round's seconds, either way: less is not known of the rounds to come
PHASES: Final = ("train", "reveal", "merge")  # of a round, in order (core.events.Arrived)


class RoundWait(Struct, frozen=True):
    """Whom an open round waits for: `late` of its `members` owe what ends `phase`; `seconds` since the last one came.

    `seconds` is None while nobody has come: then all are at work, and nobody is late.
    """

    phase: str
    late: tuple[str, ...]
    members: int
    since: float | None  # `at` of the last arrival in this phase


class MemberRoundTimes(Struct, frozen=True):
    """One member's part of a closed round, in seconds since the round was opened; None: it left before.

    It computes until `trained`, waits for the others until `shown_from`, sends until `shown`, waits until
    `merged_from`, merges until `merged`, and waits until `end`.
    """

    peer: str
    trained: float | None
    shown_from: float
    shown: float | None
    merged_from: float
    merged: float | None
    end: float


class RunStage(StrEnum):
    """Where a run stands; it goes back only when a run is resumed, or its coordinator starts again from the log."""

    PLAN = "Plan"
    NETWORK = "Network"
    TRAIN = "Train"
    SETTLE = "Settle"
    RESULT = "Result"


_NOTHING: Final[Mapping[Any, Any]] = AppendOnlyMap()


class RunTimeline(Struct, frozen=True):
    """All that is known of a run from its events so far. `at` is the last event's time in seconds."""

    at: float = 0.0
    stage: RunStage = RunStage.PLAN
    began: events.RunStartEvent | None = None
    plan: events.PlanEvent | None = None
    classed: events.JobClassEvent | None = None
    processes: Mapping[str, events.ProcessStartEvent] = _NOTHING  # by name
    names: Mapping[str, str] = _NOTHING  # of a local network's processes, by the key of each
    matched: events.ProviderMatchEvent | None = None
    funded: events.EscrowEvent | None = None
    joined: Mapping[str, int] = _NOTHING  # round at which each peer joined last
    rounds: Mapping[int, events.RoundEndEvent] = _NOTHING
    last: int = -1  # the highest of `rounds`
    opened: events.RoundStartEvent | None = None  # the round that was opened last
    openings: Mapping[int, events.RoundStartEvent] = _NOTHING
    # By round, then peer and phase.
    arrivals: Mapping[int, Mapping[tuple[str, str], events.ArrivalEvent]] = _NOTHING
    sent_at: Mapping[int, SentBytesByKind] = _NOTHING  # sent by all so far, when the round closed
    losses: Mapping[int, float] = _NOTHING  # validation loss by round
    traffic: Mapping[tuple[int, str], SentBytesByKind] = _NOTHING  # most that was seen, by session and process
    sent: SentBytesByKind = SentBytesByKind()  # all of `traffic` together
    received: Mapping[tuple[int, str], int] = _NOTHING  # most that was seen to agree, as `traffic`
    usage: Mapping[str, events.ProcessUsageEvent] = _NOTHING  # largest peak by process
    settled: Mapping[str, events.LeasePaymentEvent] = _NOTHING
    relays: Mapping[str, events.RelayPaymentEvent] = _NOTHING  # what each got, by peer
    left: tuple[events.ProcessExitEvent, ...] = ()
    restarted: tuple[events.ProcessRestartEvent, ...] = ()
    sandboxes: tuple[events.SandboxEvent, ...] = ()
    housed: events.SimulatedHomeEvent | None = None
    ways: events.PathCountsEvent | None = None
    killed: events.ValidatorKillEvent | None = None
    chains: events.ChainComparisonEvent | None = None
    drawn: Mapping[Segment, events.AuditDrawEvent] = _NOTHING
    audits: Mapping[Segment, events.AuditEndEvent] = _NOTHING
    scores: Mapping[int, events.LossScoreEvent] = _NOTHING  # by round
    caught: Mapping[str, events.SlashEvent] = _NOTHING  # by peer; without those whom a dispute freed
    canaries: Mapping[Segment, events.CanaryEndEvent] = _NOTHING
    perjured: Mapping[str, events.PerjuryEvent] = _NOTHING  # by verifier
    games: Mapping[str, tuple[events.DisputeStageEvent, ...]] = _NOTHING  # by the accused, rung by rung
    ruled: Mapping[str, events.DisputeEndEvent] = _NOTHING  # by the accused
    reexecuted: Mapping[str, int] = _NOTHING  # contributions computed again, by peer
    sessions: int = 1
    resumed: events.RunResumeEvent | None = None  # the session that is under way, where it is not the first
    baseline: events.BaselineEvent | None = None
    baseline_scores: tuple[events.BaselineProgressEvent, ...] = ()
    repeated: events.RepeatedRunEvent | None = None
    stands_on: events.LineageEvent | None = None
    compared: tuple[events.PlanComparisonEvent, ...] = ()
    warnings: tuple[events.WarningEvent, ...] = ()
    failed: events.RunFailureEvent | None = None
    result: events.RunResultEvent | None = None

    def bytes_by(self) -> SentBytesByKind:
        """Bytes sent by all processes in all sessions, by kind."""
        return self.sent

    def bytes_sent(self) -> int:
        """All kinds together."""
        by = self.sent
        return by.sync + by.audit + by.join + by.control + by.relay

    @property
    def lost(self) -> tuple[int, int, int]:
        """Pico-credits that were slashed, that went to finders and that were burnt: of the guilty, of verifiers that
        guessed, and of accusers.
        """
        ruled = self.ruled.values()
        taken: list[events.SlashEvent | events.PerjuryEvent] = [*self.caught.values(), *self.perjured.values()]
        lost, gained = sum(each.lost for each in ruled), sum(each.gained for each in ruled)
        slashed, burnt = sum(each.slashed for each in taken), sum(each.burnt for each in taken)
        return slashed + lost, sum(each.bounty for each in taken), burnt + lost - gained

    @property
    def probed(self) -> events.LossProbeCounts:
        """What the loss probes of all rounds came to."""
        told = self.scores.values()
        return events.LossProbeCounts(sum(len(s.peers) for s in told), sum(len(s.unpaid) for s in told))

    @property
    def last_round(self) -> events.RoundEndEvent | None:
        """The round that closed last."""
        return self.rounds.get(self.last)

    @property
    def waiting(self) -> RoundWait | None:
        """Whom the open round waits for; None between rounds, and before the first."""
        opened = self.opened
        if opened is None or opened.round in self.rounds:
            return None
        gone = {left.peer for left in self.left if left.at >= opened.at}
        members = [peer for peer in opened.peers if peer not in gone]
        seen = self.arrivals.get(opened.round, _NOTHING)
        for phase in PHASES:
            came = [seen[peer, phase].at for peer in members if (peer, phase) in seen]
            if len(came) < len(members):
                late = tuple(peer for peer in members if (peer, phase) not in seen)
                return RoundWait(phase, late, len(members), max(came, default=None))
        return None

    @property
    def session_at(self) -> float:
        """When the session under way began."""
        return self.resumed.at if self.resumed is not None else 0.0

    @property
    def is_starting_again(self) -> bool:
        """Whether a resumed run has not come to its work yet."""
        return self.resumed is not None and self.stage is RunStage.NETWORK

    def lanes(self, round: int) -> tuple[MemberRoundTimes, ...]:
        """What each member did in a closed round; empty for a round that was not seen opening and closing."""
        opened, closed = self.openings.get(round), self.rounds.get(round)
        if opened is None or closed is None:
            return ()
        seen = self.arrivals.get(round, _NOTHING)
        ends = {phase: max((a.seconds for (_, p), a in seen.items() if p == phase), default=0.0) for phase in PHASES}

        def came(peer: str, phase: str) -> float | None:
            arrived = seen.get((peer, phase))
            return None if arrived is None else arrived.seconds

        end = max(closed.seconds - opened.waited, ends["merge"])
        return tuple(
            MemberRoundTimes(
                peer, came(peer, "train"), ends["train"], came(peer, "reveal"), ends["reveal"], came(peer, "merge"), end
            )
            for peer in opened.peers
        )

    @property
    def verifiers(self) -> tuple[str, ...]:
        """Who has repeated work of others so far, in a fixed order."""
        return tuple(sorted({verifier for audit in self.audits.values() for verifier in audit.verifiers}))

    @property
    def seconds_left(self) -> tuple[float, float] | None:
        """The least and the most that the rounds to go may take; None before the first round.

        The shortest and the longest of the last eight rounds, and at least SPREAD around their mean.
        """
        last = self.last_round
        if last is None:
            return None
        recent = [self.rounds[r].seconds for r in range(last.round - 7, last.round + 1) if r in self.rounds]
        mean, rest = sum(recent) / len(recent), max(0, last.rounds - last.round - 1)
        return rest * min(*recent, mean * (1 - SPREAD)), rest * max(*recent, mean * (1 + SPREAD))


def _with(mapping: Mapping[_K, _V], key: _K, value: _V) -> Mapping[_K, _V]:
    return (mapping if isinstance(mapping, AppendOnlyMap) and mapping else AppendOnlyMap(mapping)).having(key, value)


def _listed(before: tuple[_V, ...], value: _V) -> tuple[_V, ...]:
    """The last LISTED of a kind of which a run has few."""
    return (*before[-(LISTED - 1) :], value)


def _resume(t: RunTimeline, event: events.RunResumeEvent) -> RunTimeline:
    """All processes are new, and no round is open until the coordinator says so again."""
    return replace(
        t,
        sessions=max(t.sessions, event.session),
        resumed=event,
        opened=None,
        stage=RunStage.NETWORK,
        compared=(),  # a session that ended between this and its result is compared again
        failed=None,
    )


def is_repeated(t: RunTimeline, event: AnyEvent) -> bool:
    """Whether this was told of a dispute before: a session that takes over tells all of it from its begin."""
    match event:
        case events.DisputeStageEvent(peer=peer, game=game, stage=stage, level=level):
            told = t.games.get(peer, ())
            return any((each.game, each.stage, each.level) == (game, stage, level) for each in told)
        case events.DisputeEndEvent(peer=peer):
            return peer in t.ruled
        case events.SlashEvent(peer=peer, pending=pending):
            return bool(pending) and peer in t.ruled
    return False


def fold(timeline: RunTimeline, event: AnyEvent) -> RunTimeline:
    """The timeline after `event`."""
    t = replace(timeline, at=max(timeline.at, event.at))
    match event:
        case events.RunStartEvent():
            return replace(t, began=event)
        case events.PlanEvent():
            return replace(t, plan=event, stage=RunStage.PLAN)
        case events.JobClassEvent():
            return replace(t, classed=event)
        case events.ProcessStartEvent():
            started = RunStage.NETWORK if t.stage is RunStage.PLAN else t.stage
            names = _with(t.names, event.peer, event.name) if event.peer else t.names
            return replace(t, processes=_with(t.processes, event.name, event), names=names, stage=started)
        case events.ProviderMatchEvent():
            return replace(t, matched=event, stage=RunStage.NETWORK)
        case events.EscrowEvent():
            return replace(t, funded=event, stage=RunStage.NETWORK)
        case events.RunResumeEvent():
            return _resume(t, event)
        case events.LeasePaymentEvent():
            return replace(t, settled=_with(t.settled, event.peer, event), stage=RunStage.SETTLE)
        case events.RelayPaymentEvent():
            return replace(t, relays=_with(t.relays, event.peer, event))
        case events.RunFailureEvent():
            return replace(t, failed=event)
        case events.RunResultEvent():
            return replace(t, result=event, stage=RunStage.RESULT)
        case events.WarningEvent():
            return replace(t, warnings=_listed(t.warnings, event))
        case events.PlanComparisonEvent():
            return replace(t, compared=_listed(t.compared, event))
        case events.TrafficEvent() | events.ProcessUsageEvent():
            return _count(t, event)
        case events.ProcessRestartEvent():
            return replace(t, restarted=_listed(t.restarted, event))
        case events.SandboxEvent():
            return replace(t, sandboxes=_listed(t.sandboxes, event))
        case events.SimulatedHomeEvent():
            return replace(t, housed=event)
        case events.LineageEvent():
            return replace(t, stands_on=event)
        case events.PathCountsEvent():
            return replace(t, ways=event)
        case events.ValidatorKillEvent():
            return replace(t, killed=event)
        case events.ChainComparisonEvent():
            return replace(t, chains=event)
    return _verify(_train(t, event), event)


def _train(t: RunTimeline, event: AnyEvent) -> RunTimeline:
    match event:
        case events.PeerJoinEvent():
            return replace(t, joined=_with(t.joined, event.peer, event.round))
        case events.RoundStartEvent():
            arrivals = _with(t.arrivals, event.round, _NOTHING)  # a coordinator that took over asks again
            openings = _with(t.openings, event.round, event)
            return replace(t, opened=event, openings=openings, arrivals=arrivals, stage=RunStage.TRAIN)
        case events.ArrivalEvent():
            seen = _with(t.arrivals.get(event.round, _NOTHING), (event.peer, event.phase), event)
            return replace(t, arrivals=_with(t.arrivals, event.round, seen))
        case events.RoundEndEvent():
            sent_at = _with(t.sent_at, event.round, t.bytes_by())
            rounds, last = _with(t.rounds, event.round, event), max(t.last, event.round)
            return replace(t, rounds=rounds, last=last, sent_at=sent_at, stage=RunStage.TRAIN)
        case events.EvaluationEvent():
            return replace(t, losses=_with(t.losses, event.round, event.loss))
        case events.ReexecutionEvent():
            return replace(t, reexecuted=_with(t.reexecuted, event.peer, t.reexecuted.get(event.peer, 0) + 1))
        case events.ProcessExitEvent():
            return replace(t, left=_listed(t.left, event))
        case events.BaselineEvent():
            return replace(t, baseline=event)
        case events.BaselineProgressEvent():
            return replace(t, baseline_scores=_listed(t.baseline_scores, event))
        case events.RepeatedRunEvent():
            return replace(t, repeated=event)
    return t


def _verify(t: RunTimeline, event: AnyEvent) -> RunTimeline:
    """An audit that a coordinator tells of again after its restart is the same audit."""
    if is_repeated(t, event):
        return t
    match event:
        case events.AuditDrawEvent():
            return replace(t, drawn=_with(t.drawn, (event.round, event.peer, event.segment), event))
        case events.AuditEndEvent():
            return replace(t, audits=_with(t.audits, (event.round, event.peer, event.segment), event))
        case events.LossScoreEvent():
            return replace(t, scores=_with(t.scores, event.round, event))
        case events.CanaryEndEvent():
            return replace(t, canaries=_with(t.canaries, (event.round, event.peer, event.segment), event))
        case events.PerjuryEvent():
            return replace(t, perjured=_with(t.perjured, event.verifier, event))
        case events.SlashEvent():
            return replace(t, caught=_with(t.caught, event.peer, event))
        case events.DisputeStageEvent():
            return replace(t, games=_with(t.games, event.peer, _listed(t.games.get(event.peer, ()), event)))
        case events.DisputeEndEvent():
            return _rule(t, event)
    return t


def _rule(t: RunTimeline, event: events.DisputeEndEvent) -> RunTimeline:
    """Whose stake was pending is caught now, with what it lost, or was not."""
    t = replace(t, ruled=_with(t.ruled, event.peer, event))
    before = t.caught.get(event.peer)
    if before is None:
        return t
    lost = replace(before, slashed=event.slashed, bounty=event.bounty, burnt=event.burnt, pending=0)
    rest = AppendOnlyMap({peer: caught for peer, caught in t.caught.items() if peer != event.peer})
    return replace(t, caught=rest if not event.slashed else _with(t.caught, event.peer, lost))


def _count(t: RunTimeline, event: events.TrafficEvent | events.ProcessUsageEvent) -> RunTimeline:
    """Counters only rise: a report that comes late or twice changes nothing."""
    if isinstance(event, events.ProcessUsageEvent):
        old = t.usage.get(event.process)
        if old is not None:
            event = replace(
                event,
                peak_bytes=max(old.peak_bytes, event.peak_bytes),
                cpu_seconds=max(old.cpu_seconds, event.cpu_seconds),
            )
        return replace(t, usage=_with(t.usage, event.process, event))
    key = (event.session, event.process)
    seen = t.traffic.get(key, SentBytesByKind())
    most = SentBytesByKind(
        sync=max(seen.sync, event.sync),
        audit=max(seen.audit, event.audit),
        join=max(seen.join, event.join),
        control=max(seen.control, event.control),
        relay=max(seen.relay, event.relay),
    )
    kinds = SentBytesByKind.__struct_fields__
    grown = {kind: getattr(t.sent, kind) + getattr(most, kind) - getattr(seen, kind) for kind in kinds}
    received = _with(t.received, key, max(t.received.get(key, 0), event.received))
    return replace(t, traffic=_with(t.traffic, key, most), sent=SentBytesByKind(**grown), received=received)
