"""Simulates a network from its rules to its results: each period has an auction, a walk of all nodes and a
settlement.

Which form of the loops runs, compiled or plain, is decided before the first of them, for all that will be played is
known by then; the outcome is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from farflung.advice.simulation import node_steps
from farflung.advice.simulation.simulation_result import (
    MoneyFlows,
    SimulatedAccounts,
    SimulatedPeriod,
    SimulationResult,
    hashed,
)
from farflung.advice.simulation.simulation_rules import (
    DEATHS,
    DOWNS,
    FEES,
    KINDS,
    PAID,
    TAKEN,
    TOTALS,
    UP_TIME,
    AuctionTerms,
    NodeDistribution,
    PeriodRules,
    SimulatedNodes,
    SimulationRules,
    classes,
    pace,
    shape,
    terms,
)  # fmt: skip
from farflung.compress.kernels import KernelRegistry

COSTS: Final = {"settle": 100_000, "hire": 1_500, "walk": 2_600}  # ns of a plain loop a node, or a node's round
PAYS: Final = 3_000_000_000  # ns: about what compiling them takes; loading what was compiled takes a third of it
KERNELS: Final = KernelRegistry("farflung.advice.simulation.compiled_steps", COSTS, pays=PAYS)
CONDITIONS: Final = ("up", "not excluded", "line", "stake", "price", "alike")  # of an auction, in this order

_Ints = NDArray[np.int64]


def _nodes(nodes: SimulatedNodes, shape: NodeDistribution, lows: _Ints) -> int:
    return nodes.flags.size


def _rounds(
    nodes: SimulatedNodes,
    rules: PeriodRules,
    prices: _Ints,
    tally: _Ints,
    carried: _Ints,
    fetched: _Ints,
    totals: _Ints,
) -> int:
    return nodes.flags.size * rules.rounds


settle = KERNELS.compiled("settle", work=_nodes)(node_steps.settle)
hire = KERNELS.compiled("hire", work=lambda nodes, *_: int(nodes.flags.size))(node_steps.hire)
walk = KERNELS.compiled("walk", work=_rounds)(node_steps.walk)


class _SimulatedMarket:
    """What does not change from one auction to the next: nodes by class and ask, and what is wanted of each class."""

    def __init__(self, rules: SimulationRules, nodes: SimulatedNodes, lows: _Ints) -> None:
        count = len(lows)
        self.order: Final = np.lexsort((nodes.ask, nodes.kind)).astype(np.int32)
        self.starts: Final = np.searchsorted(nodes.kind[self.order], np.arange(count + 1)).astype(np.int64)
        sizes = np.diff(self.starts)
        wanted = sizes * rules.wanted >> 32
        self.wanted: Final = wanted // rules.members * rules.members
        speeds = [int(speed) for speed in np.bincount(nodes.kind, nodes.speed, count)]
        most = [_escrow(rules, rules.ceiling * speed, size) for speed, size in zip(speeds, sizes, strict=True)]
        self.purse: Final = rules.budget or sum(most)
        shares = [rules.budget * speed // sum(speeds) for speed in speeds] if rules.budget else most
        self.budgets: Final = np.array(shares, np.int64)
        self.terms: Final[AuctionTerms] = terms(rules)
        self.prices: Final = np.zeros(count, np.int64)
        self.hired: Final = np.zeros(count, np.int64)
        self.units: Final = np.zeros(count, np.int64)

    def clear(self, nodes: SimulatedNodes) -> tuple[int, ...]:
        """One auction; how many nodes were left after each condition."""
        funnel = np.zeros(len(CONDITIONS), np.int64)
        hire(
            nodes, self.order, self.starts, self.wanted, self.budgets, self.terms, self.prices, self.hired,
            self.units, funnel,
        )  # fmt: skip
        return tuple(map(int, funnel))


def settled(rules: SimulationRules) -> SimulatedNodes:
    """All nodes at the beginning."""
    count = rules.nodes
    columns = [np.zeros(count, kind) for kind in ("i2", "i2", "i2", "i4", "i4", "i4", "i4", "i4", "i8", "i8", "i8")]
    nodes = SimulatedNodes(*columns)
    settle(nodes, shape(rules), classes())
    return nodes


def prepare(networks: Iterable[SimulationRules]) -> None:
    """Has the loops compiled, if that pays for all of these networks together."""
    KERNELS.foresee(sum(map(_cost, networks)))


def _cost(rules: SimulationRules) -> int:
    """Ns of plain loops."""
    period = COSTS["hire"] + COSTS["walk"] * rules.rounds
    return rules.nodes * (COSTS["settle"] + period * rules.periods)


def play(rules: SimulationRules, on_period: Callable[[int], None] = lambda period: None) -> SimulationResult:
    """Everything; `on_period` is called with the number of each period that is over."""
    prepare([rules])
    nodes, lows = settled(rules), classes()
    market = _SimulatedMarket(rules, nodes, lows)
    accounts = began = SimulatedAccounts(market.purse * rules.periods, total(nodes.balance), 0, 0, 0)
    tally = np.zeros((rules.periods * rules.rounds, KINDS), np.int64)
    relayed = np.zeros((len(tally), rules.relays), np.int64)
    periods = []
    for number in range(rules.periods):
        funnel = market.clear(nodes)
        rows = slice(number * rules.rounds, (number + 1) * rules.rounds)
        carried, fetched = (np.zeros((rules.rounds, rules.relays), np.int64) for _ in range(2))
        totals = np.zeros(TOTALS, np.int64)
        walk(nodes, pace(rules, number), market.prices, tally[rows], carried, fetched, totals)
        relayed[rows] = carried * (rules.payload * (rules.members - 1)) + fetched * rules.snapshot
        flows = _settlement(rules, market, [int(each) for each in totals], relayed[rows])
        accounts = _moved(accounts, flows, nodes)
        periods.append(_period(market, funnel, totals, flows))
        on_period(number)
    told = tuple(periods)
    name = hashed(rules, told, accounts, [tally, relayed, nodes.balance, nodes.change, nodes.flags])
    return SimulationResult(rules, told, tally, relayed, began, accounts, name)


def _escrow(rules: SimulationRules, pay: int, nodes: int) -> int:
    """What so many nodes may cost in a period that are paid so much a round: every contribution audited by all voices,
    and carried, and every round somebody's first.
    """
    paid = pay * rules.rounds
    return paid + -(-paid * rules.voices // rules.segments) + int(nodes) * rules.rounds * rules.carriage


def _settlement(rules: SimulationRules, market: _SimulatedMarket, totals: list[int], relayed: _Ints) -> MoneyFlows:
    """What a period's escrow and stakes became."""
    pay = zip(market.prices, market.units, market.hired, strict=True)
    most = sum(_escrow(rules, int(price) * int(units), int(hired)) for price, units, hired in pay)
    fares = sum(int(given) * rules.fare >> 30 for given in relayed.sum(axis=0))
    spent = totals[PAID] + totals[FEES] + fares
    bounties = totals[TAKEN] * rules.bounty // 1000
    return MoneyFlows(
        most, totals[PAID], totals[FEES], fares, most - spent, totals[TAKEN], bounties, totals[TAKEN] - bounties
    )


