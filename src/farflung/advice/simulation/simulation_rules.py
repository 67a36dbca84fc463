"""Describes a simulated network in whole numbers: ms, micro-credits, kbit/s, bytes, and chances in 2^-32.

Rules      all that a network follows from; the same rules give the same network
Nodes      a table of all nodes, a column an array: 52 bytes a node
Shape, Terms, Pace   what settling, an auction and a period's walk need of the rules, as numba takes it
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from farflung.advice.simulation.random_draws import ODDS, SIGMA

MICROS: Final = 1_000_000  # micro-credits in one credit, whatever the unit of a real ledger
NOMINAL: Final = 1000  # speed of the middle node; a unit of work is a thousandth of its round
SLOWEST: Final = 100  # of nodes that are simulated at all: a tenth of the middle one
FASTEST: Final = 64_000
SIMILAR: Final = (5, 4)  # speeds within one class differ by less than this factor (market.match)

# A node's flags.
UP: Final = 1
DEAD: Final = 2  # its hardware: it does not come back
OUT: Final = 4  # found out: nobody hires it any more
HIDDEN: Final = 8  # behind a router that lets nobody in: a relay carries what others fetch from it
FALSE: Final = 16  # it cheats whenever it works
SLOW: Final = 32  # its line does not carry a round's exchange in the time that there is
HIRED: Final = 64
MEMBER: Final = 128  # it was hired and there at the end of its last round: it has the public state, or most of it

# Columns of a round's tally.
MEMBERS: Final = 0  # that were there at its begin
ACCEPTED: Final = 1
DROPPED: Final = 2  # went away before its end
LATE: Final = 3
JOINED: Final = 4  # fetched the public state first
AUDITED: Final = 5
CAUGHT: Final = 6
CHEATED: Final = 7  # accepted, and false
UNITS: Final = 8  # of accepted contributions
LOST: Final = 9  # ms of training of those that went away
AWAY: Final = 10  # hired, and not there at its begin
FETCHING: Final = 11  # there to its end, and without the public state in time
EXCLUDED: Final = 12  # hired, and caught in an earlier round of the period
KINDS: Final = 13

# A period's totals.
UP_TIME: Final = 0  # ms, of all nodes
DOWNS: Final = 1
DEATHS: Final = 2
PAID: Final = 3
FEES: Final = 4  # of verifiers
TAKEN: Final = 5  # stakes
TOTALS: Final = 6


class SimulationRules(msgspec.Struct, frozen=True):
    """A network and its seed. Who makes them has checked that they are in range (app.simulate.scenario)."""

    key: int  # the seed, 32 bits
    nodes: int
    periods: int  # from one auction to the next
    rounds: int  # of a period
    train: int  # ms of a round
    exchange: int  # ms of a round
    up: int  # mean ms
    down: int
    death: int  # mean ms of being up; 0: never
    speed_sigma: int  # in 1 / SIGMA, as all sigmas
    ask: int  # median, micro-credits a unit
    ask_sigma: int
    uplink: int  # median kbit/s
    uplink_sigma: int
    downlink: int
    downlink_sigma: int
    hidden: int  # chance
    relays: int
    late: int  # chance that a contribution comes too late whatever its line
    payload: int  # bytes of a contribution
    snapshot: int  # bytes that who joins fetches
    members: int  # of one job
    wanted: int  # share of each class that jobs ask for, in 2^-32
    ceiling: int  # micro-credits a unit: dearer asks are not looked at
    budget: int  # micro-credits that all requesters together set aside for a period; 0: what all may cost
    stake: int  # micro-credits a unit of speed
    opening: int  # what a node owns at the beginning, micro-credits a unit of speed
    funded: int  # chance that it does: else it owns nothing
    cheaters: int  # chance
    probation: int  # contributions of a node that are audited whatever the draw says
    audited: int  # chance
    caught: int  # chance that a false contribution is drawn and found
    caught_known: int  # the same while all are drawn
    segments: int  # of a round; a verifier is paid for one of them
    voices: int  # verifiers that must agree
    taken: int  # thousandths of the stake that who is caught loses
    bounty: int  # thousandths of that which are its finders'; the rest is burnt
    fare: int  # micro-credits a GiB that a relay gives on

    @property
    def length(self) -> int:
        """Ms of a round."""
        return self.train + self.exchange

    @property
    def carriage(self) -> int:
        """Micro-credits, rounded up, that a relay is paid at most for one contribution and one joining."""
        most = (self.payload * (self.members - 1) + self.snapshot) * self.fare
        return -(-most >> 30)


class SimulatedNodes(NamedTuple):
    """All nodes: N long, but for nothing."""

    flags: NDArray[np.int16]
    kind: NDArray[np.int16]  # class of speed
    relay: NDArray[np.int16]
    speed: NDArray[np.int32]
    turns: NDArray[np.int32]  # how often it came and went
    done: NDArray[np.int32]  # contributions
    joining: NDArray[np.int32]  # rounds that it misses when it joins
    missing: NDArray[np.int32]  # of them still before it
    ask: NDArray[np.int64]
    change: NDArray[np.int64]  # ms at which it comes or goes next
    balance: NDArray[np.int64]


class NodeDistribution(NamedTuple):
    """What nodes are made of."""

    key: int
    speed_sigma: int
    ask: int
    ask_sigma: int
    uplink: int
    uplink_sigma: int
    downlink: int
    downlink_sigma: int
    length: int  # ms of a round
    exchange: int
    sent: int  # bits of a round
    fetched: int
    state: int  # bits that who joins fetches
    hidden: int
    cheaters: int
    relays: int
    opening: int
    funded: int
    up: int  # mean ms until it goes, for good or not
    down: int
    there: int  # chance that it is there at first


class AuctionTerms(NamedTuple):
    """What an auction asks for."""

    stake: int
    ceiling: int
    members: int
    rounds: int
    voices: int
    segments: int
    carriage: int


class PeriodRules(NamedTuple):
    """A period's part of the rules."""

    key: int
    begin: int  # ms
    first: int  # number of its first round
    rounds: int
    train: int
    length: int
    up: int  # mean ms until it goes, for good or not
    down: int
    die: int  # chance that it goes for good
    late: int
    probation: int
    audited: int
    caught: int
    caught_known: int
    segments: int
    voices: int
    stake: int
    taken: int


