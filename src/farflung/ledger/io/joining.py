"""Who joins a ledger late, or slept long, begins from a snapshot: whichever server gives it, and none is believed.

A server that sends one wrong piece, fails, or does not end is left for the next one, which goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.errors import FarflungError, ProtocolError
from farflung.ledger import light, queries
from farflung.ledger.block import Genesis
from farflung.ledger.io.snapshots import Incoming
from farflung.ledger.io.store import Store
from farflung.ledger.proof import Receipt
from farflung.ledger.snapshot import AskChunk, AskSnapshot, ChunkIs, SnapshotIs

Ask = Callable[[bytes], Awaitable[bytes]]  # a `ledger.query` and its answer, within a time that it sets
A = TypeVar("A", bound=queries.Answer)

_TRIES: Final = 3  # manifests of one server: it may drop a snapshot that is being fetched, but not always


async def join(asks: Sequence[Ask], path: Path, genesis: Genesis) -> bool:
    """Puts a snapshot where the ledger's file is, or will be, if the blocks behind it are not kept or too many.

    Nobody else may have the file open. Returns whether it did. Raises the last server's error when it should have and
    nobody gave one, and RunError FF-LEDG-080 to -083 for the file.
    """
    store = Store.open(path, genesis)
    try:
        held = Incoming(path, genesis)
        try:
            if not await _fetch(asks, held, store.height):
                return False
            held.replace(store)
            return True
        finally:
            held.close()
    finally:
        store.close()


async def _fetch(asks: Sequence[Ask], held: Incoming, height: int) -> bool:
    last: FarflungError | None = None
    for ask in asks:
        try:
            if await _is_behind(ask, height) and await _fetch_from(ask, held, height):
                return True
        except FarflungError as error:
            last = error
    if last is not None:
        raise last
    return False


async def _is_behind(ask: Ask, height: int) -> bool:
    """Whether the next blocks cannot be had, or are so many that the state is there sooner."""
    head = (await _asked(ask, queries.AskHead(), queries.HeadIs)).header.height
    if head - height >= limits.SNAPSHOT_BLOCKS:
        return True
    said = queries.read_answer(await ask(encode(queries.AskBlocks(height + 1))))
    return isinstance(said, queries.Refused) and said.code == queries.PRUNED


async def _fetch_from(ask: Ask, held: Incoming, height: int) -> bool:
    for _ in range(_TRIES):
        manifest = (await _asked(ask, AskSnapshot(), SnapshotIs)).manifest
        if manifest is None or manifest.header.height <= height:
            return False
        held.begin(manifest, await _steps(ask, held.genesis, manifest.header.epoch))
        if await _chunks(ask, held, manifest.header.height):
            return True
    return False


async def _steps(ask: Ask, genesis: Genesis, epoch: int) -> list[Receipt]:
    """What leads to an epoch's committee; each is checked before more are asked for."""
    trust, found = light.trust_in(genesis), list[Receipt]()
    while trust.epoch < epoch:
        page = (await _asked(ask, queries.AskSteps(trust.epoch), queries.StepsAre)).steps
        if not page:
            break  # Incoming.begin refuses the manifest
        for step in page:
            trust = light.follow(trust, step)
            found.append(step)
    return found


async def _chunks(ask: Ask, held: Incoming, height: int) -> bool:
    for table, number in list(held.missing()):
        rows = (await _asked(ask, AskChunk(height, table, number), ChunkIs)).rows
        if rows is None:
            return False
        held.put(table, number, rows)
    return True


async def _asked(ask: Ask, query: queries.Read, kind: type[A]) -> A:
    said = queries.read_answer(await ask(encode(query)))
    if not isinstance(said, kind):
        raise ProtocolError(
            "FF-LEDG-333", f"a validator answered {type(said).__name__}", cause=f"asked was {kind.__name__}"
        )
    return said
