"""Restarts a validator by itself when it has fallen behind all blocks that the others still keep.

While its head stands still it asks the others for the block behind it. Blocks that come are its replica's to judge.
Where they are gone, it fetches a snapshot beside its own file while it still runs, with the checks of its start
(ledger.io.state_sync); only a whole one, certified behind its own head, makes it end, put the snapshot in place
and begin again: so nobody's word alone can stop it. Its vote log stays where it is and is read again, as after any
start: what it signed it never signs against (docs/protocol/sdbft.md, rule 7).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from farflung.core.codec import encode
from farflung.core.errors import NetworkError
from farflung.ledger import queries
from farflung.ledger.block import Block
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.io.snapshot_download import SnapshotDownload
from farflung.ledger.io.state_sync import Ask, fetch, own_of
from farflung.ledger.votes import VoteKind
from farflung.net.counters import ByteCounter
from farflung.peers.validator.bootstrap import JoinStatus, Places, asking, begin, tidings_of
from farflung.peers.validator.committee import place_of, validators_of
from farflung.peers.validator.service import ValidatorConfig, ValidatorService

LOOK_SECONDS: Final = 10.0  # between two looks at a head that may stand still
PATIENCE_SECONDS: Final = 600.0  # between two tries that came to nothing, at most

Told = Callable[[JoinStatus], None]


class CatchUpService:
    """One validator's process for as long as it lasts: `service` is what runs now."""

    def __init__(
        self,
        setting: ValidatorConfig,
        places: Places,
        told: Told = lambda _: None,
        look: float = LOOK_SECONDS,
    ) -> None:
        """`told` hears of each look for a snapshot that is worth a line; `look`: seconds between two."""
        self._setting, self._places, self._told, self._look = setting, dict(places), told, look
        self._taken = 0
        self.service: ValidatorService

    async def open(self) -> tuple[str, int]:
        """Begins, from a snapshot where that is due; returns host and port. Raises RunError for its files."""
        self._told(await begin(self._setting, self._places))
        address = await self._start()
        self._setting = replace(self._setting, port=address[1])
        return address

    async def _start(self) -> tuple[str, int]:
        self.service = ValidatorService(self._setting, ByteCounter(), lambda: None)
        self.service.attendant.gauges.snapshots = self._taken
        return await self.service.open(self._places)

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
            tidings = look.result()
            if tidings is not None and tidings.height:
                await self._begin_again()
            is_stranded = tidings is not None and not tidings.height
            self.service.attendant.gauges.stranded = int(is_stranded)
            wait = min(2 * wait, PATIENCE_SECONDS) if is_stranded else self._look

    async def close(self) -> None:
        """Ends; what is stored stays."""
        await self.service.close()

    async def _looked(self, seconds: float) -> JoinStatus | None:
        """After so many seconds: what a search for a snapshot gave, if there was reason for one."""
        service, height = self.service, self.service.chain.head.height
        await asyncio.sleep(seconds)
        seat, known = service.committee, self._known(service)
        if seat is None or service.chain.head.height > height:
            return None
        async with asking(known) as asks:
            for peer, ask in zip(known, asks, strict=True):
                blocks = await _next_blocks(ask, service.chain.head.height + 1)
                if blocks:
                    seat.take(peer, blocks)
            if service.chain.head.height > height:
                return None
            with contextlib.closing(SnapshotDownload(service.store.path, service.store.genesis)) as held:
                joined = await fetch(asks, held, own_of(service.store))
        tidings = tidings_of(known, joined, service.store.genesis)
        if service.chain.head.height > height or not (tidings.joined.is_needed or tidings.height):
            return None
        self._told(tidings)
        return tidings

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
        with (
            contextlib.closing(store),
            contextlib.closing(SnapshotDownload(store.path, setting.genesis)) as held,
        ):
            held.replace(store)
        self._taken += 1
        await self._start()


async def _next_blocks(ask: Ask, height: int) -> tuple[Block, ...]:
    """Blocks from a height on, of one epoch and up to one that is final by itself; none where the peer has none."""
    try:
        said = queries.read_answer(await ask(encode(queries.GetBlocks(height))))
    except NetworkError:
        return ()
    found = list(said.blocks) if isinstance(said, queries.BlocksReply) else []
    found = [block for block in found if block.header.epoch == found[0].header.epoch]
    while found and found[-1].certificate.kind != VoteKind.FINALIZE:
        found.pop()
    return tuple(found)
