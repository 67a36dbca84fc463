"""A seat of a simulated committee that the second implementation plays: only bytes go between it and the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from second_codec import pack
from second_messages import EPOCH, HEIGHT, TIME, Header, h
from second_sdbft import Second
from sim_committee import Node, World
from sim_committee_app import CHAIN, NO_TXS, ROOT, Script
from sim_committee_disk import Disk

from farflung.core.codec import encode
from farflung.core.crypto import local_key
from farflung.ledger.sdbft import replica_events as ev
from farflung.ledger.sdbft.replica_messages import BlockProposal, FinalBlocks, VoteMessage, read_message


@dataclass(frozen=True)
class State:
    """After a block of the simulator's ledger, which is a chain of hashes: the committee of the next block."""

    header: Header
    epoch: int
    first: int
    members: Sequence[bytes]
    delta: int
    idle: int = 200
    step: int = 1 << 60


class HashLaw:
    """The simulator's ledger a second time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.script: Script = world.script

    def begin(self, header: Header, epoch: int, first: int) -> State:
        members = [bytes(self.world.keys[index].public) for index in self.script.reigns[epoch]]
        return State(header, epoch, first, members, self.world.delta_ms)

    def reign(self, state: State) -> State:
        return state

    def validators(self, state: State) -> set[bytes]:
        return {bytes(key.public) for key in self.world.keys}

    def play(self, state: State, header: Header, txs: Sequence[Any], judged: bool) -> State | None:
        root = h("sim/state", state.header[7], header[TIME].to_bytes(8, "little"), header[4])
        if list(txs) or header[6] != NO_TXS or header[7] != root or header[EPOCH] != state.epoch:
            return None
        is_end = (header[HEIGHT] - state.first + 1) % self.script.epoch_blocks == 0
        if is_end and state.epoch + 1 < len(self.script.reigns):
            return self.begin(header, state.epoch + 1, header[HEIGHT] + 1)
        return self.begin(header, state.epoch, state.first)

    def fill(self, state: State, parent: Header, key: bytes, clock: int, pool: list[Any]) -> Any:
        time = max(parent[TIME] + 1, clock)
        root = h("sim/state", parent[7], time.to_bytes(8, "little"), key)
        name = h("farflung/header/1", pack(parent))
        return [parent[0], parent[HEIGHT] + 1, state.epoch, time, key, name, bytes(NO_TXS), root], []

    def waits(self, state: State, tx: Any) -> bool:
        return self.world.works


class SecondSeat(Node):
    """The process around it. Its disk keeps what the replica logged, each record synced alone."""

    second: Second

    def __init__(self, world: World, index: int) -> None:
        super().__init__(world, index)
        self.records: list[bytes] = []
        self.epoch = 0  # of what it said last: what was made before an epoch's end leaves before what comes after
        self.app: Any = self  # of which the world asks the next three
        self.replica: Any = self

    @property
    def executed(self) -> dict[bytes, Any]:
        return {}

    def held(self) -> int:
        second = self.second
        return sum(map(len, (second.votes, second.quorums, second.proposals, second.known, second.mine)))

    def start(self) -> None:
        self.life += 1
        self.is_up, self.disk = True, Disk()
        law, root = HashLaw(self.world), [bytes(f) if isinstance(f, bytes) else f for f in _fields(ROOT)]
        seed = local_key(0, "seat", self.index).seed
        self.second = Second(seed, law, root, law.begin(root, 0, 1), self.records, self.clock())
        if self.world.works:
            self.second.submit(["work"])
            self.second.settle()
        self._drain()

    def feed(self, event: ev.Event) -> None:
        if not self.is_up:
            return
        if isinstance(event, ev.ReplicaMessageEvent):
            now = self.clock()
            self.second.message(bytes(event.peer), encode(event.message), now, now)
        elif isinstance(event, ev.ReplicaPeerEvent):
            self.second.connected(bytes(event.peer))
        elif isinstance(event, ev.ReplicaTickEvent):
            self.second.tick(self.clock(), self.clock())
        self._drain()

    def _drain(self) -> None:
        chain = self.second.chain
        if len(chain) > len(self.disk.blocks):
            blocks = read_message(pack(["blocks", chain[len(self.disk.blocks) :]]))
            assert isinstance(blocks, FinalBlocks)
            self.disk.blocks.extend(blocks.blocks)
            for block in blocks.blocks:
                self.world.final_second(block)
        out, self.second.out = self.second.out, []
        for peer, data in out:
            message = read_message(data)
            assert encode(message) == data
            if isinstance(message, VoteMessage | BlockProposal):
                assert message.signed.vote.epoch <= self.second.reign.epoch
                self.epoch = max(self.epoch, message.signed.vote.epoch)
            self.post(None if peer is None else self.world.index_of[peer], message)
        self.wakes += 1
        due = max(self.world.now + 1, self.due(self.second.wakes()))
        self.world.at(due, self._wake, (self.wakes, self.life))


def _fields(header: Any) -> list[Any]:
    return [getattr(header, name) for name in header.__struct_fields__]


class Mixed(World):
    """A committee of real keys, some of whose seats the second implementation plays."""

    def __init__(self, nodes: int, seconds: Sequence[int], script: Script | None = None, **others: Any) -> None:
        keys = [local_key(0, "seat", index) for index in range(nodes)]
        super().__init__(nodes, script, keys=keys, **others)
        for index in seconds:
            self.nodes[index] = SecondSeat(self, index)

    def final_second(self, block: Any) -> None:
        """As `final`, whose check of the epoch knows the product's shell."""
        height, name = block.header.height, block.header.id
        assert self.final_at.setdefault(height, name) == name, f"two final blocks at height {height}"
        self.final_times.setdefault(height, self.now)

    def reach(self, height: int, until: int, nodes: Sequence[Node] = ()) -> bool:
        asked = nodes or self.nodes
        return self.run(until, lambda: all(len(node.disk.blocks) >= height for node in asked))


__all__ = ["CHAIN", "HashLaw", "Mixed", "SecondSeat"]
