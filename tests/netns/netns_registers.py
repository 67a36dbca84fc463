"""A register for each of some accounts: what its node asks for, written by two homes and read by all of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from itertools import count

from ledger_linear import Operation, contradiction

from farflung.core.crypto import NS_SPEC, SigningKey, digest
from farflung.core.errors import FarflungError
from farflung.ledger.params import DAY_MS
from farflung.ledger.transactions import NodeRegister
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.replies import EXPIRED, NONCE

CAPS = digest(NS_SPEC, b"caps")
FIRST = 1  # what all of them begin with
Clients = Callable[[SigningKey], LedgerClient]


class Registers:
    """What was called and what came of it, by the clock of the one process that plays all clients."""

    def __init__(self, keys: Sequence[SigningKey], expires: int, seed: int) -> None:
        self.keys, self._expires, self._seed = keys, expires + DAY_MS, seed
        self.histories: list[list[Operation]] = [[] for _ in keys]
        self._values = count(FIRST + 1)

    async def found(self, clients: Clients) -> None:
        """Writes what they begin with."""
        for key in self.keys:
            await clients(key).submit(self._priced(FIRST))

    def _priced(self, value: int) -> NodeRegister:
        return NodeRegister(CAPS, value, 0, self._expires)

    async def use(self, home: int, own: SigningKey, clients: Clients, is_over: Callable[[], bool]) -> None:
        """Writes one register, which another home writes too, and reads all."""
        source = random.Random(self._seed * 100 + home)
        place = home % len(self.keys)
        reader, writer = clients(own), clients(self.keys[place])
        while not is_over():
            if source.random() < 0.4:
                if not await self._write(place, writer, source):
                    writer = clients(self.keys[place])  # whoever waited for the other one is gone
            else:
                await self._read(source.randrange(len(self.keys)), reader)

    async def _write(self, place: int, writer: LedgerClient, source: random.Random) -> bool:
        """Whether its outcome is known."""
        value, began = next(self._values), time.monotonic()
        while True:
            try:
                await writer.submit(self._priced(value))
            except FarflungError as error:
                if error.code == "FF-APP-070" and error.cause.startswith((NONCE, EXPIRED)):
                    return True  # the other home was faster, three times: this one never was
                if source.random() < 0.5:
                    continue
                self.histories[place].append(Operation(value, True, began))
                return False
            self.histories[place].append(Operation(value, True, began, time.monotonic()))
            return True

    async def _read(self, place: int, reader: LedgerClient) -> None:
        began = time.monotonic()
        try:
            await reader.refresh()
            row = await reader.node(self.keys[place].public)
        except FarflungError:
            return  # it gave nothing
        assert row is not None
        self.histories[place].append(Operation(row.unit_price, False, began, time.monotonic()))

    def check(self) -> dict[str, int]:
        """Raises AssertionError where one of them was no register. Returns what there was."""
        for place, history in enumerate(self.histories):
            assert contradiction(history, FIRST) is None, (place, contradiction(history, FIRST), history)
        return self.seen()

    def seen(self) -> dict[str, int]:
        """How many operations there were of which kind."""
        all_of_them = [each for history in self.histories for each in history]
        return {
            "reads": sum(not each.is_write for each in all_of_them),
            "writes": sum(each.is_write and each.ended is not None for each in all_of_them),
            "unknown": sum(each.ended is None for each in all_of_them),
        }
