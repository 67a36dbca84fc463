"""Rules taken away one at a time, and the scenarios that each must show up in.

A mutant is a context in which one small function of the replica, or one habit of its shell, is another. A scenario
raises Violation when a rule is missing, and passes otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from sim_committee import Node, Violation, Wires, World
from sim_committee_actors import Equivocator, Forger, Forker, Invalid, Traitor, put
from sim_committee_app import Script, cheap_signatures
from sim_committee_disk import Disk

from farflung.core.ids import ZERO_HASH
from farflung.ledger import votes
from farflung.ledger.sdbft import block_tree, replica, vote_tally, votelog_format
from farflung.ledger.sdbft.replica_checks import ReplicaChecks
from farflung.ledger.votes import VoteKind

DELTA = 100


@contextmanager
def swap(place: Any, **others: Any) -> Iterator[None]:
    kept = {name: getattr(place, name) for name in others}
    for name, other in others.items():
        setattr(place, name, other)
    try:
        yield
    finally:
        for name, other in kept.items():
            setattr(place, name, other)


# Mutants


@contextmanager
def quorum_minus_one() -> Iterator[None]:
    def is_quorum(count: int, seats: int) -> bool:
        return 3 * (count + 1) > 2 * seats

    with swap(votes, is_quorum=is_quorum), swap(vote_tally, is_quorum=is_quorum):
        yield


def finalize_after_nullify() -> AbstractContextManager[None]:
    return swap(replica, may_finalize=lambda cast: VoteKind.FINALIZE not in cast)


def nullify_after_finalize() -> AbstractContextManager[None]:
    """The timer nullifies the view before, too: in its own view a replica has never voted FINALIZE."""
    tick = replica.Replica._tick

    def _tick(self: Any) -> None:
        if self._now >= self._deadline() and VoteKind.NULLIFY not in self._kinds(self._view - 1) and self._view > 1:
            self._vote(self._view - 1, VoteKind.NULLIFY, ZERO_HASH)
        tick(self)

    return swap(replica.Replica, _tick=_tick)


@contextmanager
def notarize_twice() -> Iterator[None]:
    """Every proposal of the view is voted for, not the first alone."""

    def _notarize(self: Any) -> bool:
        found, leader = self._vote_tallies.find(self._view), self.committee.leader(self._view)
        for proposal in found.proposals if found and self._seat not in (None, leader) else ():
            block = proposal.signed.vote.block
            cast = [signed.vote.block for signed in self._cast.get(self._view, ())]
            if block not in cast and self._execute(block) and self._block_tree.has_link(self._view, proposal):
                self._vote(self._view, VoteKind.NOTARIZE, block)
                return True
        return False

    def takes(self: Any, block: Any) -> bool:
        return self.proposal(block) is None and len(self.proposals) < vote_tally.PROPOSALS_KEPT

    with swap(replica.Replica, _notarize=_notarize), swap(vote_tally.ViewTally, takes=takes):
        yield


def votes_before_the_disk() -> AbstractContextManager[None]:
    return swap(World, is_logging=False)


def any_parent() -> AbstractContextManager[None]:
    return swap(block_tree.BlockTree, has_link=lambda self, view, proposal: True)


def unsigned_quorums() -> AbstractContextManager[None]:
    checks = ReplicaChecks(has_quorum=lambda certificate, vote, members: True)
    return swap(replica, ReplicaChecks=lambda: checks)


def unsigned_votes() -> AbstractContextManager[None]:
    checks = ReplicaChecks(is_vote_signed=lambda signed, members: True)
    return swap(replica, ReplicaChecks=lambda: checks)


def signs_when_the_epoch_is_over() -> AbstractContextManager[None]:
    final = replica.Replica._final

    def _final(self: Any, blocks: Any, view: int) -> None:
        final(self, blocks, view)
        self.is_over, self._adopting = False, None

    return swap(replica.Replica, _final=_final)


def builds_on_a_closing_block() -> AbstractContextManager[None]:
    return swap(block_tree.BlockTree, closes=lambda self, block: False)


def votes_for_invalid_blocks() -> AbstractContextManager[None]:
    execute = replica.Replica._execute

    def _execute(self: Any, block: Any) -> bool:
        return execute(self, block) or self._block_tree.verdict(block) is not None

    return swap(replica.Replica, _execute=_execute)


def notarized_views_end_the_doubling() -> AbstractContextManager[None]:
    def unfinished_before(self: Any, view: int) -> int:
        first = view
        while self._tallies.is_nullified(first - 1) and self._tallies.notarized(first - 1) is None:
            first -= 1
        return view - first

    return swap(block_tree.BlockTree, unfinished_before=unfinished_before)


def the_log_is_emptied_when_opened() -> AbstractContextManager[None]:
    """Its file is rewritten before it was read."""
    return swap(votelog_format, read_frames=lambda data: votelog_format.VoteLogContents((), None))


@contextmanager
def the_log_is_cut_where_it_is_damaged() -> Iterator[None]:
    read_frames = votelog_format.read_frames
    with swap(votelog_format, read_frames=lambda data: votelog_format.VoteLogContents(read_frames(data).records, None)):
        yield


def a_torn_frame_stays_in_the_log() -> AbstractContextManager[None]:
    """Opening does not write anew what it found sound: the next frame lies behind the torn one."""
    begin = Disk.begin

    def _begin(self: Any, records: Any) -> None:
        if self.votes and [*records] == self._written[: len(records)]:
            self._next = len(records) + 1
        else:
            begin(self, records)

    return swap(Disk, begin=_begin)


def a_torn_frame_is_sound() -> AbstractContextManager[None]:
    """Bodies are not compared with their check."""
    return swap(votelog_format, is_sound=lambda data, place, end: True)


def a_damaged_frame_is_torn() -> AbstractContextManager[None]:
    return swap(votelog_format, _is_torn=lambda data, place, number: True)


MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    mutant.__name__: mutant
    for mutant in (
        quorum_minus_one,
        finalize_after_nullify,
        nullify_after_finalize,
        notarize_twice,
        votes_before_the_disk,
        any_parent,
        unsigned_quorums,
        unsigned_votes,
        signs_when_the_epoch_is_over,
        builds_on_a_closing_block,
        votes_for_invalid_blocks,
        notarized_views_end_the_doubling,
        the_log_is_emptied_when_opened,
        the_log_is_cut_where_it_is_damaged,
        a_torn_frame_stays_in_the_log,
        a_torn_frame_is_sound,
        a_damaged_frame_is_torn,
    )
}


# Scenarios


def stage(nodes: int = 4, script: Script | None = None, seed: int = 0, **traitors: type[Traitor]) -> World:
    """A committee with work; `seat2=Forker` makes node 2 a traitor."""
    world = World(nodes, script, seed=seed, delta_ms=DELTA)
    for name, kind in traitors.items():
        put(world, int(name.removeprefix("seat")), kind)
    return world


def run(world: World, until: int = 3000, goal: int = 6) -> None:
    with cheap_signatures():
        world.start()
        if not world.run(until, lambda: min(world.heights()) >= goal):
            raise Violation(f"not live: {world.heights()}")


def two_halves() -> None:
    """A partition: neither side may go on alone, and both do together."""
    world = stage()
    world.wires = Wires(parts={0: 0, 1: 0, 2: 1, 3: 1})
    world.at(2000, setattr, (world, "wires", Wires()))
    run(world, 20_000)


def slow_quorums() -> None:
    """Timers fire before the votes are there: each view is nullified by some and notarized by others."""
    world = stage()
    world.wires = Wires(delay=160)
    world.at(6000, setattr, (world, "wires", Wires()))
    run(world, 60_000)


def slow_for_ever() -> None:
    """Votes always take longer than half the first timer: each view is notarized, and nullified before that is seen."""
    world = stage()
    world.wires = Wires(delay=160)
    run(world, 8000)


def slow_last_votes() -> None:
    """One seat hears everything late, so the others' timers fire in the view after one that they finalized."""
    world = stage()
    world.wires = Wires(delay=10, jitter=400)
    world.at(8000, setattr, (world, "wires", Wires()))
    run(world, 60_000)


