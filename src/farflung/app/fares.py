"""What a job pays for its ways through relays: a channel with each of them, and the pass that its nodes show there.

    fund       channels, before anybody is dialled; those that are open from before a restart stay
    refill     a channel of which half is used gets as much again, while the user's bound allows it; bytes that were
               lost on the way are made good, a few to many that were not
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
from farflung.core.events import Planned, Warned
from farflung.core.ids import PeerId, short
from farflung.core.io.tasks import Tasks
from farflung.core.money import MICRO, format_credits
from farflung.core.tolls import SignedPass
from farflung.job.spec import JobSpec
from farflung.net.endpoints import Place
from farflung.net.io.endpoint import Endpoint
from farflung.plan.traffic import Traffic

PRICE: Final = 100_000  # micro-credits a GiB, where nothing else is said
FUNDS: Final = 10_000 * MICRO  # what a local run's requester has for relays: no part of a job's budget
ROOM: Final = 4  # times the most that the plan sends: what is put into each channel pays for so much
LEAST: Final = MICRO // 1000  # a user's bound is no lower: every relay gets something
# Between two looks: a circuit whose channel is spent is held for longer before it ends.
REFILL_SECONDS: Final = 10.0

Tell = Callable[[], Awaitable[None]]
Warn = Callable[[Warned], None]


class Fare(NamedTuple):
    """`price`: micro-credits a GiB, 0: nothing is paid; `funds`: micro-credits put into the channel of each relay.

    `most`: micro-credits that all channels together may get in time.
    """

    price: int = 0
    funds: int = 0
    relays: tuple[Place, ...] = ()
    most: int = 0


def room_of(sent: Traffic) -> int:
    """Bytes that each channel of a run pays for. A power of two: plans of one job may differ a little, it does not."""
    most = sent.sync_most + sent.join + sent.audit + sent.control
    return max(tolls.GIB, 1 << (ROOM * most).bit_length())


class Reserve(NamedTuple):
    """Micro-credits: `funds` put into the channel of each relay at first, `most` into all of them in time."""

    funds: int
    most: int


def reserve_of(sent: Traffic, price: int, relays: int, most: int = 0) -> Reserve:
    """What a run puts aside. `most`: what its user allows for all relays; 0: what the plan puts aside at first."""
    funds = tolls.cost(room_of(sent), price)
    most = most or relays * funds
    return Reserve(min(funds, most // relays) if relays else 0, most)


def planned(event: Planned, sent: Traffic, price: int, relays: int, most: int = 0) -> Planned:
    """The plan with what the channels of its `relays` relays may get. Raises PolicyError FF-APP-244: too much."""
    if not price or not relays:
        return event
    funds = reserve_of(sent, price, relays, most).most
    if funds > FUNDS:
        raise PolicyError(
            "FF-APP-244",
            f"relays cost up to {format_credits(funds)} credits at {price} micro-credits a GiB",
            cause=f"the requester has {format_credits(FUNDS)} for them; each channel holds 4 to 8 times its plan",
            hint="a lower --relay-price or --relay-most, or fewer --relays",
        )
    return replace(event, relay_price=price, relay_funds=funds)


def can_pay(spec: JobSpec) -> bool:
    """Whether one pass names all of a job's nodes, and its requester."""
    return spec.network.providers + spec.verifiers < limits.PASS_HOLDERS


class Fares:
    """One job's, in its requester's process. Without a price it does nothing."""

    def __init__(self, key: SigningKey, endpoint: Endpoint, fare: Fare, warn: Warn = lambda _: None) -> None:
        self._key, self._endpoint, self._fare, self._warn = key, endpoint, fare, warn
        self._warned: set[tuple[Payer, str]] = set()
        self._payers: list[Payer] = []
        self._keeping = Tasks()

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

    async def look(self, payer: Payer) -> None:
        """Makes good what was lost, and adds to a channel that runs low, or says that it may not.

        Raises NetworkError, ProtocolError, RunError FF-APP-070.
        """
        said = await payer.used()
        if (unpaid := await payer.make_good(said)) > 0:
            text = f"relay {short(payer.relay)} carried {unpaid / 1e6:.0f} MB that nobody signs for"
            hint = (
                "circuits broke, or nodes left: it may carry no more for this run, and goes on if they sign"
            )
            self._tell(payer, "FF-APP-248", text, hint)
        left = payer.put - payer.cost(said)
        if 2 * left > payer.put:
            return
        more = min(self._fare.funds, self._fare.most - sum(each.put for each in self._payers))
        if more > 0:
            await payer.add(more)
            return
        where, most = f"relay {short(payer.relay)}", format_credits(max(self._fare.most, payer.put))
        if left > 0:
            text = f"the channel with {where} is used by more than half, and no more may be put aside"
            self._tell(payer, "FF-APP-245", text, f"relays may cost {most} credits; more with --relay-most")
        else:
            text = f"{where} carries no more for this run: its channel is spent"
            hint = "who has no other way than it is missed; next time more --relay-most"
            self._tell(payer, "FF-APP-246", text, hint)

    def _tell(self, payer: Payer, code: str, message: str, hint: str) -> None:
        """Once for each relay."""
        if (payer, code) not in self._warned:
            self._warned.add((payer, code))
            self._warn(Warned(code=code, message=message, hint=hint))

    async def sign(self) -> None:
        """This node's last receipts. A relay that cannot be reached now asks for them itself."""
        for signed in self.passes:
            with contextlib.suppress(FarflungError):
                await self._endpoint.purse.sign(signed.toll.relay)

    async def close(self) -> None:
        """Signs no more passes."""
        await self._keeping.close()
