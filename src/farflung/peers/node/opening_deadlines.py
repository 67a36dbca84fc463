"""Requests an opening until its deadline, and decides whether a failure is the peer's fault or the connection's.

The time follows what has to be moved, at limits.OWED_RATE: a home with a slow uplink and a large model is no cheater.
How many bytes that are the job's layout bounds, and the rate is the same for all: no peer wins time by what it says of
its line or how slowly it sends, and limits.OWED_SECONDS is the most. Where that is less than a job's states need at
that rate, its plan and its nodes have looked at their lines before (plan.state_vectors.owed_rate).

A verifier that cannot reach anybody accuses nobody. So before it says that something is withheld it asks the
requester for a sign of life, and looks at who else is behind the relay that does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from farflung.core import limits
from farflung.core.backoff import Backoff
from farflung.core.codec import encode
from farflung.core.errors import FarflungError, NetworkError, VerificationError
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.core.io.retry import retry
from farflung.net.io.connection import Connection
from farflung.net.messages import RemoteError
from farflung.peers.protocol import messages
from farflung.peers.transfer import objects

WITHHOLD_SECONDS: Final = float(
    limits.OWED_LEAST_SECONDS
)  # within which a peer must serve what it had committed to, were it nothing
REDIAL: Final = Backoff.every(0.3)  # between tries: a peer that died is back within seconds, and owes what it owed
PROBE_SECONDS: Final = 10.0  # within which the requester answers a verifier that doubts its own line
RELAY_GONE: Final = "FF-NET-070"

AnswerT = TypeVar("AnswerT")


class WithheldError(FarflungError):
    """The peer does not serve what it had committed to."""


class OpeningDeadlines:
    """What the peers of one job owe one verifier."""

    def __init__(self, me: PeerId, dial: objects.Dial) -> None:
        """`me`: until the requester is known."""
        self._dial, self._requester = dial, me
        self._relays: dict[PeerId, frozenset[PeerId]] = {}
        self._is_relay_gone = False

    def know(self, requester: PeerId, members: tuple[messages.PeerAddress, ...]) -> None:
        """Who waits for verdicts, and through which relays peers are reached."""
        self._requester = requester
        self._relays = {a.peer: a.relays for a in members}

    async def reach(self, peer: PeerId) -> Connection:
        """A connection to a peer. Raises PolicyError FF-APP-047 when nobody has said where it is."""
        try:
            connection = await self._dial(peer)
        except NetworkError as error:
            self._is_relay_gone = error.code == RELAY_GONE
            raise
        self._is_relay_gone = False
        return connection

    async def paid(self, peer: PeerId, ask: Callable[[], Awaitable[AnswerT]], size: int) -> AnswerT:
        """What a peer owes: `size` bytes to be sealed or moved, by the job's layout at most.

        Raises WithheldError, or NetworkError FF-APP-098 when that may not be the peer's doing.
        """
        self._is_relay_gone = False
        try:
            return await patiently(ask, allowance(size))
        except WithheldError:
            # A relay that only this peer chose is its own affair.
            mine = self._relays.get(peer, frozenset())
            if self._is_relay_gone and sum(not mine.isdisjoint(each) for each in self._relays.values()) > 1:
                raise _offline("the relay of several peers is gone") from None
            await self._check_line()
            raise

    async def _check_line(self) -> None:
        """Raises NetworkError FF-APP-098 when the requester, who waits for this very verdict, is out of reach too."""
        try:
            connection = await self._dial(self._requester)
            await connection.call(objects.CHUNK, encode((ZERO_HASH, 0)), timeout=PROBE_SECONDS)
        except RemoteError:
            return  # it has no such object: it is there
        except FarflungError as error:
            raise _offline(f"the requester does not answer either: {error}"[:300]) from None


def allowance(size: int) -> float:
    """Seconds within which a peer must serve `size` bytes. Neither what it says of its line nor its pace has a part."""
    return min(WITHHOLD_SECONDS + size / limits.OWED_RATE, limits.OWED_SECONDS)


async def patiently(ask: Callable[[], Awaitable[AnswerT]], seconds: float) -> AnswerT:
    """What a peer owes, asked until its `seconds` are over. A line that broke or an agent that restarts is no lie."""
    last: FarflungError | None = None

    def may_pass(error: FarflungError) -> bool:
        nonlocal last
        last = error
        return isinstance(error, NetworkError | VerificationError)

    try:
        async with asyncio.timeout(seconds):
            return await retry(ask, REDIAL, may_pass)
    except TimeoutError:
        cause = f"within {seconds:.0f} s: {last}"[:300]
        raise WithheldError("FF-APP-088", "a committed state is withheld", cause=cause) from None


def _offline(why: str) -> NetworkError:
    return NetworkError("FF-APP-098", "a peer could not be reached, and the line is to blame", cause=why)
