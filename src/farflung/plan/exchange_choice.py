"""Predicts how long the exchange of a round takes over each way there is, from its members' lines, and chooses one.

N members have a payload each, of s bits, S together; member i's line carries u up and d down, the requester's U and D.
Everybody and the requester, who archives, need every payload. A phase ends when the slowest line has carried what it
must, so its seconds are the largest of bits / rate over all lines, plus round trips for what is asked and answered:

    all-gather         reveal: each pushes to the next of the ring (decision 007), and the requester fetches: 2 s up;
                       merge: the others fetch: (N - 2) s up, S - s - s(ring) down
    fan-out            at once: s up, S - s down, S down at the requester; the relay takes S and gives N S, each
                       frame when it has it whole
    aggregating peer   reveal: each pushes to one peer: s up, S down there; merge: all fetch from it: the sum of all
                       S - s up there. Every payload enters the merge and the audits, so none is replaced by a sum:
                       what this saves is the others' uplinks, at the price of that one's

Where peers are reached through a relay, its line carries every bit in and out. What a line has to carry in a phase is a
lower bound of its time (Thakur, Rabenseifner and Gropp 2005, section 3: the bandwidth term); that of all lines together
is reached when transfers overlap, as they do here. Rates are bit/s, sizes bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, NamedTuple

from farflung.core import limits
from farflung.core.units import Seconds
from farflung.plan.link_syntax import Link

PUSH_TRIPS: Final = 3  # begin, the chunks, finish
FETCH_TRIPS: Final = 1
FAN_TRIPS: Final = 1  # half of one until it is there, half of one until the replica's word is back


class ExchangeWay(enum.Enum):
    """How payloads come to everybody; the simplest first."""

    GATHER = "all-gather"
    FAN = "fan-out"
    PEER = "aggregating peer"


class ExchangeMember(NamedTuple):
    """A member of a round: its line, and the bytes of its payload."""

    link: Link
    size: int


class ExchangeRound(NamedTuple):
    """What is known before an exchange. `relay`: its line, where there is one; `is_relayed`: whether pairs pass it."""

    members: Sequence[ExchangeMember]
    requester: Link
    relay: Link | None = None
    is_relayed: bool = False


class ExchangeForecast(NamedTuple):
    """One way's seconds. `via`: the aggregating member's place; -1: the requester."""

    way: ExchangeWay
    seconds: Seconds
    via: int = -1


def gather(round: ExchangeRound) -> ExchangeForecast:
    """All-gather over pairs."""
    members, total = round.members, _total(round)
    if len(members) == 1:
        return ExchangeForecast(ExchangeWay.GATHER, peer(round, -1).seconds)
    reveal, merge = [total / round.requester.down], [0.0]
    for at, (link, size) in enumerate(members):
        bits, left = 8.0 * size, 8.0 * members[at - 1].size
        reveal += [2 * bits / link.up, left / link.down]
        merge += [(len(members) - 2) * bits / link.up, (total - bits - left) / link.down]
    reveal += _through(round, 2 * total)
    merge += _through(round, (len(members) - 2) * total)
    trips = PUSH_TRIPS + 2 * FETCH_TRIPS
    return ExchangeForecast(ExchangeWay.GATHER, Seconds(max(reveal) + max(merge) + trips * _trip(round)))


def fan(round: ExchangeRound) -> ExchangeForecast | None:
    """Fan-out through the relay; None: there is none."""
    if round.relay is None:
        return None
    total = _total(round)
    spent = [total / round.requester.down, total / round.relay.down]
    spent.append(len(round.members) * total / round.relay.up)
    for link, size in round.members:
        spent += [8.0 * size / link.up, (total - 8.0 * size) / link.down]
    frame = max(8.0 * min(size, limits.FAN_FRAME_BYTES) / link.up for link, size in round.members)
    return ExchangeForecast(ExchangeWay.FAN, Seconds(max(spent) + frame + FAN_TRIPS * _trip(round)))


def peer(round: ExchangeRound, via: int) -> ExchangeForecast:
    """Through one peer: the member at place `via`, or the requester (-1)."""
    members, total = round.members, _total(round)
    host = round.requester if via < 0 else members[via].link
    own = 0.0 if via < 0 else 8.0 * members[via].size
    given = sum(total - 8.0 * size for at, (_, size) in enumerate(members) if at != via)
    given += 0.0 if via < 0 else total
    reveal, merge = [(total - own) / host.down], [given / host.up]
    reveal += [8.0 * size / link.up for link, size in members]
    merge += [(total - 8.0 * size) / link.down for at, (link, size) in enumerate(members) if at != via]
    merge += [0.0 if via < 0 else total / round.requester.down]
    reveal += _through(round, total)
    merge += _through(round, given)
    trips = PUSH_TRIPS + FETCH_TRIPS
    return ExchangeForecast(ExchangeWay.PEER, Seconds(max(reveal) + max(merge) + trips * _trip(round)), via)


def choose(round: ExchangeRound, *, may_fan: bool = True) -> ExchangeForecast:
    """The way of the least predicted seconds; of equals the simplest, then the requester, then the first member.

    `may_fan`: whether all members are in a group.
    """
    found = [gather(round)]
    by_relay = fan(round) if may_fan else None
    if by_relay is not None:
        found.append(by_relay)
    found += [peer(round, via) for via in range(-1, len(round.members))]
    return min(found, key=lambda forecast: forecast.seconds)


def bound(round: ExchangeRound) -> Seconds:
    """What no way can be faster than: each payload once up its maker's line, all others down everybody's."""
    total = _total(round)
    spent = [total / round.requester.down]
    for link, size in round.members:
        spent += [8.0 * size / link.up, (total - 8.0 * size) / link.down]
    return Seconds(max(spent))


def _total(round: ExchangeRound) -> float:
    return 8.0 * sum(size for _, size in round.members)


def _trip(round: ExchangeRound) -> float:
    """The longest round trip between two of them: each one's line is passed once each way."""
    trips = sorted([round.requester.round_trip, *(link.round_trip for link, _ in round.members)])
    return sum(trips[-2:])


def _through(round: ExchangeRound, bits: float) -> list[float]:
    """Seconds of the relay's line for what pairs say to each other."""
    if round.relay is None or not round.is_relayed:
        return []
    return [bits / round.relay.up, bits / round.relay.down]
