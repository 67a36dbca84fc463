"""Whole validators (ledger.ledger_node) in virtual time: messages take a while, disks are lists, the dead come back."""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ledger_world import RICH, START

from farflung.core.codec import encode
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import RunError
from farflung.core.ids import Hash
from farflung.core.release import LAW
from farflung.ledger import transactions
from farflung.ledger.block import Block, Genesis
from farflung.ledger.chain import Chain
from farflung.ledger.ledger_node import ClockTime, FinalityNotice, LedgerNode, TicketReply
from farflung.ledger.params import LedgerParams
from farflung.ledger.sdbft import replica_events as ev
from farflung.ledger.sdbft.replica_messages import read_message
from farflung.ledger.state_transition import total_money
from farflung.ledger.stateless_checks import is_sound
from farflung.ledger.table_rows import AccountRow
from farflung.ledger.tx_results import Outcome, Result
from farflung.ledger.verification_queue import VerifyJob

SEATS = tuple(local_key(31, "seat", index) for index in range(7))
PAYERS = tuple(local_key(31, "payer", index) for index in range(3))
DELAY, JUDGING, WALL = 10, 3, 1_700_000_000_000


def genesis(seats: int, **params: int) -> Genesis:
    keys = SEATS[:seats]
    law = LedgerParams(**{"delta_ms": 50, "idle_ms": 100, **params})
    owners = tuple((key.public, RICH) for key in (*SEATS, *PAYERS))
    return Genesis("committee", START, owners, tuple(key.public for key in keys), law)


def soundly(_index: int, part: VerifyJob) -> Sequence[bool]:
    """What honest processes find."""
    return [is_sound(encode(signed)) for signed in part.txs]


class Disk:
    """What outlives a process."""

    def __init__(self) -> None:
        self.votes: list[bytes] = []
        self.blocks: list[Block] = []
        self.size = 0

    def log(self, records: Sequence[bytes]) -> None:
        self.votes += records
        self.size += sum(map(len, records))

    def begin(self, records: Sequence[bytes]) -> None:
        self.votes, self.size = list(records), sum(map(len, records))

    def adopt(self, chain: Chain, blocks: Sequence[Block]) -> tuple[tuple[Outcome, ...], ...]:
        outcomes = chain.adopt_many(blocks)
        self.blocks += blocks
        return outcomes


