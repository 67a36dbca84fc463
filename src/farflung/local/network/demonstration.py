"""Stages what shows that a network holds: one provider cheats, and one of four or more validators is killed.

Who was planted and got away is named at the end, with the chance that it had: an audit repeats one segment of a round,
and a cheat need not spoil every one.

The processes of a run know nothing of it: a demonstration adds to their configuration, observes the run's events, and
acts through `KillableProcesses`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

from farflung.core.events import AnyEvent, RoundEndEvent, ValidatorKillEvent, WarningEvent
from farflung.job.cheat_names import DEFAULT, FIRST, HONEST
from farflung.job.spec import JobSpec
from farflung.ledger.votes import faults
from farflung.peers.process.channel import Report, validator_names
from farflung.peers.rundir.folder import RunIdentity
from farflung.peers.rundir.genesis import cheater_of
from farflung.peers.rundir.journal import EventEmitter
from farflung.watch.fold import RunTimeline


def staged_configs(spec: JobSpec, identity: RunIdentity) -> dict[str, Report]:
    """What the configuration of some processes has besides, by their names: one cheats, and denies it in a dispute."""
    if identity.cheat == HONEST:
        return {}
    return {f"provider-{cheater_of(spec)}": {"cheat": identity.cheat, "contests": identity.disputes}}


def false_segments(spec: JobSpec, cheat: str) -> int:
    """How many segments of one of its rounds a cheat spoils: `skip` leaves every odd step out, the others spoil all."""
    if cheat != DEFAULT:
        return spec.segments
    return sum(any(step % 2 for step in range(*ends)) for ends in pairwise(spec.borders))


def escape_chance(spec: JobSpec, cheat: str, rounds: int) -> float:
    """The chance that a cheat's first `rounds` rounds, of which those from FIRST on are false, meet no audit of a false
    segment; each was accepted.
    """
    share, chance = false_segments(spec, cheat) / spec.segments, 1.0
    for round in range(FIRST, rounds):
        drawn = 1.0 if round < spec.audit.probation else spec.audit.rate
        chance *= 1.0 - drawn * share
    return chance


def escaped(spec: JobSpec, identity: RunIdentity, cheater: str, timeline: RunTimeline) -> WarningEvent | None:
    """What to say of a planted cheater, by its key, that nobody caught; None: nobody was planted, or it was caught."""
    if identity.cheat == HONEST or cheater in timeline.caught:
        return None
    name = f"planted cheater provider-{cheater_of(spec)} ({cheater[:8]})"
    trained = [round for round in timeline.rounds if cheater in timeline.openings[round].peers]
    false = [round for round in trained if round >= FIRST]
    if not false:
        text = f"{name} did nothing false: a cheat begins in round {FIRST}, and it took part in {len(trained)} of them"
        return WarningEvent(code="FF-APP-486", message=text, hint="give the run more rounds")
    drawn = sum(1 for a in timeline.audits.values() if a.peer == cheater and a.round in false)
    chance = escape_chance(spec, identity.cheat, max(false) + 1)
    spoilt, count = false_segments(spec, identity.cheat), f"{len(false)} false round{'s' * (len(false) > 1)}"
    if drawn and spoilt < spec.segments:
        why = f"its {count} had no false segment drawn: it spoils {spoilt} of {spec.segments}"
    elif drawn:
        why = f"the audits of its {count} found it within the tolerance"
    else:
        why = f"none of its {count} was drawn for an audit"
    odds = f"chance {chance:.0%}" if chance >= 0.005 else "chance below 1%"
    hint = "audit.probation, audit.rate: more audits; audit.segments = 1: whole rounds are repeated"
    return WarningEvent(code="FF-APP-486", message=f"{name}: NOT caught; {why} ({odds})", hint=hint)


class KillableProcesses(Protocol):
    """What a demonstration may do to the processes of a run."""

    def kill(self, name: str) -> bool:
        """Kills a process, which is started again; False where none runs."""


class Demonstration:
    """Kills one of four or more validators at half time: the others go on."""

    def __init__(self, spec: JobSpec, validators: int, processes: KillableProcesses, emitter: EventEmitter) -> None:
        self._half, self._processes, self._emitter = max(1, spec.rounds // 2), processes, emitter
        self._victim = validator_names(validators)[-1] if faults(validators) else None

    def observe(self, event: AnyEvent) -> None:
        """What the requester told, after it is in the journal."""
        if not isinstance(event, RoundEndEvent) or event.round + 1 != self._half or self._victim is None:
            return
        if self._processes.kill(self._victim):
            self._emitter.emit(ValidatorKillEvent(name=self._victim, round=self._half))