def a_leader_dies_over_its_proposal() -> None:
    """It proposed, and starts again with a later clock: a second block in the same view would be a second vote."""
    world = stage()
    for at in range(5, 600, 20):
        for node in world.nodes:
            world.at(at + node.index, _restart, (node,))
    run(world, 60_000)


def disks_that_tear() -> None:
    """Everybody dies over writes, so that unsynced frames are left in part."""
    world = stage()
    for node in world.nodes:
        node.disk.sync_ms = 3
    for at in range(5, 900, 13):
        world.at(at, _restart, (world.nodes[at % 4],))
    run(world, 60_000)


def a_disk_that_decays() -> None:
    """One seat's disk flips a bit at each death; it must not vote from such a log, and the others go on."""
    for seed in range(3):
        world = stage(seed=seed)
        world.nodes[1].is_decaying = True
        for at in (75 + seed, 190, 300):
            world.at(at, _restart, (world.nodes[1],))
        run(world, 60_000)


def _restart(node: Node) -> None:
    node.crash()
    node.start()


def an_equivocating_leader() -> None:
    run(stage(seat1=Equivocator), 20_000, 12)


def a_leader_that_forks() -> None:
    world = stage(seat3=Forker)
    world.wires = Wires(delay=5, jitter=40)
    run(world, 6000, 30)