class Committee:
    """Its validators; `cut` says which messages (from, to) are lost.

    `wall`: the calendar at the beginning; WALL is so late that the ledger never catches up with it.
    `laws`: that each one's program knows; who ends with an error is gone, and `failures` has what it said.
    `parts`: of what other processes judge; then `judged` says what they find, each JUDGING later, or raises what keeps
    the answer back; those go on `shelf`.
    """

    def __init__(
        self, seats: int, followers: int = 0, parts: int = 0, wall: int = WALL, laws: Sequence[int] = (), **params: int
    ) -> None:
        self.genesis, self.wall = genesis(seats, **params), wall
        self.disks = [Disk() for _ in range(seats + followers)]
        self.nodes: list[LedgerNode | None] = [None] * len(self.disks)
        self.lives = [0] * len(self.disks)
        self.now, self._queue, self._count = 0, list[tuple[int, int, Callable[[], None]]](), itertools.count()
        self.cut: Callable[[int, int], bool] = lambda _from, _to: False
        self.replies: dict[int, tuple[int, Result]] = {}
        self.lags = [0] * len(self.disks)
        self.parts = parts
        self.laws, self.failures = list(laws) or [LAW] * len(self.disks), dict[int, RunError]()
        self.judged: Callable[[int, VerifyJob], Sequence[bool] | None] = soundly
        self.shelf: list[tuple[int, int, VerifyJob]] = []
        for index in range(len(self.disks)):
            self.begin(index)

    @property
    def at(self) -> ClockTime:
        return ClockTime(self.now, self.wall + self.now)

    def begin(self, index: int) -> None:
        """A process, from its disk."""
        disk, chain = self.disks[index], Chain(self.genesis, law=self.laws[index])
        if disk.blocks:
            chain.adopt_many(disk.blocks)
        node = self.nodes[index] = LedgerNode(chain, SEATS[index], disk, tuple(disk.votes), parts=self.parts)
        self.do(index, node.start(self.at))
        for other in range(len(self.disks)):
            if other != index:
                self.feed(index, ev.ReplicaPeerEvent(SEATS[other].public))

    def kill(self, index: int) -> None:
        self.nodes[index] = None
        self.lives[index] += 1

    def die_between(self, payments: int) -> None:
        """All die after each of the payments of seat 0, a little later each time, and go on from their disks."""
        for nonce in range(payments):
            self.submit(nonce % 4, self.pay(nonce), ticket=nonce)
            self.run(13 * nonce + 3)
            for index in range(4):
                self.kill(index)
            for index in range(4):
                self.begin(index)
            self.submit(0, *(self.pay(each) for each in range(nonce + 1)), ticket=100)
            self.run(1500)
        assert self.balance(0, SEATS[6]) == RICH + payments

    def feed(self, index: int, event: ev.Event) -> None:
        node = self.nodes[index]
        if node is None:
            return
        try:
            effects = node.handle(event, self.at)
        except RunError as error:
            self.failures[index] = error
            self.kill(index)
        else:
            self.do(index, effects)

    def submit(self, index: int, *signed: transactions.SignedTx, ticket: int = 0) -> None:
        node = self.nodes[index]
        assert node is not None
        self.do(index, node.submit([(each, ticket + place) for place, each in enumerate(signed)], self.at))

    def do(self, index: int, effects: Sequence[Any]) -> None:
        for effect in effects:
            match effect:
                case ev.SendEffect(peer, message):
                    self.post(index, [key.public for key in SEATS].index(peer), encode(message))
                case ev.BroadcastEffect(message):
                    for other in range(len(self.disks)):
                        if other != index:
                            self.post(index, other, encode(message))
                case ev.WakeEffect(at_ms):
                    self.later(max(at_ms, self.now), functools.partial(self.tick, index, self.lives[index]))
                case VerifyJob():
                    life = self.lives[index]
                    self.later(self.now + JUDGING, functools.partial(self.examine, index, life, effect))
                case TicketReply(ticket, result):
                    self.replies[ticket] = (self.now, result)
                case FinalityNotice():
                    self.check()

    def examine(self, index: int, life: int, part: VerifyJob) -> None:
        node = self.nodes[index]
        if node is None or self.lives[index] != life:
            return
        try:
            sound = self.judged(index, part)
        except TimeoutError:
            self.shelf.append((index, life, part))
        else:
            self.do(index, node.examined(part.number, sound, self.at))

    def release(self) -> None:
        """What was kept back is answered now."""
        shelf, self.shelf = self.shelf, []
        for each in shelf:
            self.examine(*each)

    def tick(self, index: int, life: int) -> None:
        if self.lives[index] == life:
            self.feed(index, ev.ReplicaTickEvent())

    def post(self, sender: int, to: int, body: bytes) -> None:
        if to < len(self.disks) and not self.cut(sender, to):
            event = ev.ReplicaMessageEvent(SEATS[sender].public, read_message(body))
            self.later(self.now + DELAY + self.lags[sender], lambda: self.feed(to, event))

    def later(self, when: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._count), what))

    def run(self, ms: int, until: Callable[[], bool] = lambda: False) -> None:
        end = self.now + ms
        while self._queue and self._queue[0][0] <= end and not until():
            self.now, _, what = heapq.heappop(self._queue)
            what()
        if not until():
            self.now = end

    # What can be said of it

    def check(self) -> None:
        """No fork: every chain is the beginning of the longest one, and money is whole."""
        chains = [[block.header.id for block in node.chain.blocks] for node in self.nodes if node is not None]
        longest = max(chains, key=len, default=[])
        assert all(chain == longest[: len(chain)] for chain in chains)
        for node in self.nodes:
            assert node is None or total_money(node.chain.state) == node.chain.state.law.minted

    def heights(self) -> list[int]:
        return [node.chain.head.height if node is not None else -1 for node in self.nodes]

    def balance(self, index: int, key: SigningKey) -> int:
        node = self.nodes[index]
        assert node is not None
        row = node.chain.state.find(AccountRow, key.public)
        return row.balance if row is not None else 0

    def pay(self, nonce: int, payer: int = 0, amount: int = 1, fee: int = 0, expires: int = 0) -> transactions.SignedTx:
        key, to = PAYERS[payer], SEATS[6].public
        made = transactions.make_tx(
            self.chain, key.public, nonce, transactions.Transfer(to, amount), fee=fee, expires=expires
        )
        return transactions.sign_tx(key, made)

    @property
    def chain(self) -> Hash:
        return self.genesis.chain
