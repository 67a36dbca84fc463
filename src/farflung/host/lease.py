"""Computes the life of one lease on a provider's slot (requirement O3) from a table of states and transitions.

                offer            accept           started           finish, or its time is over
    (free) ───────────▶ offered ───────▶ accepted ────────▶ running ───────────────▶ draining
       ▲                   │                │                  │                        │
       │ refuse, or not    │    worker gone │      worker gone │            worker gone │  over the grace: kill,
       └ answered in time ─┴────────────────┴──────────────────┴────────────────────────┘  then wait for it

A slot holds one lease at a time: an offer to a busy slot is refused and changes nothing. Every state but free has
a deadline (offered: answer_by; accepted and running: until; draining: drain_by), so none can hold the slot for
ever. What does not fit the state (late, repeated, of another job) changes nothing and causes nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from farflung.core.ids import Hash
from farflung.core.units import Millis

DRAIN_MILLIS: Final = 10_000  # a draining worker may finish and write for this long


class LeaseState(StrEnum):
    """Where a lease stands; ENDED is reported once, and the slot is then free."""

    OFFERED = "offered"
    ACCEPTED = "accepted"
    RUNNING = "running"
    DRAINING = "draining"
    ENDED = "ended"


class Lease(msgspec.Struct, frozen=True):
    """One lease in a slot. Times are the provider's own clock in milliseconds."""

    job: Hash
    state: LeaseState
    answer_by: Millis
    until: Millis
    drain_by: Millis = Millis(0)
    is_killed: bool = False
    reason: str = ""


Slot = Lease | None


class LeaseOfferEvent(msgspec.Struct, frozen=True):
    """A requester wants the slot; the answer is due by `answer_by`, the lease ends at `until`."""

    job: Hash
    answer_by: Millis
    until: Millis


class LeaseAcceptEvent(msgspec.Struct, frozen=True):
    """The provider's policy says yes."""

    job: Hash


class LeaseRefuseEvent(msgspec.Struct, frozen=True):
    """The provider's policy says no."""

    job: Hash
    reason: str


class WorkerStartEvent(msgspec.Struct, frozen=True):
    """The worker answered its set-up."""

    job: Hash


class LeaseFinishEvent(msgspec.Struct, frozen=True):
    """The job is over, or the provider wants its machine back."""

    job: Hash
    reason: str


class WorkerExitEvent(msgspec.Struct, frozen=True):
    """The worker process is gone."""

    job: Hash
    reason: str


class LeaseTickEvent(msgspec.Struct, frozen=True):
    """Time passed."""


Event = (
    LeaseOfferEvent
    | LeaseAcceptEvent
    | LeaseRefuseEvent
    | WorkerStartEvent
    | LeaseFinishEvent
    | WorkerExitEvent
    | LeaseTickEvent
)


class LeaseAnswerAction(msgspec.Struct, frozen=True):
    """Tell the requester."""

    job: Hash
    is_accepted: bool
    reason: str = ""


class WorkerLaunchAction(msgspec.Struct, frozen=True):
    """Start the worker."""

    job: Hash


class WorkerStopAction(msgspec.Struct, frozen=True):
    """Ask the worker to end."""

    job: Hash


class WorkerKillAction(msgspec.Struct, frozen=True):
    """End the worker now."""

    job: Hash


class LeaseEndAction(msgspec.Struct, frozen=True):
    """The slot is free; scratch may be wiped."""

    job: Hash
    reason: str


Effect = LeaseAnswerAction | WorkerLaunchAction | WorkerStopAction | WorkerKillAction | LeaseEndAction
Step = tuple[Slot, tuple[Effect, ...]]


def handle(slot: Slot, event: Event, now: Millis) -> Step:
    """One event at time `now`: the slot after it, and what to do."""
    if isinstance(event, LeaseOfferEvent):
        return _offered(slot, event, now)
    if slot is None:
        return slot, ()
    if isinstance(event, LeaseTickEvent):
        return _tick(slot, now)
    if event.job != slot.job:
        return slot, ()
    match slot.state, event:
        case LeaseState.OFFERED, LeaseAcceptEvent() if now < slot.answer_by:
            accepted = msgspec.structs.replace(slot, state=LeaseState.ACCEPTED)
            return accepted, (LeaseAnswerAction(slot.job, True), WorkerLaunchAction(slot.job))
        case LeaseState.OFFERED, LeaseAcceptEvent():
            return _tick(slot, now)
        case LeaseState.OFFERED, LeaseRefuseEvent(reason=reason):
            return None, (LeaseAnswerAction(slot.job, False, reason), LeaseEndAction(slot.job, reason))
        case LeaseState.ACCEPTED, WorkerStartEvent():
            return msgspec.structs.replace(slot, state=LeaseState.RUNNING), ()
        case ((LeaseState.ACCEPTED | LeaseState.RUNNING), LeaseFinishEvent(reason=reason)):
            return _drain(slot, reason, now)
        case ((LeaseState.ACCEPTED | LeaseState.RUNNING), WorkerExitEvent(reason=reason)):
            return None, (LeaseEndAction(slot.job, reason),)
        case LeaseState.DRAINING, WorkerExitEvent():
            return None, (LeaseEndAction(slot.job, slot.reason),)
    return slot, ()


def _offered(slot: Slot, offer: LeaseOfferEvent, now: Millis) -> Step:
    if slot is not None:
        is_repeat = offer.job == slot.job
        return slot, () if is_repeat else (LeaseAnswerAction(offer.job, False, "the slot is taken"),)
    if not now < offer.answer_by <= offer.until:
        return None, (LeaseAnswerAction(offer.job, False, "the offer's times are over or out of order"),)
    return Lease(offer.job, LeaseState.OFFERED, offer.answer_by, offer.until), ()


def _drain(lease: Lease, reason: str, now: Millis) -> Step:
    drain_by = Millis(now + DRAIN_MILLIS)
    draining = msgspec.structs.replace(lease, state=LeaseState.DRAINING, drain_by=drain_by, reason=reason)
    return draining, (WorkerStopAction(lease.job),)


def _tick(lease: Lease, now: Millis) -> Step:
    match lease.state:
        case LeaseState.OFFERED if now >= lease.answer_by:
            reason = "not answered in time"
            return None, (LeaseAnswerAction(lease.job, False, reason), LeaseEndAction(lease.job, reason))
        case LeaseState.ACCEPTED | LeaseState.RUNNING if now >= lease.until:
            return _drain(lease, "the lease's time is over", now)
        case LeaseState.DRAINING if now >= lease.drain_by and not lease.is_killed:
            return msgspec.structs.replace(lease, is_killed=True), (WorkerKillAction(lease.job),)
    return lease, ()
