"""One seed, one schedule: a committee, faults until GST, then quiet, and what must come of it.

python tests/sim/sim_committee_schedules.py --seed N    one schedule; sim_committee_soak.py runs many
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))

from sim_committee import Node, Violation, Wires, World
from sim_committee_actors import ACTORS, put
from sim_committee_app import Script, cheap_signatures
from sim_committee_clients import law_world

from farflung.core.crypto import local_key
from farflung.ledger import due_times
from farflung.ledger.sdbft import replica_events as ev
from farflung.ledger.votes import faults

BLOCKS_AFTER = 4  # final after GST, at every honest node
DEADLINE_MS = 400_000  # of virtual time, for them
REAL_KEYS = 50  # every so many schedules the signatures are Ed25519
HEARTBEAT_MS = 2_000  # of an idle ledger: some clients wait for a time that no row is due at
WHOLE = 10  # every so many schedules run whole validators
MESSAGES_MOST = 100_000  # in one schedule
KEPT_MESSAGES = 4000  # what one replica may hold at any time in these schedules

SHAPES: tuple[tuple[tuple[tuple[int, ...], ...], int], ...] = (
    (((0, 1, 2, 3),), 1 << 30),
    (((0, 1, 2, 3),), 1 << 30),
    (((0, 1, 2, 3),), 1 << 30),
    (((0, 1, 2, 3, 4, 5, 6),), 1 << 30),
    (((0,), (0, 1, 2, 3), (0, 1, 2, 3, 4, 5, 6), (3, 4, 5, 6)), 3),
    (((0, 1, 2, 3), (1, 2, 3, 4), (4, 3, 2, 0)), 2),
    (((0, 1, 2, 3), (0,), (0, 1, 2, 3)), 3),
)


def build(seed: int) -> World:
    """The world of a seed, before it starts."""
    source = random.Random(seed ^ 0x5DBF7)
    world, room = whole(seed, source) if seed % WHOLE == WHOLE - 1 else light(seed, source)
    loyal = [node.index for node in world.nodes if node.is_honest]
    if len(loyal) == len(world.nodes) and room > 0 and source.random() < 0.1:
        world.nodes[source.randrange(len(world.nodes))].is_decaying = True
    for node in world.nodes:
        node.skew, node.rate = source.randint(-200, 200) + 1000, source.choice((1000, 1000, 990, 1015))
        node.disk.sync_ms = source.choice((0, 0, 0, 2, 15))
    world.loyal = loyal
    world.plan = source
    world.messages_most = MESSAGES_MOST
    return world


def keys_of(seed: int, nodes: int) -> list[Any] | None:
    return [local_key(seed, "seat", index) for index in range(nodes)] if seed % REAL_KEYS == 0 else None


def light(seed: int, source: random.Random) -> tuple[World, int]:
    """Replicas over a ledger of hashes; how many seats may fail in every epoch."""
    reigns, blocks = source.choice(SHAPES)
    nodes = 1 + max(max(committee) for committee in reigns)
    script, delta_ms = Script(reigns, blocks), source.choice((20, 40))
    world = World(nodes, script, seed=seed, delta_ms=delta_ms, keys=keys_of(seed, nodes))
    world.works = source.random() < 0.9
    room = min(faults(len(committee)) for committee in reigns)
    if room or len(reigns) > 1:
        count = source.randint(0, max(room, 1))
        for index in source.sample(range(nodes), count):
            if all(faults(len(committee)) >= 1 or index not in committee for committee in reigns):
                put(world, index, source.choice(ACTORS))
    return world, room


def whole(seed: int, source: random.Random) -> tuple[World, int]:
    """Whole validators, and clients that pay, hire, join and move."""
    world, seats = law_world(seed, source, seed % (REAL_KEYS * WHOLE) == WHOLE - 1)
    room = faults(seats)
    for index in source.sample(range(seats), source.randint(0, room)):
        put(world, index, source.choice(ACTORS))
    return world, room


def trouble(world: World) -> int:
    """Sets faults on the calendar; the time when they end."""
    source, gst = world.plan, world.plan.choice((150, 300, 600))
    world.wires = Wires(
        delay=source.choice((1, 5, 10)),
        jitter=source.choice((0, 5, 30, 120)),
        drop=source.choice((0.0, 0.0, 0.1, 0.3)),
        repeat=source.choice((0.0, 0.1)),
    )
    for _ in range(source.randrange(4)):
        begin = source.randrange(gst)
        world.at(begin, part, (world, {node.index: source.randrange(2) for node in world.nodes}))
        world.at(begin + source.randrange(200), part, (world, {}))
    for _ in range(source.randrange(4)):
        node = world.nodes[source.choice(world.loyal)]
        world.at(source.randrange(gst), crash, (world, node))
    if source.random() < 0.3:
        node = world.nodes[source.choice(world.loyal)]
        node.kill_at = (1 + source.randrange(30), source.choice(("torn", "whole")))
    return gst


def part(world: World, parts: dict[int, int]) -> None:
    world.wires.parts = parts


def crash(world: World, node: Node) -> None:
    if not node.is_up:
        return
    node.crash()
    world.at(world.now + world.plan.randrange(100), revive, (node, node.life))


def revive(node: Node, life: int) -> None:
    if node.life == life and not node.is_up:
        node.start()


def settle(world: World) -> None:
    """GST: everything arrives, in time."""
    world.wires = Wires(delay=world.wires.delay, jitter=min(world.wires.jitter, 10))
    for node in world.nodes:
        node.kill_at = None
        if not node.is_up:
            node.start()
    for node in world.nodes:
        for other in world.nodes:
            if other is not node:
                node.feed(ev.ReplicaPeerEvent(other.key.public))


def play(seed: int, make: Callable[[int], World] = build) -> World:
    """Runs one schedule; raises Violation."""
    world = make(seed)
    with cheap_signatures(), mock.patch.object(due_times, "HEARTBEAT_MS", HEARTBEAT_MS):
        gst = trouble(world)
        world.start()
        world.run(gst)
        settle(world)
        goal = max(world.final_at) + BLOCKS_AFTER
        if not world.run(gst + DEADLINE_MS, lambda: min(world.heights()) >= goal and world.is_settled()):
            raise Violation(f"not live: heights {world.heights()}, goal {goal}, settled {world.is_settled()}")
        world.check_memory(KEPT_MESSAGES)
    return world


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    line = failure(seed)
    print(line or f"seed {seed}: no rule was broken")
    return 1 if line else 0


def failure(seed: int) -> str:
    """What went wrong with a seed, in one line that says how to see it again; empty if nothing did."""
    try:
        play(seed)
    except Exception as error:  # whatever it is, it is this seed's
        told = " ".join(repr(error).split())[:300]
        return f"seed {seed}: {told}; again: python tests/sim/sim_committee_schedules.py --seed {seed}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
