"""Twins: a seat that lives twice under one key, and a network that is cut in every way (Bano et al., "Twins", 2020).

Each of the first rounds has its own cut of the five nodes of a committee of four: the honest seats and the two halves
of the twin. Leaders rotate. After these rounds everybody hears everybody, and blocks must become final.

All scripts of cuts are a tree, and `explore` walks it: what several scripts begin with is played once, and goes on in
one copy of the world for each next cut. Nothing is merged, so that what a copy goes through is what the whole script
played from its beginning goes through. Two scripts count as one where they differ by names alone: of the two sides in a
round, and of a twin's two halves from the first round to the last.
"""

from __future__ import annotations

import gc
import io
import itertools
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from sim_committee import Node, Violation, Wires, World
from sim_committee_app import CheapKey, Script, cheap_signatures

from farflung.core.codec import Wire
from farflung.core.ids import PeerId
from farflung.ledger.sdbft.leaders import EpochCommittee
from farflung.ledger.sdbft.replica_checks import ReplicaChecks
from farflung.ledger.sdbft.replica_messages import Message

DELTA = 6
ROUND_MS = 25  # of virtual time with one cut: a whole exchange, and the time-out of a view
BLOCKS = 1  # final after the cuts
Cut = tuple[int, ...]  # node -> side
Cuts = tuple[Cut, ...]  # one for each round


class Twin(Node):
    """Follows all rules, but there are two of it."""

    is_honest = False


class TwinWorld(World):
    """Nodes 0 .. seats - 1 have the seats; each further node is the second half of one of `twins`."""

    def __init__(self, seats: int, twins: tuple[int, ...], seed: int = 0) -> None:
        keys = [CheapKey(index) for index in (*range(seats), *twins)]
        super().__init__(len(keys), Script((tuple(range(seats)),)), seed=seed, delta_ms=DELTA, keys=keys)
        self.seats, self.twins = seats, twins
        for index in (*twins, *range(seats, len(keys))):
            self.nodes[index] = Twin(self, index)
        self.index_of = {PeerId(keys[index].public): index for index in reversed(range(len(keys)))}
        self.wires = Wires(delay=5)

    def carry(self, sender: int, to: int | None, message: Message) -> None:
        """Both halves have one name: what is sent to it alone comes to both."""
        super().carry(sender, to, message)
        for place, seat in enumerate(self.twins):
            if to == seat:
                super().carry(sender, self.seats + place, message)

    def endure(self, cut: Cut) -> None:
        """One more round, cut like this."""
        self.wires.parts = dict(enumerate(cut))
        self.run((self.now // ROUND_MS + 1) * ROUND_MS)

    def settle(self) -> None:
        """Everybody hears everybody, and a block must become final at every honest seat; else raises Violation."""
        self.wires.parts = {}
        goal = max(self.final_at) + BLOCKS
        if not self.run(self.now + 100_000, lambda: min(self.heights()) >= goal):
            raise Violation(f"not live: {self.heights()}")


def pairs(seats: int, twins: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The two halves of each twin."""
    return tuple((seat, seats + place) for place, seat in enumerate(twins))


def cuts(nodes: int) -> tuple[Cut, ...]:
    """Every way to cut the nodes into two sides, which have no names."""
    return tuple((0, *sides) for sides in itertools.product((0, 1), repeat=nodes - 1))


def is_first(script: Cuts, halves: tuple[tuple[int, int], ...]) -> bool:
    """Whether a script is the least of those that differ by the names of twins' halves.

    What begins with something else than such a least beginning is not the least either.
    """
    for swaps in itertools.product((False, True), repeat=len(halves)):
        other = script
        for is_swapped, (a, b) in zip(swaps, halves, strict=True):
            if is_swapped:
                other = tuple(_swapped(cut, a, b) for cut in other)
        if other < script:
            return False
    return True


def _swapped(cut: Cut, a: int, b: int) -> Cut:
    sides = list(cut)
    sides[a], sides[b] = sides[b], sides[a]
    return tuple(side ^ sides[0] for side in sides)  # node 0 is on side 0


def scripts(seats: int, twins: tuple[int, ...], rounds: int, begun: Cuts = ()) -> Iterator[Cuts]:
    """Every script of so many rounds that begins so, alike under exchange of sides and of twins' halves."""
    if not is_first(begun, pairs(seats, twins)):
        return
    if len(begun) == rounds:
        yield begun
        return
    for cut in cuts(seats + len(twins)):
        yield from scripts(seats, twins, rounds, (*begun, cut))


def play(seats: int, twins: tuple[int, ...], script: Cuts, seed: int = 0) -> TwinWorld:
    """Runs one script from its beginning; raises Violation. The world sees every honest vote and every final block."""
    world = TwinWorld(seats, twins, seed)
    with cheap_signatures():
        world.start()
        for cut in script:
            world.endure(cut)
        world.settle()
    return world


def explore(seats: int, twins: tuple[int, ...], rounds: int, begun: Cuts = ()) -> Iterator[tuple[Cuts, TwinWorld]]:
    """Each of `scripts` that begins so, and the world at its end until the next is asked for; raises as `play`."""
    world = TwinWorld(seats, twins)
    with cheap_signatures(), uncollected():
        world.start()
        for cut in begun:
            world.endure(cut)
        yield from _branch(world, begun, rounds)


def _branch(world: TwinWorld, begun: Cuts, rounds: int) -> Iterator[tuple[Cuts, TwinWorld]]:
    if len(begun) == rounds:
        with named(begun):
            world.settle()
        yield begun, world
        return
    saved, halves = Saved(world), pairs(world.seats, world.twins)
    for cut in cuts(len(world.nodes)):
        script = (*begun, cut)
        if is_first(script, halves):
            world = saved.copy()
            with named(script):
                world.endure(cut)
            yield from _branch(world, script, rounds)
            vars(world).clear()  # it and its nodes name each other


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector of cycles, which would look at every world again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def named(script: Cuts) -> Iterator[None]:
    """Whatever goes wrong says after which cuts."""
    try:
        yield
    except AssertionError as error:
        error.add_note(f"play(..., {script})")
        raise


SHARED = (
    Wire,
    CheapKey,
    EpochCommittee,
    ReplicaChecks,
    Script,
    random.Random,
    FunctionType,
)  # nobody changes these here


class Saved:
    """A world at one moment, of which as many copies can be had as are wanted."""

    def __init__(self, world: TwinWorld) -> None:
        data = io.BytesIO()
        pickler = _Pickler(data, pickle.HIGHEST_PROTOCOL)
        pickler.dump(world)
        self._data, self._shared = data.getvalue(), pickler.shared

    def copy(self) -> TwinWorld:
        unpickler = _Unpickler(io.BytesIO(self._data))
        unpickler.shared = self._shared
        world: TwinWorld = unpickler.load()
        return world


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.shared: list[Any] = []

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, SHARED):
            return None
        self.shared.append(value)
        return len(self.shared) - 1


class _Unpickler(pickle.Unpickler):
    shared: list[Any]

    def persistent_load(self, place: int) -> Any:
        return self.shared[place]
