"""How long a block takes, in message delays: exactly, in virtual time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from sim_committee import Wires, World
from sim_committee_app import cheap_signatures

DELAY = 10  # of each message
DELTA = 10 * DELAY


def busy(nodes: int, blocks: int, dead: int | None = None) -> World:
    """A committee with work, all messages equally slow, until so many blocks are final."""
    world = World(nodes, delta_ms=DELTA)
    with cheap_signatures():
        world.start()
        if dead is not None:
            world.nodes[dead].crash()
        alive = [node for node in world.nodes if node.is_up]
        assert world.run(10**6, lambda: all(len(node.disk.blocks) >= blocks for node in alive))
    return world


def proposals(world: World) -> list[int]:
    return sorted(world.proposed[name] for height, name in world.final_at.items() if height)


@pytest.mark.parametrize(("nodes", "blocks"), [(4, 40), (7, 20), (16, 8), (31, 3)])
def test_a_block_is_final_after_three_delays_and_the_next_comes_after_two(nodes: int, blocks: int) -> None:
    world = busy(nodes, blocks)
    for height in range(1, blocks + 1):
        assert world.final_times[height] - world.proposed[world.final_at[height]] == 3 * DELAY
    assert {after - before for before, after in pairwise(proposals(world))} == {2 * DELAY}


@pytest.mark.parametrize("nodes", [4, 7])
def test_a_dead_leader_costs_one_time_out_and_nothing_once_it_is_known_to_be_gone(nodes: int) -> None:
    world = busy(nodes, 12 * nodes, dead=2)
    gaps = [after - before for before, after in pairwise(proposals(world))]
    assert max(gaps) <= 3 * DELTA + 3 * DELAY
    assert set(gaps[4 * nodes :]) == {2 * DELAY}


def test_a_committee_of_one_needs_no_message() -> None:
    world = World(1, delta_ms=DELTA, works=False)
    with cheap_signatures():
        world.start()
        world.run(1000)
    assert world.heights()[0] >= 4
    assert not any(world.sent.values())


@pytest.mark.parametrize("delay", [151, 290, 310, 600])
def test_timers_grow_to_delays_that_nobody_foretold(delay: int) -> None:
    """Between a half and the whole of a time-out each view was notarized too late to be finalized, so nobody waited
    longer: a timer that grows with nullified views alone is one of a committee that never ends a block.
    """
    world = World(4, delta_ms=100)
    world.wires, world.messages_most = Wires(delay=delay), 10_000
    with cheap_signatures():
        world.start()
        assert world.run(200 * delay, lambda: min(world.heights()) >= 10)


@pytest.mark.slow
def test_a_hundred_seats_are_as_quick() -> None:
    world = busy(100, 1)
    assert world.final_times[1] - world.proposed[world.final_at[1]] == 3 * DELAY