def a_leader_that_forges_quorums() -> None:
    run(stage(seat1=Forger), 20_000, 12)


def a_leader_of_invalid_blocks() -> None:
    run(stage(seat1=Invalid), 20_000, 12)


def a_committee_that_changes() -> None:
    script = Script(((0, 1, 2, 3), (1, 2, 3, 0), (2, 3, 0, 1)), 2)
    run(stage(script=script), 20_000, 8)


def a_slow_succession() -> None:
    """The old replica hears on for a while after its epoch is over."""
    world = stage(script=Script(((0, 1, 2, 3), (1, 2, 3, 0), (2, 3, 0, 1)), 2))
    world.handover_ms = 1000
    run(world, 20_000, 6)


def a_change_under_delays() -> None:
    """A closing block is proposed again and again, and its FINALIZE votes come after later views' NOTARIZE."""
    for seed in range(8):
        world = stage(script=Script(((0, 1, 2, 3), (1, 2, 3, 0), (2, 3, 0, 1)), 1), seed=seed)
        world.wires = Wires(delay=10, jitter=200)
        world.at(6000, setattr, (world, "wires", Wires()))
        run(world, 60_000, 6)


SCENARIOS: tuple[Callable[[], None], ...] = (
    two_halves,
    slow_quorums,
    slow_for_ever,
    slow_last_votes,
    a_leader_dies_over_its_proposal,
    disks_that_tear,
    a_disk_that_decays,
    an_equivocating_leader,
    a_leader_that_forks,
    a_leader_that_forges_quorums,
    a_leader_of_invalid_blocks,
    a_committee_that_changes,
    a_slow_succession,
    a_change_under_delays,
)


def findings(mutant: Callable[[], AbstractContextManager[None]] | None = None) -> dict[str, str]:
    """Which scenarios report what, with a rule taken away or with none."""
    found = {}
    for scenario in SCENARIOS:
        with ExitStack() as stack:
            if mutant is not None:
                stack.enter_context(mutant())
            try:
                scenario()
            except (AssertionError, KeyError) as error:
                found[scenario.__name__] = str(error)[:100]
    return found
