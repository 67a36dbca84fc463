"""Decides at which of the relays that it knows a peer stays: the best two, by measured goodput and loss.

    known --Attach--> attached --(gone for some seconds, or another one is worth more)--> Detach
      |                  |
      +------ Probe -----+   at first, every ten minutes, and when what it carries falls by 30 %

Who knows two or fewer stays at all of them and measures nothing. With more, each is measured by a short transfer with
the relay itself, one at a time. One relay is exchanged at a time, and only for one that is worth 1.3 times as much, or
is as good and that much nearer: so noise moves nothing, and peers with an older record still meet us at the other one.

A relay may be fast for whoever measures it and slow for others. What two relays carry between us and one and the same
peer at the same time is compared with what they promised; the one that falls short counts for that much less. Nothing
here waits or measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from farflung.core import limits
from farflung.net import paths
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.paths import RELAYS, NetworkPath

SWAP: Final = 1.3  # by this factor, to leave a relay that works
DROP: Final = paths.DROP  # of what a relay carried so far: ask what has become of it
FRESH_SECONDS: Final = 600.0  # for which a measurement counts
DOUBT_SECONDS: Final = 60.0  # between two measurements of one relay, whatever happens
REST_SECONDS: Final = 60.0  # between two exchanges of relays that work
GONE_SECONDS: Final = 3.0  # a relay that restarts is back sooner
FORGIVE_SECONDS: Final = 3600.0  # until a relay that promised too much is trusted again
SHORT: Final = 0.5  # of its promise, beside another one: it is a lie, or as bad as one
LOOKS: Final = 6  # comparisons in a row, one a second, that must say so
_NEW: Final = 0.5  # weight of a new measurement
_NEVER: Final = float("-inf")


class RelaySlot(msgspec.Struct, frozen=True):
    """One relay. `path`: what was measured with the relay itself; `carried`: bytes a second for peers, smoothed."""

    path: NetworkPath
    is_attached: bool = False
    gone: float | None = None  # since when it does not know us, though we are attached there
    carried: float | None = None
    is_doubted: bool = False  # it carries less than it did
    shorts: int = 0  # comparisons in a row in which it fell short
    trust: float = 1.0  # part of its promise that it keeps
    judged: float = float("-inf")

    @property
    def place(self) -> EndpointAddress:
        """Where it is."""
        return self.path.place

    @property
    def credible(self) -> NetworkPath:
        """What it is worth, by what it promises and what it keeps of that."""
        goodput = self.path.goodput
        return self.path if goodput is None else msgspec.structs.replace(self.path, goodput=goodput * self.trust)

    def is_dead(self, now: float) -> bool:
        """Whether it is away for longer than a restart takes."""
        return self.gone is not None and now - self.gone >= GONE_SECONDS


class RelaySelectionState(msgspec.Struct, frozen=True):
    """All relays that are known. `probing`: the one that is being measured."""

    slots: tuple[RelaySlot, ...] = ()
    probing: EndpointAddress | None = None
    swapped: float = float("-inf")

    @property
    def attached(self) -> tuple[EndpointAddress, ...]:
        """Where the peer is known, the best first: its record says so."""
        there = {slot.place: slot for slot in self.slots if slot.is_attached}
        return tuple(path.place for path in paths.choose([b.credible for b in there.values()], len(there)))


class KnownRelaysEvent(msgspec.Struct, frozen=True):
    """All relays that may be used, the preferred first."""

    places: tuple[EndpointAddress, ...]


class RelayMeasuredEvent(msgspec.Struct, frozen=True):
    """A probe's result: seconds there and back, bytes a second, part lost."""

    place: EndpointAddress
    trip: float
    goodput: float
    loss: float = 0.0


class RelayUnmeasuredEvent(msgspec.Struct, frozen=True):
    """A probe failed."""

    place: EndpointAddress


class RelayAttachedEvent(msgspec.Struct, frozen=True):
    """A relay knows us."""

    place: EndpointAddress


class RelayDetachedEvent(msgspec.Struct, frozen=True):
    """A relay does not know us (any more)."""

    place: EndpointAddress


class RelayTrafficEvent(msgspec.Struct, frozen=True):
    """What relays carried between us and one peer at the same time, bytes a second of each."""

    rates: tuple[tuple[EndpointAddress, float], ...]


class RelayTickEvent(msgspec.Struct, frozen=True):
    """Time passes."""


