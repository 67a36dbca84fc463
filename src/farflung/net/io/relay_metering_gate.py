"""Enforces payment at a relay: a pass before it carries, receipts while it does, and its claim at the end.

A carrier (a circuit, a fan-out) runs under one pass. It is held when too much is unsigned (`relay_meter`: for its
parties, or under all passes of its payer), when the quota or the payer's channel is used up, and when the pass has
ended; it goes on with receipts or the payer's renewal, and is closed after limits.HELD_SECONDS. The ledger is asked
by whoever made this (`funds`), never from here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from farflung.core import limits, relay_passes
from farflung.core.codec import decode, encode
from farflung.core.errors import FarflungError, PolicyError
from farflung.core.ids import Hash, PeerId
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.core.relay_passes import SignedRelayPass, SignedRelayReceipt
from farflung.net import relay_pass_checks
from farflung.net.certificates import Identity
from farflung.net.io.connection import Connection
from farflung.net.io.receipt_requests import ReceiptRoutes
from farflung.net.io.relay_accounts import ChannelBalance, ChannelPayer, PayerAccounts
from farflung.net.io.relay_payer import RECEIPT
from farflung.net.io.relay_receipt_store import ReceiptStore
from farflung.net.relay_meter import Carrier, PassMeter, PassStatus
from farflung.net.relay_pass_checks import Name, name_of
from farflung.net.relay_receipts import RelayReceiptReply, RelayUsageReply
from farflung.net.relay_tickets import TicketStatus

RENEW: Final = "relay.pass"  # anybody to relay: a SignedRelayPass, which counts from now on
SETTLE: Final = "relay.settle"  # payer to relay: claim what is signed, and give the rest back
USED: Final = "relay.used"  # payer to relay: the answer is `RelayUsageReply`
LOOK_SECONDS: Final = 0.5


Nodes = Callable[[PeerId], Awaitable[tuple[PeerId, ...]]]


@dataclass(frozen=True, slots=True)
class PassClaim:
    """One pass and what its parties signed at last: what the ledger pays for."""

    signed: SignedRelayPass
    receipts: tuple[SignedRelayReceipt, ...]


@dataclass(slots=True)
class _MeteredCarrier:
    """A carrier under its pass. `held_at`: by the loop's clock; None: it runs."""

    books: PassMeter
    parties: tuple[PeerId, ...]
    payer: ChannelPayer
    held_at: float | None = None
    sent: Counter[PeerId] = field(default_factory=Counter)  # of each party, by this carrier
    received: Counter[PeerId] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class ChannelLedger:
    """What a relay asks of the ledger. The functions raise FarflungError when it is away."""

    chain: Hash
    funds: Callable[[PeerId], Awaitable[ChannelBalance | None]]  # a payer's channel, if it has one
    settle: Callable[[PeerId, tuple[PassClaim, ...]], Awaitable[None]]  # claims and closes it
    nodes: Nodes | None = None  # an account's node keys whose receipts it takes; None: any certified one


@dataclass(frozen=True, slots=True)
class CreditLimits:
    """What a relay carries before it has seen it signed."""

    window: int = limits.RECEIPT_WINDOW  # bytes that may be at risk with each payer (`relay_meter`)
    held_seconds: float = limits.HELD_SECONDS  # until a carrier that is held is closed


USUAL_CREDIT: Final = CreditLimits()


class ReceiptKeys:
    """Decides which receipts a relay accepts: signed by a party's own key, or by its node key on the ledger."""

    def __init__(self, nodes: Nodes | None) -> None:
        """`nodes`: an account's node keys whose receipts the ledger takes; None: any certified one counts."""
        self._nodes = nodes
        self._known: set[PeerId] = set()

    async def is_sound(self, signed: SignedRelayReceipt, who: Identity) -> bool:
        """Whether the ledger will pay for it, as far as that is known now; `who` brings it."""
        if relay_passes.is_receipt_signed(signed, who.account):
            return True
        if not relay_passes.is_receipt_signed(signed, who.account, who.node):
            return False
        if self._nodes is not None and who.node not in self._known:
            with contextlib.suppress(FarflungError):  # the ledger is away: it is asked again at the next one
                if who.node not in await self._nodes(who.account):
                    return False
                if len(self._known) >= limits.PASSES:
                    self._known.clear()
                self._known.add(who.node)
        return True


