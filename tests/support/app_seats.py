"""Four validators of one chain in virtual time, each as far as it is; and clients that keep count of what they saw.

How blocks come about is not played: one is final every moment that there is work, by real certificates. Each validator
adopts it later, when it happens to, and speaks for itself alone: so much may differ between honest ones. The last one
is not honest: its rows are proved, and as old as it can have them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

from ledger_committee import OWNERS, SEATS, Reign
from ledger_linear import Operation, contradiction
from ledger_world import CAPS

from farflung.core.codec import encode
from farflung.core.errors import FarflungError, NetworkError, RunError
from farflung.ledger import queries
from farflung.ledger.chain import Chain
from farflung.ledger.table_rows import AccountRow
from farflung.ledger.transactions import NodeRegister, SignedTx
from farflung.ledger.tx_results import RejectedResult, Result
from farflung.peers.ledger_client.client import LedgerClient

REGISTERS = OWNERS[:2]
FIRST = 1  # what the registers begin with


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time goes on when there is nothing else to do."""

    def __init__(self) -> None:
        super().__init__()
        self._moment = 0.0
        ready = self._selector.select  # type: ignore[attr-defined]

        def select(timeout: float | None) -> Any:
            assert timeout is not None, "nothing will ever happen"
            self._moment += max(0.0, timeout)
            return ready(0)

        self._selector.select = select  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._moment


class Seat:
    """One validator: the blocks that it has, and how it answers."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.moved = asyncio.Condition()

    async def adopt(self, block: Any) -> None:
        async with self.moved:
            self.chain.adopt(block)
            self.moved.notify_all()

    async def fate(self, signed: SignedTx) -> Result:
        async with self.moved:
            await self.moved.wait_for(lambda: self._known(signed) is not None)
            known = self._known(signed)
            assert known is not None
            return known

    def _known(self, signed: SignedTx) -> Result | None:
        row = self.chain.state.find(AccountRow, signed.tx.sender)
        applied = self.chain.applied(signed)
        if applied is None and row is not None and row.nonce > signed.tx.nonce:
            return RejectedResult(b"", "FF-LEDG-004", "used")  # type: ignore[arg-type]
        if applied is None and 0 < signed.tx.expires <= self.chain.head.time:
            return RejectedResult(b"", "FF-LEDG-005", "void")  # type: ignore[arg-type]
        return applied


class Town:
    """Everybody, from one seed."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.committee = Reign(4)
        self.pool: list[SignedTx] = []
        for key in REGISTERS:
            self.committee.do(key, self._priced(FIRST))
        self.seats = [Seat(self._copy()) for _ in SEATS[:4]]
        self.old = self._copy()
        self.ticks = count()
        self.histories: list[list[Operation]] = [[] for _ in REGISTERS]
        self._values = count(FIRST + 1)
        self._tasks: list[asyncio.Task[None]] = []

    def _copy(self) -> Chain:
        made = Chain(self.committee.chain.genesis)
        for block in self.committee.chain.blocks:
            made.adopt(block)
        return made

    def _priced(self, value: int) -> NodeRegister:
        return NodeRegister(CAPS, value, 0, self.committee.chain.state.time + 100_000)

    async def build(self) -> None:
        """Blocks of what waits, for ever; each seat has them in their order, some time later."""
        due = [0.0] * 4
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.source.uniform(0.05, 0.2))
            waiting, self.pool = self.pool, []
            if not waiting:
                continue
            made, _ = self.committee.made(*waiting)
            block = self.committee.certified(made)
            self.committee.chain.adopt(block)
            for index, seat in enumerate(self.seats):
                due[index] = max(due[index] + 0.001, loop.time() + self.source.choice((0.01, 0.1, 1.5)))
                self._tasks.append(asyncio.create_task(self._later(due[index], seat, block)))

    async def _later(self, moment: float, seat: Seat, block: Any) -> None:
        await asyncio.sleep(moment - asyncio.get_running_loop().time())
        await seat.adopt(block)

    async def call(self, index: int, body: bytes) -> bytes:
        seat, query = self.seats[index], queries.read_query(body)
        await asyncio.sleep(self.source.uniform(0.001, 0.02))
        if isinstance(query, queries.SubmitRequest):
            (signed,) = query.txs
            if seat.chain.applied(signed) is None and signed not in self.pool:
                self.pool.append(signed)
            return encode(queries.SubmitReply((await seat.fate(signed),)))
        return encode(queries.reply(self.old if index == 3 else seat.chain, query))

    def client(self, key: Any, first: int = 0, patience: float = 20.0) -> LedgerClient:
        def reach(index: int) -> Any:
            async def to() -> Line:
                return Line(self, index)

            return to

        ways = [reach((first + place) % 4) for place in range(4)]
        return LedgerClient(ways, key, self.committee.chain.genesis, patience, 1.0)

    # What clients do

    async def write(self, register: int, client: LedgerClient, patience: float = 60.0) -> bool:
        """Whether the client may go on: a write of unknown fate is its last."""
        value, began = next(self._values), next(self.ticks)
        try:
            async with asyncio.timeout(patience):
                await client.submit(self._priced(value))
        except RunError:
            return True  # refused: it never was
        except (TimeoutError, FarflungError):
            self.histories[register].append(Operation(value, True, began))
            return False
        self.histories[register].append(Operation(value, True, began, next(self.ticks)))
        return True

    async def read(self, register: int, client: LedgerClient, *, is_fresh: bool) -> int:
        began = next(self.ticks)
        if is_fresh:
            await client.refresh()
        row = await client.node(REGISTERS[register].public)
        assert row is not None
        self.histories[register].append(Operation(row.unit_price, False, began, next(self.ticks)))
        return row.unit_price

    async def play(self, home: int, rounds: int, *, is_fresh: bool) -> None:
        """A home that writes and reads; some of its clients are given up in the middle of a write."""
        own = self.client(OWNERS[2 + home], home)
        writers = [self.client(key, home) for key in REGISTERS]
        for _ in range(rounds):
            register = self.source.randrange(2)
            if self.source.random() < 0.4:
                patience = self.source.choice((0.2, 60.0))
                if not await self.write(register, writers[register], patience):
                    writers[register] = self.client(REGISTERS[register], home)
            else:
                await self.read(register, own, is_fresh=is_fresh)
            await asyncio.sleep(self.source.uniform(0, 0.3))

    @property
    def contradictions(self) -> list[Operation]:
        return [bad for each in self.histories if (bad := contradiction(each, FIRST)) is not None]


class Line:
    """A connection to one of them."""

    def __init__(self, town: Town, index: int) -> None:
        self._town, self._index = town, index

    async def call(self, method: str, body: bytes, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        try:
            async with asyncio.timeout(timeout):
                return await self._town.call(self._index, body)
        except TimeoutError:
            raise NetworkError("FF-NET-047", "no answer in time") from None


def run(seed: int, body: Callable[[Town], Coroutine[Any, Any, None]]) -> Town:
    """Plays it to its end, in no time."""
    made: list[Town] = []

    async def scenario() -> None:
        town = Town(seed)
        made.append(town)
        building = asyncio.create_task(town.build())
        try:
            await body(town)
        finally:
            for task in (building, *town._tasks):
                task.cancel()
            await asyncio.gather(building, *town._tasks, return_exceptions=True)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())
    return made[0]
