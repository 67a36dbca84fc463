"""Whole validators (ledger.ledger_node) in the simulated world: the real law and its blocks, on the same disks and
wires.

What is checked beside what `World` checks: money is whole after each block, the state root is the block's, and nobody
honest loses its seat for what it signed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sim_committee import LOG_MOST, Node, World
from sim_committee_app import CheapKey
from sim_committee_disk import Violation

from farflung.core import limits
from farflung.core.ids import Hash
from farflung.ledger.block import Block, BlockHeader, Genesis
from farflung.ledger.block_execution import ExecutedBlock, make
from farflung.ledger.chain import Chain
from farflung.ledger.ledger_node import ClockTime
from farflung.ledger.ledger_node import LedgerNode as Validator
from farflung.ledger.sdbft import replica_events as ev
from farflung.ledger.sdbft.replica import Replica
from farflung.ledger.sdbft.votelog_records import epoch_of, read_record
from farflung.ledger.state_transition import total_money
from farflung.ledger.transactions import SignedTx
from farflung.ledger.tx_results import Outcome
from farflung.ledger.validators import ValidatorRow, ValidatorState


class Died(Exception):
    """The process ended over a write."""


class Reigns:
    """Who sits when, as the ledger decided it: the place of `Script` in a world with the real law."""

    def __init__(self) -> None:
        self.reigns: dict[int, tuple[int, ...]] = {}


class LawApp:
    """What the world and traitors ask of a validator's ledger."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.ledger: Validator | None = None

    @property
    def epoch(self) -> int:
        return self.chain.state.committee.epoch

    @property
    def blocks(self) -> dict[Hash, ExecutedBlock]:
        """What was executed and is not final, and the head."""
        later = self.ledger._executed if self.ledger is not None else {}
        return {self.chain.head.id: self.chain.tip, **later}

    @property
    def executed(self) -> dict[Hash, BlockHeader]:
        return {name: executed.header for name, executed in self.blocks.items()}

    def closes(self, header: BlockHeader) -> bool:
        return self.blocks[header.id].state.closes

    def build(self, parent: BlockHeader, proposer: Any, now_ms: int) -> ev.DraftBlock:
        made, _ = make(self.blocks[parent.id], (), now_ms, proposer)
        assert self.ledger is not None
        self.ledger._executed[made.header.id] = made
        return ev.DraftBlock(made.header, made.txs)


