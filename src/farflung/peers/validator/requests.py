"""Serves a validator's requests: ledger queries, submitted transactions, and the node directory.

Alone it makes a block of what is handed in, at once; among others its committee answers when it is final.

It also keeps the directory: the volatile part of the registry (where a node listens now, what it offers), which
is signed by the node itself and enters no root. A validator that was killed knows it again from its folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import PolicyError, ProtocolError
from farflung.core.ids import Hash, PeerId
from farflung.core.io.durable_files import write_atomic
from farflung.core.io.ordinary_files import read_bounded
from farflung.core.release import VERSION
from farflung.ledger import queries
from farflung.ledger.block import LOGICAL_MS
from farflung.ledger.chain import Chain
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.ledger_state import LedgerState
from farflung.ledger.table_rows import AccountRow, KeyRow, NodeRow
from farflung.ledger.transactions import SignedTx
from farflung.ledger.tx_results import Result
from farflung.net.endpoint_records import check_newer
from farflung.net.io.connection import Connection
from farflung.peers.ledger_client.quorum_read import QUERY
from farflung.peers.network.card import CARD, SignedNetworkCard
from farflung.peers.network.grant import GRANT, REQUEST_BYTES, GrantReply, GrantRequest, no_faucet
from farflung.peers.network.model_registry import ModelRegistry, no_models
from farflung.peers.network.published_model import FIND, WITHDRAW, ModelQuery, ModelWithdrawal, SignedModelRecord
from farflung.peers.network.published_model import PUBLISH as PUBLISH_MODEL
from farflung.peers.network.service import NetworkService
from farflung.peers.protocol.directory import (
    ADVERTISEMENT_BYTES,
    LIST,
    PUBLISH,
    Advertisement,
    DirectoryListing,
    check_advertisement,
    read_advertisement,
    read_directory,
)
from farflung.peers.protocol.job_notices import ANNOUNCE, NOTICES_LIST, NoticeBoard, read_notice
from farflung.peers.protocol.online_share import ONLINE, SAVED_BYTES, OnlineRecord, read_saved
from farflung.peers.transfer.objects import BEGIN, CHUNK, FINISH, PUT
from farflung.peers.validator.committee import MESSAGE, CommitteeMember

STANDING = "ledger.standing"
TOLD = "directory.told"  # by another validator: what a node published there
DIRECTORY_SIZE = 4096

DIRECTORY_BYTES = DIRECTORY_SIZE * (ADVERTISEMENT_BYTES + 3)

assert DIRECTORY_BYTES < limits.CONTROL_BYTES


class ValidatorStatus(Wire, frozen=True):
    """Where a validator is, by its own word. `waiting`: transactions; `met`: the validators it is connected to.

    `finality_ms`: the median, over its own last blocks, from a block's making to its being final; 0: none yet.
    """

    height: int
    epoch: int
    view: int
    waiting: int
    met: tuple[PeerId, ...]
    finality_ms: int = 0


class LedgerCaller(Enum):
    """Who may send a message."""

    ANYONE = "anyone"
    ANYONE_OF_SEVERAL = "anyone, once there is a committee; it refuses strangers itself"
    VALIDATORS = "another validator"


class LedgerRoute(NamedTuple):
    """One message's row: how it is read, who may send it, and what answers it (a reply, None, or a coroutine)."""

    read: Callable[[bytes], Any]
    caller: LedgerCaller
    answer: Callable[[LedgerRequestHandler, Connection, Any], Any]


