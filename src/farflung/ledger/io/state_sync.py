"""Synchronizes a node that joins late or was offline for long.

It starts from any server's snapshot, and trusts no server.

Two things make one necessary: blocks behind one's own that are no longer kept by anybody who answers, or a certified
state so far ahead that it is there sooner. Neither is taken on one server's word, because a snapshot costs the blocks
before it: who says that blocks are gone is trusted only while no other server shows the next one, and how far ahead
a ledger is shows its certificate. A server that sends one wrong piece, fails, or does not end is left for the next one,
which goes on where it stopped; what was wrong with each is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from pathlib import Path
from typing import Final, TypeVar

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.errors import FarflungError, NetworkError, ProtocolError, VerificationError
from farflung.ledger import light_client, queries
from farflung.ledger.block import Block, BlockHeader, Genesis, has_certificate
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.io.snapshot_download import SnapshotDownload
from farflung.ledger.row_receipt import LedgerReceipt
from farflung.ledger.snapshot import (
    GetSnapshot,
    GetSnapshotChunk,
    SnapshotChunkReply,
    SnapshotManifest,
    SnapshotReply,
    opened_by,
)

Ask = Callable[[bytes], Awaitable[bytes]]  # a `ledger.query` and its answer, within a time that it sets
A = TypeVar("A", bound=queries.Reply)
T = TypeVar("T")

SERVER_SECONDS: Final = 600  # that one server may take: the next one goes on with the chunks that are here
_TRIES: Final = 3  # manifests of one server: it may drop a snapshot that is being fetched, but not always
_AT_ONCE: Final = 8  # servers that are asked where they stand: an answer is at most `limits.CONTROL_BYTES`


@dataclass(frozen=True, slots=True)
class LocalChainStatus:
    """Where one stands: the last block that one has, and what leads from genesis to its committee."""

    head: BlockHeader
    steps: tuple[LedgerReceipt, ...]
    trust: light_client.TrustedCommittee


@dataclass(frozen=True, slots=True)
class StateSyncResult:
    """What came of it: the header of the snapshot that was taken, whether one is needed, what was wrong with whom.

    `own`: the last block that one had before. `faults`: places in the servers' order, with the error; one server may
    have several.
    """

    own: BlockHeader
    taken: BlockHeader | None
    is_needed: bool
    faults: tuple[tuple[int, FarflungError], ...]

    @property
    def height(self) -> int:
        """That of the snapshot; 0: none."""
        return self.taken.height if self.taken else 0


class _NextBlockStatus(Enum):
    """What a server says of the block behind one's own."""

    KEPT = "kept"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class _SnapshotSearch:
    """One search for a snapshot."""

    download: SnapshotDownload
    own: LocalChainStatus
    seconds: int
    faults: list[tuple[int, FarflungError]] = field(default_factory=list)

    @property
    def told(self) -> tuple[tuple[int, FarflungError], ...]:
        """The faults by server."""
        return tuple(sorted(self.faults, key=itemgetter(0)))

    async def guarded(self, place: int, answer: Awaitable[T]) -> T | None:
        """What one server gives in its time; None when it failed, which is noted."""
        try:
            async with asyncio.timeout(self.seconds):
                return await answer
        except (NetworkError, VerificationError) as error:
            self.faults.append((place, error))
        except TimeoutError:
            self.faults.append((place, _slow(self.seconds)))
        return None


def local_status(store: LedgerStore) -> LocalChainStatus:
    """Where a store stands. Raises RunError FF-LEDG-081, VerificationError where its committees are not certified."""
    steps: list[LedgerReceipt] = []
    while page := store.steps(len(steps), queries.STEPS):
        steps += page
    trust = light_client.follow_steps(light_client.trust_in(store.genesis), steps, len(steps))
    return LocalChainStatus(store.head, tuple(steps), trust)


async def join(asks: Sequence[Ask], path: Path, genesis: Genesis, seconds: int = SERVER_SECONDS) -> StateSyncResult:
    """Puts a snapshot where the ledger's file is, or will be, if one is needed and a server gives it.

    Nobody else may have the file open. Raises RunError FF-LEDG-080 to -083 for the file.
    """
    store = LedgerStore.open(path, genesis)
    try:
        download = SnapshotDownload(path, genesis)
        try:
            joined = await fetch(asks, download, local_status(store), seconds)
            if joined.height:
                download.replace(store)
            return joined
        finally:
            download.close()
    finally:
        store.close()


