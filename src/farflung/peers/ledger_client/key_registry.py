"""Follows the ledger's registry of node keys, so that a revoked one is cut off within seconds; replaces its own.

A small question every two seconds: which accounts changed their keys since the block that was heard of last. Whoever
answers for the ledger cannot invent a change (only its account signs one, and the row is provable), but it can keep one
to itself, and so does a line that is down: what is known stays in force meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, ProtocolError
from farflung.core.ids import ID_BYTES
from farflung.ledger import queries
from farflung.ledger.table_rows import KeyRow
from farflung.ledger.transactions import KeyCertify
from farflung.net.certificates import FOREVER, Credential, certify
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.node_keyring import Keyring, RegisteredKeys
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.quorum_read import QUERY

LOOK_SECONDS: Final = 2.0
IDLE_SECONDS: Final = 60.0  # for a node that nobody has leased: it holds nothing that a stolen key could ask for
PAGES: Final = 256  # of answers asked for at one look; the next look goes on


class KeyRegistryFollower:
    """Keeps one keyring as new as the ledger. Asks until it is cancelled."""

    def __init__(
        self, connect: Callable[[], Awaitable[Connection]], keyring: Keyring, recheck: Callable[[], object]
    ) -> None:
        """`connect` reaches a validator; `recheck` ends what was opened with a key that does not count any more."""
        self._connect, self._keyring, self._recheck = connect, keyring, recheck
        self._height = 0

    async def stay(self, pause: Callable[[], float] = lambda: LOOK_SECONDS) -> None:
        """Looks again after `pause` seconds. A ledger that is away is asked again: until then what is known counts."""
        while True:
            try:
                await self.look()
            except FarflungError:
                self._recheck()  # an overlap may have ended anyway
            await _passed(pause)

    async def look(self) -> None:
        """One look. Raises NetworkError when the ledger cannot be reached, ProtocolError FF-APP-071 (wrong answer)."""
        for _ in range(PAGES):
            connection = await self._connect()
            body = await connection.call(QUERY, encode(queries.GetKeys(self._height)))
            said = queries.read_reply(body)
            if not isinstance(said, queries.KeysReply):
                raise ProtocolError("FF-APP-071", f"the ledger answered {type(said).__name__}")
            self._keyring.learn(registered(row) for row in said.keys if _is_whole(row))
            goes_on = self._height < said.height < said.head
            # A ledger that went back is read from its start.
            self._height = said.height if said.head >= self._height else 0
            if not goes_on:
                break
        self._recheck()


async def _passed(pause: Callable[[], float]) -> None:
    """Until the pause is over, which may become a shorter one meanwhile."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while (left := began + pause() - loop.time()) > 0:  # noqa: ASYNC110 - a shorter pause has no event
        await asyncio.sleep(min(left, LOOK_SECONDS))


def registered(row: KeyRow) -> RegisteredKeys:
    """A row of the ledger as the network knows it."""
    return RegisteredKeys(row.account, row.epoch, row.node, row.previous_epoch, row.previous, row.until, row.void)


def _is_whole(row: KeyRow) -> bool:
    return all(len(key) == ID_BYTES for key in (row.account, row.node, row.previous))


def first_key(own: Credential) -> tuple[KeyCertify, ...]:
    """What registers an account's first node key (nothing where it proves its own): the account's key ends at once."""
    if own.certificate is None:
        return ()
    key = own.certificate.key
    return (KeyCertify(key.node, key.epoch, key.expires, 0),)


async def rotate(
    endpoint: Endpoint,
    ledger: LedgerClient,
    account: SigningKey,
    node: SigningKey,
    *,
    now: int,
    overlap: int = 3600,
    expires: int = FOREVER,
) -> Credential:
    """Makes `node` the next node key of the endpoint's account and registers it; the one before counts `overlap` s on.

    `now` and `expires`: seconds since 1970. The endpoint proves the new key first: a key newer than the registered one
    counts already, so this works also when the one before is revoked. Raises RunError FF-APP-070 when the ledger
    refuses, ProtocolError FF-NET-100 or 106 for keys that do not fit. The caller keeps the credential for later.
    """
    row = await ledger.keys(account.public)
    epoch = max(row.epoch + 1, row.void)
    fresh = Credential(node, certify(account, node.public, epoch, begins=now, expires=expires))
    endpoint.renew(fresh)
    await ledger.submit(KeyCertify(node.public, epoch, expires, min(now + overlap, FOREVER)))
    return fresh
