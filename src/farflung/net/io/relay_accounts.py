"""Keeps the payers of one paid relay: the ledger channel of each, its passes, and the bytes left unsigned."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from farflung.core import limits, relay_passes
from farflung.core.errors import FarflungError
from farflung.core.ids import PeerId
from farflung.net.relay_meter import PassMeter, PayerExposure
from farflung.net.relay_pass_checks import Name

FUNDS_SECONDS: Final = 30.0  # between two questions to the ledger about one payer,
_MORE_SECONDS: Final = 1.0  # and where it says that it has put in more


@dataclass(frozen=True, slots=True)
class ChannelBalance:
    """A payer's open channel with this relay, as the ledger has it. Money in pico-credits; `price` for a GiB."""

    opening: int
    price: int
    held: int
    serial: int = 0  # passes below this one are settled


@dataclass(slots=True)
class ChannelPayer:
    """`account`: what was carried at its cost and is not settled, and what its channel is worth."""

    account: PayerExposure
    books: dict[Name, PassMeter] = field(default_factory=dict)
    funds: ChannelBalance | None = None
    asked_at: float = float("-inf")
    is_settling: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # to ask the ledger, or to begin books
    ending: asyncio.Lock = field(default_factory=asyncio.Lock)  # to settle

    def is_spent(self, books: PassMeter) -> bool:
        """Whether more was carried than its channel pays for, or these books are of an earlier channel."""
        return books.account is not self.account or self.account.carried > self.account.worth

    def know(self, funds: ChannelBalance | None, now: float) -> None:
        """What the ledger says of its channel. `now`: by the loop's clock."""
        self.funds, self.asked_at = funds, now
        held, price = (funds.held, funds.price) if funds is not None else (0, 1)
        self.account.worth = relay_passes.worth(held, price)


class PayerAccounts:
    """Those of one relay, by their keys."""

    def __init__(self, window: int, ask: Callable[[PeerId], Awaitable[ChannelBalance | None]]) -> None:
        """`window`: bytes, see `relay_meter.PayerExposure`. `ask`: the ledger; raises FarflungError when it is away."""
        self.ask = ask
        self._window = window
        self._known: dict[PeerId, ChannelPayer] = {}
        self._owed: dict[PeerId, int] = {}  # by those that have settled

    def find(self, name: PeerId) -> ChannelPayer | None:
        """A payer that is known."""
        return self._known.get(name)

    def of(self, name: PeerId) -> ChannelPayer:
        """A payer, known from now on."""
        if name not in self._known:
            self._known[name] = ChannelPayer(PayerExposure(self._window, self._owed.get(name, 0), worth=0))
        return self._known[name]

    def owes(self, name: PeerId, size: int) -> None:
        """What a payer has left under passes that were settled before this process began."""
        self._owed[name] = size

    async def funds(self, name: PeerId, need: int = 0) -> ChannelBalance | None:
        """The payer's channel, as of a moment ago; who has none and uses nothing is forgotten.

        `need`: bytes that the payer says it pays for; the ledger is asked sooner where that is more than is known.
        """
        payer, loop = self.of(name), asyncio.get_running_loop()
        if need > payer.account.worth:
            await asyncio.sleep(max(0.0, payer.asked_at + _MORE_SECONDS - loop.time()))
        async with payer.turn:
            pause = _MORE_SECONDS if need > payer.account.worth else FUNDS_SECONDS
            if loop.time() - payer.asked_at >= pause or payer.funds is None:
                with contextlib.suppress(FarflungError):  # the ledger is away: what it said last counts
                    payer.know(await self.ask(name), loop.time())
        is_idle = not payer.books and not payer.is_settling
        if payer.funds is None and is_idle and self._known.get(name) is payer:
            del self._known[name]
        return payer.funds

    def settled(self, name: PeerId, payer: ChannelPayer) -> None:
        """Its passes are claimed. What it owes is kept: to open a channel anew is no way to a new room."""
        self._known.pop(name, None)
        self._owed.pop(name, None)
        if payer.account.owed:
            self._owed[name] = payer.account.owed
        while len(self._owed) > limits.PASSES:
            del self._owed[next(iter(self._owed))]