async def fetch(
    asks: Sequence[Ask], download: SnapshotDownload, own: LocalChainStatus, seconds: int = SERVER_SECONDS
) -> StateSyncResult:
    """Brings a whole snapshot into `download`, if one is needed; the ledger's own file may be in use meanwhile.

    Whatever servers say or do not say, it ends: each has `seconds`. Raises RunError FF-LEDG-081, -082.
    """
    quest, gate = _SnapshotSearch(download, own, seconds), asyncio.Semaphore(_AT_ONCE)

    async def looked(place: int, ask: Ask) -> tuple[int, _NextBlockStatus] | None:
        async with gate:
            return await quest.guarded(place, _standing(ask, own))

    said = await asyncio.gather(*(looked(place, ask) for place, ask in enumerate(asks)))
    nexts = [each[1] for each in said if each is not None]
    is_gone = _NextBlockStatus.GONE in nexts and _NextBlockStatus.KEPT not in nexts
    far = own.head.height + limits.SNAPSHOT_BLOCKS
    least = own.head.height + 1 if is_gone else far
    for place, stands in enumerate(said):
        if stands is not None and (stands[0] >= far or (is_gone and stands[1] == _NextBlockStatus.GONE)):
            taken = await quest.guarded(place, _fetch_from(asks[place], download, own, least))
            if taken:
                return StateSyncResult(own.head, taken, True, quest.told)
    return StateSyncResult(own.head, None, is_gone, quest.told)


async def _standing(ask: Ask, own: LocalChainStatus) -> tuple[int, _NextBlockStatus]:
    """A server's height, by its own word, and whether it has the block behind one's own."""
    height = (await _asked(ask, queries.GetHead(), queries.HeadReply)).header.height
    if height <= own.head.height:
        return height, _NextBlockStatus.UNKNOWN
    said = queries.read_reply(await ask(encode(queries.GetBlocks(own.head.height + 1))))
    if isinstance(said, queries.QueryErrorReply) and said.code == queries.PRUNED:
        return height, _NextBlockStatus.GONE
    is_kept = isinstance(said, queries.BlocksReply) and said.blocks and _is_next(said.blocks[0], own)
    return height, _NextBlockStatus.KEPT if is_kept else _NextBlockStatus.UNKNOWN


def _is_next(block: Block, own: LocalChainStatus) -> bool:
    """Whether it is the block behind one's own: nobody but its committee can make one."""
    header = block.header
    place, due = (header.height, header.parent), (own.head.height + 1, own.head.id)
    is_theirs = header.epoch == own.trust.epoch and place == due
    return is_theirs and has_certificate(header, block.certificate, own.trust.committee)


async def _fetch_from(ask: Ask, download: SnapshotDownload, own: LocalChainStatus, least: int) -> BlockHeader | None:
    """The header of the whole snapshot that is in `download` now; None where the next blocks come sooner.

    Raises NetworkError FF-LEDG-334 when the server gives none, and what it says that is wrong.
    """
    for _ in range(_TRIES):
        manifest = (await _asked(ask, GetSnapshot(), SnapshotReply)).manifest
        if manifest is None or manifest.header.height <= own.head.height:
            raise _none(f"it shows none behind block {own.head.height}, which it says is old")
        if manifest.header.height < least:
            return None
        download.begin(manifest, await _steps(ask, own, manifest))
        if await _chunks(ask, download, manifest.header.height):
            return manifest.header
    raise _none(f"it dropped {_TRIES} of them while they were fetched")


async def _steps(ask: Ask, own: LocalChainStatus, manifest: SnapshotManifest) -> list[LedgerReceipt]:
    """What leads from genesis over one's own committee to the manifest's; each is checked before more are asked for."""
    trust, found = own.trust, list(own.steps)
    epoch = max(manifest.header.epoch, min(opened_by(manifest), manifest.header.epoch + 1))
    if manifest.header.epoch < trust.epoch:
        raise VerificationError(
            "FF-LEDG-336",
            "the snapshot is refused: an earlier committee certified it",
            cause=f"its block is behind one's own, and its epoch {manifest.header.epoch} before {trust.epoch}",
            hint="ask another validator: seats that are over have signed a history that is none",
        )
    while trust.epoch < epoch:
        page = (await _asked(ask, queries.GetSteps(trust.epoch), queries.StepsReply)).steps
        if not page:
            break  # SnapshotDownload.begin refuses the manifest
        for step in page:
            trust = light_client.follow(trust, step)
            found.append(step)
    return found


async def _chunks(ask: Ask, download: SnapshotDownload, height: int) -> bool:
    for table, number in list(download.missing()):
        rows = (await _asked(ask, GetSnapshotChunk(height, table, number), SnapshotChunkReply)).rows
        if rows is None:
            return False
        download.put(table, number, rows)
    return True


async def _asked(ask: Ask, query: queries.Read, kind: type[A]) -> A:
    said = queries.read_reply(await ask(encode(query)))
    if not isinstance(said, kind):
        told = f"; {said.code}: {said.message}" if isinstance(said, queries.QueryErrorReply) else ""
        raise ProtocolError(
            "FF-LEDG-333",
            f"a validator answered {type(said).__name__}",
            cause=f"asked was {kind.__name__}{told[:200]}",
            hint="ask another validator",
        )
    return said


def _none(cause: str) -> NetworkError:
    return NetworkError("FF-LEDG-334", "a validator gives no snapshot", cause=cause, hint="ask another validator")


def _slow(seconds: int) -> NetworkError:
    return NetworkError(
        "FF-LEDG-335",
        "a validator takes too long to give its snapshot",
        cause=f"it had {seconds} s; the chunks that it gave are kept",
        hint="ask another validator, or this one again: it goes on where it stopped",
    )
