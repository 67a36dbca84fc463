"""Connects a public relay to its ledger: withdrawn node keys, and the payments for what it carries."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, NetworkError, UsageError
from farflung.core.ids import PeerId
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.core.money import format_credits
from farflung.ledger.block import Genesis
from farflung.ledger.table_rows import ChannelRow
from farflung.net.certificates import Credential
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_metering_gate import RelayMeteringGate
from farflung.net.io.relay_receipt_store import ReceiptStore
from farflung.peers.ledger_client.client import LedgerClient, genesis_from, serve_nothing
from farflung.peers.ledger_client.connect import any_of, reaches_of
from farflung.peers.ledger_client.key_registry import KeyRegistryFollower
from farflung.peers.ledger_client.relay_channel import metering_gate

_CLAIM_FEES: Final = 2  # transactions of one settlement: the claim, and the end of the channel
_LOOK_SECONDS: Final = 30.0  # between two looks for channels that end


class RelayLedgerLink:
    """One relay's way to its ledger. `paid` is told of each channel when it is settled."""

    def __init__(
        self,
        key: SigningKey,
        validators: Sequence[tuple[PeerId, str, int]],
        paid: Callable[[ChannelRow], None] = lambda _: None,
        own: Credential | None = None,
    ) -> None:
        """`key` signs. `validators`: key, host and port of each. `own`: what the relay proves (None: `key`)."""
        self._key, self._validators, self._paid = key, validators, paid
        self._endpoint = Endpoint(own or key, serve_nothing, ByteCounter())
        self._reaches = reaches_of(validators, self._endpoint)
        self._ledger: LedgerClient | None = None
        self._gate: RelayMeteringGate | None = None
        self._tasks = OwnedTasks()

    def renew(self, own: Credential) -> None:
        """The relay proves another node key from now on. Raises ProtocolError FF-NET-106."""
        self._endpoint.renew(own)

    async def _genesis(self) -> Genesis:
        """By the word of the first validator that can be reached: whoever names their keys trusts them."""
        *before, (last, _, _) = self._validators
        for (validator, _, _), reach in zip(before, self._reaches, strict=False):
            with contextlib.suppress(NetworkError):
                return await genesis_from(reach, validator)
        return await genesis_from(self._reaches[-1], last)

    async def gate(self, price: int, store: ReceiptStore | None = None) -> RelayMeteringGate:
        """Asks for passes at `price` pico-credits a GiB or more; keeps the last receipts in the `store`.

        Raises NetworkError (the ledger is away), ProtocolError FF-APP-144, UsageError FF-APP-143 (no money for fees).
        """
        genesis = await self._genesis()
        ledger = LedgerClient(self._reaches, self._key, genesis)
        own = await ledger.account(self._key.public)
        fee = genesis.params.fee_min
        if own.balance < _CLAIM_FEES * fee:
            raise UsageError(
                "FF-APP-143",
                f"the relay's account {self._key.public.hex()} cannot pay for its claims",
                cause=f"it has {format_credits(own.balance)} credits, and a transaction costs {format_credits(fee)}",
                hint="send it a few fees of that ledger, or leave --price out",
            )
        self._ledger = ledger
        self._gate = metering_gate(ledger, self._key.public, price, self._paid, store)
        return self._gate

    def attend(self, server: RelayServer) -> None:
        """Cuts off withdrawn node keys at this relay and claims from channels that end, until `close`."""
        follower = KeyRegistryFollower(any_of(self._reaches), server.admission.keyring, server.recheck)
        self._tasks.begin(follower.stay())
        if self._gate is not None:
            self._tasks.begin(self._collect())

    async def _collect(self) -> None:
        """A channel that is over can be claimed from for some minutes; its payer may have gone without a word."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            with contextlib.suppress(FarflungError):
                await self.collect()

    async def collect(self) -> None:
        """Claims from the channels whose time is over, and forgets those that are gone.

        What fails for one payer waits for the next time. Raises NetworkError when the ledger is away.
        """
        assert self._ledger is not None
        assert self._gate is not None
        now = (await self._ledger.head()).header.time
        for payer in self._gate.payers:
            with contextlib.suppress(FarflungError):  # one payer's trouble is not the next one's
                row = await self._ledger.channel(payer, self._key.public)
                if row is None or not row.is_open or now >= row.expires:
                    await self._gate.settle(payer)

    async def settle(self) -> list[FarflungError]:
        """Claims all that is signed, because this relay ends: its books end with it. What did not succeed, and why."""
        failed: list[FarflungError] = []
        if self._gate is None:
            return failed
        for payer in self._gate.payers:
            try:
                await self._gate.settle(payer)
            except FarflungError as error:
                failed.append(error)
        return failed

    async def close(self) -> None:
        """Follows no more."""
        await self._tasks.close()
        await self._endpoint.close()
