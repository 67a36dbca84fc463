"""The life of one lease on a provider's slot (requirement O3): a table of states, and what each change causes.

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


class State(StrEnum):
    """Where a lease stands; ENDED is reported once, and the slot is then free."""

    OFFERED = "offered"
    ACCEPTED = "accepted"
    RUNNING = "running"
    DRAINING = "draining"
    ENDED = "ended"


class Lease(msgspec.Struct, frozen=True):
    """One lease in a slot. Times are the provider's own clock in milliseconds."""

    job: Hash
    state: State
    answer_by: Millis
    until: Millis
    drain_by: Millis = Millis(0)
    is_killed: bool = False
    reason: str = ""


Slot = Lease | None


class Offer(msgspec.Struct, frozen=True):
    """A requester wants the slot; the answer is due by `answer_by`, the lease ends at `until`."""

    job: Hash
    answer_by: Millis
    until: Millis


class Accept(msgspec.Struct, frozen=True):
    """The provider's policy says yes."""

    job: Hash


class Refuse(msgspec.Struct, frozen=True):
    """The provider's policy says no."""

    job: Hash
    reason: str


class Started(msgspec.Struct, frozen=True):
    """The worker answered its set-up."""

    job: Hash


class Finish(msgspec.Struct, frozen=True):
    """The job is over, or the provider wants its machine back."""

    job: Hash
    reason: str


class Exited(msgspec.Struct, frozen=True):
    """The worker process is gone."""

    job: Hash
    reason: str


class Tick(msgspec.Struct, frozen=True):
    """Time passed."""


Event = Offer | Accept | Refuse | Started | Finish | Exited | Tick


class Answer(msgspec.Struct, frozen=True):
    """Tell the requester."""

    job: Hash
    is_accepted: bool
    reason: str = ""


class Launch(msgspec.Struct, frozen=True):
    """Start the worker."""

    job: Hash


class Stop(msgspec.Struct, frozen=True):
    """Ask the worker to end."""

    job: Hash


class Kill(msgspec.Struct, frozen=True):
    """End the worker now."""

    job: Hash


class Ended(msgspec.Struct, frozen=True):
    """The slot is free; scratch may be wiped."""

    job: Hash
    reason: str


Effect = Answer | Launch | Stop | Kill | Ended
Step = tuple[Slot, tuple[Effect, ...]]


def handle(slot: Slot, event: Event, now: Millis) -> Step:
    """One event at time `now`: the slot after it, and what to do."""
    if isinstance(event, Offer):
        return _offered(slot, event, now)
    if slot is None:
        return slot, ()
    if isinstance(event, Tick):
        return _tick(slot, now)
    if event.job != slot.job:
        return slot, ()
    match slot.state, event:
        case State.OFFERED, Accept() if now < slot.answer_by:
            accepted = msgspec.structs.replace(slot, state=State.ACCEPTED)
            return accepted, (Answer(slot.job, True), Launch(slot.job))
        case State.OFFERED, Accept():
            return _tick(slot, now)
        case State.OFFERED, Refuse(reason=reason):
            return None, (Answer(slot.job, False, reason), Ended(slot.job, reason))
        case State.ACCEPTED, Started():
            return msgspec.structs.replace(slot, state=State.RUNNING), ()
        case ((State.ACCEPTED | State.RUNNING), Finish(reason=reason)):
            return _drain(slot, reason, now)
        case ((State.ACCEPTED | State.RUNNING), Exited(reason=reason)):
            return None, (Ended(slot.job, reason),)
        case State.DRAINING, Exited():
            return None, (Ended(slot.job, slot.reason),)
    return slot, ()


def _offered(slot: Slot, offer: Offer, now: Millis) -> Step:
    if slot is not None:
        is_repeat = offer.job == slot.job
        return slot, () if is_repeat else (Answer(offer.job, False, "the slot is taken"),)
    if not now < offer.answer_by <= offer.until:
        return None, (Answer(offer.job, False, "the offer's times are over or out of order"),)
    return Lease(offer.job, State.OFFERED, offer.answer_by, offer.until), ()


def _drain(lease: Lease, reason: str, now: Millis) -> Step:
    drain_by = Millis(now + DRAIN_MILLIS)
    draining = msgspec.structs.replace(lease, state=State.DRAINING, drain_by=drain_by, reason=reason)
    return draining, (Stop(lease.job),)


def _tick(lease: Lease, now: Millis) -> Step:
    match lease.state:
        case State.OFFERED if now >= lease.answer_by:
            reason = "not answered in time"
            return None, (Answer(lease.job, False, reason), Ended(lease.job, reason))
        case State.ACCEPTED | State.RUNNING if now >= lease.until:
            return _drain(lease, "the lease's time is over", now)
        case State.DRAINING if now >= lease.drain_by and not lease.is_killed:
            return msgspec.structs.replace(lease, is_killed=True), (Kill(lease.job),)
    return lease, ()
