"""Carries out the decisions of a validator's consensus node over connections, timers and the disk.

It holds no policy.

Whatever a node asks for is done in order and in one go, its disk first (ledger.ledger_node), so that nothing that
could be taken back is ever sent. A disk that fails ends the validator: it says nothing more, and begins again from
its disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from farflung.core.codec import encode
from farflung.core.errors import FarflungError, NetworkError, PolicyError
from farflung.core.ids import PeerId
from farflung.ledger.block import Block
from farflung.ledger.chain import Chain
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.io.signature_pool import Answer, SignaturePool
from farflung.ledger.io.votelog import VoteLog
from farflung.ledger.ledger_node import ClockTime, Effect, FinalityNotice, LedgerNode, TicketReply
from farflung.ledger.sdbft import replica_events as ev
from farflung.ledger.sdbft.replica_messages import FinalBlocks, ReplicaStatus, read_message
from farflung.ledger.transactions import SignedTx
from farflung.ledger.tx_results import Outcome, RejectedResult, Result
from farflung.ledger.validators import ValidatorRow, ValidatorState
from farflung.ledger.verification_queue import VerifyJob
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.peers.validator.send_queue import PeerSendQueue

MESSAGE: Final = "sdbft.message"
LATE_MS: Final = 10_000  # for which a due block may be missing before others are asked for it
PARTS: Final = 2  # for each process that judges: one that it works on, one that is there when it is done
_PRESENT: Final = (ValidatorState.CANDIDATE, ValidatorState.ADMITTED, ValidatorState.LEAVING)
Places = Callable[[PeerId], tuple[str, int] | None]


class ConsensusStorage:
    """What a node keeps: its store and its vote log."""

    def __init__(self, store: LedgerStore, votes: VoteLog) -> None:
        self._store, self._votes = store, votes

    def log(self, records: Sequence[bytes]) -> None:
        """Adds to the vote log."""
        self._votes.append(records)

    def begin(self, records: Sequence[bytes]) -> None:
        """Replaces the vote log."""
        self._votes.begin(records)

    @property
    def size(self) -> int:
        """Bytes of the vote log."""
        return self._votes.size

    def adopt(self, chain: Chain, blocks: Sequence[Block]) -> tuple[tuple[Outcome, ...], ...]:
        """Stores final blocks and moves the chain over them."""
        return self._store.adopt(chain, blocks)


class CommitteeMember:
    """One validator's part in the committee, or beside it."""

    def __init__(
        self,
        node: LedgerNode,
        own: PeerId,
        endpoint: Endpoint,
        places: Places,
        judges: int = 0,
        on_block: Callable[[], None] = lambda: None,
    ) -> None:
        """`own`: this validator. `places` says where another one is reached, if anybody knows.

        `judges`: processes that judge signatures, each started when it is needed first; 0: this one does.
        """
        self.node, self.judges = node, SignaturePool(judges)
        self._own, self._endpoint, self._places, self._on_block = own, endpoint, places, on_block
        self._queues: dict[PeerId, PeerSendQueue] = {}
        self._tickets: dict[int, asyncio.Future[Result]] = {}
        self._number = 0
        self.heights: dict[PeerId, int] = {}  # of other validators, as they said
        self.accused = self.rejected = 0  # conflicting votes; transactions that may not enter a block
        self._timer: asyncio.TimerHandle | None = None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Begins to take part."""
        self._meet()
        self._do(lambda at: self.node.start(at))

    async def close(self) -> None:
        """Leaves; whoever waits hears of it."""
        if not self.failed.done():
            self.failed.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self.judges.close()
        for waiting in self._tickets.values():
            waiting.cancel()
        for queue in self._queues.values():
            await queue.close()

    @property
    def is_behind(self) -> bool:
        """Whether the head should have moved: another validator said a higher one, or a block is long due."""
        height, due = self.node.chain.head.height, self.node.due
        return max(self.heights.values(), default=0) > height or time.time() * 1000 > due + LATE_MS

    @property
    def met(self) -> dict[PeerId, bool]:
        """Which validators are connected."""
        return {peer: queue.is_met for peer, queue in self._queues.items()}

    def knows(self, peer: PeerId) -> bool:
        """Whether it is another validator."""
        return peer in self._queues

    def hear(self, connection: Connection, body: bytes) -> None:
        """A message of another validator. Raises PolicyError FF-APP-294 for a stranger's, ProtocolError."""
        queue = self._queues.get(connection.peer)
        if queue is None:
            raise PolicyError("FF-APP-294", "only validators speak to validators")
        message = read_message(body)
        queue.stir()
        if isinstance(message, ReplicaStatus):
            self.heights[connection.peer] = message.height
        self._do(lambda at: self.node.handle(ev.ReplicaMessageEvent(connection.peer, message), at))

    def take(self, peer: PeerId, blocks: tuple[Block, ...]) -> None:
        """Final blocks that a validator was asked for: the replica judges them as if they had been sent."""
        self._do(lambda at: self.node.handle(ev.ReplicaMessageEvent(peer, FinalBlocks(blocks)), at))

    async def submit(self, txs: Sequence[SignedTx]) -> tuple[Result, ...]:
        """What became of each, once that is final. Raises NetworkError FF-APP-295 when the validator ends before."""
        loop = asyncio.get_running_loop()
        first = self._number
        self._number += len(txs)
        tickets = range(first, self._number)
        futures = [self._tickets.setdefault(ticket, loop.create_future()) for ticket in tickets]
        try:
            self._do(lambda at: self.node.submit(tuple(zip(txs, tickets, strict=True)), at))
            return tuple([await future for future in futures])
        except asyncio.CancelledError:
            if any(future.cancelled() for future in futures):
                raise NetworkError("FF-APP-295", "the validator ends", hint="another one will answer") from None
            raise
        finally:
            self.node.forget(tickets)
            for ticket in tickets:
                del self._tickets[ticket]

    # What a node asks for

    def _do(self, step: Callable[[ClockTime], list[Effect]]) -> None:
        if self.failed.done():
            return
        try:
            at = ClockTime(int(time.monotonic() * 1000), int(time.time() * 1000))
            for effect in step(at):
                self._carry_out(effect)
        except FarflungError as error:
            self.failed.set_exception(error)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case ev.SendEffect(peer, message):
                if peer in self._queues:
                    self._queues[peer].put(MESSAGE, encode(message))
            case ev.BroadcastEffect(message):
                self.tell(MESSAGE, encode(message))
            case ev.WakeEffect(at_ms):
                self._set_timer(at_ms)
            case ev.AccuseEffect():
                self.accused += 1
            case VerifyJob(number, txs):
                self._examine(number, [encode(signed) for signed in txs])
            case TicketReply(ticket, result):
                self.rejected += isinstance(result, RejectedResult)
                future = self._tickets.get(ticket)
                if future is not None and not future.done():
                    future.set_result(result)
            case FinalityNotice():
                self._meet()
                self._on_block()

    def _examine(self, number: int, txs: Sequence[bytes]) -> None:
        loop = asyncio.get_running_loop()
        answer = self.judges.ask(txs)
        answer.add_done_callback(lambda found: loop.call_soon_threadsafe(self._examined, number, found))

    def _examined(self, number: int, found: Future[Answer]) -> None:
        """A pool of which no process answers costs time, nothing else: the node judges itself."""
        sound = found.result() if found.exception() is None else None
        self._do(lambda at: self.node.examined(number, sound, at))

    def tell(self, method: str, body: bytes) -> None:
        """To all other validators."""
        for queue in self._queues.values():
            queue.put(method, body)

    def _set_timer(self, at_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.0, at_ms / 1000 - time.monotonic())
        tick = lambda: self._do(lambda at: self.node.handle(ev.ReplicaTickEvent(), at))  # noqa: E731
        self._timer = asyncio.get_running_loop().call_later(delay, tick)

    def _meet(self) -> None:
        """One queue to each other validator."""
        for peer in validators_of(self.node.chain).keys() - {self._own} - self._queues.keys():
            self._queues[peer] = PeerSendQueue(peer, lambda peer=peer: self._reach(peer), self._met)  # type: ignore[misc]

    async def _reach(self, peer: PeerId) -> Connection:
        place = self._places(peer) or place_of(validators_of(self.node.chain).get(peer, ""))
        if place is not None:
            return await self._endpoint.dial(peer, *place)
        standing = self._endpoint.connection(peer)
        if standing is None:
            raise NetworkError("FF-APP-296", "the address of this validator is unknown")
        return standing

    def _met(self, peer: PeerId) -> None:
        self._do(lambda at: self.node.handle(ev.ReplicaPeerEvent(peer), at))


def place_of(address: str) -> tuple[str, int] | None:
    """Host and port of `host:port`."""
    host, _, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdecimal() and int(port) < 1 << 16 else None


def validators_of(chain: Chain) -> dict[PeerId, str]:
    """Who may take part, now or soon, and where the ledger says that each is: `host:port`, or nothing."""
    rows = chain.state.rows(ValidatorRow)
    return {row.validator: row.address for row in rows if row.state in _PRESENT} | {
        member: "" for member in chain.state.committee.members if chain.state.find(ValidatorRow, member) is None
    }
