"""Pays relays by passes: shows one when a peer dials through a relay, and signs receipts for what went through.

Receipts go over an ordinary connection to the relay, which is dialled if none stands. One task for each pass that
is in use: it signs when `ReceiptTally` says so, when time is up, when the relay asks (`relay.sign`), and at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from farflung.core import limits, relay_passes
from farflung.core.codec import decode, encode
from farflung.core.errors import FarflungError, NetworkError
from farflung.core.ids import PeerId
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.core.relay_passes import RelayPass, RelayReceipt, SignedRelayPass
from farflung.net.certificates import Credential
from farflung.net.io.connection import Connection
from farflung.net.messages import RemoteError
from farflung.net.relay_pass_checks import has_counted, is_current
from farflung.net.relay_receipts import ReceiptCredit, ReceiptTally, RelayReceiptReply

RECEIPT: Final = "relay.receipt"  # party to relay: a SignedRelayReceipt; the answer: `RelayReceiptReply`
SIGN: Final = "relay.sign"  # relay to party: sign now, under this SignedPass
_AGAIN_SECONDS: Final = 0.5  # after a relay that did not take a receipt
_LAST_SECONDS: Final = 1.0
_TRIES: Final = 3  # of the last receipt, when all is over

Reach = Callable[[PeerId, tuple[str, int]], Awaitable[Connection]]


class _ActivePass:
    """One pass in use at one relay."""

    def __init__(self, toll: RelayPass, party: PeerId, place: tuple[str, int], credit: ReceiptCredit) -> None:
        self.is_due = asyncio.Event()
        self.turn = asyncio.Lock()  # one receipt at a time
        self.tally = ReceiptTally(toll, party, self.is_due.set, credit)
        self.place = place
        self.is_known = False  # what was signed before this process began
        self.task: asyncio.Task[None] | None = None


class RelayPayer:
    """The passes of one account."""

    def __init__(self, own: Credential, reach: Reach, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since 1970."""
        self._clock = clock
        self._credit = ReceiptCredit()  # outlives the lines: who makes us forget one gets no new one by it
        self._nodes, self._account, self._reach = [own.node], own.account, reach  # the newest node key first
        self._passes: dict[tuple[PeerId, PeerId, int, int], SignedRelayPass] = {}
        self._lines: dict[tuple[PeerId, PeerId, int, int], _ActivePass] = {}
        self._tasks = OwnedTasks()

    def renew(self, own: Credential) -> None:
        """From now on this node key signs; the one before still does where a connection was opened with it."""
        self._nodes = [own.node, self._nodes[0]]

    def put(self, signed: SignedRelayPass) -> None:
        """From now on this pass is shown. One that was signed earlier under the same serial is forgotten."""
        name = _name(signed.toll)
        known = self._passes.get(name)
        if known is None or known.toll.expires < signed.toll.expires:
            self._passes[name] = signed
        if len(self._passes) > limits.PASSES_PER_PAYER:
            del self._passes[min(self._passes, key=lambda each: self._passes[each].toll.expires)]

    def drop(self, payer: PeerId) -> None:
        """The passes of this payer are shown no more. What counts under them is still signed for."""
        self._passes = {name: s for name, s in self._passes.items() if s.toll.payer != payer}

    def find(self, relay: PeerId, peer: PeerId) -> SignedRelayPass | None:
        """The pass to show at this relay on the way to this peer: of those that count now, the one that ends last."""
        return _last(s for s in self._current(relay) if {self._account, peer} <= set(s.toll.holders))

    def find_of(self, payer: PeerId, relay: PeerId) -> SignedRelayPass | None:
        """The pass to show at this relay for what this payer owns: of those that count now, the one that ends last."""
        mine = (s for s in self._current(relay) if s.toll.payer == payer)
        return _last(s for s in mine if self._account in s.toll.holders)

    def _current(self, relay: PeerId) -> list[SignedRelayPass]:
        """Others would be refused there, and stand before those that are not."""
        now = int(self._clock())
        return [s for s in self._passes.values() if s.toll.relay == relay and is_current(s.toll, now)]

    def tally(self, signed: SignedRelayPass | None, relay: PeerId, place: tuple[str, int]) -> ReceiptTally | None:
        """Where a connection through `relay` counts under this pass; None: under none, or it is none of ours."""
        if signed is None or not self._is_ours(signed, relay):
            return None
        name = _name(signed.toll)
        line = self._lines.get(name)
        if line is None:
            self._forget()
            line = self._lines[name] = self._line(signed.toll, place)
        line.place = place
        line.tally.toll = signed.toll
        return line.tally

    def _is_ours(self, signed: SignedRelayPass, relay: PeerId) -> bool:
        is_named = signed.toll.relay == relay and self._account in signed.toll.holders
        return is_named and relay_passes.is_well_formed(signed.toll) and relay_passes.is_pass_signed(signed)

    def _line(self, toll: RelayPass, place: tuple[str, int]) -> _ActivePass:
        return _ActivePass(toll, self._account, place, self._credit)

    def shown(self, signed: SignedRelayPass | None, relay: PeerId, place: tuple[str, int]) -> ReceiptTally | None:
        """As `tally`, for a pass that is about to be shown; asks at first what an earlier life of ours has left."""
        tally = self.tally(signed, relay, place)
        if tally is not None and not self._lines[_name(tally.toll)].is_known:
            self._begin(self._lines[_name(tally.toll)])
        return tally

    def opened(self, tally: ReceiptTally | None) -> None:
        """One more connection counts there."""
        if tally is not None:
            tally.opened()
            self._begin(self._lines[_name(tally.toll)])

    def ended(self, tally: ReceiptTally | None) -> None:
        """One connection less counts there."""
        if tally is not None:
            tally.ended()
            self._lines[_name(tally.toll)].is_due.set()

    def _begin(self, line: _ActivePass) -> None:
        line.is_due.set()  # at once, so that the relay knows over which connection it may ask
        if line.task is None or line.task.done():
            line.task = self._tasks.begin(self._keep(line))

    async def asked(self, relay: Connection, body: bytes) -> None:
        """The relay wants a receipt under the pass of `body`. Raises NetworkError, ProtocolError.

        A pass that we neither carried under nor were given may be of an earlier life of ours, or the relay's own
        invention: one that counts, or did once, is signed for within the credit, and nothing of it is kept, so that no
        line of ours is forgotten for it. That it is over changes nothing of what is owed, nor of what a lie can bring.
        """
        signed, place = (decode(body, SignedRelayPass, limits.TICKET_BYTES), (relay.place.host, relay.place.port))
        name, now = _name(signed.toll), int(self._clock())
        if name in self._lines or (is_current(signed.toll, now) and name in self._passes):
            if self.tally(signed, relay.peer, place) is not None:
                await self._sign(self._lines[name])
        elif has_counted(signed.toll, now) and self._is_ours(signed, relay.peer):
            await self._sign(self._line(signed.toll, place))

    async def sign(self, relay: PeerId) -> None:
        """Signs for all that went through this relay. Raises NetworkError."""
        for line in [line for line in self._lines.values() if line.tally.toll.relay == relay]:
            await self._sign(line)

    async def close(self) -> None:
        """Signs for the last time what a relay that can still be reached will take, and then no more."""
        with contextlib.suppress(FarflungError, TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                await asyncio.gather(*(self._sign(line) for line in self._lines.values()))
        await self._tasks.close()

    def _forget(self) -> None:
        """Makes room: of the passes that are not in use, the one that ended first."""
        idle = [name for name, line in self._lines.items() if line.task is None or line.task.done()]
        if len(self._lines) >= limits.PASSES_PER_PAYER and idle:
            del self._lines[min(idle, key=lambda name: self._lines[name].tally.toll.expires)]

    async def _keep(self, line: _ActivePass) -> None:
        """Signs when it is due, until no connection counts there and all is signed, or the relay takes no more."""
        failed = 0
        while failed < _TRIES or line.tally.connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limits.RECEIPT_SECONDS):
                    await line.is_due.wait()
            line.is_due.clear()
            try:
                await self._sign(line)
                failed = 0
            except FarflungError:
                failed += 1
                # Sooner if a connection is opened: then the relay keeps books for it.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_AGAIN_SECONDS):
                        await line.is_due.wait()
                line.is_due.set()
            if not line.tally.connections and not line.tally.unsigned:
                return

    async def _sign(self, line: _ActivePass) -> None:
        """Raises NetworkError when the relay does not take it."""
        async with line.turn:
            tally = line.tally
            is_due = await self._ask(line)
            if tally.unsigned or is_due:
                try:
                    await self._show(line, tally.receipt())
                except RemoteError:
                    raise  # the relay keeps no such books any more: nothing is to be had by asking again
                except NetworkError:
                    tally.unsay()
                    raise

    async def _ask(self, line: _ActivePass) -> bool:
        """Asks the relay what it knows of an earlier life; whether that makes a receipt due."""
        tally = line.tally
        if line.is_known and (tally.connections or not tally.credit):
            return False
        heard = await self._show(line, tally.nothing())
        if not line.is_known:
            tally.recall(heard.last.receipt)
            line.is_known = True
        return tally.take_over(heard.sent, heard.received)

    async def _show(self, line: _ActivePass, receipt: RelayReceipt) -> RelayReceiptReply:
        """Signs and sends; what the relay says, of which the receipt is ours in any case."""
        connection = await self._reach(receipt.relay, line.place)
        nodes = self._nodes
        for node in nodes:
            try:
                mine = relay_passes.sign_receipt(node, receipt)
                answer = await connection.call(RECEIPT, encode(mine))
                break
            except RemoteError as error:
                if error.code != "FF-NET-141" or node is nodes[-1]:
                    raise
        heard = decode(answer, RelayReceiptReply, limits.HEARD_BYTES)
        is_ours = relay_passes.is_receipt_signed(heard.last, self._account, *(node.public for node in nodes))
        return heard if is_ours else RelayReceiptReply(mine, 0, 0)