class LedgerRequestHandler:
    """Serves the ledger to whoever holds a key."""

    def __init__(
        self,
        chain: Chain,
        store: LedgerStore,
        *,
        is_local: bool,
        directory: Path | None = None,
        on_block: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        network: NetworkService | None = None,
    ) -> None:
        """`directory`: the file that the advertisements are kept in; None: in memory only.

        `clock` gives seconds since 1970. `network` answers what others ask of the network; None: nothing does.
        """
        self._network = network
        self._chain, self._store, self._is_local, self._on_block = chain, store, is_local, on_block
        self._file, self._clock = directory, clock
        self._directory: dict[PeerId, Advertisement] = {}
        kept = () if directory is None else read_directory(directory, DIRECTORY_BYTES, clock())
        for advertisement in kept:
            if self._may_list(advertisement.endpoint.peer):
                self._directory[advertisement.endpoint.peer] = advertisement
        self._board = NoticeBoard(self._balance, clock)
        self._online_file = None if directory is None else directory.with_name("online.bin")
        self._online = _online_record(self._online_file)
        self._turn = asyncio.Lock()
        self.committee: CommitteeMember | None = None

    async def handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        """One request of one peer, by the table below."""
        route = ROUTES.get(method)
        if route is None or not self._admits(connection.peer, route.caller):
            raise _unserved(method)
        reply = route.answer(self, connection, route.read(body))
        if inspect.isawaitable(reply):
            reply = await reply
        if isinstance(reply, bytes):
            return reply
        return b"" if reply is None else encode(reply)

    def _admits(self, peer: PeerId, caller: LedgerCaller) -> bool:
        match caller:
            case LedgerCaller.ANYONE:
                return True
            case LedgerCaller.ANYONE_OF_SEVERAL:
                return self.committee is not None
            case LedgerCaller.VALIDATORS:
                return self.committee is not None and self.committee.knows(peer)

    def _publish_here(self, connection: Connection, advertisement: Advertisement) -> None:
        """Other validators are told, too."""
        self._publish(connection.peer, advertisement)
        if self.committee is not None:
            self.committee.tell(TOLD, encode(advertisement))

    def _card(self) -> SignedNetworkCard:
        if self._network is None:
            raise _unserved(CARD)
        return self._network.card()

    async def _grant(self, connection: Connection, request: GrantRequest) -> GrantReply:
        if self._network is None:
            raise no_faucet()
        return await self._network.grant(connection.remote[0], request, self)

    @property
    def _models(self) -> ModelRegistry:
        if self._network is None:
            raise no_models()
        return self._network.models

    @property
    def chain(self) -> Hash:
        """The ledger's id."""
        return self._chain.id

    @property
    def state(self) -> LedgerState:
        """The ledger at its head."""
        return self._chain.state

    async def submit(self, signed: SignedTx) -> Result:
        """What became of a transaction of this seat's own. Raises as a query that submits it."""
        said = await self._answer(queries.SubmitRequest((signed,)))
        assert isinstance(said, queries.SubmitReply)
        return said.results[0]

    def _hear(self, connection: Connection, body: bytes) -> None:
        assert self.committee is not None
        self.committee.hear(connection, body)

    @property
    def keys(self) -> Sequence[KeyRow]:
        """The registry of node keys as it stands."""
        return self._chain.state.rows(KeyRow)

    def _now(self) -> int:
        return self._chain.head.time + LOGICAL_MS if self._is_local else int(time.time() * 1000)

    def read(self, query: queries.Read) -> queries.Reply:
        """What the ledger says at its head."""
        return queries.reply(self._chain, query)

    def _standing(self) -> ValidatorStatus:
        state, seat = self._chain.state, self.committee
        height, epoch = self._chain.head.height, state.committee.epoch
        if seat is None:
            return ValidatorStatus(height, epoch, height - state.committee.first + 2, 0, ())
        met = tuple(sorted(peer for peer, is_met in seat.met.items() if is_met))
        timed = sorted(seat.node.finality)
        median = timed[len(timed) // 2] if timed else 0
        return ValidatorStatus(height, epoch, seat.node.replica.view, len(seat.node.pool), met, median)

    async def _answer(self, query: queries.Query) -> queries.Reply:
        if not isinstance(query, queries.SubmitRequest):
            return queries.reply(self._chain, query)
        if not query.txs:  # an empty block costs nobody anything and moves the clock
            return queries.SubmitReply(())
        if self.committee is not None:
            return queries.SubmitReply(await self.committee.submit(query.txs))
        async with self._turn:
            results = self._store.commit(self._chain, query.txs, self._now())[1]
        self._on_block()
        return queries.SubmitReply(results)

    def _publish(self, peer: PeerId, advertisement: Advertisement) -> None:
        check_advertisement(advertisement, peer, self._clock())
        if not self._may_list(peer):
            raise PolicyError("FF-APP-072", "only nodes that are on the ledger are listed")
        self._forget_expired()
        known = self._directory.get(peer)
        if known is None and len(self._directory) >= DIRECTORY_SIZE:
            raise PolicyError("FF-APP-031", "the directory is full")
        check_newer(known.endpoint if known is not None else None, advertisement.endpoint)
        if self._online.mark(peer, self._clock()) and self._online_file is not None:
            write_atomic(self._online_file, self._online.save(), "ledger.online")
        if known != advertisement:
            self._directory[peer] = advertisement
            if self._file is not None:
                write_atomic(self._file, encode(self._listing()), "ledger.directory")

    def _forget_expired(self) -> None:
        over = self._clock() - limits.CLOCK_SECONDS
        for peer in [p for p, each in self._directory.items() if each.endpoint.expires < over]:
            del self._directory[peer]

    def _balance(self, account: PeerId) -> int:
        """What an account holds at the head."""
        row = self._chain.state.find(AccountRow, account)
        return row.balance if row is not None else 0

    def _may_list(self, peer: PeerId) -> bool:
        """Keys are free, places are not: a node has put a stake on the ledger."""
        return self._chain.state.find(NodeRow, peer) is not None

    def _listing(self) -> DirectoryListing:
        self._forget_expired()
        return DirectoryListing.of(self._directory[p] for p in sorted(self._directory))


def _online_record(path: Path | None) -> OnlineRecord:
    """What a seat remembers of who was online; without its file, nothing."""
    if path is not None:
        with contextlib.suppress(OSError):
            return read_saved(read_bounded(path, SAVED_BYTES))
    return OnlineRecord()


def _unserved(method: str) -> ProtocolError:
    return ProtocolError(
        "FF-APP-030", f"a validator does not serve {method[:40]!r}", cause=f"it runs farflung {VERSION}"
    )


def _grant_request(body: bytes) -> GrantRequest:
    return decode(body, GrantRequest, REQUEST_BYTES)


def _model_record(body: bytes) -> SignedModelRecord:
    return decode(body, SignedModelRecord, limits.MODEL_RECORD_BYTES)


def _model_query(body: bytes) -> ModelQuery:
    return decode(body, ModelQuery, REQUEST_BYTES)


def _model_withdrawal(body: bytes) -> ModelWithdrawal:
    return decode(body, ModelWithdrawal, REQUEST_BYTES)


def _object_route(method: str) -> LedgerRoute:
    """Objects of published models, as providers serve theirs."""
    return LedgerRoute(
        _unread, LedgerCaller.ANYONE, lambda handler, at, body: handler._models.serve(at.peer, method, body)
    )


def _unread(body: bytes) -> bytes:
    return body


ROUTES: Final[Mapping[str, LedgerRoute]] = {
    QUERY: LedgerRoute(queries.read_query, LedgerCaller.ANYONE, lambda handler, _, query: handler._answer(query)),
    STANDING: LedgerRoute(_unread, LedgerCaller.ANYONE, lambda handler, _, __: handler._standing()),
    LIST: LedgerRoute(_unread, LedgerCaller.ANYONE, lambda handler, _, __: handler._listing()),
    PUBLISH: LedgerRoute(read_advertisement, LedgerCaller.ANYONE, LedgerRequestHandler._publish_here),
    TOLD: LedgerRoute(
        read_advertisement, LedgerCaller.VALIDATORS, lambda handler, _, said: handler._publish(said.endpoint.peer, said)
    ),
    ONLINE: LedgerRoute(_unread, LedgerCaller.ANYONE, lambda handler, _, __: handler._online.listing(handler._clock())),
    ANNOUNCE: LedgerRoute(
        read_notice, LedgerCaller.ANYONE, lambda handler, line, said: handler._board.post(line.peer, said)
    ),
    NOTICES_LIST: LedgerRoute(_unread, LedgerCaller.ANYONE, lambda handler, _, __: handler._board.listing()),
    CARD: LedgerRoute(_unread, LedgerCaller.ANYONE, lambda handler, _, __: handler._card()),
    GRANT: LedgerRoute(_grant_request, LedgerCaller.ANYONE, LedgerRequestHandler._grant),
    FIND: LedgerRoute(_model_query, LedgerCaller.ANYONE, lambda handler, _, query: handler._models.find(query)),
    PUBLISH_MODEL: LedgerRoute(
        _model_record, LedgerCaller.ANYONE, lambda handler, at, said: handler._models.publish(at.peer, said)
    ),
    WITHDRAW: LedgerRoute(
        _model_withdrawal, LedgerCaller.ANYONE, lambda handler, at, said: handler._models.withdraw(at.peer, said.name)
    ),
    **{method: _object_route(method) for method in (CHUNK, BEGIN, PUT, FINISH)},
    MESSAGE: LedgerRoute(_unread, LedgerCaller.ANYONE_OF_SEVERAL, LedgerRequestHandler._hear),
}
