"""Starts a validator that is new or was away from a snapshot, where blocks are pruned or too many.

It restarts one by itself that has fallen behind all blocks that the others still keep. While its head does not move
and should, it asks the others for the block behind it. Blocks that come are its replica's to judge. Where they are
gone, it fetches a snapshot beside its own file while it still runs, with the checks of its start
(ledger.io.state_sync); only a whole one, certified behind its own head, makes it end, put the snapshot in place and
begin again: so nobody's word alone can stop it. Its vote log stays where it is and is read again, as after any
start: what it signed it never signs against (docs/protocol/sdbft.md, rule 7).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, NetworkError
from farflung.core.ids import ID_BYTES, PeerId
from farflung.ledger import queries
from farflung.ledger.block import Block, Genesis
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.io.snapshot_download import SnapshotDownload
from farflung.ledger.io.state_sync import Ask, StateSyncResult, fetch, join, local_status
from farflung.ledger.params import DAY_MS
from farflung.ledger.votes import VoteKind
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import serve_nothing
from farflung.peers.ledger_client.connect import reaches_of
from farflung.peers.ledger_client.quorum_read import QuorumReader
from farflung.peers.validator.committee import place_of, validators_of
from farflung.peers.validator.service import ValidatorConfig, ValidatorService

LOOK_SECONDS: Final = 10.0  # between two looks at a head that may stand still
PATIENCE_SECONDS: Final = 600.0  # between two tries that came to nothing, at most

Places = Mapping[PeerId, tuple[str, int]]


@dataclass(frozen=True)
class JoinStatus:
    """Who was asked for a snapshot, what came of it, and what was wrong with whom.

    `stale_days`: for how long this validator knew nothing newer, where that is longer than stakes stay bonded; else 0.
    """

    places: Places
    joined: StateSyncResult
    stale_days: int = 0

    @property
    def height(self) -> int:
        """That of the snapshot which was taken; 0: none."""
        return self.joined.height

    @property
    def silent(self) -> int:
        """How many of them failed, and gave nothing."""
        return len({place for place, _ in self.joined.faults})

    def lines(self) -> Iterator[str]:
        """For a person: each fault with its code and cause, and what to do where it matters."""
        asked = list(self.places.items())
        for place, error in self.joined.faults:
            peer, (host, port) = asked[place]
            cause = f" ({error.cause})" if error.cause else ""
            yield f"asked {peer.hex()[:12]} at {host}:{port}: {error.code} {error.message}{cause}"
        if self.height:
            yield f"took the snapshot of block {self.height}: every chunk is under a certified state root"
            if self.stale_days and self.joined.taken:
                yield (
                    f"beware: what this validator knew before is {self.stale_days} days old, and the stakes of that "
                    f"committee are free by now: it may have signed another history. Compare block {self.height} with "
                    f"somebody you trust (farflung ledger show): {self.joined.taken.id.hex()}"
                )
        elif self.joined.is_needed:
            yield from untaken(self).lines()
        elif asked and self.silent == len(asked):
            yield (
                f"none of {len(asked)} other validators answered: it begins from its own blocks, and "
                "meets them when they are there"
            )


def untaken(status: JoinStatus) -> FarflungError:
    """A snapshot was needed, and nobody gave one."""
    return NetworkError(
        "FF-APP-322",
        "this validator cannot catch up: nobody keeps the next block, and nobody gave a snapshot",
        cause=f"{len(status.places)} were asked, {status.silent} of them failed",
        hint="name more validators under [validators] in its file; it tries again by itself",
    )


def status_of(places: Places, joined: StateSyncResult, genesis: Genesis) -> JoinStatus:
    """The same for a person, with a warning where a committee is trusted that has nothing to lose any more.

    Weak subjectivity (docs/protocol/sdbft.md): a ledger that counts blocks instead of time knows no such age.
    """
    slept = int(time.time() * 1000) - joined.own.time if genesis.time else 0
    is_stale = slept > genesis.params.unbonding_ms
    return JoinStatus(places, joined, max(1, slept // DAY_MS) if is_stale else 0)


@contextlib.asynccontextmanager
async def asking(places: Places) -> AsyncIterator[Sequence[Ask]]:
    """A question to each validator, under a key of this moment: what is asked takes no part in any committee."""
    endpoint = Endpoint(SigningKey(secrets.token_bytes(ID_BYTES)), serve_nothing, ByteCounter())
    panel = QuorumReader(reaches_of(((peer, *place) for peer, place in places.items()), endpoint))
    try:
        yield [partial(panel.call, number) for number in range(len(panel))]
    finally:
        await endpoint.close()


async def begin(setting: ValidatorConfig, places: Places) -> JoinStatus:
    """Before the validator's own files are open: puts a snapshot in their place where one is needed and given.

    That nobody answers, or that all lie, is no reason not to begin: they must not be able to prevent it. Raises
    RunError FF-LEDG-080 to -083 for the files.
    """
    async with asking(places) as asks:
        joined = await join(asks, setting.folder / "chain.db", setting.genesis)
    return status_of(places, joined, setting.genesis)


JoinListener = Callable[[JoinStatus], None]


class CatchUpService:
    """One validator's process for as long as it lasts: `service` is what runs now."""

    def __init__(
        self,
        setting: ValidatorConfig,
        places: Places,
        told: JoinListener = lambda _: None,
        look: float = LOOK_SECONDS,
        counter: ByteCounter | None = None,
        on_block: Callable[[], None] = lambda: None,
    ) -> None:
        """`told` hears of each look for a snapshot that is worth a line; `look`: seconds between two.

        `counter` counts what the service sends, `on_block` hears of its blocks.
        """
        self._setting, self._places, self._told, self._look = setting, dict(places), told, look
        self._counter, self._on_block = counter or ByteCounter(), on_block
        self._taken = 0
        self.service: ValidatorService

    async def open(self) -> tuple[str, int]:
        """Begins, from a snapshot where that is due; returns host and port. Raises RunError for its files."""
        if not self._setting.is_logical:  # a local network keeps all blocks
            self._told(await begin(self._setting, self._places))
        address = await self._start()
        self._setting = replace(self._setting, port=address[1])
        return address

    async def _start(self) -> tuple[str, int]:
        self.service = ValidatorService(self._setting, self._counter, self._on_block)
        self.service.readers.gauges.snapshots = self._taken
        return await self.service.open(self._places)

    def meet(self, peer: PeerId, place: tuple[str, int]) -> None:
        """Another validator is there."""
        self._places[peer] = self.service.places[peer] = place

    async def run(self) -> None:
        """Until it is cancelled. Raises what ended the validator."""
        wait = self._look
        while True:
            look = asyncio.ensure_future(self._looked(wait))
            try:
                either: set[asyncio.Future[Any]] = {look, self.service.failed}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if self.service.failed.done():
                    self.service.failed.result()
            except BaseException:
                look.cancel()
                await asyncio.gather(look, return_exceptions=True)
                raise
            status = look.result()
            if status is not None and status.height:
                await self._begin_again()
            is_stranded = status is not None and not status.height
            self.service.readers.gauges.stranded = int(is_stranded)
            wait = min(2 * wait, PATIENCE_SECONDS) if is_stranded else self._look

    async def close(self) -> None:
        """Ends; what is stored stays."""
        await self.service.close()

    async def _looked(self, seconds: float) -> JoinStatus | None:
        """After so many seconds: what a search for a snapshot gave, if there was reason for one."""
        service, height = self.service, self.service.chain.head.height
        await asyncio.sleep(seconds)
        seat, known = service.committee, self._known(service)
        if seat is None or service.chain.head.height > height or not seat.is_behind:
            return None
        async with asking(known) as asks:
            for peer, ask in zip(known, asks, strict=True):
                blocks = await _next_blocks(ask, service.chain.head.height + 1)
                if blocks:
                    seat.take(peer, blocks)
            if service.chain.head.height > height:
                return None
            with contextlib.closing(SnapshotDownload(service.store.path, service.store.genesis)) as held:
                joined = await fetch(asks, held, local_status(service.store))
        status = status_of(known, joined, service.store.genesis)
        if service.chain.head.height > height or not (status.joined.is_needed or status.height):
            return None
        self._told(status)
        return status

    def _known(self, service: ValidatorService) -> Places:
        """Where other validators are: as the ledger says, and as this one was told."""
        said = {peer: place_of(address) for peer, address in validators_of(service.chain).items()}
        known = {peer: place for peer, place in said.items() if place is not None}
        known |= service.places
        known.pop(self._setting.key.public, None)
        return known

    async def _begin_again(self) -> None:
        """Puts the snapshot that is whole in the place of the ledger's file."""
        await self.service.close()
        setting = self._setting
        store = LedgerStore.open(setting.folder / "chain.db", setting.genesis)
        with contextlib.closing(store), contextlib.closing(SnapshotDownload(store.path, setting.genesis)) as held:
            held.replace(store)
        self._taken += 1
        await self._start()


async def _next_blocks(ask: Ask, height: int) -> tuple[Block, ...]:
    """Blocks from a height on, of one epoch and up to one that is final by itself; none where the peer has none."""
    try:
        said = queries.read_reply(await ask(encode(queries.GetBlocks(height))))
    except NetworkError:
        return ()
    found = list(said.blocks) if isinstance(said, queries.BlocksReply) else []
    found = [block for block in found if block.header.epoch == found[0].header.epoch]
    while found and found[-1].certificate.kind != VoteKind.FINALIZE:
        found.pop()
    return tuple(found)