Event = (
    KnownRelaysEvent
    | RelayMeasuredEvent
    | RelayUnmeasuredEvent
    | RelayAttachedEvent
    | RelayDetachedEvent
    | RelayTrafficEvent
    | RelayTickEvent
)


class AttachRelay(msgspec.Struct, frozen=True):
    """Be known at this relay."""

    place: EndpointAddress


class DetachRelay(msgspec.Struct, frozen=True):
    """Be known there no more, once the others are told."""

    place: EndpointAddress


class ProbeRelay(msgspec.Struct, frozen=True):
    """Measure this relay."""

    place: EndpointAddress


Effect = AttachRelay | DetachRelay | ProbeRelay


def handle(state: RelaySelectionState, event: Event, now: float) -> tuple[RelaySelectionState, list[Effect]]:
    """The next state and what to do. `now`: seconds of a clock that only goes forward."""
    before = {slot.place for slot in state.slots if slot.is_attached}
    match event:
        case KnownRelaysEvent():
            state = _known(state, event)
        case RelayMeasuredEvent() | RelayUnmeasuredEvent():
            state = _measured(state, event, now)
        case RelayAttachedEvent():
            state = _with(state, event.place, gone=None)
        case RelayDetachedEvent():
            slot = _find(state, event.place)
            if slot is not None and slot.is_attached and slot.gone is None:
                state = _with(state, event.place, gone=now)
        case RelayTrafficEvent():
            state = _carried(state, event, now)
        case RelayTickEvent():
            pass
    state = _exchange(_fill(state, now), now)
    state, probes = _probe(state, now)
    after = {slot.place for slot in state.slots if slot.is_attached}
    attached: list[Effect] = [AttachRelay(b.place) for b in state.slots if b.place in after - before]
    return state, attached + [DetachRelay(place) for place in sorted(before - after, key=str)] + probes


def _find(state: RelaySelectionState, place: EndpointAddress) -> RelaySlot | None:
    return next((slot for slot in state.slots if slot.place == place), None)


def _with(state: RelaySelectionState, place: EndpointAddress, **new: object) -> RelaySelectionState:
    slots = tuple(msgspec.structs.replace(b, **new) if b.place == place else b for b in state.slots)
    return msgspec.structs.replace(state, slots=slots)


def _known(state: RelaySelectionState, event: KnownRelaysEvent) -> RelaySelectionState:
    places = tuple(dict.fromkeys(event.places))[: limits.PLACES]
    slots = tuple(_find(state, place) or RelaySlot(NetworkPath(place)) for place in places)
    probing = state.probing if state.probing in places else None
    return msgspec.structs.replace(state, slots=slots, probing=probing)


def _measured(
    state: RelaySelectionState, event: RelayMeasuredEvent | RelayUnmeasuredEvent, now: float
) -> RelaySelectionState:
    if state.probing == event.place:
        state = msgspec.structs.replace(state, probing=None)
    slot = _find(state, event.place)
    if slot is None:
        return state
    path = slot.path
    if isinstance(event, RelayUnmeasuredEvent):
        return _with(state, event.place, path=_failed(path, now), is_doubted=False)

    def mix(old: float | None, new: float) -> float:
        return new if old is None else (1 - _NEW) * old + _NEW * new

    loss = event.loss if path.goodput is None else mix(path.loss, event.loss)
    path = msgspec.structs.replace(
        path,
        trip=mix(path.trip, event.trip),
        goodput=mix(path.goodput, event.goodput),
        loss=loss,
        failures=0,
        since=0.0,
    )
    is_forgiven = now - slot.judged >= FORGIVE_SECONDS
    trust = 1.0 if is_forgiven else slot.trust
    return _with(state, event.place, path=path, is_doubted=False, carried=None, trust=trust)


def _failed(path: NetworkPath, now: float) -> NetworkPath:
    failures = path.failures + 1
    return msgspec.structs.replace(path, failures=failures, since=now + paths.pause(failures))


