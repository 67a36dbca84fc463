"""Gives a new account its first credits, once, within bounds that fresh keys do not lift.

network.grant   GrantRequest   GrantReply

Keys are free, addresses less so: an address block (/24 of IPv4, /48 of IPv6; all that comes through one relay is one)
gets `block_day` in 24 hours, everybody together `day`, and never more than the faucet's account holds. A token of the
operator lifts the bound of a block for as many accounts as it says, and no other bound.

A grant is one Transfer, whose signed bytes are in the log before they are handed in. Whoever asks again is answered
from it: what was applied is not paid again, and what was not is handed in once more as the same bytes. It is signed
anew only when the ledger says that those bytes can never enter. One seat of a network holds the faucet's key.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import NS_GRANT, SigningKey
from farflung.core.errors import NetworkError, PolicyError
from farflung.core.ids import ID_BYTES, Hash, PeerId
from farflung.core.io.durable_files import AppendLog
from farflung.core.money import format_credits
from farflung.ledger.ledger_state import LedgerState
from farflung.ledger.table_rows import AccountRow
from farflung.ledger.transactions import SignedTx, Transfer, make_tx, sign_tx
from farflung.ledger.tx_results import AlreadyAppliedResult, AppliedResult, FailedResult, Result
from farflung.peers.ledger_client.replies import EXPIRED, NONCE
from farflung.peers.network.card import FaucetConfig
from farflung.peers.network.grant import GrantReply, GrantRequest

DAY_SECONDS: Final = 86_400
WAITING: Final = 64  # requests that may wait for their turn
_MAC_BYTES: Final = 12
_TOKEN: Final = 8 + 2 + 4 + _MAC_BYTES  # id, uses, end, proof
_FOREVER: Final = (1 << 32) - 1
_LATER: Final = (
    "ask again tomorrow, or ask the operator for an invitation with a token: farflung network invite --uses N"
)


class GrantRecord(Wire, frozen=True, tag="grant"):
    """One signed grant, of `time` (seconds since 1970), counted for an address block, or for a token."""

    key: PeerId
    time: int
    block: str
    token: bytes
    tx: SignedTx


class GrantDone(Wire, frozen=True, tag="done"):
    """A grant is in the block of `height`."""

    key: PeerId
    height: int


class GrantLedger(Protocol):
    """The ledger as a faucet sees it."""

    @property
    def chain(self) -> Hash:
        """Its id."""

    @property
    def state(self) -> LedgerState:
        """At its head."""

    async def submit(self, signed: SignedTx) -> Result:
        """What became of a transaction."""


class _Slot(NamedTuple):
    """What a grant is counted under."""

    time: int
    block: str
    token: bytes


class _Token(NamedTuple):
    id: bytes
    uses: int
    expires: int


def new_token(key: SigningKey, uses: int, expires: int = _FOREVER) -> bytes:
    """A token for `uses` grants until `expires` (seconds since 1970), which the faucet of this key knows by itself."""
    body = secrets.token_bytes(8) + uses.to_bytes(2, "little") + min(expires, _FOREVER).to_bytes(4, "little")
    return body + _proof(key, body)


def _proof(key: SigningKey, body: bytes) -> bytes:
    return key.secret(NS_GRANT, body)[:_MAC_BYTES]


def address_block(address: str) -> str:
    """What counts as one neighbourhood: the /24 of an IPv4 address, the /48 of an IPv6 address."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return str(ipaddress.ip_network((found, 24 if found.version == 4 else 48), strict=False))


