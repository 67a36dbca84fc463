"""Holds the results of a simulated network: tallies, accounts, and the hash that two runs of one seed share.

Money is whole micro-credits, and none is made or lost: what all accounts hold at the end, and what was burnt, is what
they held at the beginning (`Accounts.total`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from farflung.advice.simulation import simulation_rules as kinds
from farflung.advice.simulation.simulation_rules import ACCEPTED, SimulationRules
from farflung.core.codec import encode
from farflung.core.crypto import NS_SIMULATION, digest

WAYS: Final[Mapping[str, tuple[int, ...]]] = {  # in which a hired node's round is not accepted
    "away": (kinds.AWAY,), "left": (kinds.DROPPED,), "late": (kinds.LATE,), "joining": (kinds.FETCHING,),
    "caught": (kinds.CAUGHT, kinds.EXCLUDED),
}  # fmt: skip


class SimulatedAccounts(msgspec.Struct, frozen=True):
    """Who holds what, micro-credits."""

    requesters: int
    nodes: int
    verifiers: int
    relays: int
    burnt: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.requesters + self.nodes + self.verifiers + self.relays + self.burnt


class MoneyFlows(msgspec.Struct, frozen=True):
    """What went where, micro-credits; escrow = paid + fees + fares + refunded, taken = bounties + burnt."""

    escrow: int
    paid: int
    fees: int
    fares: int
    refunded: int
    taken: int
    bounties: int
    burnt: int


class SimulatedPeriod(msgspec.Struct, frozen=True):
    """From one auction to the next."""

    wanted: int  # nodes that whole jobs ask for, all classes together
    hired: int
    units: int  # of all hired, a round
    low: int  # the clearing prices of the classes that hired: the lowest, the middle one, the highest
    middle: int
    high: int
    funnel: tuple[int, ...]  # nodes left after each of play.CONDITIONS
    up_time: int  # ms, of all nodes
    downs: int
    deaths: int
    flows: MoneyFlows


class SimulationResult(msgspec.Struct, frozen=True):
    """All that came of one seed. `tally`: [rounds, KINDS]; `relayed`: [rounds, relays] bytes that relays gave on."""

    rules: SimulationRules
    periods: tuple[SimulatedPeriod, ...]
    tally: NDArray[np.int64]
    relayed: NDArray[np.int64]
    began: SimulatedAccounts
    ended: SimulatedAccounts
    hash: str

    def of(self, kind: int) -> int:
        """A kind of the tally, all rounds together."""
        return int(self.tally[:, kind].sum())

    @property
    def availability(self) -> float:
        """Share of all nodes' time that they are up."""
        up = sum(period.up_time for period in self.periods)
        return up / (self.rules.nodes * len(self.tally) * self.rules.length)

    @property
    def hired(self) -> int:
        """Rounds of all hired nodes, whether they were there or not."""
        return sum(period.hired for period in self.periods) * self.rules.rounds

    @property
    def goodput(self) -> float:
        """Accepted contributions, as a share of the rounds of all hired nodes."""
        return self.of(ACCEPTED) / self.hired if self.hired else 0.0

    @property
    def utilisation(self) -> float:
        """Share of hired nodes' time in which they train what is accepted."""
        return self.goodput * self.rules.train / self.rules.length

    @property
    def losses(self) -> dict[str, float]:
        """Where the rounds of hired nodes went that were not accepted, as shares of them: with goodput they are 1.

        Who is caught has the round in which it is, and those until the next auction: nobody takes its place before.
        """
        rounds = self.hired or 1
        return {name: sum(map(self.of, which)) / rounds for name, which in WAYS.items()}

    @property
    def mean_time(self) -> float | None:
        """Seconds between two interruptions of any node; None: there was none."""
        downs = sum(period.downs for period in self.periods)
        return len(self.tally) * self.rules.length / 1000 / downs if downs else None

    @property
    def flows(self) -> MoneyFlows:
        """Of all periods."""
        names = MoneyFlows.__struct_fields__
        return MoneyFlows(**{name: sum(getattr(period.flows, name) for period in self.periods) for name in names})


def hashed(
    rules: SimulationRules, periods: tuple[SimulatedPeriod, ...], ended: SimulatedAccounts, arrays: list[NDArray[Any]]
) -> str:
    """Over rules, periods, accounts and arrays: whole numbers only, as little-endian words of 64 bits."""
    said = encode([msgspec.to_builtins(rules), msgspec.to_builtins(periods), msgspec.to_builtins(ended)])
    return digest(NS_SIMULATION, said, *(array.astype("<i8").tobytes() for array in arrays)).hex()