def _carried(state: RelaySelectionState, event: RelayTrafficEvent, now: float) -> RelaySelectionState:
    """Who doubts one relay measures all of them: the line itself may be what has become slower."""
    rates = {place: rate for place, rate in event.rates if (b := _find(state, place)) and b.is_attached}
    for place, rate in rates.items():
        slot = _find(state, place)
        assert slot is not None
        old = slot.carried
        mixed = rate if old is None else (1 - _NEW) * old + _NEW * rate
        state = _with(state, place, carried=mixed)
        if old is not None and rate < DROP * old and now - slot.path.probed >= DOUBT_SECONDS:
            for each in state.slots:
                state = _with(state, each.place, is_doubted=True)
    if len(rates) < 2:
        return state
    worths = {b.place: b.path.worth for b in state.slots if b.place in rates}
    if not all(worths.values()):
        return state
    kept = {place: rate / (worths[place] or 1.0) for place, rate in rates.items()}
    best = max(kept.values())
    for place, part in kept.items():
        slot = _find(state, place)
        assert slot is not None
        shorts = slot.shorts + 1 if part < SHORT * best else 0
        state = _with(state, place, shorts=shorts)
        if shorts >= LOOKS:
            state = _with(state, place, trust=min(slot.trust, part / best), judged=now)
    return state


def _fill(state: RelaySelectionState, now: float) -> RelaySelectionState:
    """As many as there may be: first who is not known to be away, the measured before the others."""
    for _ in range(RELAYS):
        there = sum(slot.is_attached for slot in state.slots)
        left = _by_worth([slot for slot in state.slots if not slot.is_attached])
        if there >= RELAYS or not left:
            break
        chosen = next((slot for slot in left if slot.path.since <= now), left[0])
        state = _with(state, chosen.place, is_attached=True, gone=now)
    return state


def _by_worth(slots: Sequence[RelaySlot]) -> list[RelaySlot]:
    by_place = {slot.place: slot for slot in slots}
    found = paths.choose([slot.credible for slot in slots], len(slots))
    return [by_place[path.place] for path in found]


def _exchange(state: RelaySelectionState, now: float) -> RelaySelectionState:
    """At most one: a dead relay for one that may be there, else the worst for one that is worth it."""
    attached = _by_worth([slot for slot in state.slots if slot.is_attached])
    attached.sort(key=lambda slot: slot.is_dead(now))
    left = [b for b in state.slots if not b.is_attached and b.path.since <= now]
    for new in _by_worth(left):
        for old in reversed(attached):
            if old.is_dead(now):
                state = _with(state, old.place, path=_failed(old.path, now))
            elif not _is_due(state, now) or not _is_worth_it(new, old):
                continue
            elif new.path.probed < old.path.probed:  # the line may have changed since: first ask again
                return _with(state, new.place, is_doubted=True)
            state = _with(state, old.place, is_attached=False, gone=None, carried=None, shorts=0)
            state = _with(state, new.place, is_attached=True, gone=now)
            return msgspec.structs.replace(state, swapped=now)
    return state


def _is_due(state: RelaySelectionState, now: float) -> bool:
    """Whether one that works may be exchanged: all were measured, none is doubted, and the last time is a while ago."""
    if now - state.swapped < REST_SECONDS or state.probing is not None:
        return False
    asked = [slot for slot in state.slots if slot.path.since <= now and not slot.is_dead(now)]
    return not any(slot.is_doubted or slot.path.probed == _NEVER for slot in asked)


def _is_worth_it(new: RelaySlot, old: RelaySlot) -> bool:
    ours, theirs = new.credible, old.credible
    if ours.worth is None or theirs.worth is None or ours.trip is None or theirs.trip is None:
        return False
    if ours.worth >= SWAP * theirs.worth and ours.worth > theirs.worth:
        return True
    return ours.worth >= theirs.worth and ours.trip * SWAP <= theirs.trip and ours.trip < theirs.trip


def _wants_probe(slot: RelaySlot, now: float) -> bool:
    if slot.path.since > now or slot.is_dead(now):
        return False
    age = now - slot.path.probed
    return age >= FRESH_SECONDS or (slot.is_doubted and age >= DOUBT_SECONDS)


def _probe(state: RelaySelectionState, now: float) -> tuple[RelaySelectionState, list[Effect]]:
    """One at a time."""
    if state.probing is not None or len(state.slots) <= RELAYS:
        return state, []
    due = [slot for slot in state.slots if _wants_probe(slot, now)]
    if not due:
        return state, []
    first = min(due, key=lambda slot: (not slot.is_attached, slot.path.probed))
    state = _with(state, first.place, path=msgspec.structs.replace(first.path, probed=now))
    return msgspec.structs.replace(state, probing=first.place), [ProbeRelay(first.place)]
