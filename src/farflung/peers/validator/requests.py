"""Serves a validator's requests: ledger queries, submitted transactions, and the node directory.

Alone it makes a block of what is handed in, at once; among others its committee answers when it is final.

It also keeps the directory: the volatile part of the registry (where a node listens now, what it offers), which
is signed by the node itself and enters no root. A validator that was killed knows it again from its folder.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import PolicyError, ProtocolError
from farflung.core.ids import PeerId
from farflung.core.io.durable_files import write_atomic
from farflung.ledger import queries
from farflung.ledger.block import LOGICAL_MS
from farflung.ledger.chain import Chain
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.table_rows import KeyRow, NodeRow
from farflung.net.endpoint_records import check_newer
from farflung.net.io.connection import Connection
from farflung.peers.protocol.directory import (
    Advertisement,
    DirectoryListing,
    check_advertisement,
    read_directory,
)
from farflung.peers.validator.committee import CommitteeMember

STANDING = "ledger.standing"
TOLD = "directory.told"  # by another validator: what a node published there
DIRECTORY_SIZE = 4096
ADVERTISEMENT_BYTES = 1000  # so that the listing of a full directory fits one message

DIRECTORY_BYTES = DIRECTORY_SIZE * (ADVERTISEMENT_BYTES + 1)

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
    ) -> None:
        """`directory`: the file that the advertisements are kept in; None: in memory only.

        `clock` gives seconds since 1970.
        """
        self._chain, self._store, self._is_local, self._on_block = chain, store, is_local, on_block
        self._file, self._clock = directory, clock
        self._directory: dict[PeerId, Advertisement] = {}
        kept = () if directory is None else read_directory(directory, DIRECTORY_BYTES, clock())
        for advertisement in kept:
            if self._may_list(advertisement.endpoint.peer):
                self._directory[advertisement.endpoint.peer] = advertisement
        self._turn = asyncio.Lock()
        self.committee: CommitteeMember | None = None

    async def handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        """One request of one peer."""
        match method:
            case "ledger.query":
                return encode(await self._answer(queries.read_query(body)))
            case "ledger.standing":
                return encode(self._standing())
            case "directory.publish":
                self._publish(connection.peer, decode(body, Advertisement, ADVERTISEMENT_BYTES))
                if self.committee is not None:
                    self.committee.tell(TOLD, body)
                return b""
            case "directory.told" if self.committee is not None and self.committee.knows(connection.peer):
                said = decode(body, Advertisement, ADVERTISEMENT_BYTES)
                self._publish(said.endpoint.peer, said)
                return b""
            case "sdbft.message" if self.committee is not None:
                self.committee.hear(connection, body)
                return b""
            case "directory.list":
                return encode(self._listing())
        raise ProtocolError("FF-APP-030", f"a validator does not serve {method[:40]!r}")

    @property
    def keys(self) -> Sequence[KeyRow]:
        """The registry of node keys as it stands."""
        return self._chain.state.rows(KeyRow)

    def _now(self) -> int:
        return self._chain.head.time + LOGICAL_MS if self._is_local else int(time.time() * 1000)

    def read(self, query: queries.Read) -> queries.Answer:
        """What the ledger says at its head."""
        return queries.answer(self._chain, query)

    def _standing(self) -> ValidatorStatus:
        state, seat = self._chain.state, self.committee
        height, epoch = self._chain.head.height, state.committee.epoch
        if seat is None:
            return ValidatorStatus(height, epoch, height - state.committee.first + 2, 0, ())
        met = tuple(sorted(peer for peer, is_met in seat.met.items() if is_met))
        timed = sorted(seat.node.finality)
        median = timed[len(timed) // 2] if timed else 0
        return ValidatorStatus(height, epoch, seat.node.replica.view, len(seat.node.pool), met, median)

    async def _answer(self, query: queries.Query) -> queries.Answer:
        if not isinstance(query, queries.SubmitRequest):
            return queries.answer(self._chain, query)
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
        if known != advertisement:
            self._directory[peer] = advertisement
            if self._file is not None:
                write_atomic(self._file, encode(self._listing()), "ledger.directory")

    def _forget_expired(self) -> None:
        over = self._clock() - limits.CLOCK_SECONDS
        for peer in [p for p, each in self._directory.items() if each.endpoint.expires < over]:
            del self._directory[peer]

    def _may_list(self, peer: PeerId) -> bool:
        """Keys are free, places are not: a node has put a stake on the ledger."""
        return self._chain.state.find(NodeRow, peer) is not None

    def _listing(self) -> DirectoryListing:
        self._forget_expired()
        return DirectoryListing(tuple(self._directory[p] for p in sorted(self._directory)))
