"""Runs one validator's process, whatever its committee's size: its store, votes, endpoint and HTTP readers.

While this key is the only validator it certifies each transaction on the spot, and its store is its vote log. When
another one asks for a seat a `Committee` takes over, and it stays when the committee shrinks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError
from farflung.core.ids import PeerId
from farflung.ledger.block import Genesis
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.io.votelog import VoteLog, open_votes
from farflung.ledger.law_version import check_law
from farflung.ledger.ledger_node import LedgerNode
from farflung.ledger.table_rows import JobRow
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.listen_errors import LOOPBACK
from farflung.net.io.tcp_listener import ListenConfig
from farflung.peers.ledger_client.key_registry import LOOK_SECONDS, registered
from farflung.peers.network.card import NetworkConfig
from farflung.peers.network.service import NetworkService
from farflung.peers.validator.committee import PARTS, CommitteeMember, ConsensusStorage, place_of, validators_of
from farflung.peers.validator.http_readers import HttpReaders, HttpReadersConfig
from farflung.peers.validator.requests import LedgerRequestHandler


@dataclass(frozen=True)
class ValidatorConfig:
    """What a validator is told. `folder`: of its store, votes and directory; `is_logical`: a local network's time."""

    key: SigningKey
    genesis: Genesis
    folder: Path
    host: str = LOOPBACK
    port: int = 0
    is_remote: bool = False
    is_logical: bool = False
    readers: HttpReadersConfig | None = None  # where whoever reads the ledger is served over HTTP; None: nowhere
    keep_ms: int | None = None  # how long transactions are kept; None: for ever
    judges: int = 0  # processes that judge signatures, as soon as there are other validators; 0: this one does
    network: NetworkConfig = field(default_factory=NetworkConfig)  # what its card says


class ValidatorService:
    """A validator that runs. `open` first; `failed` tells when it cannot go on."""

    def __init__(self, setting: ValidatorConfig, counter: ByteCounter, on_block: Callable[[], None]) -> None:
        """Raises RunError FF-LEDG-080 to -083 for the file, -270 where this farflung does not know the ledger's law."""
        self._setting, self._on_block = setting, on_block
        self.store = LedgerStore.open(setting.folder / "chain.db", setting.genesis, setting.keep_ms)
        self.chain = self.store.load(setting.key)
        try:
            check_law(self.chain.state, self.chain.law)
        except FarflungError:
            self.store.close()
            raise
        jobs = lambda job: self.chain.state.find(JobRow, job)  # noqa: E731
        self._network = NetworkService(
            setting.key, setting.genesis, setting.network, self._seats, setting.folder, jobs=jobs
        )
        self.requests = LedgerRequestHandler(
            self.chain,
            self.store,
            is_local=setting.is_logical,
            directory=setting.folder / "directory.bin",
            on_block=self._moved,
            network=self._network,
        )
        self.endpoint = Endpoint(
            setting.key,
            self.requests.handle,
            counter,
            listen=ListenConfig(setting.host, setting.port, setting.is_remote),
        )
        self.places: dict[PeerId, tuple[str, int]] = {}
        self.port = setting.port
        self._votes: VoteLog | None = None
        self._following: asyncio.Task[None] | None = None
        self.readers = HttpReaders(self.chain, lambda: self.committee, is_logical=setting.is_logical)
        self.readers_port = 0
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def committee(self) -> CommitteeMember | None:
        """This validator's part among several; None while it is alone."""
        return self.requests.committee

    def _seats(self) -> dict[PeerId, tuple[str, int]]:
        """Where seats are, this one first: as its file says, as the ledger says, as this one was told."""
        setting, said = self._setting, self._setting.network
        own = (said.host or setting.host, said.port or self.port)
        known = {peer: place_of(address) for peer, address in validators_of(self.chain).items()}
        on_ledger = {peer: place for peer, place in known.items() if place is not None}
        return {
            setting.key.public: own,
            **{k: v for k, v in (self.places | on_ledger).items() if k != setting.key.public},
        }

    async def open(self, places: Mapping[PeerId, tuple[str, int]]) -> tuple[str, int]:
        """Listens; returns host and port. `places`: where other validators are."""
        self.places |= places
        self._following = asyncio.create_task(self._follow())
        address = await self.endpoint.start()
        self.port = address[1]
        if self._setting.readers is not None:
            self.readers_port = await self.readers.open(self._setting.readers)
        self._take_seat()
        return address

    def _moved(self) -> None:
        self._take_seat()
        self._told()

    def _told(self) -> None:
        self.readers.moved()
        self._on_block()

    def _take_seat(self) -> None:
        """Becomes one of several, as soon as the committee is not this key alone."""
        setting = self._setting
        if self.committee is not None or validators_of(self.chain).keys() == {setting.key.public}:
            return
        votes = self._votes = open_votes(self.store, setting.key.public)
        storage, key = ConsensusStorage(self.store, votes), setting.key
        node = LedgerNode(
            self.chain, key, storage, votes.records, is_logical=setting.is_logical, parts=PARTS * setting.judges
        )
        seat = self.requests.committee = CommitteeMember(
            node, key.public, self.endpoint, self.places.get, setting.judges, self._told
        )
        seat.failed.add_done_callback(self._fail)
        seat.start()

    def _fail(self, failed: asyncio.Future[None]) -> None:
        error = None if failed.cancelled() else failed.exception()
        if isinstance(error, FarflungError) and not self.failed.done():
            self.failed.set_exception(error)

    async def _follow(self) -> None:
        """A validator holds to its own registry of node keys, too."""
        while True:
            self.endpoint.admission.keyring.learn(registered(row) for row in self.requests.keys)
            self.endpoint.recheck()
            await asyncio.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        """Ends; what is stored stays."""
        if self._following is not None:
            self._following.cancel()
        if self.committee is not None:
            await self.committee.close()
        await self.readers.close()
        await self.endpoint.close()
        self._network.close()
        if self._votes is not None:
            self._votes.close()
        self.store.close()
        if not self.failed.done():
            self.failed.cancel()
