"""Issues vouchers to a job's nodes with each recorded round; nodes store them, and claim by them if need be.

What a node has earned it holds under the requester's mark (ledger.earnings_tally).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError
from farflung.core.ids import Hash, PeerId
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.ledger.earnings_tally import SignedEarningsTally, make_tally, sign_tally
from farflung.peers.protocol import messages
from farflung.peers.protocol.calls import Dial

HAND_SECONDS: Final = 10.0  # for one node to take its voucher; the next one holds what this one held


class VoucherIssuer:
    """Issues one tally a recorded round, and everybody's voucher to everybody that is there."""

    def __init__(self, key: SigningKey, job: Hash, dial: Dial) -> None:
        self._key, self._job, self._dial = key, job, dial
        self._tasks = OwnedTasks()
        self._newest: dict[PeerId, bytes] = {}

    def hand(self, chain: Hash, epoch: int, earned: Mapping[PeerId, int]) -> None:
        """Signs what each node has earned up to the end of `epoch` and lets each have its voucher, in its own time."""
        tally, vouchers = make_tally(chain, self._job, epoch, sorted(earned.items()))
        signed = SignedEarningsTally(tally, (sign_tally(self._key, tally),))
        self._tasks.cancel()  # who was not reached yet gets the newer one
        said = {v.credit.node: messages.VoucherUpdate(self._job, signed, v) for v in vouchers}
        self._newest = {node: encode(each) for node, each in said.items()}
        for node in self._newest:
            self._tasks.begin(self.give(node))

    async def give(self, node: PeerId) -> None:
        """Lets a node have its newest voucher, if there is one; one that is away gets it when it is back."""
        if (body := self._newest.get(node)) is not None:
            with contextlib.suppress(FarflungError):
                await (await self._dial(node)).call(messages.VOUCH, body, timeout=HAND_SECONDS)

    async def close(self) -> None:
        """Hands out no more."""
        await self._tasks.close()
