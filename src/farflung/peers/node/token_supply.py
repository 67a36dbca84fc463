"""Fetches the pieces of a large data set that a node's next work needs, checks them, and keeps the last ones on disk.

A job names such a data set by its root (job.token_tree). What a round of a member is made of follows from the data
order, so that a provider, a verifier that repeats its round, and whoever joins later ask for the same object: it comes
from the requester, or from any member that has it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from farflung.core import limits
from farflung.core.canon.token_leaves import (
    TokenLeaf,
    TokenLeaves,
    check_leaves,
    pack_leaves,
    packed_bytes,
    read_leaves,
)
from farflung.core.codec import decode, encode
from farflung.core.errors import FarflungError, VerificationError
from farflung.core.ids import PeerId
from farflung.job.dataset import Dataset
from farflung.job.spec import JobTerms
from farflung.job.token_tree import DatasetRoot
from farflung.net.messages import MessageKind
from farflung.peers.protocol import messages
from farflung.peers.transfer import objects
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import ObjectManifest
from farflung.train import data_order
from farflung.train.blobs import Blob
from farflung.train.worker_messages import DatasetLeaves

Round = tuple[int, int]  # its number, and the member whose batches it has
Probe = tuple[int, int]  # the seed of a loss probe, and its windows
_Pieces = tuple[bool, tuple[int, ...]]  # of the validation part or not, and which leaves
CACHE_BYTES: Final = limits.GIB
FLOOR: Final = 4  # fetches that stay whatever the bound is: a round is opened for an audit while the next is trained


class TokenSupply:
    """One job's, on one node."""

    def __init__(
        self,
        terms: JobTerms,
        root: DatasetRoot,
        job_key: bytes,
        disk: DiskObjectStore,
        dial: objects.Dial,
        requester: PeerId,
        cache_bytes: int,
    ) -> None:
        """`cache_bytes`: of pieces that stay on disk, those asked for last; the last FLOOR stay in any case."""
        self._terms, self._root, self._job_key = terms, root, job_key
        self._disk, self._dial, self._requester, self._cache_bytes = disk, dial, requester, cache_bytes
        self._train, self._heldout = root.empty()
        self.data = Dataset(self._train, self._heldout)
        self._kept: OrderedDict[_Pieces, ObjectManifest] = OrderedDict()
        self._ahead: asyncio.Task[None] | None = None

    async def bring(
        self, rounds: Iterable[Round], sources: tuple[PeerId, ...] = (), probe: Probe | None = None
    ) -> tuple[DatasetLeaves, ...]:
        """The tokens of these rounds, and of a loss probe; `data` holds them, and no others, from now on.

        Raises VerificationError FF-CORE-099 and NetworkError FF-APP-034 (nobody has them).
        """
        await self.rest()
        wanted = self._wanted(rounds, probe)
        blobs = [(part, await self._content((part, numbers), sources)) for part, numbers in wanted]
        held: tuple[dict[int, TokenLeaf], dict[int, TokenLeaf]] = {}, {}
        for part, blob in blobs:
            held[part].update(await asyncio.to_thread(self._checked, part, blob))
        for source, leaves in zip((self._train, self._heldout), held, strict=True):
            source.hold(leaves)
        self._forget({(part, numbers) for part, numbers in wanted})
        return tuple(DatasetLeaves(part, blob) for part, blob in blobs)

    def look_ahead(self, rounds: Iterable[Round]) -> None:
        """Fetches what these rounds need, while something else is done. What goes wrong shows when they are brought."""
        if self._ahead is None:
            self._ahead = asyncio.create_task(self._fetch_all(self._wanted(rounds, None)))

    async def rest(self) -> None:
        """Waits until nothing is fetched ahead."""
        if (ahead := self._ahead) is not None:
            self._ahead = None
            await ahead

    def cancel(self) -> None:
        """Ends what is fetched ahead."""
        if (ahead := self._ahead) is not None:
            self._ahead = None
            ahead.cancel()

    def kept(self, round: int, member: int) -> bytes:
        """The packed tokens of a member's round, as far as they are here, for who must prove what it did with them."""
        found: dict[int, TokenLeaf] = {}
        for part, numbers in self._wanted([(round, member)], None):
            if (manifest := self._kept.get((part, numbers))) is not None and self._disk.has(manifest.id):
                found.update(self._read(part, self._disk.content(self._job_key, manifest)))
        return pack_leaves(found)

    async def _fetch_all(self, wanted: list[_Pieces]) -> None:
        with contextlib.suppress(FarflungError):
            for pieces in wanted:
                await self._fetched(pieces, ())

    def _wanted(self, rounds: Iterable[Round], probe: Probe | None) -> list[_Pieces]:
        spec, root = self._terms.spec, self._root
        each = [(False, data_order.round_leaves(spec, root.train, *place)) for place in rounds]
        if probe is not None:
            each.append((True, data_order.held_leaves(spec, root.heldout, *probe)))
        most = limits.DATASET_LEAVES
        parts = dict.fromkeys(each)  # two members may have the same
        return [(part, n[at : at + most]) for part, n in parts for at in range(0, len(n), most)]

    async def _fetched(self, pieces: _Pieces, sources: tuple[PeerId, ...]) -> ObjectManifest:
        """The object that holds the pieces, in the own store."""
        manifest = self._kept.get(pieces) or await self._named(pieces)
        await objects.fetch(self._disk, manifest, (self._requester, *sources), self._dial, MessageKind.JOIN)
        self._kept[pieces] = manifest
        self._kept.move_to_end(pieces)
        return manifest

    async def _named(self, pieces: _Pieces) -> ObjectManifest:
        part, numbers = pieces
        body = encode(messages.DatasetLeavesRequest(self._terms.id, part, numbers))
        connection = await self._dial(self._requester)
        reply = await connection.call(messages.DATASET, body, kind=MessageKind.JOIN, timeout=None)
        manifest = decode(reply, ObjectManifest, limits.CONTROL_BYTES)
        if manifest.size != packed_bytes(self._of(part).size, self._root.item, numbers):
            raise VerificationError(
                "FF-APP-722",
                "the requester names other pieces of the data set than were asked for",
                cause=f"an object of {manifest.size} bytes for {len(numbers)} pieces",
                hint="take no part in this job",
            )
        return manifest

    async def _content(self, pieces: _Pieces, sources: tuple[PeerId, ...]) -> Blob:
        manifest = await self._fetched(pieces, sources)
        return await asyncio.to_thread(self._disk.content, self._job_key, manifest)

    def _of(self, part: bool) -> TokenLeaves:
        return self._heldout if part else self._train

    def _read(self, part: bool, blob: Blob) -> dict[int, TokenLeaf]:
        return read_leaves(blob, self._of(part).size, self._root.dtype)

    def _checked(self, part: bool, blob: Blob) -> dict[int, TokenLeaf]:
        leaves = self._read(part, blob)
        check_leaves(leaves, self._of(part).size, self._of(part).root)
        return leaves

    def _forget(self, used: set[_Pieces]) -> None:
        """The pieces that were asked for longest ago go, until the rest keep the owner's bound."""
        left = sum(manifest.size for manifest in self._kept.values()) - self._cache_bytes
        for pieces, manifest in list(self._kept.items())[:-FLOOR]:
            if left > 0 and pieces not in used:
                del self._kept[pieces]
                self._disk.delete(manifest.id)
                left -= manifest.size
