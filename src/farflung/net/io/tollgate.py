"""What a relay that is paid asks for: a pass before it carries, receipts while it does, and then its money.

A carrier (a circuit, a fan-out) runs under one pass. It is held when a party lags by a window, when the quota or the
payer's channel is used up, and when the pass has ended; it goes on with a receipt or the payer's renewal, and is closed
after limits.HELD_SECONDS. The ledger is asked by whoever made this (`funds`), never from here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from farflung.core import limits, tolls
from farflung.core.codec import decode, encode
from farflung.core.errors import FarflungError, PolicyError
from farflung.core.ids import Hash, PeerId
from farflung.core.tolls import SignedPass, SignedReceipt
from farflung.net import passes
from farflung.net.io.connection import Connection
from farflung.net.io.purse import RECEIPT
from farflung.net.io.signers import Nodes, Signers
from farflung.net.io.till import Till
from farflung.net.io.voices import Voices
from farflung.net.metering import Books, Carrier, Standing, unsigned, untried
from farflung.net.passes import Name, name_of
from farflung.net.receipts import Heard
from farflung.net.tickets import Status

RENEW: Final = "relay.pass"  # anybody to relay: a SignedPass, which counts from now on
SETTLE: Final = "relay.settle"  # payer to relay: claim what is signed, and give the rest back
LOOK_SECONDS: Final = 0.5
FUNDS_SECONDS: Final = 30.0  # between two questions to the ledger about one payer
_UNSIGNED: Final = "unsigned"  # why a carrier is held


@dataclass(frozen=True, slots=True)
class Funds:
    """A payer's open channel with this relay, as the ledger has it. Money in micro-credits; `price` for a GiB."""

    opening: int
    price: int
    held: int
    serial: int = 0  # passes below this one are settled


@dataclass(frozen=True, slots=True)
class Claim:
    """One pass and what its parties signed at last: what the ledger pays for."""

    signed: SignedPass
    receipts: tuple[SignedReceipt, ...]


@dataclass(slots=True)
class _Payer:
    """`carried`: bytes at this payer's cost that are not settled; `room`: how many its channel pays for."""

    funds: Funds | None = None
    asked_at: float = float("-inf")
    carried: int = 0
    room: int = 0
    is_settling: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # to ask the ledger, or to begin books
    ending: asyncio.Lock = field(default_factory=asyncio.Lock)  # to settle

    def know(self, funds: Funds | None, now: float) -> None:
        """What the ledger says of its channel."""
        self.funds, self.asked_at = funds, now
        held, price = (funds.held, funds.price) if funds is not None else (0, 1)
        self.room = tolls.worth(held, price)


@dataclass(slots=True)
class _Run:
    """A carrier under its pass. `held_at`: by the loop's clock; None: it runs."""

    books: Books
    parties: tuple[PeerId, ...]
    payer: _Payer
    held_at: float | None = None
    sent: Counter[PeerId] = field(default_factory=Counter)  # of each party, by this carrier
    received: Counter[PeerId] = field(default_factory=Counter)


