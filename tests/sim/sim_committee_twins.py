"""Twins: a seat that lives twice under one key, and a network that is cut in every way (Bano et al., "Twins", 2020).

Each of the first rounds has its own cut of the five nodes of a committee of four: the honest seats and the two halves
of the twin. Leaders rotate. After these rounds everybody hears everybody, and blocks must become final.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from sim_committee import Node, Violation, Wires, World
from sim_committee_app import CheapKey, Script, cheap_signatures

from farflung.core.ids import PeerId
from farflung.ledger.sdbft.messages import Message

DELTA = 6
ROUND_MS = 25  # of virtual time with one cut: a whole exchange, and the time-out of a view
BLOCKS = 1  # final after the cuts
Cut = tuple[int, ...]  # node -> side


class Twin(Node):
    """Follows all rules, but there are two of it."""

    is_honest = False


def cuts(nodes: int, pairs: tuple[tuple[int, int], ...]) -> Iterator[Cut]:
    """Every way to cut the nodes into two sides, alike under exchange of sides and of a twin's two halves."""
    seen = set()
    for sides in itertools.product((0, 1), repeat=nodes):
        forms = []
        for swaps in itertools.product((False, True), repeat=len(pairs)):
            moved = list(sides)
            for is_swapped, (a, b) in zip(swaps, pairs, strict=True):
                if is_swapped:
                    moved[a], moved[b] = moved[b], moved[a]
            forms += [tuple(moved), tuple(1 - side for side in moved)]
        name = min(forms)
        if name not in seen:
            seen.add(name)
            yield name


def world_of(seats: int, twins: tuple[int, ...], seed: int = 0) -> World:
    """Nodes 0 .. seats - 1 have the seats; each further node is the second half of one of `twins`."""
    keys = [CheapKey(index) for index in range(seats)] + [CheapKey(index) for index in twins]
    world = World(len(keys), Script((tuple(range(seats)),)), seed=seed, delta_ms=DELTA, keys=keys)
    for index in (*twins, *range(seats, len(keys))):
        world.nodes[index] = Twin(world, index)
    # Both halves have one name; what is sent to it alone comes to both.
    first = {PeerId(keys[index].public): index for index in reversed(range(len(keys)))}
    world.index_of = first
    carry = world.carry

    def both(sender: int, to: int | None, message: Message) -> None:
        carry(sender, to, message)
        for place, seat in enumerate(twins):
            if to == seat:
                carry(sender, seats + place, message)

    world.carry = both  # type: ignore[method-assign]
    return world


def play(seats: int, twins: tuple[int, ...], script: tuple[Cut, ...], seed: int = 0) -> World:
    """Runs one scenario; raises Violation. World sees every honest vote and every final block."""
    world = world_of(seats, twins, seed)
    with cheap_signatures():
        world.wires = Wires(delay=5)
        world.start()
        for number, cut in enumerate(script):
            world.wires.parts = dict(enumerate(cut))
            world.run((number + 1) * ROUND_MS)
        world.wires.parts = {}
        goal = max(world.final_at) + BLOCKS
        if not world.run(world.now + 100_000, lambda: min(world.heights()) >= goal):
            raise Violation(f"not live: {world.heights()} after {script}")
    return world


def scenarios(seats: int, twins: tuple[int, ...], rounds: int) -> Iterator[tuple[Cut, ...]]:
    pairs = tuple((seat, seats + place) for place, seat in enumerate(twins))
    return itertools.product(tuple(cuts(seats + len(twins), pairs)), repeat=rounds)
