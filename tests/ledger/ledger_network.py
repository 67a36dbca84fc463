"""Whole validators (ledger.node) in virtual time: messages take a while, disks are lists, and the dead come back."""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ledger_world import RICH, START

from farflung.core.codec import encode
from farflung.core.crypto import SigningKey, local_key
from farflung.core.ids import Hash
from farflung.ledger import tx
from farflung.ledger.block import Block, Genesis
from farflung.ledger.chain import Chain
from farflung.ledger.docket import Examine
from farflung.ledger.judging import is_sound
from farflung.ledger.node import At, Moved, Node, Reply
from farflung.ledger.params import Params
from farflung.ledger.results import Outcome, Result
from farflung.ledger.rows import AccountRow
from farflung.ledger.sdbft import events as ev
from farflung.ledger.sdbft.messages import read_message
from farflung.ledger.state import total_money

SEATS = tuple(local_key(31, "seat", index) for index in range(7))
PAYERS = tuple(local_key(31, "payer", index) for index in range(3))
DELAY, JUDGING, WALL = 10, 3, 1_700_000_000_000


def genesis(seats: int, **params: int) -> Genesis:
    keys = SEATS[:seats]
    law = Params(**{"delta_ms": 50, "idle_ms": 100, **params})
    owners = tuple((key.public, RICH) for key in (*SEATS, *PAYERS))
    return Genesis("committee", START, owners, tuple(key.public for key in keys), law)


def soundly(_index: int, part: Examine) -> Sequence[bool]:
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

    `parts`: of what other processes judge; then `judged` says what they find, each JUDGING later, or raises what keeps
    the answer back; those go on `shelf`.
    """

    def __init__(self, seats: int, followers: int = 0, parts: int = 0, **params: int) -> None:
        self.genesis = genesis(seats, **params)
        self.disks = [Disk() for _ in range(seats + followers)]
        self.nodes: list[Node | None] = [None] * len(self.disks)
        self.lives = [0] * len(self.disks)
        self.now, self._queue, self._count = 0, list[tuple[int, int, Callable[[], None]]](), itertools.count()
        self.cut: Callable[[int, int], bool] = lambda _from, _to: False
        self.replies: dict[int, tuple[int, Result]] = {}
        self.lags = [0] * len(self.disks)
        self.parts = parts
        self.judged: Callable[[int, Examine], Sequence[bool] | None] = soundly
        self.shelf: list[tuple[int, int, Examine]] = []
        for index in range(len(self.disks)):
            self.begin(index)

    @property
    def at(self) -> At:
        return At(self.now, WALL + self.now)

    def begin(self, index: int) -> None:
        """A process, from its disk."""
        disk, chain = self.disks[index], Chain(self.genesis)
        if disk.blocks:
            chain.adopt_many(disk.blocks)
        node = self.nodes[index] = Node(chain, SEATS[index], disk, tuple(disk.votes), parts=self.parts)
        self.do(index, node.start(self.at))
        for other in range(len(self.disks)):
            if other != index:
                self.feed(index, ev.Connected(SEATS[other].public))

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
        if node is not None:
            self.do(index, node.handle(event, self.at))

    def submit(self, index: int, *signed: tx.SignedTx, ticket: int = 0) -> None:
        node = self.nodes[index]
        assert node is not None
        self.do(index, node.submit([(each, ticket + place) for place, each in enumerate(signed)], self.at))

    def do(self, index: int, effects: Sequence[Any]) -> None:
        for effect in effects:
            match effect:
                case ev.Send(peer, message):
                    self.post(index, [key.public for key in SEATS].index(peer), encode(message))
                case ev.Broadcast(message):
                    for other in range(len(self.disks)):
                        if other != index:
                            self.post(index, other, encode(message))
                case ev.Wake(at_ms):
                    self.later(max(at_ms, self.now), functools.partial(self.tick, index, self.lives[index]))
                case Examine():
                    life = self.lives[index]
                    self.later(self.now + JUDGING, functools.partial(self.examine, index, life, effect))
                case Reply(ticket, result):
                    self.replies[ticket] = (self.now, result)
                case Moved():
                    self.check()

    def examine(self, index: int, life: int, part: Examine) -> None:
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
            self.feed(index, ev.Tick())

    def post(self, sender: int, to: int, body: bytes) -> None:
        if to < len(self.disks) and not self.cut(sender, to):
            event = ev.Received(SEATS[sender].public, read_message(body))
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

    def pay(self, nonce: int, payer: int = 0, amount: int = 1, fee: int = 0, expires: int = 0) -> tx.SignedTx:
        key, to = PAYERS[payer], SEATS[6].public
        made = tx.make_tx(self.chain, key.public, nonce, tx.Transfer(to, amount), fee=fee, expires=expires)
        return tx.sign_tx(key, made)

    @property
    def chain(self) -> Hash:
        return self.genesis.chain
