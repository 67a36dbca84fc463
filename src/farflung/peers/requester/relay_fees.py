"""Pays relays for a job: opens a channel with each, and gives the job's nodes the pass that they show there.

    fund       channels, before anybody is dialled; those that are open from before a restart stay
    refill     a channel of which half is used gets as much again, while the user's bound allows it; bytes that were
               lost on the way are made good, a few to many that were not
    admit      one pass at each relay for all that may be dialled
    lease.pass hands it to each node before its lease starts, and again whenever it is signed anew
    sign       this node's last receipts; then whoever ends the run lets the relays claim (peers.requester.conclusion)

None of it is part of the job: what is billed are measured bytes, so a price in the job's terms would promise nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from farflung.core import limits, relay_passes
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, PolicyError
from farflung.core.events import PlanEvent, WarningEvent
from farflung.core.ids import PeerId, short
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.core.money import CREDIT, format_credits, parse_credits
from farflung.core.relay_passes import SignedRelayPass
from farflung.job.spec import JobSpec
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.relay_channel import RelayChannelPayer
from farflung.peers.rundir.genesis import RELAY_FUNDS
from farflung.plan.run_traffic import RunTraffic

PRICE: Final = parse_credits("0.1")  # a GiB, where nothing else is said
ROOM: Final = 4  # times the most that the plan sends: what is put into each channel pays for so much
LEAST: Final = CREDIT // 1000  # a user's bound is no lower: every relay gets something
# Between two looks: a circuit whose channel is spent is held for longer before it ends.
REFILL_SECONDS: Final = 10.0

Tell = Callable[[], Awaitable[None]]
Warn = Callable[[WarningEvent], None]


class RelayFee(NamedTuple):
    """`price`: pico-credits a GiB, 0: nothing is paid; `funds`: pico-credits put into the channel of each relay.

    `most`: pico-credits that all channels together may get in time.
    """

    price: int = 0
    funds: int = 0
    relays: tuple[EndpointAddress, ...] = ()
    most: int = 0


def room_of(sent: RunTraffic) -> int:
    """Bytes that each channel of a run pays for. A power of two: plans of one job may differ a little, it does not."""
    most = sent.sync_most + sent.join + sent.audit + sent.control
    return max(relay_passes.GIB, 1 << (ROOM * most).bit_length())


class RelayFeeReserve(NamedTuple):
    """Pico-credits: `funds` put into the channel of each relay at first, `most` into all of them in time."""

    funds: int
    most: int


def reserve_of(sent: RunTraffic, price: int, relays: int, most: int = 0) -> RelayFeeReserve:
    """What a run puts aside. `most`: what its user allows for all relays; 0: what the plan puts aside at first."""
    funds = relay_passes.cost(room_of(sent), price)
    most = most or relays * funds
    return RelayFeeReserve(min(funds, most // relays) if relays else 0, most)


def planned(event: PlanEvent, sent: RunTraffic, price: int, relays: int, most: int = 0) -> PlanEvent:
    """The plan with what the channels of its `relays` relays may get. Raises PolicyError FF-APP-244: too much."""
    if not price or not relays:
        return event
    funds = reserve_of(sent, price, relays, most).most
    if funds > RELAY_FUNDS:
        raise PolicyError(
            "FF-APP-244",
            f"relays cost up to {format_credits(funds)} credits at {format_credits(price)} a GiB",
            cause=f"the requester has {format_credits(RELAY_FUNDS)} for them; each channel holds 4 to 8 times its plan",
            hint="a lower --relay-price or --relay-most, or fewer --relays",
        )
    return replace(event, relay_price=price, relay_funds=funds)


def can_pay(spec: JobSpec) -> bool:
    """Whether one pass names all of a job's nodes, and its requester."""
    return spec.network.providers + spec.verifiers < limits.PASS_HOLDERS