def _moved(accounts: SimulatedAccounts, flows: MoneyFlows, nodes: SimulatedNodes) -> SimulatedAccounts:
    """After a period. What nodes hold is counted, not estimated: so what went astray would be seen."""
    return SimulatedAccounts(
        accounts.requesters - flows.escrow + flows.refunded,
        total(nodes.balance),
        accounts.verifiers + flows.fees + flows.bounties,
        accounts.relays + flows.fares,
        accounts.burnt + flows.burnt,
    )


def _period(market: _SimulatedMarket, funnel: tuple[int, ...], totals: _Ints, flows: MoneyFlows) -> SimulatedPeriod:
    prices = sorted(int(p) for p, n in zip(market.prices, market.hired, strict=True) if n) or [0]
    return SimulatedPeriod(
        wanted=int(market.wanted.sum()),
        hired=int(market.hired.sum()),
        units=int(market.units.sum()),
        low=prices[0],
        middle=prices[len(prices) // 2],
        high=prices[-1],
        funnel=funnel,
        up_time=int(totals[UP_TIME]),
        downs=int(totals[DOWNS]),
        deaths=int(totals[DEATHS]),
        flows=flows,
    )


def total(values: _Ints) -> int:
    """The exact sum, however large: halves of 32 bits are added up apart."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFF_FFFF).sum())
