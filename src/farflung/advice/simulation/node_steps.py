"""Advances the nodes one after the other: the loops of a simulation, compiled by advice.simulation.compiled_steps
or plain.

    settle    draws what each node is, and how many rounds its line makes it miss when it joins
    hire      one auction: in each class of speed the cheapest are hired, whole jobs at a time, at the ask of the first
              that is not (Vickrey 1961; the (n+1)-th price of market.match)
    walk      one period: each node comes and goes, works where it is hired, is audited and paid

A node's draws are counted (advice.simulation.random_draws): whatever becomes of one changes nothing for another.
Coming and going is an alternating renewal process with exponential times, so what is left of one at the begin is
exponential again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from farflung.advice.simulation.random_draws import NEVER, normal, spread, waited, words
from farflung.advice.simulation.simulation_rules import (
    ACCEPTED,
    AUDITED,
    AWAY,
    CAUGHT,
    CHEATED,
    DEAD,
    DEATHS,
    DOWNS,
    DROPPED,
    EXCLUDED,
    FALSE,
    FASTEST,
    FEES,
    FETCHING,
    HIDDEN,
    HIRED,
    JOINED,
    LATE,
    LOST,
    MEMBER,
    MEMBERS,
    NOMINAL,
    OUT,
    PAID,
    SLOW,
    SLOWEST,
    TAKEN,
    UNITS,
    UP,
    UP_TIME,
    AuctionTerms,
    NodeDistribution,
    PeriodRules,
    SimulatedNodes,
)  # fmt: skip

# A place of a node's draws begins with what it is for; 28 bits are left to count.
IS: Final = 0 << 28
TURN: Final = 1 << 28
WORK: Final = 2 << 28

FOREVER: Final = 1 << 30  # rounds: more than any network has

_Ints = NDArray[np.int64]


def line(shape: NodeDistribution, node: int) -> tuple[int, int]:
    """A node's upload and download, kbit/s, which are bits a ms."""
    up = spread(shape.uplink, shape.uplink_sigma, normal(shape.key, node, IS + 6))
    down = spread(shape.downlink, shape.downlink_sigma, normal(shape.key, node, IS + 9))
    return max(up, 1), max(down, 1)