class RelayChannels:
    """One job's, in its requester's process. Without a price it does nothing."""

    def __init__(self, key: SigningKey, endpoint: Endpoint, fee: RelayFee, warn: Warn = lambda _: None) -> None:
        self._key, self._endpoint, self._fee, self._warn = key, endpoint, fee, warn
        self._warned: set[tuple[RelayChannelPayer, str]] = set()
        self._payers: list[RelayChannelPayer] = []
        self._keeping = OwnedTasks()

    @property
    def passes(self) -> tuple[SignedRelayPass, ...]:
        """What the job's nodes show, one for each relay."""
        return tuple(payer.signed for payer in self._payers if payer.signed is not None)

    async def fund(self, ledger: LedgerClient, expires: int) -> None:
        """Puts money into the channels, unless it is there. `expires`: ledger time, ms."""
        if not self._fee.price:
            return
        for place in self._fee.relays:
            payer = RelayChannelPayer(self._key, self._endpoint, ledger, place.relay, (place.host, place.port))
            await payer.open(self._fee.funds, self._fee.price, expires)
            self._payers.append(payer)

    async def admit(self, nodes: Iterable[PeerId], tell: Tell) -> None:
        """Passes for these and this node; `tell` hears when they are signed anew. Raises PolicyError FF-APP-240."""
        holders = {*nodes, self._key.public}
        if self._payers and len(holders) > limits.PASS_HOLDERS:
            raise PolicyError(
                "FF-APP-240",
                f"a pass names {limits.PASS_HOLDERS} nodes at most, and there are {len(holders)}",
                hint="--relay-price 0, with relays that serve these nodes for nothing",
            )
        if len(holders) < 2:  # nobody to go to
            return
        if self._payers and not any(payer.signed for payer in self._payers):
            self._keeping.begin(self._refill())
        for payer in self._payers:
            if payer.signed is None:
                await payer.admit(holders, payer.quota)
                self._keeping.begin(payer.keep(tell))
            elif not holders <= set(payer.signed.toll.holders):
                await payer.renew(holders=holders)

    async def _refill(self) -> None:
        while True:
            await asyncio.sleep(REFILL_SECONDS)
            for payer in self._payers:
                # It is away, and carries nothing; or it is asked again.
                with contextlib.suppress(FarflungError):
                    await self.look(payer)

    async def look(self, payer: RelayChannelPayer) -> None:
        """Makes good what was lost, and adds to a channel that runs low, or says that it may not.

        Raises NetworkError, ProtocolError, RunError FF-APP-070.
        """
        said = await payer.used()
        if (unpaid := await payer.make_good(said)) > 0:
            text = f"relay {short(payer.relay)} carried {unpaid / 1e6:.0f} MB that nobody signs for"
            hint = "circuits broke, or nodes left: it may carry no more for this run, and goes on if they sign"
            self._tell(payer, "FF-APP-248", text, hint)
        left = payer.put - payer.cost(said)
        if 2 * left > payer.put:
            return
        more = min(self._fee.funds, self._fee.most - sum(each.put for each in self._payers))
        if more > 0:
            await payer.add(more)
            return
        where, most = f"relay {short(payer.relay)}", format_credits(max(self._fee.most, payer.put))
        if left > 0:
            text = f"the channel with {where} is used by more than half, and no more may be put aside"
            self._tell(payer, "FF-APP-245", text, f"relays may cost {most} credits; more with --relay-most")
        else:
            text = f"{where} carries no more for this run: its channel is spent"
            hint = "peers that it alone reaches are lost; next time more --relay-most"
            self._tell(payer, "FF-APP-246", text, hint)

    def _tell(self, payer: RelayChannelPayer, code: str, message: str, hint: str) -> None:
        """Once for each relay."""
        if (payer, code) not in self._warned:
            self._warned.add((payer, code))
            self._warn(WarningEvent(code=code, message=message, hint=hint))

    async def sign(self) -> None:
        """This node's last receipts. A relay that cannot be reached now asks for them itself."""
        for signed in self.passes:
            with contextlib.suppress(FarflungError):
                await self._endpoint.payer.sign(signed.toll.relay)

    async def close(self) -> None:
        """Signs no more passes."""
        await self._keeping.close()
