"""Pays for traffic through a relay: the payer's channel and passes, and the relay's queries to and claims on the
ledger.

payer                            ledger                     relay
  | -- ChannelOpen -------------> |                           |
  | -- pass, to the parties; again every few minutes -------> |  (also in the parties' tickets)
  | -- relay.used: how much? ------------------------------> |
  | -- ChannelOpen, to add -----> |                           |  then the pass again, for more bytes
  | -- pass, that makes good what was lost ----------------> |  a part of what the parties' receipts show, at most
  |                               | <-- is there a channel? - |
  |            parties: receipts -------------------------> |
  | -- relay.settle ----------------------------------------> |
  |                               | <-- ChannelClaim, Close - |
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from farflung.core import limits, relay_passes
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError
from farflung.core.ids import PeerId
from farflung.core.relay_passes import RelayPass, SignedRelayPass, sign_pass
from farflung.ledger.rules.relays import signers
from farflung.ledger.table_rows import ChannelRow
from farflung.ledger.transactions import ChannelClaim, ChannelClose, ChannelOpen, PassReceipts
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay_accounts import ChannelBalance
from farflung.net.io.relay_metering_gate import RENEW, SETTLE, USED, ChannelLedger, PassClaim, RelayMeteringGate
from farflung.net.io.relay_receipt_store import ReceiptStore
from farflung.net.relay_receipts import RelayUsageReply
from farflung.peers.ledger_client.client import LedgerClient

RENEW_SECONDS: Final = limits.PASS_SECONDS / 3
_CLAIM_BYTES: Final = limits.TX_BYTES // 2  # of passages in one transaction
_SETTLE_SECONDS: Final = 60.0


def metering_gate(
    ledger: LedgerClient,
    relay: PeerId,
    price: int,
    paid: Callable[[ChannelRow], None] = lambda _: None,
    store: ReceiptStore | None = None,
) -> RelayMeteringGate:
    """The money side of a relay whose account `ledger` signs for, at `price` pico-credits a GiB or more.

    `paid` is told of each channel when it is settled. `store`: where it keeps its last receipts.
    """

    async def funds(payer: PeerId) -> ChannelBalance | None:
        row = await ledger.channel(payer, relay)
        if row is None or not row.is_open or (await ledger.head()).header.time >= row.expires:
            return None
        return ChannelBalance(row.opening, row.price, row.held, row.serial)

    async def nodes(party: PeerId) -> tuple[PeerId, ...]:
        return signers(await ledger.keys(party))

    async def settle(payer: PeerId, claims: tuple[PassClaim, ...]) -> None:
        row = await ledger.channel(payer, relay)
        if row is None or not row.is_open:
            return
        if claims and all(each.signed.toll.opening != row.opening for each in claims):
            return  # what was kept on disk is of a channel that was closed before this relay was started anew
        due = tuple(each for each in claims if _is_due(each.signed.toll, row))
        parties = {signed.receipt.party for claim in due for signed in claim.receipts}
        known = {party: await nodes(party) for party in sorted(parties)}
        for part in _parts([passage for claim in due if (passage := _sound(claim, known)).receipts]):
            await ledger.submit(ChannelClaim(payer, tuple(part)))
        await ledger.submit(ChannelClose(payer))
        row = await ledger.channel(payer, relay)
        if row is not None:
            paid(row)

    return RelayMeteringGate(ChannelLedger(ledger.chain, funds, settle, nodes), price, store=store)


def _is_due(toll: RelayPass, row: ChannelRow) -> bool:
    """Whether a pass can still be claimed from a channel: kept receipts may be of one that is settled."""
    return toll.opening == row.opening and toll.serial >= row.serial


def _sound(claim: PassClaim, known: Mapping[PeerId, Sequence[PeerId]]) -> PassReceipts:
    """Without the receipts by keys that were withdrawn meanwhile: one of them would spoil the whole claim."""
    kept = [
        signed
        for signed in claim.receipts
        if relay_passes.is_receipt_signed(signed, signed.receipt.party, *known[signed.receipt.party])
    ]
    return PassReceipts(claim.signed, tuple(kept))


def _parts(passages: Sequence[PassReceipts]) -> Iterable[list[PassReceipts]]:
    """In order, as many together as one transaction takes."""
    part: list[PassReceipts] = []
    size = receipts = 0
    for passage in passages:
        size += len(encode(passage))
        receipts += len(passage.receipts)
        is_full = len(part) == limits.CLAIM_PASSES or receipts > limits.CLAIM_RECEIPTS or size > _CLAIM_BYTES
        if part and is_full:
            yield part
            part, size, receipts = [], len(encode(passage)), len(passage.receipts)
        part.append(passage)
    if part:
        yield part


class RelayChannelPayer:
    """One account that pays one relay for what others send through it."""

    def __init__(
        self,
        key: SigningKey,
        endpoint: Endpoint,
        ledger: LedgerClient,
        relay: PeerId,
        place: tuple[str, int],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`place`: host and port of the relay. `clock`: seconds since 1970."""
        self._key, self._endpoint, self._ledger, self._clock = key, endpoint, ledger, clock
        self.relay, self._place = relay, place
        self._terms = (0, 0)
        self.put = 0  # pico-credits in the channel, and paid from it
        self.signed: SignedRelayPass | None = None

    async def open(self, amount: int, price: int, expires: int) -> None:
        """Puts `amount` into the channel, unless it is open from before a restart. `expires`: ledger time, ms."""
        row = await self._ledger.channel(self._key.public, self.relay)
        if row is None or not row.is_open:
            await self._ledger.submit(ChannelOpen(self.relay, amount, price, expires))
            self.put, self._terms = amount, (price, expires)
        else:
            self.put, self._terms = row.held + row.paid, (row.price, row.expires)

    @property
    def quota(self) -> int:
        """Bytes that the channel pays for."""
        return min(relay_passes.worth(self.put, self._terms[0]), limits.PASS_BYTES)

    async def used(self) -> RelayUsageReply:
        """What the relay says it carried, and how much of it nobody signs for. Raises NetworkError, ProtocolError."""
        connection = await self._endpoint.dial(self.relay, *self._place)
        return decode(await connection.call(USED, b""), RelayUsageReply, limits.USED_BYTES)

    def cost(self, said: RelayUsageReply) -> int:
        """Pico-credits for what was carried. The relay gains nothing by a lie: what is signed alone is paid."""
        return relay_passes.cost(said.carried, self._terms[0])

    async def make_good(self, said: RelayUsageReply) -> int:
        """Signs for bytes that were lost on the way, so that the relay goes on. Returns those for which it does not.

        At most one to limits.MADE_GOOD that the parties' receipts, which are checked here, let the relay bill: so a
        relay that invents losses gains no more than that. Raises NetworkError, RunError FF-APP-070.
        """
        if self.signed is None or not said.unsigned:
            return 0
        toll = self.signed.toll
        proven = relay_passes.billed(toll.quota, await self._sound(said, toll))
        unheard = max(0, toll.lost - said.lost)  # the last renewal did not come through
        missing = max(0, said.unsigned - unheard)
        more = min(missing, max(0, proven // limits.MADE_GOOD - toll.lost))
        if more or unheard:
            await self.renew(lost=more)
        return missing - more

    async def _sound(self, said: RelayUsageReply, toll: RelayPass) -> dict[PeerId, tuple[int, int]]:
        """What each party signed, of those receipts that the ledger would take."""
        found = {}
        for signed in said.receipts[: limits.PASS_HOLDERS]:
            receipt = signed.receipt
            if relay_passes.is_of(receipt, toll):
                keys = (receipt.party, *signers(await self._ledger.keys(receipt.party)))
                if relay_passes.is_receipt_signed(signed, *keys):
                    found[receipt.party] = (receipt.sent, receipt.received)
        return found

    async def add(self, amount: int) -> None:
        """Puts more into the channel, signs the pass for as many bytes more, and tells the relay.

        Raises RunError FF-APP-070 (no money, or the channel's time is over), NetworkError. Nothing, where the relay
        has closed the channel: what is put there now would open another.
        """
        row = await self._ledger.channel(self._key.public, self.relay)
        if row is None or not row.is_open:
            return
        await self._ledger.submit(ChannelOpen(self.relay, amount, *self._terms))
        before = self.quota
        self.put += amount
        await self.renew(more=self.quota - before)

    async def admit(self, holders: Iterable[PeerId], quota: int, rate: int = 0) -> SignedRelayPass:
        """A new pass for these parties, for a quarter of an hour; `keep` signs it again. Shown by this process, too."""
        row = await self._ledger.channel(self._key.public, self.relay)
        opening, settled = (row.opening, row.serial) if row is not None else (0, 0)
        now = int(self._clock())
        # A payer that is started anew takes a later one, without a memory of its own.
        serial = max(settled, now)
        terms = (opening, serial, tuple(sorted(set(holders))), quota, rate, now, now + limits.PASS_SECONDS)
        return self._show(RelayPass(self._ledger.chain, self._key.public, self.relay, *terms))

    def _show(self, toll: RelayPass) -> SignedRelayPass:
        self.signed = sign_pass(self._key, toll)
        self._endpoint.payer.put(self.signed)
        return self.signed

    async def renew(self, *, more: int = 0, holders: Iterable[PeerId] = (), lost: int = 0) -> SignedRelayPass | None:
        """Signs the pass anew and tells the relay: `more` bytes, further holders, `lost` bytes more that are made good.

        Raises NetworkError.
        """
        if self.signed is None:
            return None
        old, now = self.signed.toll, int(self._clock())
        expires = max(now + limits.PASS_SECONDS, old.expires + 1)
        everybody = tuple(sorted({*old.holders, *holders}))
        begins = expires - limits.PASS_SECONDS
        quota = min(old.quota + more, limits.PASS_BYTES)
        terms = {"quota": quota, "begins": begins, "expires": expires, "lost": old.lost + lost}
        signed = self._show(replace(old, holders=everybody, **terms))
        connection = await self._endpoint.dial(self.relay, *self._place)
        await connection.call(RENEW, encode(signed))
        return signed

    async def keep(self, tell: Callable[[], Awaitable[None]] | None = None) -> None:
        """Signs the pass anew for as long as this runs. A relay that is away is told the next time.

        `tell`: hands the new one out, so that a relay that has lost its books is shown one that still counts.
        """
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with contextlib.suppress(FarflungError):
                await self.renew()
            if tell is not None:
                await tell()

    async def settle(self) -> None:
        """Lets the relay claim what is signed and give the rest back. Raises NetworkError."""
        connection = await self._endpoint.dial(self.relay, *self._place)
        await connection.call(SETTLE, b"", timeout=_SETTLE_SECONDS)
