"""Assumes the lines of a run before anything is measured over them, and the exchange of a round that they allow.

The same choice as a round's own (plan.exchange_choice), from the same assumptions (local.network.placement). In a
run each member counts as it was seen to carry, so the way may change from round to round: what it moves then is
bounded by `Moved.most`.

Of N members, h of them reached through a relay only, in payloads of a round:

                        all send   busiest member: up    down     the relay passes on
    all-gather          N N        N                     N - 1    h N
    fan-out             N          1                     N - 1    N N
    by the requester    N N        1                     N - 1    h N
    by a member         N N        (N - 1)(N - 1) + N    N - 1    N times the pairs that pass it

Of pairs of a hidden and a listening member half pass the relay, because the first to dial makes the connection, and a
hidden member dials a listening one directly; the requester dials hidden members at the relay.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from farflung.core import limits
from farflung.core.units import Seconds
from farflung.job.spec import JobSpec
from farflung.plan import exchange_choice
from farflung.plan.exchange_choice import ExchangeForecast, ExchangeMember, ExchangeWay
from farflung.plan.link_syntax import Link

SERVER: Final = Link(10e9, 10e9, Seconds(0.0001))  # within one machine
BESIDE: Final = Link(100e6, 100e6, Seconds(0.001))  # one of several processes that share a machine's cores
_HERE: Final = "all on this computer: 100 Mbit/s a process is assumed"


class RunLinks(msgspec.Struct, frozen=True):
    """Lines of members (verifiers' are alike), requester and relay, and in words where that is known from.

    `can_copy`: the relay copies to groups. `is_apart`: members are on lines of their own, whose seconds add to the
    processors'. `building`: seconds until the places are there.
    """

    member: Link = BESIDE
    requester: Link = SERVER
    relay: Link = SERVER
    can_copy: bool = True
    is_apart: bool = False
    told: str = _HERE
    building: Seconds = Seconds(0.0)


HERE: Final = RunLinks()


class ExchangePayloads(NamedTuple):
    """Payloads that one exchange moves: all send `sent` together; `up` and `down` of the busiest member's line.

    `relayed`: sent on by the relay. `most`: what all send together if the round chooses otherwise.
    """

    sent: float
    up: float
    down: float
    relayed: float
    most: float


def foreseen(spec: JobSpec, network: RunLinks, payload: int) -> ExchangeForecast:
    """What a round chooses on these lines, where each payload is of `payload` bytes."""
    members, hidden = spec.network.providers, spec.hidden
    relay = network.relay if hidden else None
    parties = [ExchangeMember(network.member, payload)] * members
    known = exchange_choice.ExchangeRound(parties, network.requester, relay, hidden == members)
    return exchange_choice.choose(known, may_fan=network.can_copy and members < limits.FAN_MEMBERS)


def moved(members: int, hidden: int, forecast: ExchangeForecast) -> ExchangePayloads:
    """What the chosen way moves."""
    whole, down = float(members**2), members - 1.0
    match forecast.way:
        case ExchangeWay.FAN:
            return ExchangePayloads(members, 1.0, down, whole, whole)
        case ExchangeWay.GATHER:
            return ExchangePayloads(whole, members, down, hidden * members, whole)
    if forecast.via < 0:
        return ExchangePayloads(whole, 1.0, down, hidden * members, whole)
    share = hidden / members  # that the collecting member is hidden itself: who it is nobody knows yet
    through = share * (hidden - 1 + (members - hidden) / 2 + 1) + (1 - share) * hidden / 2
    return ExchangePayloads(whole, down**2 + members, down, members * through, whole)
