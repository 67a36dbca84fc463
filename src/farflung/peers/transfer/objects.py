"""Serves objects to peers by id and index, pushes them to a replica, and fetches them from any holder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import NetworkError, PolicyError, ProtocolError
from farflung.core.ids import Hash, PeerId
from farflung.net.io.connection import Connection
from farflung.net.messages import MessageKind
from farflung.peers.transfer import download
from farflung.peers.transfer.download import PATIENCE_SECONDS, ObjectTransfer, told
from farflung.store.fetch_plan import FetchPlan
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import ObjectManifest

CHUNK = "object.chunk"
BEGIN = "object.begin"
PUT = "object.put"
FINISH = "object.finish"

Dial = download.Dial

REPLICA_AWAY: Final = "FF-APP-038"  # the one failure of a reveal that is not the revealing peer's own
LEFT_PER_PEER: Final = 16  # objects that one peer may leave here at a time: replicas of a few rounds


class ObjectServer:
    """What others may do with a store: read all of it, and leave a few objects of bounded size."""

    def __init__(self, disk: DiskObjectStore, object_bytes: int) -> None:
        self._disk, self._object_bytes = disk, object_bytes
        self._left: dict[PeerId, set[Hash]] = {}
        self._unfinished: set[Hash] = set()  # begun by a peer: their chunks lie here anyway

    def serve(self, peer: PeerId, method: str, body: bytes) -> bytes:
        """Answers one request; whether the peer may ask at all is the caller's business."""
        match method:
            case "object.chunk":
                object_id, index = decode(body, tuple[Hash, int], limits.CONTROL_BYTES)
                return self._disk.chunk(object_id, index)
            case "object.begin":
                manifest = decode(body, ObjectManifest, limits.CONTROL_BYTES)
                self._begin(peer, manifest)
                return _bits(self._disk.present(manifest.id), len(manifest.chunks))
            case "object.put":
                object_id, index, data = decode(body, tuple[Hash, int, bytes], limits.BULK_BYTES)
                self._check_own(peer, object_id)
                self._disk.write_chunk(object_id, index, data)
                return b""
            case "object.finish":
                object_id = decode(body, Hash, limits.CONTROL_BYTES)
                self._check_own(peer, object_id)
                self._disk.finish(object_id)
                self._unfinished.discard(object_id)
                return b""
        raise ProtocolError("FF-APP-033", f"unknown object request {method[:40]!r}")

    def _begin(self, peer: PeerId, manifest: ObjectManifest) -> None:
        mine = self._left.setdefault(peer, set())
        if len(mine) >= LEFT_PER_PEER:
            here = set(self._disk.ids())
            self._unfinished -= here
            mine &= here | self._unfinished  # what was deleted since counts no more
        if manifest.size > self._object_bytes or (len(mine) >= LEFT_PER_PEER and manifest.id not in mine):
            raise PolicyError(
                "FF-APP-039",
                "this object may not be left here",
                cause=f"at most {LEFT_PER_PEER} objects of {self._object_bytes} bytes a peer",
            )
        if self._disk.begin(manifest):
            self._unfinished.add(manifest.id)
        mine.add(manifest.id)

    def keep(self, object_id: Hash) -> None:
        """What a peer left here was accepted: it is the job's now, and counts no more against the peer."""
        for mine in self._left.values():
            mine.discard(object_id)

    def clear(self) -> None:
        """Deletes all objects in the store, and what others began to leave here."""
        for object_id in (*self._disk.ids(), *self._unfinished):
            self._disk.delete(object_id)
        self._left.clear()
        self._unfinished.clear()

    def _check_own(self, peer: PeerId, object_id: Hash) -> None:
        if object_id not in self._left.get(peer, ()):
            raise PolicyError("FF-APP-039", "this object may not be left here", cause="it was not begun by this peer")


def _bits(indices: Iterable[int], count: int) -> bytes:
    """One bit for each chunk, the lowest first: whether it is here."""
    bits = bytearray(-(-count // 8))
    for index in indices:
        bits[index >> 3] |= 1 << (index & 7)
    return bytes(bits)


async def push(
    disk: DiskObjectStore,
    manifest: ObjectManifest,
    target: PeerId,
    dial: Dial,
    kind: MessageKind,
    patience: float = PATIENCE_SECONDS,
) -> None:
    """Puts an object into a peer's store; it is durable there on return. What is there already is not sent again.

    Raises NetworkError FF-APP-230 when the peer refuses, or is out of reach for `patience` seconds.
    """

    async def enter(connection: Connection) -> tuple[int, ...]:
        there = await connection.call(BEGIN, encode(manifest), kind=kind)
        return tuple(i for i in range(len(manifest.chunks)) if _has_bit(there, i))

    async def carry(connection: Connection, index: int) -> None:
        body = encode((manifest.id, index, disk.chunk(manifest.id, index)))
        await connection.call(PUT, body, kind=kind, timeout=None)

    async def close() -> None:
        connection = await dial(target)
        await connection.call(FINISH, encode(manifest.id), kind=kind)

    if not manifest.chunks:
        await enter(await dial(target))
    plan = FetchPlan[Connection](manifest)
    carrying = ObjectTransfer(plan, (target,), dial, carry, enter=enter, patience=patience)
    await carrying.run()
    if not plan.is_complete:
        raise NetworkError(
            "FF-APP-230",
            f"object {manifest.id[:4].hex()} cannot be left with {target[:4].hex()}",
            cause=told(carrying.reasons),
            hint="try again, or choose another peer",
        )
    await close()


async def fetch(
    disk: DiskObjectStore,
    manifest: ObjectManifest,
    sources: tuple[PeerId, ...],
    dial: Dial,
    kind: MessageKind,
    patience: float = PATIENCE_SECONDS,
) -> None:
    """Brings an object into the own store, over all ways to all sources that have it and are honest.

    `patience`: seconds in which a source may be out of reach. Raises NetworkError FF-APP-034 when no source is left,
    RunError FF-CORE-050 when the own disk is full.
    """
    if not disk.begin(manifest) and disk.has(manifest.id):
        return  # complete and, as `begin` has checked, sound; a damaged one is repaired

    async def carry(connection: Connection, index: int) -> None:
        data = await connection.call(CHUNK, encode((manifest.id, index)), kind=kind, timeout=None)
        disk.write_chunk(manifest.id, index, data)

    plan = FetchPlan[Connection](manifest, have=disk.present(manifest.id))
    carrying = ObjectTransfer(plan, sources, dial, carry, patience=patience)
    await carrying.run()
    if not plan.is_complete:
        raise _nobody_has(manifest, carrying.reasons)
    disk.finish(manifest.id)


def _has_bit(bits: bytes, index: int) -> bool:
    return index >> 3 < len(bits) and bool(bits[index >> 3] >> (index & 7) & 1)


def _nobody_has(manifest: ObjectManifest, reasons: Mapping[PeerId, str]) -> NetworkError:
    return NetworkError(
        "FF-APP-034",
        f"object {manifest.id[:4].hex()} cannot be fetched",
        cause=told(reasons) or "no source was named",
        hint="run `farflung resume` when the peers that hold it are back",
    )
