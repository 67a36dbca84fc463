"""Manages a machine's node key over its life: makes, registers, rotates and revokes it.

The account certifies; the ledger's registry says which epoch counts (net.node_keyring). The file is written before the
ledger is told: a newer epoch than the registered one counts already, and what it did not hear can be said again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, UsageError
from farflung.core.ids import ID_BYTES, PeerId
from farflung.ledger.transactions import KeyCertify, KeyRevoke
from farflung.net.certificates import FOREVER, Credential, Identity, certify
from farflung.net.counters import ByteCounter
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.peers.keys.files import another_account, is_there, read_own, write_own
from farflung.peers.ledger_client.client import LedgerClient, genesis_from, serve_nothing

DAY: Final = 86_400
DAYS: Final = 90  # that a node key lasts, unless something else is said
OVERLAP: Final = 3600  # seconds for which the one before counts
LOOK_SECONDS: Final = 10.0  # between two looks at the file
EARLY: Final = 4  # a key is replaced in the last part of so many parts of its life
AGAIN_SECONDS: Final = 600.0  # until a rotation that failed is tried again


@contextlib.asynccontextmanager
async def ledger_of(validator: PeerId, host: str, port: int, account: SigningKey) -> AsyncIterator[LedgerClient]:
    """The ledger, asked under a key of this moment: the account's own may not count on the wire any more.

    Raises NetworkError where it cannot be reached, ProtocolError FF-APP-071, FF-APP-144.
    """
    endpoint = Endpoint(SigningKey(secrets.token_bytes(ID_BYTES)), serve_nothing, ByteCounter())

    async def reach() -> Connection:
        return await endpoint.dial(validator, host, port)

    try:
        yield LedgerClient(reach, account, await genesis_from(reach, validator))
    finally:
        await endpoint.close()


def made(account: SigningKey, epoch: int, now: int, days: int) -> Credential:
    """A new node key of this epoch, from `now` (seconds since 1970) for `days`."""
    node = SigningKey(secrets.token_bytes(ID_BYTES))
    expires = min(now + days * DAY, FOREVER)
    return Credential(node, certify(account, node.public, epoch, begins=now, expires=expires))


async def renewed(
    path: Path,
    account: SigningKey,
    ledger: LedgerClient | None,
    *,
    days: int = DAYS,
    overlap: int = OVERLAP,
    now: int | None = None,
) -> Credential:
    """The next node key, in the file `path`, and registered where there is a ledger; the one before counts `overlap` s.

    Raises UsageError FF-APP-262 where the file is another account's, RunError FF-APP-070 (the ledger refuses: the file
    holds the new key, and the same can be tried again), NetworkError.
    """
    now = int(time.time()) if now is None else now
    epoch = _epoch_in(path, account) + 1 if is_there(path) else 1
    if ledger is not None:
        row = await ledger.keys(account.public)
        epoch = max(epoch, row.epoch + 1, row.void)
    fresh = made(account, epoch, now, days)
    write_own(path, fresh)
    if ledger is not None:
        expires = fresh.identity.expires
        await ledger.submit(KeyCertify(fresh.node.public, epoch, expires, min(now + overlap, FOREVER)))
    return fresh


async def revoked(account: SigningKey, ledger: LedgerClient, epoch: int | None, path: Path | None = None) -> int:
    """Revokes all epochs up to this one for ever; returns it.

    None: up to the registered one, or that of the key in the file `path` if it is higher. Keys that were never
    registered may have higher epochs than the ledger knows, and count anyway.
    Raises UsageError FF-APP-262 where the file is another account's, RunError FF-APP-070.
    """
    if epoch is None:
        in_file = 0 if path is None else _epoch_in(path, account)
        epoch = max((await ledger.keys(account.public)).epoch, in_file)
    await ledger.submit(KeyRevoke(epoch))
    return epoch


def _epoch_in(path: Path, account: SigningKey) -> int:
    own = read_own(path)
    if own.account != account.public:
        raise another_account(path, f"it speaks for {own.account.hex()}")
    return own.identity.epoch


def replace_at(own: Identity) -> float:
    """When a node key should be replaced, seconds since 1970; far away for an account's own."""
    return own.expires - (own.expires - own.begins) / EARLY


class NodeKeyRotator:
    """Keeps a running machine on the newest key: takes what others write into the file, rotates when it is time."""

    def __init__(
        self,
        path: Path,
        own: Credential,
        renew: Callable[[Credential], None],
        rotate: Callable[[], contextlib.AbstractAsyncContextManager[LedgerClient]] | None,
        account: SigningKey | None,
        warn: Callable[[FarflungError], None],
    ) -> None:
        """`rotate` opens the ledger; None, or no account: the key is replaced by hand, and `warn` says how."""
        self._path, self.own, self._renew = path, own, renew
        self._rotate, self._account, self._warn = rotate, account, warn
        self._has_warned: set[str] = set()
        self._not_before = 0.0

    async def stay(self, pause: float = LOOK_SECONDS) -> None:
        """Looks every `pause` seconds until it is cancelled."""
        while True:
            await asyncio.sleep(pause)
            try:
                await self.look(time.time())
            except FarflungError as error:
                self._say(error)

    async def look(self, now: float) -> None:
        """One look. `now`: seconds since 1970. Raises FarflungError; what is proved stays as it was."""
        found = read_own(self._path)
        if found.identity != self.own.identity:
            self._take(found)
        if self.own.certificate is None or now < replace_at(self.own.identity) or now < self._not_before:
            return
        if self._account is None:
            raise _ends_soon(self._path, self.own.identity)
        self._not_before = now + AGAIN_SECONDS
        if self._rotate is None:
            self._take(await renewed(self._path, self._account, None, days=self._days(), now=int(now)))
            return
        async with self._rotate() as ledger:
            try:
                await renewed(self._path, self._account, ledger, days=self._days(), now=int(now))
            finally:
                self._take(read_own(self._path))

    def _days(self) -> int:
        life = self.own.identity
        return max(1, (life.expires - life.begins) // DAY)

    def _take(self, found: Credential) -> None:
        """Proves another key from now on. Raises ProtocolError FF-NET-106 for another account's."""
        if found.identity.epoch > self.own.identity.epoch or found.account != self.own.account:
            self._renew(found)
            self.own = found
            self._has_warned.clear()

    def _say(self, error: FarflungError) -> None:
        if error.code not in self._has_warned:
            self._has_warned.add(error.code)
            self._warn(error)


def _ends_soon(path: Path, own: Identity) -> UsageError:
    left = max(0, int(own.expires - time.time()))
    return UsageError(
        "FF-APP-263",
        f"the node key in {path} ends in {left // DAY} days and {left % DAY // 3600} hours",
        cause="this process has not the account's key, so it cannot make the next one",
        hint=f"farflung key rotate {path} --account ACCOUNT, where the account's key is; a new file is taken at once",
    )
