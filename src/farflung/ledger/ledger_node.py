"""Runs one validator's ledger: its final chain, its mempool, and its replica.

The replica agrees with the others on the next block.

Pure but for its storage, which is handed in and writes to disk: `handle(event, at) -> effects`, where the effects that
are left are what goes over the network and to clients. One object for the life of a process; a replica lives for one
epoch (docs/protocol/sdbft, "Epochs"), and the next one is made here from the committee that the closing block names.

    a client's transaction   judged (here, or by other processes: ledger.verification_queue), kept in the pool, sent to
                             all (PendingTxs), answered when a block with it is final
    BuildBlockEffect         a block of what waits, on a parent that was executed here
    CheckBlockEffect         its time must be near this validator's own; the block is executed when all of its
                             transactions are judged, and there is no vote for it before
    FinalBlocksEffect        stored, then adopted, then answered: nobody hears of what a crash could take back
    AccuseEffect             brought before the ledger as a transaction of this validator's own key
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import VerificationError
from farflung.core.ids import ZERO_HASH, Hash
from farflung.core.size_batches import batches
from farflung.ledger.accusations import AccusationQueue
from farflung.ledger.block import LOGICAL_MS, Block
from farflung.ledger.block_execution import ExecutedBlock, execute, make, next_time
from farflung.ledger.chain import Chain
from farflung.ledger.due_times import next_due
from farflung.ledger.law_version import check_law
from farflung.ledger.mempool import CheckedTxCache, Mempool
from farflung.ledger.rules.accounts import unsound
from farflung.ledger.sdbft import replica_events as ev
from farflung.ledger.sdbft.block_tree import FinalHead
from farflung.ledger.sdbft.catch_up import in_messages
from farflung.ledger.sdbft.leaders import EpochCommittee
from farflung.ledger.sdbft.replica import Replica
from farflung.ledger.sdbft.replica_messages import PendingTxs
from farflung.ledger.sdbft.votelog_records import Record, epoch_of, read_record
from farflung.ledger.table_rows import AccountRow
from farflung.ledger.transactions import SignedTx, make_tx, sign_tx, tx_id
from farflung.ledger.tx_results import Outcome, Result
from farflung.ledger.verification_queue import VerificationQueue, VerifyJob

CLOCK_MS: Final = 5_000  # by which a new block's time may differ from this validator's clock
_NEWS_MS: Final = 20  # by which the time of a due block must move to be told again
_TIMED: Final = 256  # blocks whose time to finality is remembered


class ClockTime(NamedTuple):
    """When something happens: by a clock that never goes back, and by the calendar. Milliseconds."""

    now: int
    wall: int


class NodeStorage(Protocol):
    """Writes to disk; durable on return."""

    def log(self, records: Sequence[bytes]) -> None:
        """Adds to the vote log."""

    def begin(self, records: Sequence[bytes]) -> None:
        """Replaces the vote log."""

    @property
    def size(self) -> int:
        """Bytes of the vote log."""

    def adopt(self, chain: Chain, blocks: Sequence[Block]) -> tuple[tuple[Outcome, ...], ...]:
        """Stores final blocks and moves the chain over them."""


@dataclass(frozen=True, slots=True)
class TicketReply:
    """What became of the transaction that was handed in under this ticket."""

    ticket: int
    result: Result


@dataclass(frozen=True, slots=True)
class FinalityNotice:
    """Blocks became final."""

    height: int


Effect = ev.SendEffect | ev.BroadcastEffect | ev.WakeEffect | ev.AccuseEffect | TicketReply | FinalityNotice | VerifyJob


class LedgerNode:
    """A validator of a committee, or one that follows it."""

    def __init__(
        self,
        chain: Chain,
        key: SigningKey,
        storage: NodeStorage,
        records: Iterable[bytes] = (),
        *,
        is_logical: bool = False,
        parts: int = 0,
    ) -> None:
        """`records`: of the vote log, as it was found. `is_logical`: a local network's time, not the clock's.

        `parts` of what is to be judged are out at a time, as `VerifyJob`; 0: all is judged here.
        """
        self.chain, self._key, self._storage, self._is_logical = chain, key, storage, is_logical
        self.verdicts = CheckedTxCache(lambda signed: unsound(chain.id, signed))
        self.verification_queue = VerificationQueue(
            self.verdicts, lambda signed, holds: unsound(chain.id, signed, holds=holds), parts
        )
        self.pool = Mempool(self.verdicts)
        self._accusations = AccusationQueue(key.public)
        self._executed: dict[Hash, ExecutedBlock] = {}
        self._begun: dict[Hash, int] = {}  # when blocks were made here that are not final
        self.finality: deque[int] = deque(maxlen=_TIMED)  # ms from there to final
        self._waiting: dict[Hash, tuple[SignedTx, list[int]]] = {}
        self._events: list[ev.Event] = []
        self._out: list[Effect] = []
        self._was_ready, self._told_due, self._due = False, 0, (ZERO_HASH, 0)
        self.replica = self._born(read_record(each) for each in records)

    # What happens

    def start(self, at: ClockTime) -> list[Effect]:
        """Before all else."""
        return self.handle(ev.ReplicaStartEvent(), at)

    def handle(self, event: ev.Event, at: ClockTime) -> list[Effect]:
        """Takes an event and all that it leads to here; what must leave, in this order."""
        if isinstance(event, ev.ReplicaMessageEvent) and isinstance(event.message, PendingTxs):
            for signed in event.message.txs:
                self._take_in(signed, (), at)
        else:
            self._events.append(event)
        return self._run(at)

    def submit(self, handed: Sequence[tuple[SignedTx, int]], at: ClockTime) -> list[Effect]:
        """Clients hand in transactions, each under a ticket of its own."""
        self._pass_on([signed for signed, ticket in handed if self._take_in(signed, (ticket,), at)])
        return self._run(at)

    def examined(self, number: int, sound: Sequence[bool] | None, at: ClockTime) -> list[Effect]:
        """What another process found of each transaction of a `VerifyJob`; None: nobody answered."""
        arrivals, drafts = self.verification_queue.settle(number, sound)
        self._pass_on([each.signed for each in arrivals if self._admit(*each, at)])
        self._events += [self._executed_as(draft) for draft in drafts]
        return self._run(at)

    def forget(self, tickets: Iterable[int]) -> None:
        """Nobody waits for these any more."""
        gone = set(tickets)
        self.verification_queue.forget(gone)
        for name, (signed, waiting) in tuple(self._waiting.items()):
            left = [ticket for ticket in waiting if ticket not in gone]
            if left:
                self._waiting[name] = (signed, left)
            else:
                del self._waiting[name]

    def _take_in(self, signed: SignedTx, tickets: Sequence[int], at: ClockTime) -> bool:
        """Whether others should hear of it now; where it waits to be judged, they may hear later."""
        return not self.verification_queue.defer(signed, tickets) and self._admit(signed, tickets, at)

    def _admit(self, signed: SignedTx, tickets: Sequence[int], at: ClockTime) -> bool:
        """Into the pool; whether a client brought it, and it is new here."""
        was_there = tx_id(signed) in self.pool
        result = self._offer(signed, at)
        if result is not None:
            self._out += [TicketReply(ticket, result) for ticket in tickets]
        elif tickets:
            self._waiting.setdefault(tx_id(signed), (signed, []))[1].extend(tickets)
        return result is None and bool(tickets) and not was_there

    def _pass_on(self, txs: Sequence[SignedTx]) -> None:
        self._out += [
            ev.BroadcastEffect(PendingTxs(part))
            for part in batches(txs, lambda signed: len(encode(signed)), limits.BLOCK_BYTES)
        ]

    # What it leads to

    def _run(self, at: ClockTime) -> list[Effect]:
        self._tell_work(at)
        while self._events:
            replica = self.replica
            for effect in replica.handle(self._events.pop(0), at.now):
                self._carry_out(effect, at)
            if self.replica is replica and replica.is_over and self.chain.state.closes:
                self._next_epoch()
            self._tell_work(at)
        out, self._out = [*self._out, *self.verification_queue.hand_out()], []
        return out

    def _carry_out(self, effect: ev.Effect, at: ClockTime) -> None:
        match effect:
            case ev.LogVotesEffect(records):
                self._log([encode(record) for record in records])
            case ev.BuildBlockEffect(view, parent):
                built = self._built(parent.id, at)
                self._events += [self._told(view, built)] if built else []
            case ev.CheckBlockEffect(draft, is_new):
                self._judge(draft, is_new, at)
            case ev.FinalBlocksEffect(blocks):
                self._final(blocks, at)
            case ev.SendBlocksEffect(peer, height):
                stored = self.chain.history.blocks(height + 1, self.chain.head.height - height)
                self._out += [ev.SendEffect(peer, blocks) for blocks in in_messages(stored)]
            case ev.AccuseEffect(first, second):
                self._accusations.note(first, second, self.replica.committee.members, self.chain.head.height)
                self._out.append(effect)
                self._accuse(at)
            case _:
                self._out.append(effect)

    def _accuse(self, at: ClockTime) -> None:
        """Hands in the accusation that is due, unless it waits already; after each block again, until it is there."""
        state, own = self.chain.state, self._key.public
        said = self._accusations.due(state)
        if said is None:
            return
        nonce = (state.find(AccountRow, own) or AccountRow(own)).nonce
        signed = sign_tx(self._key, make_tx(self.chain.id, own, nonce, said, fee=state.params.fee_min))
        if tx_id(signed) not in self.pool and self._offer(signed, at) is None:
            self._out.append(ev.BroadcastEffect(PendingTxs((signed,))))

    def _log(self, records: list[bytes]) -> None:
        if self._storage.size > limits.VOTE_LOG_BYTES // 2:
            self._storage.begin([*(encode(record) for record in self.replica.records()), *records])
        else:
            self._storage.log(records)

    def _parent(self, block: Hash) -> ExecutedBlock | None:
        return self.chain.tip if block == self.chain.head.id else self._executed.get(block)

    def _built(self, parent_id: Hash, at: ClockTime) -> ExecutedBlock | None:
        parent = self._parent(parent_id)
        if parent is None:
            return None
        time = parent.header.time + LOGICAL_MS if self._is_logical else next_time(parent, at.wall)
        room = limits.BLOCK_BYTES - limits.BLOCK_FRAME_BYTES
        txs = self.pool.take(parent.state, time, limits.BLOCK_TXS, room)
        made, _ = make(parent, txs, time, self._key.public, judged=self.verdicts, law=self.chain.law)
        self._executed[made.header.id] = made
        self._begun[made.header.id] = at.now
        return made

    def _told(self, view: int, built: ExecutedBlock) -> ev.BlockBuiltEvent:
        draft = ev.DraftBlock(built.header, built.txs)
        return ev.BlockBuiltEvent(view, draft, closes=built.state.closes, works=bool(built.txs))

    def _judge(self, draft: ev.DraftBlock, is_new: bool, at: ClockTime) -> None:
        """Answers at once, unless transactions of the block have to be judged first: then when they are."""
        header = draft.header
        parent = self._parent(header.parent)
        if parent is None or (is_new and not self._is_timely(header.time, parent, at)):
            self._events.append(ev.BlockCheckedEvent(header.id, is_valid=False))
        elif header.id in self._executed or not self.verification_queue.hold(draft):
            self._events.append(self._executed_as(draft))

    def _executed_as(self, draft: ev.DraftBlock) -> ev.BlockCheckedEvent:
        """Executes a block, unless it was: one's own, or one that came under another view."""
        header = draft.header
        executed, parent = self._executed.get(header.id), self._parent(header.parent)
        if parent is None:
            return ev.BlockCheckedEvent(header.id, is_valid=False)
        if executed is None:
            try:
                executed = execute(parent, header, draft.txs, judged=self.verdicts, law=self.chain.law)
            except VerificationError:
                return ev.BlockCheckedEvent(header.id, is_valid=False)
            self._executed[header.id] = executed
        works = bool(executed.txs)
        return ev.BlockCheckedEvent(header.id, is_valid=True, closes=executed.state.closes, works=works)

    def _is_timely(self, time: int, parent: ExecutedBlock, at: ClockTime) -> bool:
        """After a long pause blocks catch up with the clock in steps: near to what one's own would have."""
        return self._is_logical or abs(time - next_time(parent, at.wall)) <= CLOCK_MS

    def _final(self, blocks: tuple[Block, ...], at: ClockTime) -> None:
        for block in blocks:
            executed = self._executed.get(block.header.id)
            if executed is not None:
                self.chain.hold(executed)
        outcomes = self._storage.adopt(self.chain, blocks)
        height, state = self.chain.head.height, self.chain.state
        self._executed = {name: e for name, e in self._executed.items() if e.header.height > height}
        self.verification_queue.drop(height)
        self.pool.settled((signed for block in blocks for signed in block.txs), state, at.now)
        self.finality += [at.now - self._begun[b.header.id] for b in blocks if b.header.id in self._begun]
        self._begun = {name: ms for name, ms in self._begun.items() if name in self._executed}
        self._out.append(FinalityNotice(height))
        for outcome in (each for of_block in outcomes for each in of_block):
            _, tickets = self._waiting.pop(outcome.tx, (None, []))
            self._out += [TicketReply(ticket, outcome) for ticket in tickets]
        self._review(at)
        self._accuse(at)
        self._events.append(ev.BlocksStoredEvent(self.chain.head.id, state.closes))

    def _review(self, at: ClockTime) -> None:
        """Whoever waits for a transaction that the pool let go hears why."""
        for name in [name for name in self._waiting if name not in self.pool]:
            signed, tickets = self._waiting[name]
            refused = self._offer(signed, at)
            if refused is not None:
                del self._waiting[name]
                self._out += [TicketReply(ticket, refused) for ticket in tickets]

    def _offer(self, signed: SignedTx, at: ClockTime) -> Result | None:
        return self.chain.applied(signed) or self.pool.offer(signed, self.chain.state, at.now)

    @property
    def due(self) -> int:
        """The ledger time of the next block that is due without a transaction (ledger.due_times)."""
        if self._due[0] != self.chain.head.id:
            self._due = self.chain.head.id, next_due(self.chain.state)
        return min(self._due[1], self.pool.ends)

    def _tell_work(self, at: ClockTime) -> None:
        is_ready = self.pool.is_ready(self.chain.state)
        if is_ready != self._was_ready:
            self._was_ready = is_ready
            self._events.append(ev.WaitingTxsEvent(is_ready))
        due = at.now + self.due - at.wall  # both clocks may drift apart: a small step is no news
        if not self._is_logical and abs(due - self._told_due) >= _NEWS_MS:
            self._told_due = due
            self._events.append(ev.ClockDueEvent(due))

    # Epochs

    def _born(self, records: Iterable[Record]) -> Replica:
        """Raises RunError FF-LEDG-270 before an epoch whose law the program does not know: no vote of it is signed."""
        state, head = self.chain.state, self.chain.head
        check_law(state, self.chain.law)
        committee, params = state.committee, state.params
        epoch_committee = EpochCommittee(
            self.chain.id, committee.epoch, committee.members, params.delta_ms, params.idle_ms
        )
        view = self.chain.certificate.view if head.height >= committee.first else 0
        mine = [each for each in records if epoch_of(each) == committee.epoch]
        return Replica(epoch_committee, FinalHead(head, view), self._key, mine)

    def _next_epoch(self) -> None:
        """Votes of an epoch that is over need no log: the store holds its closing block."""
        self._storage.begin(())
        self._executed.clear()
        self.replica = self._born(())
        self._was_ready, self._told_due = False, 0
        self._events = [each for each in self._events if isinstance(each, ev.ReplicaMessageEvent | ev.ReplicaPeerEvent)]
        self._events.insert(0, ev.ReplicaStartEvent())
