"""Objects between peers: served by id and index, pushed to a replica, fetched from whoever has them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import FarflungError, NetworkError, PolicyError, ProtocolError
from farflung.core.ids import Hash, PeerId
from farflung.net.io.connection import Connection
from farflung.net.messages import Kind
from farflung.store.fetch import FetchPlan
from farflung.store.io.disk import Disk
from farflung.store.objects import Manifest, check_chunk

CHUNK = "object.chunk"
BEGIN = "object.begin"
PUT = "object.put"
FINISH = "object.finish"

Dial = Callable[[PeerId], Awaitable[Connection]]

LEFT_PER_PEER = 16  # objects that one peer may leave here at a time: replicas of a few rounds


class Shelf:
    """What others may do with a store: read all of it, and leave a few objects of bounded size."""

    def __init__(self, disk: Disk, object_bytes: int) -> None:
        self._disk, self._object_bytes = disk, object_bytes
        self._left: dict[PeerId, set[Hash]] = {}
        self._unfinished: set[Hash] = set()  # begun by a peer: their chunks lie here all the same

    def serve(self, peer: PeerId, method: str, body: bytes) -> bytes:
        """Answers one request; whether the peer may ask at all is the caller's business."""
        match method:
            case "object.chunk":
                object_id, index = decode(body, tuple[Hash, int], limits.CONTROL_BYTES)
                return self._disk.chunk(object_id, index)
            case "object.begin":
                self._begin(peer, decode(body, Manifest, limits.CONTROL_BYTES))
                return b""
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

    def _begin(self, peer: PeerId, manifest: Manifest) -> None:
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
            raise PolicyError(
                "FF-APP-039", "this object may not be left here", cause="it was not begun by this peer"
            )


async def push(connection: Connection, disk: Disk, manifest: Manifest, kind: Kind) -> None:
    """Puts an object into a peer's store; it is durable there on return."""
    await connection.call(BEGIN, encode(manifest), kind=kind)
    for index in range(len(manifest.chunks)):
        await connection.call(PUT, encode((manifest.id, index, disk.chunk(manifest.id, index))), kind=kind)
    await connection.call(FINISH, encode(manifest.id), kind=kind)


async def fetch(disk: Disk, manifest: Manifest, sources: tuple[PeerId, ...], dial: Dial, kind: Kind) -> None:
    """Brings an object into the own store, chunk by chunk, from the first source that has each and is honest.

    Raises NetworkError FF-APP-034 when no source is left, RunError FF-CORE-050 when the own disk is full.
    """
    if not disk.begin(manifest) and disk.has(manifest.id):
        return  # complete and, as `begin` has checked, sound; a damaged one is repaired
    plan = FetchPlan(manifest, sources)
    for index in disk.present(manifest.id):
        plan.received(index)
    reasons: dict[PeerId, str] = {}
    while (step := plan.next()) is not None:
        source, index = step
        try:
            connection = await dial(source)
            data = await connection.call(CHUNK, encode((manifest.id, index)), kind=kind)
            check_chunk(manifest, index, data)
        except FarflungError as error:
            reasons[source] = str(error)
            plan.failed(source)
            continue
        disk.write_chunk(
            manifest.id, index, data
        )  # what fails here is our own disk's fault, not the source's
        plan.received(index)
    if not plan.is_complete:
        raise _nobody_has(manifest, reasons)
    disk.finish(manifest.id)


def _nobody_has(manifest: Manifest, reasons: Mapping[PeerId, str]) -> NetworkError:
    told = "; ".join(f"{peer[:4].hex()}: {reason}" for peer, reason in reasons.items())
    return NetworkError(
        "FF-APP-034",
        f"object {manifest.id[:4].hex()} cannot be fetched",
        cause=told[:300] or "no source was named",
        hint="run `farflung resume` when the peers that hold it are back",
    )
