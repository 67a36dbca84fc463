"""The oracle: the same network as advice.simulation, written for reading, on SimPy's event heap, with other random
numbers.

It is given what nodes are (speed, ask, line, router), and draws for itself when they come and go, what comes late, and
what is audited. Whose line is too slow, and when who joins has the public state, it reckons in seconds of its own.
Nothing of advice.simulation but its rules, the table of nodes and their lines is used.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from farflung.advice.simulation.simulation_rules import FALSE, HIDDEN, SimulatedNodes, SimulationRules

CERTAIN = 1 << 32


@dataclass
class Node:
    """One computer."""

    speed: int
    kind: int
    ask: int
    relay: int
    is_hidden: bool
    is_false: bool
    fetch: float  # ms that the public state takes
    exchange: float  # ms that its own payload and those of others take, at once
    purse: int
    is_up: bool = False
    since: float = 0.0  # when it came
    left: float | None = None  # when it first went away in this round
    is_excluded: bool = False
    is_member: bool = False
    ready: float = 0.0  # when it has, or had, the public state
    contributions: int = 0


class Network:
    """All of it, in one process for each node and one for the day."""

    def __init__(
        self, rules: SimulationRules, table: SimulatedNodes, lines: Sequence[tuple[int, int]], seed: int
    ) -> None:
        self.rules, self.draw, self.env = rules, random.Random(seed), simpy.Environment()
        self.count: Counter[str] = Counter()
        self.relayed: Counter[int] = Counter()
        self.nodes = [self._node(table, at, *lines[at]) for at in range(rules.nodes)]
        for node in self.nodes:
            self.env.process(self._life(node))
        self.env.process(self._days())

    def run(self) -> None:
        rules = self.rules
        end = rules.periods * rules.rounds * rules.length
        self.env.run(until=end + 0.5)
        for node in self.nodes:
            self.count["up"] += end - node.since if node.is_up else 0

    def counted(self) -> Counter[str]:
        """All that was counted, and the bytes of relays, of each and of all together."""
        each = {f"relay {relay}": given for relay, given in self.relayed.items()}
        return self.count + Counter(each | {"relayed": self.relayed.total()})

    def _node(self, table: SimulatedNodes, at: int, up: int, down: int) -> Node:
        """`up`, `down`: bits a ms."""
        flags, rules = int(table.flags[at]), self.rules
        contribution = 8 * rules.payload
        return Node(
            int(table.speed[at]), int(table.kind[at]), int(table.ask[at]), int(table.relay[at]), bool(flags & HIDDEN),
            bool(flags & FALSE), 8 * rules.snapshot / down,
            max(contribution / up, contribution * (rules.members - 1) / down), int(table.speed[at]) * rules.opening,
        )  # fmt: skip

    def _life(self, node: Node) -> Iterator[Any]:
        rules = self.rules
        node.is_up = self.draw.random() < rules.up / (rules.up + rules.down)
        while True:
            if node.is_up:
                stay = self.draw.expovariate(1 / rules.up)
                death = self.draw.expovariate(1 / rules.death) if rules.death else float("inf")
                yield self.env.timeout(min(stay, death))
                self.count["up"] += self.env.now - node.since
                self.count["downs"] += 1
                node.is_up = False
                if node.left is None:
                    node.left = self.env.now
                if death < stay:
                    self.count["deaths"] += 1
                    return
            yield self.env.timeout(self.draw.expovariate(1 / rules.down))
            node.is_up, node.since = True, self.env.now

    def _days(self) -> Iterator[Any]:
        for _ in range(self.rules.periods):
            hired, self.found = self._auction(), []
            due: Counter[int] = Counter()
            for _ in range(self.rules.rounds):
                start = self.env.now
                there = [at for at in hired if self.nodes[at].is_up]
                for at in hired:
                    if not self.nodes[at].is_up:
                        self.nodes[at].is_member = False
                        self.count["away"] += 1
                self.count["excluded"] += len(self.found)
                for at in there:
                    self._begins(self.nodes[at])
                yield self.env.timeout(self.rules.length)
                for at in there:
                    self._ends(at, start, hired, due)
            for at, amount in due.items():
                self.nodes[at].purse += amount
                self.count["paid"] += amount

    def _auction(self) -> dict[int, int]:
        """Node to pay of a round."""
        hired: dict[int, int] = {}
        rules = self.rules
        for kind in {node.kind for node in self.nodes}:
            of_kind = [at for at, node in enumerate(self.nodes) if node.kind == kind]
            able = [at for at in of_kind if self._is_able(self.nodes[at])]
            able.sort(key=lambda at: (self.nodes[at].ask, at))
            wanted = int(len(of_kind) * rules.wanted / CERTAIN) // rules.members * rules.members
            count = min(wanted, max(0, len(able) - 1) // rules.members * rules.members)
            if count:
                price = self.nodes[able[count]].ask
                hired |= {at: price * self.nodes[at].speed for at in able[:count]}
        for at, node in enumerate(self.nodes):
            node.is_member &= at in hired
        self.count["hired"] += len(hired)
        return hired

    def _is_able(self, node: Node) -> bool:
        has_stake = node.purse >= self.rules.stake * node.speed
        return (
            node.is_up
            and not node.is_excluded
            and node.exchange <= self.rules.exchange
            and has_stake
            and node.ask <= self.rules.ceiling
        )

    def _begins(self, node: Node) -> None:
        self.count["members"] += 1
        node.left = None
        if not node.is_member:
            self.count["joined"] += 1
            self.relayed[node.relay] += self.rules.snapshot if node.is_hidden else 0
            node.ready = self.env.now + node.fetch
        node.is_member = True

    def _ends(self, at: int, start: float, hired: dict[int, int], due: Counter[int]) -> None:
        node, rules = self.nodes[at], self.rules
        could = max(start, node.ready) + rules.train + node.exchange <= start + rules.length
        if node.left is not None:
            self.count["dropped"] += 1
            self.count["lost"] += min(node.left - start, rules.train) if could else 0
            node.is_member = False
            return
        if not could:
            self.count["fetching"] += 1
            return
        if self._chance(rules.late):
            self.count["late"] += 1
            return
        self.relayed[node.relay] += rules.payload * (rules.members - 1) if node.is_hidden else 0
        is_known = node.contributions < rules.probation
        node.contributions += 1
        pay, caught = hired[at], False
        if is_known or self._chance(rules.audited):
            self.count["audited"] += 1
            self.count["fees"] += pay // rules.segments
            found = rules.caught_known if is_known else CERTAIN * rules.caught // rules.audited
            caught = node.is_false and self._chance(found)
        if caught:
            self.count["caught"] += 1
            self.count["fees"] += pay // rules.segments * (rules.voices - 1)
            taken = node.speed * rules.stake * rules.taken // 1000
            node.purse -= taken
            self.count["taken"] += taken
            node.is_excluded = True
            self.found.append(at)
            del hired[at]
            due.pop(at, None)
            return
        self.count["accepted"] += 1
        self.count["cheated"] += node.is_false
        due[at] += pay

    def _chance(self, odds: int) -> bool:
        return self.draw.randrange(CERTAIN) < odds
