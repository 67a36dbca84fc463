"""A process dies at each of its writes, over it or right behind it: the same blocks at the end, and no vote twice."""

from __future__ import annotations

import pytest
from sim_committee import Wires, World
from sim_committee_app import cheap_signatures

BLOCKS, FEWER = (50, 12)  # a chain of twelve blocks for .ci/run: each seat leads three times; fifty for `make soak`
WAYS = [("torn", True), ("whole", False), ("torn", False), ("whole", True)]  # how it dies, and whether wires are rough
VICTIM = 1
EACH = [
    *(pytest.param(*way, FEWER, marks=pytest.mark.slow) for way in WAYS[:2]),
    *(pytest.param(*way, BLOCKS, marks=pytest.mark.soak) for way in WAYS),
]


def history(nodes: int, blocks: int, kill_at: tuple[int, str] | None, is_rough: bool = False) -> World:
    """So many blocks, one node dying once; World checks every vote and every final block meanwhile."""
    world = World(nodes, delta_ms=40, seed=7)
    world.wires = Wires(delay=5, jitter=30 if is_rough else 0)
    victim = world.nodes[min(VICTIM, nodes - 1)]
    victim.kill_at = kill_at
    with cheap_signatures():
        world.start()
        assert world.run(10**6, lambda: min(world.heights()) >= blocks)
    return world


def check(nodes: int, blocks: int, write: int, how: str, is_rough: bool = False) -> None:
    world = history(nodes, blocks, (write, how), is_rough)
    chains = [[block.header.id for block in node.disk.blocks[:blocks]] for node in world.nodes]
    assert all(chain == chains[0] for chain in chains), (nodes, write, how)
    assert world.nodes[min(VICTIM, nodes - 1)].life > 1, "it never died"


def writes(nodes: int, blocks: int, is_rough: bool = False) -> range:
    """Each write of a run in which nobody dies, but for the last few: those may never come in another."""
    undisturbed = history(nodes, blocks, None, is_rough)
    return range(1, undisturbed.nodes[min(VICTIM, nodes - 1)].writes - 8)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["torn", "whole"])
@pytest.mark.parametrize("nodes", [1, 4])
def test_a_death_at_some_writes_costs_no_block_and_no_vote(nodes: int, how: str) -> None:
    for write in writes(nodes, BLOCKS)[::23]:
        check(nodes, BLOCKS, write, how)


@pytest.mark.parametrize(("how", "is_rough", "blocks"), EACH)
@pytest.mark.parametrize("nodes", [1, 4])
def test_a_death_at_each_write_costs_no_block_and_no_vote(nodes: int, how: str, is_rough: bool, blocks: int) -> None:
    for write in writes(nodes, blocks, is_rough):
        check(nodes, blocks, write, how, is_rough)