class Faucet:
    """The grants of one key. The log is opened by the first request: its damage stops no ledger."""

    def __init__(self, config: FaucetConfig, log: Path, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives seconds since 1970."""
        self._config, self._path, self._clock = config, log, clock
        self._turn, self._waiting = asyncio.Lock(), 0
        self._log: AppendLog | None = None
        self._grants: dict[PeerId, GrantRecord] = {}
        self._heights: dict[PeerId, int] = {}
        self._recent: deque[GrantRecord] = deque()  # of the last day
        self._blocks: Counter[str] = Counter()  # how many of these each block has
        self._tokens: Counter[bytes] = Counter()
        self._given = 0  # pico-credits of the last day
        self._last = 0

    async def grant(self, address: str, request: GrantRequest, ledger: GrantLedger) -> GrantReply:
        """Pays `request.key`, once. Raises PolicyError FF-APP-536 .. 540, NetworkError FF-APP-541, RunError."""
        if self._waiting >= WAITING:
            raise PolicyError("FF-APP-540", "the faucet is busy", cause=f"{WAITING} requests wait", hint="ask again")
        self._waiting += 1
        try:
            async with self._turn:
                return await self._in_turn(address, request, ledger)
        finally:
            self._waiting -= 1

    async def _in_turn(self, address: str, request: GrantRequest, ledger: GrantLedger) -> GrantReply:
        log = self._open()
        key, before = request.key, self._grants.get(request.key)
        if before is not None:
            if (height := self._heights.get(key)) is not None:
                return GrantReply(_amount(before), height, False)
            if (reply := await self._handed_in(log, before, ledger)) is not None:
                return reply
            slot = _Slot(before.time, before.block, before.token)  # those bytes can never enter
        else:
            slot = self._allowed(address, request)
        record = GrantRecord(key, *slot, self._signed(key, ledger))
        log.append(encode(record))
        self._count(record)
        reply = await self._handed_in(log, record, ledger)
        if reply is None:
            raise NetworkError(
                "FF-APP-541",
                "the ledger did not take the grant",
                cause="another transaction of the faucet's key came first",
                hint="ask again; only one seat may hold the faucet's key",
            )
        return reply

    async def _handed_in(self, log: AppendLog, record: GrantRecord, ledger: GrantLedger) -> GrantReply | None:
        """What became of a signed grant; None: it can never enter. Raises NetworkError FF-APP-541."""
        said = await ledger.submit(record.tx)
        if isinstance(said, AppliedResult) or (isinstance(said, AlreadyAppliedResult) and not said.code):
            log.append(encode(GrantDone(record.key, said.height)))
            self._heights[record.key] = said.height
            return GrantReply(_amount(record), said.height, True)
        code = said.code
        if isinstance(said, FailedResult | AlreadyAppliedResult) or code in (NONCE, EXPIRED):
            return None  # it is in a block without effect, or its nonce or its time is over
        raise NetworkError("FF-APP-541", "the ledger did not take the grant", cause=code, hint="ask again in a minute")

    def _allowed(self, address: str, request: GrantRequest) -> _Slot:
        """What a grant is counted under, if the bounds leave room for it. Raises PolicyError FF-APP-536 .. 539."""
        if len(request.key) != ID_BYTES:
            raise PolicyError("FF-APP-538", "a grant was asked for no key", hint=f"a key has {ID_BYTES} bytes")
        now = self._last = max(self._last, int(self._clock()))  # a clock that is set back gives nobody a second day
        self._forget(now)
        amount, config = self._config.grant, self._config
        token = self._token(request.token, now) if request.token else b""
        block = "" if token else address_block(address)
        if not token and (self._blocks[block] + 1) * amount > config.block_day:
            raise PolicyError(
                "FF-APP-536",
                "the faucet gave this address block what it gives in a day",
                cause=f"{self._blocks[block]} of its accounts were served, {format_credits(config.block_day)} credits "
                "are the limit",
                hint=_LATER,
            )
        if self._given + amount > config.day:
            raise PolicyError(
                "FF-APP-537",
                "the faucet gave what it gives in a day",
                cause=f"{len(self._recent)} accounts were served, {format_credits(config.day)} credits are the limit",
                hint="ask again tomorrow, or ask the operator to send credits to your account",
            )
        return _Slot(now, block, token)

    def _token(self, token: bytes, now: int) -> bytes:
        """The id of a token that is good for one more. Raises PolicyError FF-APP-539."""
        body = token[:-_MAC_BYTES]
        fault = ""
        found = _Token(body[:8], int.from_bytes(body[8:10], "little"), int.from_bytes(body[10:14], "little"))
        if len(token) != _TOKEN or not secrets.compare_digest(token[-_MAC_BYTES:], _proof(self._config.key, body)):
            fault = "it is not of this faucet"
        elif found.expires != _FOREVER and now >= found.expires:
            fault = "its time is over"
        elif self._tokens[found.id] >= found.uses:
            fault = f"it was good for {found.uses} accounts, which had it"
        if fault:
            raise PolicyError("FF-APP-539", "the invitation's token gives no credits", cause=fault, hint=_LATER)
        return found.id

    def _signed(self, key: PeerId, ledger: GrantLedger) -> SignedTx:
        own, amount = self._config.key, self._config.grant
        account = ledger.state.find(AccountRow, own.public) or AccountRow(own.public)
        fee = ledger.state.params.fee_min
        if account.balance < amount + fee:
            raise PolicyError(
                "FF-APP-535",
                "the faucet has nothing to give",
                cause=f"its account holds {format_credits(account.balance)} credits"
                if account.balance
                else "it is empty",
                hint=f"ask the operator to send credits to {own.public.hex()}",
            )
        return sign_tx(own, make_tx(ledger.chain, own.public, account.nonce, Transfer(key, amount), fee=fee))

    def _open(self) -> AppendLog:
        """The log, read when it is needed first."""
        if self._log is None:
            log = AppendLog(self._path, "network.faucet")
            for data in log.records:
                said = decode(data, GrantRecord | GrantDone, limits.LOG_RECORD_BYTES)  # type: ignore[arg-type]
                if isinstance(said, GrantDone):
                    self._heights[said.key] = said.height
                else:
                    self._count(said)
            self._log = log
        return self._log

    def _count(self, record: GrantRecord) -> None:
        """Takes a record into the books; one that was signed anew is counted already."""
        if record.key not in self._grants:
            self._recent.append(record)
            self._given += _amount(record)
            self._blocks[record.block] += 1
            self._tokens[record.token] += 1
            self._last = max(self._last, record.time)
        self._grants[record.key] = record

    def _forget(self, now: int) -> None:
        while self._recent and self._recent[0].time <= now - DAY_SECONDS:
            old = self._recent.popleft()
            self._given -= _amount(old)
            self._blocks[old.block] -= 1
            if not self._blocks[old.block]:
                del self._blocks[old.block]

    def close(self) -> None:
        """Closes the log."""
        if self._log is not None:
            self._log.close()
            self._log = None


def _amount(record: GrantRecord) -> int:
    [op] = record.tx.tx.ops
    assert isinstance(op, Transfer)
    return op.amount
