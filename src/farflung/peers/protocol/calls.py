"""Sends requests to members without a time limit; a lost connection is no evidence of a fault, and is redialled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from farflung.core.backoff import Backoff
from farflung.core.errors import FarflungError, NetworkError, ProtocolError, RunError
from farflung.core.ids import PeerId
from farflung.core.io.retry import retry
from farflung.net.io.connection import Connection
from farflung.net.io.path_manager import PathManager
from farflung.net.messages import RemoteError
from farflung.peers.protocol.messages import PeerAddress

REDIAL: Final = Backoff.every(0.25)  # between tries to reach a member whose connection was lost
STOOD_SECONDS: Final = 1.0  # a line that stood so long and then broke has time to mend anew
# Then it counts as lost: nobody is counted on for more than 3 s after its death.
PATIENCE_SECONDS: Final = 2.0

Dial = Callable[[PeerId], Coroutine[Any, Any, Connection]]
ResultT = TypeVar("ResultT")


class MemberCalls:
    """The way to each member. `patience`: seconds for a broken line; `is_wanted`: whether a peer is waited for."""

    def __init__(self, dial: Dial, patience: Callable[[PeerId], float], is_wanted: Callable[[PeerId], bool]) -> None:
        self.dial, self._patience, self._is_wanted = dial, patience, is_wanted

    async def ask(self, peer: PeerId, method: str, body: bytes) -> bytes:
        """A request and its answer.

        Members answer a repeated request with what they answered, or are about to answer, the first time.
        """

        async def ask() -> bytes:
            return await (await self.dial(peer)).call(method, body, timeout=None)

        return await self.patiently(peer, ask)

    async def patiently(self, peer: PeerId, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Work with a member, tried again while its line is broken: each break has its own time to mend."""
        may_mend = lambda error: is_lost_line(error) and self._is_wanted(peer)  # noqa: E731
        return await retry(work, REDIAL, may_mend, patience=lambda: self._patience(peer), stood=STOOD_SECONDS)


def is_lost_line(error: FarflungError) -> bool:
    """Whether a member could not be reached any more, as opposed to what it said."""
    return isinstance(error, NetworkError) and not isinstance(error, RemoteError | ProtocolError)


def as_failure(error: FarflungError | None) -> FarflungError:
    """Why a run cannot go on: what the last provider said. An error that it sent is no fault of the network."""
    if error is None:
        return RunError("FF-APP-052", "all providers are gone", hint="`farflung resume` goes on when they are back")
    if isinstance(error, RemoteError):
        return RunError(error.code, error.message, cause=error.cause, hint=error.hint)
    return error


async def reach(path_manager: PathManager, address: PeerAddress) -> Connection:
    """A standing connection to the peer, or a new one to the first place that answers. Raises FarflungError."""
    path_manager.learn(address.peer, address.places)
    return await path_manager.connection(address.peer)