def classes() -> NDArray[np.int64]:
    """The lowest speed of each class: each a quarter more than the one before."""
    more, of = SIMILAR
    lows = [SLOWEST]
    while lows[-1] * more // of < FASTEST:
        lows.append(lows[-1] * more // of)
    return np.array(lows, np.int64)


def odds(share: float) -> int:
    """A chance in 2^-32."""
    return min(ODDS, max(0, round(share * ODDS)))


def sigmas(sigma: float) -> int:
    """A standard deviation in 1 / SIGMA."""
    return round(sigma * SIGMA)


def present(rules: SimulationRules) -> tuple[int, int, int]:
    """Mean ms until a node goes, the chance that it then goes for good, and the chance that it is there at first.

    Two exponential ends, whichever comes first: rates add up, and the first one is a death by its share of them.
    """
    there = rules.up * ODDS // (rules.up + rules.down)
    if not rules.death:
        return rules.up, 0, there
    both = rules.up + rules.death
    return rules.up * rules.death // both, rules.up * ODDS // both, there


def shape(rules: SimulationRules) -> NodeDistribution:
    """What nodes are made of. A member sends its payload once, and fetches those of all others."""
    up, _, there = present(rules)
    bits = 8 * rules.payload
    return NodeDistribution(
        rules.key, rules.speed_sigma, rules.ask, rules.ask_sigma, rules.uplink, rules.uplink_sigma, rules.downlink,
        rules.downlink_sigma, rules.length, rules.exchange, bits, bits * (rules.members - 1), 8 * rules.snapshot,
        rules.hidden, rules.cheaters, rules.relays, rules.opening, rules.funded, up, rules.down, there,
    )  # fmt: skip


def terms(rules: SimulationRules) -> AuctionTerms:
    """Of every auction."""
    return AuctionTerms(
        rules.stake, rules.ceiling, rules.members, rules.rounds, rules.voices, rules.segments, rules.carriage
    )


def pace(rules: SimulationRules, period: int) -> PeriodRules:
    """Of one period."""
    up, die, _ = present(rules)
    first = period * rules.rounds
    return PeriodRules(
        rules.key, first * rules.length, first, rules.rounds, rules.train, rules.length, up, rules.down, die,
        rules.late, rules.probation, rules.audited, rules.caught, rules.caught_known, rules.segments, rules.voices,
        rules.stake, rules.taken,
    )  # fmt: skip
