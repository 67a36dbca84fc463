"""A relay that is paid, a ledger that says what it is told to, and passes for those who meet there."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace
from net_groups import Member, meeting, roster
from net_relays import A, B, R, echo, relay, until
from net_relays import hidden as at_any_time

from farflung.core import limits
from farflung.core.crypto import SigningKey, local_key
from farflung.core.ids import Hash, PeerId
from farflung.core.relay_passes import GIB, RelayPass, SignedRelayPass, sign_pass
from farflung.net.io.admission import Admission
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_accounts import ChannelBalance
from farflung.net.io.relay_metering_gate import ChannelLedger, CreditLimits, PassClaim, RelayMeteringGate

CHAIN = Hash(bytes([9]) * 32)
PAYER = local_key(5, "payer")
NOW = 1_800_000_000
hidden = functools.partial(at_any_time, admission=Admission(clock=lambda: NOW))
PRICE = GIB  # a pico-credit a byte: money and bytes are the same number


@dataclass
class Ledger:
    """What the relay is told of its payers, and what it claims."""

    funds: ChannelBalance | None = field(default_factory=lambda: ChannelBalance(1, PRICE, 1 << 40))
    claims: list[tuple[PeerId, tuple[PassClaim, ...]]] = field(default_factory=list)

    async def of(self, payer: PeerId) -> ChannelBalance | None:
        return self.funds if payer == PAYER.public else None

    async def settle(self, payer: PeerId, claims: tuple[PassClaim, ...]) -> None:
        self.claims.append((payer, claims))

    def asked(self) -> ChannelLedger:
        return ChannelLedger(CHAIN, self.of, self.settle)


def toll(*holders: SigningKey, key: SigningKey = PAYER, **fields: object) -> SignedRelayPass:
    """A pass for these (A and B unless others are named), signed by `key`."""
    keys = tuple(sorted(holder.public for holder in holders or (A, B)))
    plain = RelayPass(CHAIN, PAYER.public, R.public, 1, 1, keys, 1 << 40, 0, NOW - 10, NOW + 600)
    return sign_pass(key, replace(plain, **fields))


@dataclass
class Paid:
    server: RelayServer
    gate: RelayMeteringGate
    ledger: Ledger
    a: Endpoint
    b: Endpoint
    now: list[float]

    async def dial(self) -> Connection:
        return await self.a.dial(B.public, *self.server.address, relay=R.public)


@asynccontextmanager
async def paid(
    *shown: SignedRelayPass, window: int = limits.RECEIPT_WINDOW, held: float = 30.0, **options: object
) -> AsyncIterator[Paid]:
    """A relay that asks for passes; A shows these, if any (one for A and B if none is named); B is attached."""
    ledger, now = Ledger(), [float(NOW)]
    window += limits.RECEIPT_STEP  # so that accounts have what the test says
    gate = RelayMeteringGate(ledger.asked(), PRICE, credit=CreditLimits(window, held))
    async with relay(gate=gate, admission=Admission(clock=lambda: now[0]), **options) as server:
        clock = {"admission": Admission(clock=lambda: now[0])}
        async with hidden(A, server.address, echo, **clock) as a, hidden(B, server.address, echo, **clock) as b:
            for each in shown or (toll(),):
                a.payer.put(each)
            yield Paid(server, gate, ledger, a, b, now)


@asynccontextmanager
async def paid_group(
    *keys: SigningKey, window: int = limits.RECEIPT_WINDOW, held: float = 30.0, is_signing: bool = True
) -> AsyncIterator[tuple[Paid, list[Member]]]:
    """As `paid`, and a group of the payer in which these are members under one pass."""
    signed = toll(*keys)
    async with paid(window=window, held=held) as made, AsyncExitStack() as stack:
        members = []
        for key in keys:
            station = await stack.enter_async_context(hidden(key, None))
            station.payer.put(signed)
            members.append(Member(key, station))
            stack.push_async_callback(members[-1].fan.close)
        place = meeting(made.server.address, roster(members=keys, owner=PAYER))
        for member in members:
            await member.fan.enter(place)
        if is_signing:
            await until(lambda: all(key.public in made.gate._receipt_routes._known for key in keys))
        yield made, members
