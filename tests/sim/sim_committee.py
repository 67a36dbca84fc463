"""A committee in virtual time: real replicas, real codec, simulated wires, disks and clocks, all from one seed.

What is checked all the time: no two final blocks at a height; no seat that follows the rules says two things that no
honest seat says, across all its lives; nothing grows without bound. What is asked at the end: that blocks become final
again once faults stop.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sim_committee_app import CHAIN, ROOT, CheapKey, HashApp, Script
from sim_committee_disk import Disk, Violation

from farflung.core.codec import encode
from farflung.core.ids import Hash, PeerId
from farflung.ledger.block import Block, BlockHeader
from farflung.ledger.sdbft import replica_events as ev
from farflung.ledger.sdbft.block_tree import FinalHead
from farflung.ledger.sdbft.catch_up import in_messages
from farflung.ledger.sdbft.leaders import EpochCommittee
from farflung.ledger.sdbft.replica import Replica
from farflung.ledger.sdbft.replica_messages import BlockProposal, Message, VoteMessage, VoteQuorum, read_message
from farflung.ledger.sdbft.votelog_records import Record, epoch_of, read_record
from farflung.ledger.votes import Vote, excludes

LOG_MOST = 8192  # bytes of a vote log, which is then begun anew with what is still needed
IDLE_MS = 200


# The real codec reads all bytes, and equal bytes once: messages are frozen, and reading is a function.
read_once = lru_cache(maxsize=1 << 14)(read_message)


@dataclass
class Wires:
    """What the network does to one message: how long it takes, whether it comes, how often."""

    delay: int = 10
    jitter: int = 0
    drop: float = 0.0
    repeat: float = 0.0
    parts: dict[int, int] = field(default_factory=dict)  # node -> side of the partition

    def times(self, source: random.Random, a: int, b: int) -> list[int]:
        if self.parts and self.parts.get(a, 0) != self.parts.get(b, 0):
            return []
        if not (self.jitter or self.drop or self.repeat):
            return [self.delay]
        if self.drop and source.random() < self.drop:
            return []
        copies = 2 if self.repeat and source.random() < self.repeat else 1
        return [self.delay + (source.randrange(self.jitter) if self.jitter else 0) for _ in range(copies)]


class Node:
    """One process: a replica, its ledger and its disk. Lives end and begin again; the disk stays."""

    is_honest = True

    def __init__(self, world: World, index: int) -> None:
        self.world, self.index = world, index
        self.key: Any = world.keys[index]
        self.disk = Disk()
        self.skew, self.rate = 0, 1000  # local = world * rate / 1000 + skew
        self.life = 0
        self.is_up = False
        self.is_syncing = False  # effects wait for the disk, and events behind them
        self.backlog: list[Any] = []
        self.wakes = 0
        self.writes = 0
        self.is_decaying = False  # its disk flips a bit of the vote log whenever the process dies
        self.kill_at: tuple[int, str] | None = None  # at which write, and how

    # Lives

    def start(self) -> None:
        self.life += 1
        self.is_up, self.is_syncing, self.backlog = True, False, []
        self.app = self.world.make_app()
        final: list[Block] = self.disk.blocks
        for block in final:
            self.app.adopt((block,))
        view = final[-1].certificate.view if final and final[-1].header.epoch == self.app.epoch else 0
        self._reign(FinalHead(self.app.head, view))
        self.feed(ev.ReplicaStartEvent())
        self.feed(ev.WaitingTxsEvent(self.world.works))

    def _reign(self, head: FinalHead) -> None:
        """The replica of the ledger's epoch. From a damaged log none votes: the seat is empty until the next epoch."""
        epoch, logged = self.app.epoch, self.disk.open()
        found = [read_record(data) for data in logged or ()]
        records = [record for record in found if epoch_of(record) == epoch]
        self._signed(tuple(records))
        key = self.key if logged is not None else None
        self.replica = self.world.make_replica(self.world.committee(epoch), head, key, records)

    def crash(self) -> None:
        self.is_up = False
        self.life += 1
        self.disk.crash(self.world.source, self.is_decaying)

    # Clock

    def clock(self) -> int:
        return self.world.now * self.rate // 1000 + self.skew

    def due(self, local: int) -> int:
        return -((self.skew - local) * 1000 // self.rate)

    # Events and effects

    def feed(self, event: ev.Event) -> None:
        if not self.is_up:
            return
        if self.is_syncing:
            self.backlog.append(event)
            return
        self.execute(self.replica.handle(event, self.clock()))

    def execute(self, effects: Iterable[ev.Effect]) -> None:
        waiting = list(effects)
        while waiting and self.is_up:
            effect = waiting.pop(0)
            if isinstance(effect, ev.LogVotesEffect) and self.world.is_logging:
                if self._write(effect.records):
                    if not self.disk.sync_ms:
                        self._signed(effect.records)
                        continue
                    waiting.insert(0, effect)
                    self.is_syncing = True
                    self.world.at(self.world.now + self.disk.sync_ms, self._continue, (self.life, waiting))
                    return
            else:
                self.apply(effect)

    def _continue(self, life: int, waiting: list[ev.Effect]) -> None:
        if life != self.life or not self.is_up:
            return
        self.is_syncing = False
        log = waiting.pop(0)
        assert isinstance(log, ev.LogVotesEffect)
        self.disk.sync()
        self._signed(log.records)
        self.execute(waiting)
        while self.backlog and self.is_up and not self.is_syncing:
            self.feed(self.backlog.pop(0))

    def _signed(self, records: tuple[Record, ...]) -> None:
        """These are durable: signed from now on, whenever they leave."""
        for record in records:
            if self.is_honest and not isinstance(record, VoteQuorum):
                self.world.said(self.index, record)

    def _write(self, records: tuple[Record, ...]) -> bool:
        """Appends to the log; False when the process dies over it."""
        how = self._fate()
        data = [encode(record) for record in records]
        if len(self.disk.votes) > LOG_MOST:
            if how != "torn":
                self.disk.begin([*map(encode, self.replica.records()), *data])
        else:
            self.disk.append(data)
            if how == "whole" or not (how or self.disk.sync_ms):
                self.disk.sync()
        if how:
            self._die()
        return not how

    def _fate(self) -> str:
        """Whether the process dies over this write, or right behind it."""
        self.writes += 1
        return self.kill_at[1] if self.kill_at is not None and self.kill_at[0] == self.writes else ""

    def _die(self) -> None:
        self.crash()
        self.world.at(self.world.now + 50, self._revive, (self.life,))

    def _revive(self, life: int) -> None:
        if life == self.life:
            self.start()

    def apply(self, effect: ev.Effect) -> None:
        match effect:
            case ev.SendEffect(peer, message):
                self.post(self.world.index_of[peer], message)
            case ev.BroadcastEffect(message):
                self.post(None, message)
            case ev.WakeEffect(at_ms):
                self.wakes += 1
                self.world.at(max(self.world.now, self.due(at_ms)), self._wake, (self.wakes, self.life))
            case ev.BuildBlockEffect(view, parent):
                draft = self.app.build(parent, self.key.public, self.clock())
                closes = self.app.closes(draft.header)
                self.world.at(
                    self.world.now, self._told, (self.life, ev.BlockBuiltEvent(view, draft, closes, self.app.works))
                )
            case ev.CheckBlockEffect(draft, is_new):
                valid = self.app.judge(draft, self.clock(), is_new)
                judged = ev.BlockCheckedEvent(draft.header.id, valid, self.app.closes(draft.header), self.app.works)
                self.world.at(self.world.now, self._told, (self.life, judged))
            case ev.FinalBlocksEffect(blocks):
                self._final(blocks)
            case ev.AccuseEffect(first, second):
                self.world.accused(first, second)
            case ev.SendBlocksEffect(peer, height):
                self._answer(peer, height)

    def _wake(self, number: int, life: int) -> None:
        if (number, life) == (self.wakes, self.life):  # a later Wake replaces this one
            self.feed(ev.ReplicaTickEvent())

    def _told(self, life: int, event: ev.Event) -> None:
        if life == self.life:
            self.feed(event)

    def _final(self, blocks: tuple[Block, ...]) -> None:
        how = self._fate()
        if how != "torn":  # one transaction: whole or not at all
            self.disk.blocks.extend(blocks)
            self.world.final(self, blocks)
        if how:
            self._die()
            return
        closes = self.app.adopt(blocks)
        if closes:
            self.world.at(self.world.now + self.world.handover_ms, self._succeed, (self.life,))
        else:
            self.world.at(self.world.now, self._told, (self.life, ev.BlocksStoredEvent(blocks[-1].header.id, closes)))

    def _succeed(self, life: int) -> None:
        """The next epoch's replica takes over; what was meant for the old one is void."""
        if life != self.life:
            return
        self.life += 1
        self.disk.begin(())  # also where it was damaged: it held no vote of this epoch
        self._reign(FinalHead(self.app.head, 0))
        self.feed(ev.ReplicaStartEvent())
        self.feed(ev.WaitingTxsEvent(self.world.works))

    def _answer(self, peer: PeerId, height: int) -> None:
        for blocks in in_messages(self.disk.blocks[height:], self.world.blocks_shown):
            self.post(self.world.index_of[peer], blocks)

    def post(self, to: int | None, message: Message) -> None:
        """Sends, and notes what a seat that follows the rules has said."""
        if self.is_honest:
            self.world.said(self.index, message)
        self.world.carry(self.index, to, message)


class World:
    """All nodes, the wires between them, one clock and one source of chance."""

    is_logging = True
    blocks_shown = 64  # in one message

    def __init__(
        self,
        nodes: int,
        script: Script | None = None,
        *,
        seed: int = 0,
        delta_ms: int = 100,
        works: bool = True,
        keys: list[Any] | None = None,
    ) -> None:
        self.source = random.Random(seed)
        self.now, self._order = 0, 0
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.script = script or Script((tuple(range(nodes)),))
        self.delta_ms, self.works = delta_ms, works
        self.wires = Wires()
        self.keys: list[Any] = keys or [CheapKey(index) for index in range(nodes)]
        self.index_of = {key.public: index for index, key in enumerate(self.keys)}
        self.final_at: dict[int, Hash] = {0: ROOT.id}
        self.final_times: dict[int, int] = {}
        self.proposed: dict[Hash, int] = {}
        self.statements: dict[tuple[int, int, int], list[Vote]] = {}
        self.accusations: set[int] = set()
        self.sent: Counter[str] = Counter()
        self.messages_most = 10**7
        self.handover_ms = 0  # from one epoch's replica to the next
        self.loyal: list[int] = []
        self.plan = random.Random(seed)
        self.make_app: Callable[[], Any] = lambda: HashApp(self.script, self.works)
        self.make_replica: Callable[..., Replica] = Replica
        self.nodes: list[Node] = [Node(self, index) for index in range(nodes)]

    def committee(self, epoch: int) -> EpochCommittee:
        members = tuple(self.keys[index].public for index in self.script.reigns[epoch])
        return EpochCommittee(CHAIN, epoch, members, self.delta_ms, IDLE_MS)

    def at(self, time: int, call: Callable[..., None], arguments: tuple[Any, ...] = ()) -> None:
        self._order += 1
        heapq.heappush(self._queue, (time, self._order, call, arguments))

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    def run(self, until: int, done: Callable[[], bool] = lambda: False) -> bool:
        """Runs up to a time, or until `done` says so; what `done` says last."""
        while not (is_done := done()) and self._queue and self._queue[0][0] <= until:
            self.now, _, call, arguments = heapq.heappop(self._queue)
            call(*arguments)
        if not is_done:
            self.now = until
        return is_done

    # Wires

    def carry(self, sender: int, to: int | None, message: Message) -> None:
        data = encode(message)
        if self.sent.total() > self.messages_most:
            raise Violation(f"a storm: {dict(self.sent)}")
        self.sent[message.__struct_config__.tag] += 1 if to is not None else len(self.nodes) - 1
        arriving = read_once(data)
        targets = range(len(self.nodes)) if to is None else (to,)
        for target in targets:
            if target != sender:
                for delay in self.wires.times(self.source, sender, target):
                    self.at(self.now + delay, self.deliver, (sender, target, arriving))

    def deliver(self, sender: int, target: int, message: Message) -> None:
        self.nodes[target].feed(ev.ReplicaMessageEvent(self.keys[sender].public, message))

    def is_settled(self) -> bool:
        """Whether all that was handed in is final."""
        return True

    # What must hold

    def said(self, index: int, message: Message) -> None:
        """An honest node sends this: its own votes must never contradict each other."""
        if isinstance(message, BlockProposal):
            parent = self.nodes[index].app.executed.get(message.header.parent)
            if parent and parent.epoch == message.header.epoch and self.nodes[index].app.closes(parent):
                raise Violation(f"node {index} builds on a block that closes the epoch")
            self.proposed.setdefault(message.signed.vote.block, self.now)
        if not isinstance(message, VoteMessage | BlockProposal):
            return
        vote = message.signed.vote
        members = self.script.reigns[vote.epoch]
        if members[message.signed.seat] != index:
            return  # another's proposal, shown to who lacks it
        said = self.statements.setdefault((index, vote.epoch, vote.view), [])
        if vote in said:
            return
        if vote.epoch != self.nodes[index].app.epoch:
            raise Violation(f"node {index} signs in epoch {vote.epoch}, and is in {self.nodes[index].app.epoch}")
        for before in said:
            if excludes(before, vote):
                raise Violation(
                    f"seat of node {index} signed twice in view {vote.view}: {before.kind!r}, {vote.kind!r}"
                )
        said.append(vote)

    def final(self, node: Node, blocks: tuple[Block, ...]) -> None:
        if not node.is_honest:
            return
        for block in blocks:
            height, name = block.header.height, block.header.id
            if block.header.epoch != node.app.epoch:
                raise Violation(f"a block of epoch {block.header.epoch} is final in epoch {node.app.epoch}")
            if self.final_at.setdefault(height, name) != name:
                raise Violation(f"two final blocks at height {height}; node {node.index} has the second")
            self.final_times.setdefault(height, self.now)

    def accused(self, first: Any, second: Any) -> None:
        index = self.script.reigns[first.vote.epoch][first.seat]
        if self.nodes[index].is_honest:
            raise Violation(f"node {index} is accused, and honest")
        self.accusations.add(index)

    def check_memory(self, most: int) -> None:
        for node in self.honest:
            if node.replica.held() > most:
                raise Violation(f"node {node.index} holds {node.replica.held()} messages")

    @property
    def honest(self) -> list[Node]:
        return [node for node in self.nodes if node.is_honest]

    def heights(self) -> list[int]:
        return [len(node.disk.blocks) for node in self.honest]


__all__ = ["BlockHeader", "FinalHead", "Node", "Violation", "Wires", "World"]
