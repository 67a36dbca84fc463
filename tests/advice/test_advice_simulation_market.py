"""A simulated auction beside the market's own: the same nodes at the same price, where both have the same question.

Classes of the simulation do not move, and it has neither spares nor owners with more than one node; market.match looks
through all windows of speed. Within one class, asked for as many as the class hires, they must agree.
"""

from __future__ import annotations

import pytest
from plan_networks import network

from farflung.advice.simulation.simulate import _SimulatedMarket, settled
from farflung.advice.simulation.simulation_rules import HIRED, SLOW, UP, SimulatedNodes, SimulationRules, classes
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.money import Credits
from farflung.market.match import MatchRequest, match
from farflung.market.provider_offer import Capabilities, OfferListing

JOB = Hash(bytes(ZERO_HASH))


def listing(nodes: SimulatedNodes, rules: SimulationRules, node: int) -> OfferListing:
    """What a node would have said to the market; its id has the order of its number."""
    free = int(nodes.balance[node]) - rules.stake * int(nodes.speed[node])
    can = Capabilities(4, 8 << 30, 100 << 30, int(nodes.speed[node]), 1, "Linux", "x86_64", "2.7.0")
    return OfferListing(PeerId(node.to_bytes(32, "big")), Credits(int(nodes.ask[node])), Credits(1 + free), can)


@pytest.mark.parametrize("seed", range(4))
def test_a_class_hires_whom_the_market_would_at_its_price(seed: int) -> None:
    rules = network(key=seed, nodes=1500, ask=80, uplink=4000)
    nodes = settled(rules)
    market = _SimulatedMarket(rules, nodes, classes())
    market.clear(nodes)
    compared = 0
    for kind, count in enumerate(market.hired):
        if not count:
            continue
        of = [node for node in range(rules.nodes) if int(nodes.kind[node]) == kind]
        offered = [node for node in of if int(nodes.flags[node]) & UP and int(nodes.flags[node]) & SLOW == 0]
        request = MatchRequest(JOB, int(count), Credits(rules.ceiling), stake=Credits(1))
        found = match(request, [listing(nodes, rules, node) for node in offered])
        hired = {node for node in of if int(nodes.flags[node]) & HIRED}
        taken = {int.from_bytes(peer, "big") for peer in found.peers}
        # Of equal asks the market draws who comes first, and the simulation counts.
        assert sorted(int(nodes.ask[node]) for node in taken) == sorted(int(nodes.ask[node]) for node in hired)
        assert found.unit_price == market.prices[kind]
        assert found.is_uniform
        compared += 1
    assert compared >= 5
