"""Stages what shows that a network holds: one provider cheats, and one of four or more validators is killed.

The processes of a run know nothing of it: a demonstration adds to their configuration, observes the run's events, and
acts through `KillableProcesses`.
"""

from __future__ import annotations

from typing import Protocol

from farflung.core.events import AnyEvent, RoundEndEvent, ValidatorKillEvent
from farflung.job.cheat_names import HONEST
from farflung.job.spec import JobSpec
from farflung.ledger.votes import faults
from farflung.peers.process.channel import Report, validator_names
from farflung.peers.rundir.folder import RunIdentity
from farflung.peers.rundir.genesis import cheater_of
from farflung.peers.rundir.journal import EventEmitter


def staged_configs(spec: JobSpec, identity: RunIdentity) -> dict[str, Report]:
    """What the configuration of some processes has besides, by their names: one cheats, and denies it in a dispute."""
    if identity.cheat == HONEST:
        return {}
    return {f"provider-{cheater_of(spec)}": {"cheat": identity.cheat, "contests": identity.disputes}}


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
        """What the requester told, after it stands in the journal."""
        if not isinstance(event, RoundEndEvent) or event.round + 1 != self._half or self._victim is None:
            return
        if self._processes.kill(self._victim):
            self._emitter.emit(ValidatorKillEvent(name=self._victim, round=self._half))