class RelayMeteringGate:
    """The money side of one relay."""

    def __init__(
        self,
        ledger: ChannelLedger,
        price: int,
        *,
        store: ReceiptStore | None = None,
        credit: CreditLimits = USUAL_CREDIT,
    ) -> None:
        """`price`: pico-credits a GiB, at least. `store` keeps passes and receipts (None: as long as this process)."""
        self._ledger, self._price, self._held_seconds = ledger, price, credit.held_seconds
        self._signers, self._store = ReceiptKeys(ledger.nodes), store
        self._books: dict[Name, PassMeter] = {}
        self._payers = PayerAccounts(credit.window - limits.RECEIPT_STEP, ledger.funds)
        self._runs: dict[Carrier, _MeteredCarrier] = {}
        self._tasks = OwnedTasks()
        self._relay = PeerId(b"")
        self._clock: Callable[[], float] = lambda: 0.0
        self._receipt_routes = ReceiptRoutes(lambda _: None)

    def serve(
        self, relay: PeerId, clock: Callable[[], float], attached: Callable[[PeerId], Connection | None]
    ) -> dict[str, Callable[[Connection, bytes], Awaitable[bytes]]]:
        """Belongs to this relay from now on; the methods that it serves. `clock`: seconds since 1970."""
        self._relay, self._clock, self._receipt_routes = relay, clock, ReceiptRoutes(attached)
        if self._store is not None:
            for payer, size in self._store.debts():
                self._payers.owes(payer, size)
            for kept in self._store.load(relay, self._ledger.chain):
                self._put(kept.signed, is_whole=False).restore(kept.receipts, kept.carried)
        self._tasks.begin(self._watch())
        return {RECEIPT: self._receipt, RENEW: self._renew, SETTLE: self._settled, USED: self._used}

    async def close(self) -> None:
        """Watches no more."""
        await self._tasks.close()
        await self._receipt_routes.close()
        if self._store is not None:
            with contextlib.suppress(FarflungError):
                await self._store.write()

    # Admission

    async def admit(self, signed: SignedRelayPass | None, *parties: PeerId) -> PassMeter | TicketStatus:
        """The books that two or more holders are carried under, or why not."""
        toll = relay_pass_checks.judge(signed, self._relay, parties)
        if isinstance(toll, TicketStatus):
            return toll
        assert signed is not None
        books = self._books.get(name_of(toll))
        payer = self._payers.find(toll.payer)
        funds = payer.funds if payer is not None else None
        is_open = funds is not None and funds.opening == toll.opening
        if books is None or relay_pass_checks.renews(toll, books.signed.toll) or not is_open:
            found = await self._open(signed)
            if isinstance(found, TicketStatus):
                return found
            books = found
        if not relay_pass_checks.is_current(books.signed.toll, self._now()):
            return TicketStatus.LAPSED
        if not set(parties) <= set(books.signed.toll.holders):
            return TicketStatus.NO_HOLDER
        standing = self._standing(books, parties)
        if standing is PassStatus.HELD:
            await self._collect(toll.payer)
            standing = self._standing(books, parties)
        if standing is PassStatus.OPEN:
            return books
        return TicketStatus.OWING if standing is PassStatus.HELD else TicketStatus.USED_UP

    async def _open(self, signed: SignedRelayPass, need: int = 0) -> PassMeter | TicketStatus:
        """Books for a pass that was judged, or its renewal; `need`: bytes that its payer says its channel pays for."""
        toll = signed.toll
        if not relay_pass_checks.is_current(toll, self._now()):
            return TicketStatus.LAPSED
        funds = await self._payers.funds(toll.payer, need)
        is_ours = toll.chain == self._ledger.chain and funds is not None and funds.opening == toll.opening
        if funds is None or not is_ours or funds.price < self._price:
            return TicketStatus.UNFUNDED
        payer = self._payers.of(toll.payer)
        if payer.is_settling:
            return TicketStatus.UNFUNDED
        if toll.serial < funds.serial or not toll.quota:
            return TicketStatus.USED_UP
        books = self._books.get(name_of(toll))
        if books is not None:
            if books.renew(signed):
                self._keep(books)
            return books
        async with payer.turn:  # however many come at once, they count each other
            return await self._begin_books(signed)

    async def _begin_books(self, signed: SignedRelayPass) -> PassMeter | TicketStatus:
        """Books for a pass that had none."""
        name, mine = name_of(signed.toll), self._of(signed.toll.payer)
        if name in mine:
            return mine[name]
        if len(self._books) >= limits.PASSES or len(mine) >= limits.PASSES_PER_PAYER:
            return TicketStatus.FULL
        if self._store is not None:
            try:
                await self._store.open(signed)
            except FarflungError:
                return TicketStatus.FULL  # what cannot be remembered is not begun
        return self._put(signed, is_whole=self._store is not None)

    def _put(self, signed: SignedRelayPass, *, is_whole: bool) -> PassMeter:
        name, payer = name_of(signed.toll), self._payers.of(signed.toll.payer)
        books = self._books[name] = payer.books[name] = PassMeter(signed, payer.account, is_whole=is_whole)
        return books

    def _of(self, payer: PeerId) -> dict[Name, PassMeter]:
        known = self._payers.find(payer)
        return dict(known.books) if known is not None else {}

    async def _collect(self, payer: PeerId) -> None:
        """Everybody signs under every pass of this payer, or will not."""
        every = self._of(payer).values()
        await asyncio.gather(*(self._receipt_routes.collect(each, each.signed.toll.holders) for each in every))

    def _standing(self, books: PassMeter, parties: tuple[PeerId, ...]) -> PassStatus:
        payer = self._payers.find(books.signed.toll.payer)
        is_over = not relay_pass_checks.is_current(books.signed.toll, self._now())
        if is_over or payer is None or payer.is_settling or payer.is_spent(books):
            return PassStatus.USED_UP
        return books.standing(*parties)

    # Carriers

    def opened(self, carrier: Carrier, books: PassMeter, *parties: PeerId) -> None:
        """A carrier of these holders runs under these books, until `ended`."""
        run = self._runs[carrier] = _MeteredCarrier(books, parties, self._payers.of(books.signed.toll.payer))
        self._go_on(carrier, run)  # others may have taken the room since it was admitted

    def moved(self, carrier: Carrier, is_back: bool, size: int) -> None:
        """A pair's carrier gave `size` bytes to its second party, or back to its first; it may be held for it."""
        run = self._runs[carrier]
        receiver, sender = run.parties if is_back else run.parties[::-1]
        run.sent[sender] += size
        run.received[receiver] += size
        self._look(carrier, run, run.books.moved(sender, receiver, size), sender, receiver)

    def copied(self, carrier: Carrier, receiver: PeerId, size: int) -> None:
        """A fan-out gave `size` bytes that were `taken` before to one more holder."""
        run = self._runs[carrier]
        run.received[receiver] += size
        run.books.given(receiver, size)
        self._look(carrier, run, run.books.standing(receiver), receiver)

    def taken(self, carrier: Carrier, sender: PeerId, size: int) -> None:
        """A fan-out took `size` bytes from a holder, to copy them."""
        run = self._runs[carrier]
        run.sent[sender] += size
        run.books.taken(sender, size)
        self._look(carrier, run, run.books.standing(sender), sender)

    def ended(self, carrier: Carrier) -> None:
        """The carrier is gone; nothing if it ran under no pass."""
        self._runs.pop(carrier, None)

    def _look(self, carrier: Carrier, run: _MeteredCarrier, standing: PassStatus, *parties: PeerId) -> None:
        if standing is PassStatus.OPEN and not run.payer.is_spent(run.books):
            if due := run.books.due(parties):
                self._receipt_routes.ask(run.books, due)
        elif run.held_at is None and run.books.account.room <= 0:  # nobody else begins a piece either
            for each, other in self._runs.items():
                if other.books.account is run.books.account:
                    self._hold(each, other)
        else:
            self._hold(carrier, run)

    def _hold(self, carrier: Carrier, run: _MeteredCarrier) -> None:
        if run.held_at is None:
            run.held_at = asyncio.get_running_loop().time()
            carrier.hold()
            self._ask_all(run.payer)

    def _ask_all(self, payer: ChannelPayer) -> None:
        """Room is for all, whoever of them lags."""
        for books in payer.books.values():
            self._receipt_routes.ask(books, books.signed.toll.holders)

    async def _watch(self) -> None:
        """Holds what may not go on, lets go what may, and ends what was held for too long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for carrier, run in list(self._runs.items()):
                is_late = run.held_at is not None and loop.time() - run.held_at > self._held_seconds
                if self._go_on(carrier, run):
                    continue
                # Again: when they were asked, what was given last was still on its way to them.
                self._ask_all(run.payer)
                if is_late:
                    carrier.close()
            if self._store is not None:
                for books in self._books.values():
                    if books.carried - books.kept >= limits.RECEIPT_STEP:
                        self._keep(books)
                with contextlib.suppress(FarflungError):  # the disk is full: it is tried again
                    await self._store.write()
            for name, books in list(self._books.items()):
                is_over = books.is_idle and not relay_pass_checks.is_current(books.signed.toll, self._now())
                if is_over and not any(run.books is books for run in self._runs.values()):
                    await self._forget(name)

    async def _forget(self, name: Name) -> None:
        books = self._books.pop(name, None)
        if (payer := self._payers.find(name[0])) is not None:
            payer.books.pop(name, None)
        if books is not None and self._store is not None:
            await self._store.drop(books.signed.toll)

    def _go_on(self, carrier: Carrier, run: _MeteredCarrier) -> bool:
        if self._standing(run.books, run.parties) is not PassStatus.OPEN:
            self._hold(carrier, run)
            return False
        if run.held_at is not None:
            run.held_at = None
            carrier.release()
        return True

    def _resume(self, books: PassMeter) -> None:
        """What was signed under one pass makes room for all of its payer."""
        for carrier, run in list(self._runs.items()):
            if run.books.account is books.account and run.held_at is not None:
                self._go_on(carrier, run)

    # What is asked of the relay

    async def _receipt(self, connection: Connection, body: bytes) -> bytes:
        """A party's receipt; the answer is the last one of that party, and what was counted for it and has ended."""
        signed = decode(body, SignedRelayReceipt, limits.TICKET_BYTES)
        receipt = signed.receipt
        books = self._books.get((receipt.payer, receipt.opening, receipt.serial))
        if books is None or not relay_passes.is_of(receipt, books.signed.toll):
            raise PolicyError("FF-NET-140", "the relay keeps no books for this receipt")
        who = connection.identity
        if receipt.party != who.account or not await self._signers.is_sound(signed, who):
            raise PolicyError("FF-NET-141", "the receipt is not signed by its party")
        self._receipt_routes.hear(connection)
        if books.sign(signed):
            self._keep(books)
            self._resume(books)
        sent, received = books.count(receipt.party)
        for run in self._runs.values():
            if run.books is books and receipt.party in run.parties:
                sent, received = sent - run.sent[receipt.party], received - run.received[receipt.party]
        return encode(RelayReceiptReply(books.last(receipt.party) or signed, sent, received))

    def _keep(self, books: PassMeter) -> None:
        if self._store is not None:
            books.kept = books.carried
            self._store.keep(books.signed, books.receipts, books.carried)

    async def _renew(self, connection: Connection, body: bytes) -> bytes:
        """A pass, new or signed anew by its payer; whoever brings it."""
        signed = decode(body, SignedRelayPass, limits.TICKET_BYTES)
        judged = relay_pass_checks.judge(signed, self._relay, ())
        found = judged if isinstance(judged, TicketStatus) else await self._open(signed, signed.toll.quota)
        if isinstance(found, TicketStatus):
            raise PolicyError("FF-NET-142", "the relay does not take this pass", cause=found.name.lower())
        self._resume(found)
        return b""

    async def _used(self, connection: Connection, body: bytes) -> bytes:
        """What a payer has used, so that it may add to its channel and make good what is lost in time."""
        payer = self._payers.find(connection.peer)
        if payer is None:
            return encode(RelayUsageReply(0))
        account = payer.account
        if not account.is_low:
            return encode(RelayUsageReply(account.carried))
        await self._collect(connection.peer)
        unsigned = account.owed if account.is_low else 0
        if not payer.books:
            return encode(RelayUsageReply(account.carried, unsigned))
        last = payer.books[max(payer.books)]
        return encode(RelayUsageReply(account.carried, unsigned, last.signed.toll.lost, last.receipts))

    async def _settled(self, connection: Connection, body: bytes) -> bytes:
        """The payer is done: everybody signs, the ledger pays, and these passes are over."""
        await self.settle(connection.peer)
        return b""

    async def settle(self, payer: PeerId) -> None:
        """Claims all that is signed for this payer, and ends what it pays for. Raises what `settle` of the app does.

        Meanwhile nothing begins at its cost, and receipts count. Who asks a second time waits for the first.
        """
        if self._payers.find(payer) is None and await self._payers.ask(payer) is None:
            return  # a stranger
        # It may have used nothing: its money goes back anyway.
        known = self._payers.of(payer)
        async with known.ending:
            if self._payers.find(payer) is not known:
                return  # settled, while this one waited
            known.is_settling = True
            try:
                await self._collect(payer)
                for carrier, run in list(self._runs.items()):
                    if run.payer is known:
                        carrier.close()
                mine = self._of(payer)
                claims = tuple(PassClaim(mine[name].signed, mine[name].receipts) for name in sorted(mine))
                due = tuple(each for each in claims if each.receipts or each.signed.toll.lost)
                await self._ledger.settle(payer, due)
                if self._store is not None:
                    self._store.owe(payer, known.account.owed)
                    with contextlib.suppress(FarflungError):
                        await self._store.write()
                for name in mine:
                    await self._forget(name)
                self._payers.settled(payer, known)
            finally:
                known.is_settling = False

    @property
    def payers(self) -> tuple[PeerId, ...]:
        """Those for whom something was carried, or who make something good, and it is not settled."""
        return tuple(sorted({name[0] for name, books in self._books.items() if not books.is_idle}))

    def _now(self) -> int:
        return int(self._clock())