class GroupTally:
    """What one member's connection to a group counts under the pass that it was joined with.

    Whole DATA frames count, both ways, as the relay counts them: its own words cost nothing.
    """

    def __init__(self, payer: RelayPayer | None, owner: PeerId, relay: PeerId, place: tuple[str, int]) -> None:
        """`owner`: of the group. Without a payer, or a pass in it, nothing is shown and nothing counts."""
        self._payer, self._relay, self._place = payer, relay, place
        self.toll = payer.find_of(owner, relay) if payer is not None else None
        self._tally: ReceiptTally | None = None

    def begin(self) -> None:
        """The relay has let us in."""
        if self._payer is not None:
            self._tally = self._payer.tally(self.toll, self._relay, self._place)
            self._payer.opened(self._tally)

    def sent(self, size: int) -> None:
        """The kernel took a frame of `size` bytes."""
        if self._tally is not None:
            self._tally.sent(size)

    def received(self, size: int) -> None:
        """A frame of `size` bytes came."""
        if self._tally is not None:
            self._tally.received(size)

    def end(self) -> None:
        """The connection is gone."""
        if self._payer is not None:
            self._payer.ended(self._tally)
        self._tally = None


def _name(toll: RelayPass) -> tuple[PeerId, PeerId, int, int]:
    return toll.relay, toll.payer, toll.opening, toll.serial


def _last(passes: Iterable[SignedRelayPass]) -> SignedRelayPass | None:
    return max(passes, key=lambda signed: (signed.toll.expires, signed.toll.serial), default=None)