class LawNode(Node):
    """One process with a whole validator; also its keeper, which dies over writes."""

    ledger: Validator
    world: LawWorld
    barred: int | None = None  # the epoch whose vote log was damaged

    def start(self) -> None:
        self.life += 1
        self.is_up, self.is_syncing, self.backlog = True, False, []
        chain = Chain(self.world.genesis)
        if self.disk.blocks:
            chain.adopt_many(self.disk.blocks)
        self.app = LawApp(chain)
        self._seat_committee(chain)
        records = self.disk.open()
        self._signed(tuple(r for r in map(read_record, records or ()) if epoch_of(r) == self.app.epoch))
        if records is None:
            self.barred = self.app.epoch
            self.disk.begin(())  # the damaged file was moved away
        elif self.barred is not None and self.app.epoch > self.barred:
            self.barred = None
        key = self.key if self.barred is None else CheapKey(1000 + self.index)  # which only follows
        self.ledger = self.app.ledger = Validator(chain, key, self, records or ())
        self.act(lambda: self.ledger.start(self.at()))

    @property
    def replica(self) -> Replica:  # type: ignore[override]
        return self.ledger.replica

    def at(self) -> ClockTime:
        return ClockTime(self.clock(), self.clock())

    def feed(self, event: ev.Event | SignedTx) -> None:
        """An event, or a client's transaction; it waits while the process does."""
        if self.is_up and self.is_syncing:
            self.backlog.append(event)
        elif self.is_up and isinstance(event, SignedTx):
            self.act(lambda: self.ledger.submit([(event, 0)], self.at()))
        elif self.is_up:
            self.act(lambda: self.ledger.handle(event, self.at()))

    def act(self, what: Callable[[], Sequence[Any]]) -> None:
        """Does something, with all that leads to; what must leave waits for the disk."""
        before = self.writes
        try:
            effects = what()
        except Died:
            return
        if self.disk.sync_ms and self.writes > before:
            self.is_syncing = True
            wait = self.disk.sync_ms * (self.writes - before)
            self.world.at(self.world.now + wait, self._leave, (self.life, effects))
        else:
            self.execute(effects)
            self._return()

    def _leave(self, life: int, effects: Sequence[Any]) -> None:
        if life != self.life or not self.is_up:
            return
        self.is_syncing = False
        self.execute(effects)
        while self.backlog and self.is_up and not self.is_syncing:
            self.feed(self.backlog.pop(0))
        self._return()

    def _return(self) -> None:
        """In the next epoch the seat's own key votes again: the lost log had no vote of it."""
        if self.is_up and self.barred is not None and self.app.epoch > self.barred:
            self.is_up, self.life = False, self.life + 1
            self.start()

    # As a keeper

    @property
    def size(self) -> int:
        return 0 if len(self.disk.votes) < LOG_MOST else limits.VOTE_LOG_BYTES

    def log(self, records: Sequence[bytes]) -> None:
        how = self._fate()
        self.disk.append(records)
        if how != "torn":
            self.disk.sync()
        self._survive(how)
        self._signed(tuple(map(read_record, records)))

    def begin(self, records: Sequence[bytes]) -> None:
        how = self._fate()
        if how != "torn":
            self.disk.begin(records)
        self._survive(how)
        self._signed(tuple(r for r in map(read_record, records) if epoch_of(r) == self.app.epoch))

    def adopt(self, chain: Chain, blocks: Sequence[Block]) -> tuple[tuple[Outcome, ...], ...]:
        how = self._fate()
        made = chain.judge(blocks)
        if how != "torn":
            self.world.final(self, tuple(blocks))
            self.disk.blocks += blocks
        self._survive(how)
        outcomes = chain.move(blocks, made)
        self.world.check_state(self, chain)
        self._seat_committee(chain)
        return outcomes

    def _survive(self, how: str) -> None:
        if how:
            self._die()
            raise Died

    def _seat_committee(self, chain: Chain) -> None:
        committee = chain.state.committee
        seats = tuple(self.world.index_of[member] for member in committee.members)
        if self.world.script.reigns.setdefault(committee.epoch, seats) != seats:
            raise Violation(f"node {self.index} has another committee of epoch {committee.epoch}")


class LawWorld(World):
    """All validators of one ledger, and those who may become some."""

    genesis: Genesis

    def __init__(self, nodes: int, genesis: Callable[[list[Any]], Genesis], **options: Any) -> None:
        super().__init__(nodes, **options)
        self.genesis = genesis(self.keys)
        beginning = Chain(self.genesis)
        self.final_at = {0: beginning.head.id}
        self.script: Any = Reigns()
        self.nodes = [LawNode(self, index) for index in range(nodes)]
        self.epochs = 0

    def check_state(self, node: Node, chain: Chain) -> None:
        if not node.is_honest:
            return
        state = chain.state
        if total_money(state) != state.law.minted:
            raise Violation(f"money is not whole at height {chain.head.height}")
        if state.root != chain.head.state:
            raise Violation(f"node {node.index} has another state at height {chain.head.height}")
        self.epochs = max(self.epochs, state.committee.epoch)
        for row in state.rows(ValidatorRow):
            if row.state == ValidatorState.JAILED and self.nodes[self.index_of[row.validator]].is_honest:
                raise Violation(f"node {self.index_of[row.validator]} is jailed, and honest")

    def best(self) -> LawNode | None:
        """The honest validator that is ahead, if one is up."""
        up = [node for node in self.nodes if node.is_honest and node.is_up and isinstance(node, LawNode)]
        return max(up, key=lambda node: len(node.disk.blocks), default=None)