def missed(shape: NodeDistribution, up: int, down: int) -> int:
    """Rounds that a node misses when it joins: it fetches the state, trains, and exchanges what it made, and all of
    this must fit into the round. Where it does not, it goes on fetching, and is late until it does.
    """
    own = max((shape.sent + up - 1) // up, (shape.fetched + down - 1) // down)
    over = (shape.state + down - 1) // down + own - shape.exchange
    return min((over + shape.length - 1) // shape.length, FOREVER) if over > 0 else 0


def settle(nodes: SimulatedNodes, shape: NodeDistribution, lows: _Ints) -> None:
    """Fills the table; `lows`: of rules.classes."""
    for node in range(nodes.flags.size):
        speed = spread(NOMINAL, shape.speed_sigma, normal(shape.key, node, IS))
        speed = min(max(speed, SLOWEST), FASTEST)
        kind = 0
        while kind + 1 < lows.size and lows[kind + 1] <= speed:
            kind += 1
        ask = spread(shape.ask, shape.ask_sigma, normal(shape.key, node, IS + 3))
        up, down = line(shape, node)
        first, second = words(shape.key, node, IS + 12)
        third, fourth = words(shape.key, node, IS + 13)
        fifth, sixth = words(shape.key, node, IS + 14)
        flags = 0
        if shape.sent > up * shape.exchange or shape.fetched > down * shape.exchange:
            flags |= SLOW
        if first < shape.hidden:
            flags |= HIDDEN
        if second < shape.cheaters:
            flags |= FALSE
        if third < shape.there:
            flags |= UP
        nodes.flags[node], nodes.kind[node], nodes.speed[node] = flags, kind, speed
        nodes.relay[node] = fourth % shape.relays
        nodes.ask[node] = max(ask, 1)
        nodes.change[node] = 1 + waited(fifth, shape.up if flags & UP else shape.down)
        nodes.balance[node] = speed * shape.opening if sixth < shape.funded else 0
        nodes.joining[node] = missed(shape, up, down)


def able(nodes: SimulatedNodes, node: int, stake: int, ceiling: int) -> int:
    """How many of the market's conditions a node meets, one after the other; 5: all."""
    flags = int(nodes.flags[node])
    if not flags & UP:
        return 0
    if flags & OUT:
        return 1
    if flags & SLOW:
        return 2
    if int(nodes.balance[node]) < stake * int(nodes.speed[node]):
        return 3
    return 4 if int(nodes.ask[node]) > ceiling else 5


def hire(
    nodes: SimulatedNodes, order: NDArray[np.int32], starts: _Ints, wanted: _Ints, budget: _Ints, terms: AuctionTerms,
    prices: _Ints, hired: _Ints, units: _Ints, funnel: _Ints,
) -> None:  # fmt: skip
    """One auction of all classes; `order`: nodes by class and ask, of class k those from `starts[k]` on.

    Fills price, number and units of the hired by class, and of `funnel` how many were left after each condition; the
    last one is that their class is wanted, and has enough of them for one job and a price.
    """
    for kind in range(prices.size):
        fit = count = total = 0
        best = price = taken = 0
        is_open = wanted[kind] > 0
        for at in range(int(starts[kind]), int(starts[kind + 1])):
            node = int(order[at])
            nodes.flags[node] = int(nodes.flags[node]) & ~HIRED
            met = able(nodes, node, terms.stake, terms.ceiling)
            for step in range(met):
                funnel[step] += 1
            if met < 5:
                continue
            fit += 1
            if not is_open:
                continue
            ask = int(nodes.ask[node])
            if count and count % terms.members == 0:
                pay = ask * total * terms.rounds
                escrow = pay + (pay * terms.voices + terms.segments - 1) // terms.segments
                if escrow + count * terms.rounds * terms.carriage > budget[kind]:
                    is_open = False
                    continue
                best, price, taken = count, ask, total
                is_open = count < wanted[kind]
            count += 1
            total += int(nodes.speed[node])
        prices[kind], hired[kind], units[kind] = price, best, taken
        funnel[5] += fit if wanted[kind] > 0 and fit > terms.members else 0
        found, at = 0, int(starts[kind])
        while found < best:
            node = int(order[at])
            if able(nodes, node, terms.stake, terms.ceiling) == 5:
                nodes.flags[node] = int(nodes.flags[node]) | HIRED
                found += 1
            at += 1


def advance(
    turns: NDArray[np.int32],
    rules: PeriodRules,
    totals: _Ints,
    node: int,
    flags: int,
    change: int,
    since: int,
    until: int,
) -> tuple[int, int, int]:
    """Lets a node come and go up to and with ms `until`; `since`: from when on it is up and not yet counted.

    It takes one column of the nodes: each call would count references to all of them, which took more than the rest.
    """
    while change <= until:
        turn = int(turns[node])
        turns[node] = turn + 1
        first, second = words(rules.key, node, TURN + turn)
        if flags & UP:
            totals[UP_TIME] += change - since
            totals[DOWNS] += 1
            flags ^= UP
            if second < rules.die:
                totals[DEATHS] += 1
                flags |= DEAD
                change = NEVER
            else:
                change += 1 + waited(first, rules.down)
        else:
            flags ^= UP
            since = change
            change += 1 + waited(first, rules.up)
    return flags, change, since


def walk(
    nodes: SimulatedNodes,
    rules: PeriodRules,
    prices: _Ints,
    tally: _Ints,
    carried: _Ints,
    fetched: _Ints,
    totals: _Ints,
) -> None:
    """One period of all nodes. [rounds, KINDS] tally; [rounds, relays] contributions that a relay carried, and states
    that it brought to who joined; [TOTALS].
    """
    end = rules.begin + rules.rounds * rules.length
    for node in range(nodes.flags.size):
        flags, change, since = int(nodes.flags[node]), int(nodes.change[node]), rules.begin
        if flags & HIRED:
            flags, change, since = work(nodes, rules, prices, tally, carried, fetched, totals, node, flags, change)
        else:
            flags &= ~MEMBER
        flags, change, since = advance(nodes.turns, rules, totals, node, flags, change, since, end)
        if flags & UP:
            totals[UP_TIME] += end - since
        nodes.flags[node], nodes.change[node] = flags, change


def work(
    nodes: SimulatedNodes, rules: PeriodRules, prices: _Ints, tally: _Ints, carried: _Ints, fetched: _Ints,
    totals: _Ints, node: int, flags: int, change: int,
) -> tuple[int, int, int]:  # fmt: skip
    """A hired node's rounds of one period, and its pay, which it gets at the end unless it was caught."""
    speed, relay, since = int(nodes.speed[node]), int(nodes.relay[node]), rules.begin
    pay, due, is_member = speed * int(prices[nodes.kind[node]]), 0, (flags & MEMBER) != 0
    missing = int(nodes.missing[node])
    for number in range(rules.rounds):
        start = rules.begin + number * rules.length
        flags, change, since = advance(nodes.turns, rules, totals, node, flags, change, since, start)
        if not flags & UP:
            is_member = False
            tally[number, AWAY] += 1
            continue
        tally[number, MEMBERS] += 1
        if not is_member:
            tally[number, JOINED] += 1
            fetched[number, relay] += 1 if flags & HIDDEN else 0
            missing = int(nodes.joining[node])
        is_member = change >= start + rules.length
        if not is_member:
            tally[number, DROPPED] += 1
            tally[number, LOST] += 0 if missing else min(change - start, rules.train)
            continue
        if missing:
            missing -= 1
            tally[number, FETCHING] += 1
            continue
        first, second = words(rules.key, node, WORK + rules.first + number)
        if first < rules.late:
            tally[number, LATE] += 1
            continue
        done = int(nodes.done[node])
        nodes.done[node] = done + 1
        carried[number, relay] += 1 if flags & HIDDEN else 0
        is_known = done < rules.probation
        if is_known or second < rules.audited:
            tally[number, AUDITED] += 1
            totals[FEES] += pay // rules.segments
        if flags & FALSE:
            if second < (rules.caught_known if is_known else rules.caught):
                tally[number, CAUGHT] += 1
                lost = speed * rules.stake * rules.taken // 1000
                nodes.balance[node] -= lost
                totals[TAKEN] += lost
                totals[FEES] += pay // rules.segments * (rules.voices - 1)
                for rest in range(number + 1, rules.rounds):
                    tally[rest, EXCLUDED] += 1
                return flags & ~HIRED | OUT, change, since
            tally[number, CHEATED] += 1
        tally[number, ACCEPTED] += 1
        tally[number, UNITS] += speed
        due += pay
    nodes.balance[node] += due
    totals[PAID] += due
    nodes.missing[node] = missing
    return flags | MEMBER if is_member else flags & ~MEMBER, change, since


# What the loops call, innermost first, and the loops.
PARTS: Final[tuple[Callable[..., Any], ...]] = (words, waited, normal, spread, line, missed, able, advance, work)
LOOPS: Final[dict[str, Callable[..., Any]]] = {"settle": settle, "hire": hire, "walk": walk}