class Tollgate:
    """The money side of one relay."""

    def __init__(
        self,
        chain: Hash,
        price: int,
        funds: Callable[[PeerId], Awaitable[Funds | None]],
        settle: Callable[[PeerId, tuple[Claim, ...]], Awaitable[None]],
        *,
        window: int = limits.RECEIPT_WINDOW,
        held_seconds: float = limits.HELD_SECONDS,
        nodes: Nodes | None = None,
        till: Till | None = None,
    ) -> None:
        """`price`: micro-credits a GiB, at least; `funds`: a payer's channel, or None; `settle`: claims and closes it.

        `window`: bytes for which each party may be unsigned. `nodes`: an account's node keys whose receipts the ledger
        takes (None: any certified one). All three raise FarflungError when the ledger is away. `till`: where passes and
        receipts are kept (None: with this process all is forgotten).
        """
        self._chain, self._price, self._ask_funds, self._settle = chain, price, funds, settle
        self._window, self._held_seconds, self._signers = window, held_seconds, Signers(nodes)
        self._till = till
        self._books: dict[Name, Books] = {}
        self._payers: dict[PeerId, _Payer] = {}
        self._runs: dict[Carrier, _Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._relay = PeerId(b"")
        self._clock: Callable[[], float] = lambda: 0.0
        self._voices = Voices(lambda _: None)

    def serve(
        self, relay: PeerId, clock: Callable[[], float], attached: Callable[[PeerId], Connection | None]
    ) -> dict[str, Callable[[Connection, bytes], Awaitable[bytes]]]:
        """Belongs to this relay from now on; the methods that it serves. `clock`: seconds since 1970."""
        self._relay, self._clock, self._voices = relay, clock, Voices(attached)
        for kept in self._till.load(relay, self._chain) if self._till is not None else ():
            books = self._books[name_of(kept.signed.toll)] = Books(kept.signed, self._window)
            books.restore(kept.receipts)
            self._payers.setdefault(kept.signed.toll.payer, _Payer()).carried += books.carried
        self._begin(self._watch())
        return {RECEIPT: self._receipt, RENEW: self._renew, SETTLE: self._settled}

    async def close(self) -> None:
        """Watches no more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._voices.close()
        if self._till is not None:
            with contextlib.suppress(FarflungError):
                await self._till.write()

    # Admission

    async def admit(self, signed: SignedPass | None, *parties: PeerId) -> Books | Status:
        """The books that two or more holders are carried under, or why not."""
        toll = passes.judge(signed, self._relay, parties)
        if isinstance(toll, Status):
            return toll
        assert signed is not None
        books = self._books.get(name_of(toll))
        funds = self._payers.get(toll.payer, _Payer()).funds
        is_open = funds is not None and funds.opening == toll.opening
        if books is None or passes.renews(toll, books.signed.toll) or not is_open:
            found = await self._open(signed)
            if isinstance(found, Status):
                return found
            books = found
        if not passes.is_current(books.signed.toll, self._now()):
            return Status.LAPSED
        if not set(parties) <= set(books.signed.toll.holders):
            return Status.NO_HOLDER
        standing = self._standing(books, parties)
        if standing is Standing.HELD:
            await self._voices.collect(books, books.late(parties))
            standing = self._standing(books, parties)
        if standing is Standing.OPEN:
            return books
        return Status.OWING if standing is Standing.HELD else Status.USED_UP

    async def _open(self, signed: SignedPass) -> Books | Status:
        """Books for a pass that was judged, or its renewal."""
        toll = signed.toll
        if not passes.is_current(toll, self._now()):
            return Status.LAPSED
        payer = self._payers.setdefault(toll.payer, _Payer())
        funds = await self._funds(toll.payer, payer)
        is_ours = toll.chain == self._chain and funds is not None and funds.opening == toll.opening
        if funds is None or not is_ours or funds.price < self._price or payer.is_settling:
            return Status.UNFUNDED
        if toll.serial < funds.serial or not toll.quota:
            return Status.USED_UP
        books = self._books.get(name_of(toll))
        if books is not None:
            if books.renew(signed):
                self._keep(books)
            return books
        if self._owes(toll.payer):
            await self._collect(toll.payer)
        async with payer.turn:  # however many come at once, they count each other
            return await self._begin_books(signed)

    async def _begin_books(self, signed: SignedPass) -> Books | Status:
        """Books for a pass that had none."""
        name, mine = name_of(signed.toll), self._of(signed.toll.payer)
        if name in mine:
            return mine[name]
        is_full = len(self._books) >= limits.PASSES or len(mine) >= limits.PASSES_PER_PAYER
        if is_full or untried(mine.values(), self._now()) >= limits.PASSES_UNTRIED:
            return Status.FULL
        if self._owes(name[0]):
            return Status.OWING  # one more pass is no way to leave the bytes of others unsigned
        if self._till is not None:
            try:
                await self._till.open(signed)
            except FarflungError:
                return Status.FULL  # what cannot be remembered is not begun
        return self._books.setdefault(name, Books(signed, self._window, is_whole=self._till is not None))

    def _of(self, payer: PeerId) -> dict[Name, Books]:
        return {name: books for name, books in self._books.items() if name[0] == payer}

    def _owes(self, payer: PeerId) -> bool:
        return unsigned(self._of(payer).values()) > 2 * self._window

    async def _collect(self, payer: PeerId) -> None:
        """Everybody signs under every pass of this payer, or will not."""
        every = self._of(payer).values()
        await asyncio.gather(*(self._voices.collect(each, each.signed.toll.holders) for each in every))

    async def _funds(self, name: PeerId, payer: _Payer) -> Funds | None:
        loop = asyncio.get_running_loop()
        async with payer.turn:
            if loop.time() - payer.asked_at > FUNDS_SECONDS or payer.funds is None:
                with contextlib.suppress(FarflungError):  # the ledger is away: what it said last counts
                    payer.know(await self._ask_funds(name), loop.time())
        is_idle = not payer.carried and not payer.is_settling
        if payer.funds is None and is_idle and self._payers.get(name) is payer:
            del self._payers[name]
        return payer.funds

    def _standing(self, books: Books, parties: tuple[PeerId, ...]) -> Standing:
        payer = self._payers.get(books.signed.toll.payer)
        is_over = not passes.is_current(books.signed.toll, self._now())
        if is_over or payer is None or payer.is_settling or payer.carried > payer.room:
            return Standing.USED_UP
        return books.standing(*parties)

    # Carriers

    def opened(self, carrier: Carrier, books: Books, *parties: PeerId) -> None:
        """A carrier of these holders runs under these books, until `ended`."""
        self._runs[carrier] = _Run(books, parties, self._payers.setdefault(books.signed.toll.payer, _Payer()))

    def moved(self, carrier: Carrier, is_back: bool, size: int) -> None:
        """A pair's carrier gave `size` bytes to its second party, or back to its first; it may be held for it."""
        run = self._runs[carrier]
        receiver, sender = run.parties if is_back else run.parties[::-1]
        run.payer.carried += size
        run.sent[sender] += size
        run.received[receiver] += size
        if run.books.moved(sender, receiver, size) is not Standing.OPEN or run.payer.carried > run.payer.room:
            self._hold(carrier, run)

    def copied(self, carrier: Carrier, receiver: PeerId, size: int) -> None:
        """A fan-out gave `size` bytes that were `taken` before to one more holder."""
        run = self._runs[carrier]
        run.payer.carried += size
        run.received[receiver] += size
        run.books.given(receiver, size)
        if run.books.standing(receiver) is not Standing.OPEN or run.payer.carried > run.payer.room:
            self._hold(carrier, run)

    def taken(self, carrier: Carrier, sender: PeerId, size: int) -> None:
        """A fan-out took `size` bytes from a holder, to copy them."""
        run = self._runs[carrier]
        run.sent[sender] += size
        run.books.taken(sender, size)
        if run.books.standing(sender) is not Standing.OPEN:
            self._hold(carrier, run)

    def ended(self, carrier: Carrier) -> None:
        """The carrier is gone; nothing if it ran under no pass."""
        self._runs.pop(carrier, None)

    def _hold(self, carrier: Carrier, run: _Run) -> None:
        if run.held_at is None:
            run.held_at = asyncio.get_running_loop().time()
            carrier.hold(_UNSIGNED)
            self._voices.ask(run.books, run.parties)

    async def _watch(self) -> None:
        """Holds what may not go on, lets go what may, and ends what was held for too long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for carrier, run in list(self._runs.items()):
                is_late = run.held_at is not None and loop.time() - run.held_at > self._held_seconds
                if not self._go_on(carrier, run) and is_late:
                    carrier.close()
            if self._till is not None:
                with contextlib.suppress(FarflungError):  # the disk is full: it is tried again
                    await self._till.write()
            for name, books in list(self._books.items()):
                is_over = not books.carried and not passes.is_current(books.signed.toll, self._now())
                if is_over and not any(run.books is books for run in self._runs.values()):
                    await self._forget(name)

    async def _forget(self, name: Name) -> None:
        books = self._books.pop(name, None)
        if books is not None and self._till is not None:
            await self._till.drop(books.signed.toll)

    def _go_on(self, carrier: Carrier, run: _Run) -> bool:
        if self._standing(run.books, run.parties) is not Standing.OPEN:
            self._hold(carrier, run)
            return False
        if run.held_at is not None:
            run.held_at = None
            carrier.release(_UNSIGNED)
        return True

    def _resume(self, books: Books) -> None:
        for carrier, run in list(self._runs.items()):
            if run.books is books and run.held_at is not None:
                self._go_on(carrier, run)

    # What is asked of the relay

    async def _receipt(self, connection: Connection, body: bytes) -> bytes:
        """A party's receipt; the answer is the last one of that party, and what was counted for it and has ended."""
        signed = decode(body, SignedReceipt, limits.TICKET_BYTES)
        receipt = signed.receipt
        books = self._books.get((receipt.payer, receipt.opening, receipt.serial))
        if books is None or not tolls.is_of(receipt, books.signed.toll):
            raise PolicyError("FF-NET-140", "the relay keeps no books for this receipt")
        who = connection.identity
        if receipt.party != who.account or not await self._signers.is_sound(signed, who):
            raise PolicyError("FF-NET-141", "the receipt is not signed by its party")
        self._voices.hear(connection)
        if books.sign(signed):
            self._keep(books)
            self._resume(books)
        sent, received = books.count(receipt.party)
        for run in self._runs.values():
            if run.books is books and receipt.party in run.parties:
                sent, received = sent - run.sent[receipt.party], received - run.received[receipt.party]
        return encode(Heard(books.last(receipt.party) or signed, sent, received))

    def _keep(self, books: Books) -> None:
        if self._till is not None:
            self._till.keep(books.signed, books.receipts)

    async def _renew(self, connection: Connection, body: bytes) -> bytes:
        """A pass, new or signed anew by its payer; whoever brings it."""
        signed = decode(body, SignedPass, limits.TICKET_BYTES)
        judged = passes.judge(signed, self._relay, ())
        found = judged if isinstance(judged, Status) else await self._open(signed)
        if isinstance(found, Status):
            raise PolicyError("FF-NET-142", "the relay does not take this pass", cause=found.name.lower())
        self._resume(found)
        return b""

    async def _settled(self, connection: Connection, body: bytes) -> bytes:
        """The payer is done: everybody signs, the ledger pays, and these passes are over."""
        await self.settle(connection.peer)
        return b""

    async def settle(self, payer: PeerId) -> None:
        """Claims all that is signed for this payer, and ends what it pays for. Raises what `settle` of the app does.

        Meanwhile nothing begins at its cost, and receipts count. Who asks a second time waits for the first.
        """
        if payer not in self._payers and await self._ask_funds(payer) is None:
            return  # a stranger
        # It may have used nothing: its money goes back all the same.
        known = self._payers.setdefault(payer, _Payer())
        async with known.ending:
            if self._payers.get(payer) is not known:
                return  # settled, while this one waited
            known.is_settling = True
            try:
                await self._collect(payer)
                for carrier, run in list(self._runs.items()):
                    if run.payer is known:
                        carrier.close()
                mine = self._of(payer)
                claims = tuple(Claim(mine[name].signed, mine[name].receipts) for name in sorted(mine))
                await self._settle(payer, tuple(claim for claim in claims if claim.receipts))
                for name in mine:
                    await self._forget(name)
                self._payers.pop(payer, None)
            finally:
                known.is_settling = False

    @property
    def payers(self) -> tuple[PeerId, ...]:
        """Those for whom something was carried and is not settled."""
        return tuple(sorted({name[0] for name, books in self._books.items() if books.carried}))

    def _now(self) -> int:
        return int(self._clock())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
