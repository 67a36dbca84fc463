"""Keeps one peer registered at one relay: dials, registers, waits until that connection ends, and starts again.

A line that was given another address says nothing, and nobody could call before the silence is noticed. So the kernel
asks the relay's kernel every two seconds (`socket_options.keep_alive`), and the relay itself is asked seldom, since it
may hang. Where the kernel cannot, the relay is asked as often.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from farflung.core import limits
from farflung.core.backoff import Backoff
from farflung.core.errors import NetworkError
from farflung.core.ids import PeerId, short
from farflung.net.io.connection import Connection
from farflung.net.io.redial import first_of
from farflung.net.io.socket_options import keep_alive

ATTACH: Final = "relay.attach"  # peer to relay: from now on I can be reached over this connection
CALLBACK: Final = "relay.circuit"  # relay to peer: a `CallbackRequest`
_LOOK_SECONDS: Final = 20.0  # between looks whether a relay on another machine still knows us
_BLIND_SECONDS: Final = 2.0  # the same, where the kernel does not watch the connection
_ANSWER_SECONDS: Final = 3.0  # for which a relay on another machine may think
_DIALS: Final = range(3)
_PAUSES: Final = Backoff(0.1, limits.REATTACH_SECONDS)


class RelayRegistration:
    """A registration that outlives its connections. `place`: host and port of the relay."""

    def __init__(
        self,
        relay: PeerId,
        place: tuple[str, int],
        dial: Callable[[int], Coroutine[Any, Any, Connection]],
        beside: Callable[[], Coroutine[None, None, None]] | None = None,
    ) -> None:
        """`dial`: 0 for a connection that others may share, else for a new one.

        `beside`: what goes on while the relay knows us; it is cancelled then.
        """
        self.relay, self.place = relay, place
        self._dial, self._beside = dial, beside
        self._is_there = asyncio.Event()
        self._last: NetworkError | None = None
        self._task = asyncio.create_task(self._keep())

    @property
    def is_there(self) -> bool:
        """Whether the relay knows us now."""
        return self._is_there.is_set()

    async def there(self, timeout: float | None) -> None:  # noqa: ASYNC109 - it is turned into an error with a code
        """Returns when the relay knows us. Raises NetworkError FF-NET-077 after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._is_there.wait()
        except TimeoutError:
            raise NetworkError(
                "FF-NET-077",
                f"not attached to relay {short(self.relay)} at {self.place[0]}:{self.place[1]}",
                cause=str(self._last) if self._last else "it does not answer",
                hint="check that the relay is running, that it admits this key, and its address",
            ) from None

    async def close(self) -> None:
        """Tries no more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        failures = 0
        while True:
            try:
                connection = await first_of(self._dial, _DIALS)
                await _tell(connection)
                failures = 0
                self._is_there.set()
                await self._while_it_stands(connection)
            except NetworkError as error:
                self._last = error
            self._is_there.clear()
            await asyncio.sleep(_PAUSES.pause(failures))
            failures += 1

    async def _while_it_stands(self, connection: Connection) -> None:
        beside = [asyncio.create_task(self._beside())] if self._beside is not None else []
        try:
            await self._until_lost(connection)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def _until_lost(self, connection: Connection) -> None:
        """Returns when the connection is gone; raises NetworkError when the relay is silent."""
        pause = _pause(connection)
        while connection.is_open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await connection.closed()
            if connection.is_open:
                await _tell(connection)


async def _tell(connection: Connection) -> None:
    """Registers; of a relay on another machine an answer is expected soon, for the line may be cut."""
    if _is_local(connection):
        await connection.call(ATTACH, b"")
        return
    try:
        await connection.call(ATTACH, b"", timeout=_ANSWER_SECONDS)
    except NetworkError:
        connection.doubt()  # the next dial is a new one
        raise


def _pause(connection: Connection) -> float | None:
    """Seconds between two looks; None: none are needed."""
    if _is_local(connection) or connection.tcp is None:
        return None
    return _LOOK_SECONDS if keep_alive(connection.tcp) else _BLIND_SECONDS


def _is_local(connection: Connection) -> bool:
    return connection.tuned is None or connection.tuned.is_local


async def first_there(attachments: Collection[RelayRegistration], timeout: float | None) -> None:  # noqa: ASYNC109 - as `there`
    """Returns when one of the relays knows us; the others go on. Raises what the first says when none does in time."""
    waiting = [asyncio.create_task(each.there(timeout)) for each in attachments]
    errors: list[NetworkError] = []
    try:
        for each in asyncio.as_completed(waiting):
            try:
                return await each
            except NetworkError as error:
                errors.append(error)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    if errors:
        raise errors[0]
