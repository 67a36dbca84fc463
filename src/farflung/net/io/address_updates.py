"""Tells the connected peers when this node's addresses change, and accepts the same updates from them.

    path.record   a signed endpoint record of who asks   nothing

So a job's members follow each other from relay to relay without asking anybody. A record counts as in the directory:
signed by the peer's account, of this time, and not older than the one that is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, ProtocolError
from farflung.core.ids import PeerId, short
from farflung.net.endpoint_records import EndpointAddress, check_time, issue, read_record, sign_record
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.path_manager import PathManager

RECORD: Final = "path.record"
ANSWER_SECONDS: Final = 10.0


class AddressUpdates:
    """One endpoint's."""

    def __init__(self, endpoint: Endpoint, path_manager: PathManager, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since 1970."""
        self._endpoint, self._path_manager, self._clock = endpoint, path_manager, clock
        endpoint.services[RECORD] = self._heard

    async def tell(self, account: SigningKey, places: tuple[EndpointAddress, ...]) -> None:
        """Tells all who are connected, signed by `account`; who does not answer finds it in the directory."""
        said = encode(sign_record(account, issue(account.public, places, self._clock())))
        await asyncio.gather(*(self._say(peer, said) for peer in {each.peer for each in self._endpoint.standing}))

    async def _say(self, peer: PeerId, said: bytes) -> None:
        for connection in self._endpoint.connections(peer)[:1]:
            with contextlib.suppress(FarflungError):
                await connection.call(RECORD, said, timeout=ANSWER_SECONDS)

    async def _heard(self, connection: Connection, method: str, body: bytes) -> bytes:
        """Raises ProtocolError FF-NET-181 for a record of somebody else, and what `read_record` and `hear` raise."""
        record = read_record(body)
        if record.peer != connection.peer:
            raise ProtocolError(
                "FF-NET-181", "a peer told where another one is", cause=f"{short(connection.peer)} is not its owner"
            )
        check_time(record, self._clock())
        self._path_manager.hear(record)
        return b""
