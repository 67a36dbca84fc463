"""What a job pays for its ways through relays: a channel with each of them, and the pass that its nodes show there.

    fund       channels, before anybody is dialled; those that are open from before a restart stay
    admit      one pass at each relay for all that may be dialled
    lease.pass hands it to each node before its lease starts, and again whenever it is signed anew
    sign       this node's last receipts; then whoever ends the run lets the relays claim (app.closing)

None of it is part of the job: what is billed are measured bytes, so a price in the job's terms would promise nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from farflung.app.ledger_client import LedgerClient
from farflung.app.tolling import Payer
from farflung.core import limits, tolls
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, PolicyError
from farflung.core.events import Planned
from farflung.core.ids import PeerId
from farflung.core.money import MICRO, format_credits
from farflung.core.tolls import SignedPass
from farflung.job.spec import JobSpec
from farflung.net.endpoints import Place
from farflung.net.io.endpoint import Endpoint
from farflung.plan.traffic import Traffic

PRICE: Final = 100_000  # micro-credits a GiB, where nothing else is said
FUNDS: Final = 10_000 * MICRO  # what a local run's requester has for relays: no part of a job's budget
ROOM: Final = 4  # times the most that the plan sends: what is put into each channel pays for so much

Tell = Callable[[], Awaitable[None]]


class Fare(NamedTuple):
    """`price`: micro-credits a GiB, 0: nothing is paid; `funds`: micro-credits put into the channel of each relay."""

    price: int = 0
    funds: int = 0
    relays: tuple[Place, ...] = ()


def room_of(sent: Traffic) -> int:
    """Bytes that each channel of a run pays for. A power of two: plans of one job may differ a little, it does not."""
    most = sent.sync_most + sent.join + sent.audit + sent.control
    return max(tolls.GIB, 1 << (ROOM * most).bit_length())


def funds_of(sent: Traffic, price: int) -> int:
    """Micro-credits put into the channel of each relay."""
    return tolls.cost(room_of(sent), price)


def planned(event: Planned, sent: Traffic, price: int, relays: int) -> Planned:
    """The plan with what it puts into the channels of its `relays` relays. Raises PolicyError FF-APP-244: too much."""
    if not price or not relays:
        return event
    funds = relays * funds_of(sent, price)
    if funds > FUNDS:
        raise PolicyError(
            "FF-APP-244",
            f"relays cost up to {format_credits(funds)} credits at {price} micro-credits a GiB",
            cause=f"the requester has {format_credits(FUNDS)} for them; each channel holds 4 to 8 times its plan",
            hint="a lower --relay-price, or fewer --relays",
        )
    return replace(event, relay_price=price, relay_funds=funds)


def can_pay(spec: JobSpec) -> bool:
    """Whether one pass names all of a job's nodes, and its requester."""
    return spec.network.providers + spec.verifiers < limits.PASS_HOLDERS


class Fares:
    """One job's, in its requester's process. Without a price it does nothing."""

    def __init__(self, key: SigningKey, endpoint: Endpoint, fare: Fare) -> None:
        self._key, self._endpoint, self._fare = key, endpoint, fare
        self._payers: list[Payer] = []
        self._keeping: list[asyncio.Task[None]] = []

    @property
    def passes(self) -> tuple[SignedPass, ...]:
        """What the job's nodes show, one for each relay."""
        return tuple(payer.signed for payer in self._payers if payer.signed is not None)

    async def fund(self, ledger: LedgerClient, expires: int) -> None:
        """Puts money into the channels, unless it is there. `expires`: ledger time, ms."""
        if not self._fare.price:
            return
        for place in self._fare.relays:
            payer = Payer(self._key, self._endpoint, ledger, place.relay, (place.host, place.port))
            await payer.open(self._fare.funds, self._fare.price, expires)
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
        quota = min(tolls.worth(self._fare.funds, self._fare.price), limits.PASS_BYTES) if self._payers else 0
        for payer in self._payers:
            if payer.signed is None:
                await payer.admit(holders, quota)
                self._keeping.append(asyncio.create_task(payer.keep(tell)))
            elif not holders <= set(payer.signed.toll.holders):
                await payer.renew(holders=holders)

    async def sign(self) -> None:
        """This node's last receipts. A relay that cannot be reached now asks for them itself."""
        for signed in self.passes:
            with contextlib.suppress(FarflungError):
                await self._endpoint.purse.sign(signed.toll.relay)

    async def close(self) -> None:
        """Signs no more passes."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
