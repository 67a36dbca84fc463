"""Decides which receipts a relay accepts: signed by a party's own key, or by its node key on the ledger."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from farflung.core import limits, relay_passes
from farflung.core.errors import FarflungError
from farflung.core.ids import PeerId
from farflung.core.relay_passes import SignedRelayReceipt
from farflung.net.certificates import Identity

Nodes = Callable[[PeerId], Awaitable[tuple[PeerId, ...]]]


class ReceiptKeys:
    """Remembers which node keys the ledger knows."""

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
