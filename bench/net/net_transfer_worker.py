"""One process of the benchmark's transfer between homes: `net_transfer_worker.py ROLE JSON`, facts as lines of JSON.

relay    RelayServer number `number` at `host`; until it is ended
holder   has an object of `bytes` and serves it, attached to the relays at `places`; until it is ended
asker    fetches that object over all paths of its Roads; says which relay its control takes once an eighth is
         there, and in the end when each chunk was asked for and when each came
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from net_worker import key, say

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.errors import FarflungError
from farflung.core.ids import Hash
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.path_manager import PathManager
from farflung.net.io.relay import RelayServer
from farflung.net.io.tcp_listener import ListenConfig
from farflung.net.messages import MessageKind
from farflung.peers.relay.main import allow_many_files
from farflung.peers.transfer import objects
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import ObjectManifest, open_object, seal

KEY: Final = hashlib.sha256(b"bench").digest()
PART: Final = 8  # of the object, after which it is in mid-transfer

Options = dict[str, Any]


class Watched(DiskObjectStore):
    """A store that notes when each chunk came whole: seconds of CLOCK_MONOTONIC, index."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.came: list[tuple[float, int]] = []
        self.some = asyncio.Event()
        self.wanted = 1

    def write_chunk(self, object_id: Hash, index: int, data: bytes | memoryview) -> None:
        super().write_chunk(object_id, index, data)
        self.came.append((time.monotonic(), index))
        if len(self.came) >= self.wanted:
            self.some.set()


def thing(size: int) -> tuple[bytes, ObjectManifest, list[bytes]]:
    """The object that both sides know."""
    plain = random.Random(size).randbytes(size)
    manifest, chunks = seal(KEY, plain)
    return plain, manifest, list(chunks)


def relay_key(number: int) -> Any:
    """Of one of the relays."""
    return key("relay", number)


async def relay(options: Options) -> None:
    allow_many_files()
    server = RelayServer(relay_key(options["number"]), listen=ListenConfig(options["host"], allow_remote=True))
    say(port=(await server.start())[1])
    await asyncio.Event().wait()


async def _attached(who: str, handle: Any, options: Options) -> Endpoint:
    endpoint = Endpoint(key(who), handle, ByteCounter())
    for number, (host, port) in enumerate(options["places"]):
        endpoint.attach(relay_key(number).public, host, port)
    await endpoint.attached()
    return endpoint


async def holder(options: Options) -> None:
    _, manifest, chunks = thing(options["bytes"])
    with tempfile.TemporaryDirectory() as folder:
        disk = DiskObjectStore(Path(folder))
        disk.put(manifest, chunks)
        shelf = objects.ObjectServer(disk, limits.OBJECT_BYTES)

        async def serve(connection: Connection, method: str, body: bytes) -> bytes:
            return shelf.serve(connection.peer, method, body)

        endpoint = await _attached("holder", serve, options)
        path_manager = PathManager(endpoint)  # a peer of a job listens for a meeting: here the routers do not allow one
        path_manager.learn(key("asker").public, ())
        say(chunks=len(manifest.chunks))
        await asyncio.Event().wait()


async def asker(options: Options) -> None:
    plain, manifest, _ = thing(options["bytes"])
    asked: list[tuple[float, int]] = []
    _note_questions(asked)
    with tempfile.TemporaryDirectory() as folder:
        disk = Watched(Path(folder))
        disk.wanted = max(1, len(manifest.chunks) // PART)
        endpoint = await _attached("asker", _nothing, options)
        path_manager, peer = PathManager(endpoint), key("holder").public
        places = [
            EndpointAddress(host, port, relay_key(number).public)
            for number, (host, port) in enumerate(options["places"])
        ]
        path_manager.learn(peer, places)
        telling = asyncio.create_task(_tell_middle(disk, path_manager, peer, places))
        facts: Options = {"error": "", "whole": False}
        try:
            await objects.fetch(disk, manifest, (peer,), path_manager.connection, MessageKind.SYNC)
            chunks = [disk.chunk(manifest.id, index) for index in range(len(manifest.chunks))]
            facts["whole"] = open_object(KEY, manifest, chunks) == plain
        except FarflungError as error:
            facts["error"] = str(error)[:300]
        await telling
        say(asked=asked, came=disk.came, **facts)


async def _tell_middle(disk: Watched, path_manager: PathManager, peer: bytes, places: list[EndpointAddress]) -> None:
    await disk.some.wait()
    control = await path_manager.connection(peer)
    ways = path_manager.ways(peer)
    say(relay=places.index(control.place), ways=[places.index(each.place) for each in ways if each.place in places])


def _note_questions(asked: list[tuple[float, int]]) -> None:
    """From now on all questions for chunks are noted: when, index."""
    call = Connection.call

    async def noted(self: Connection, method: str, body: bytes, **more: Any) -> bytes:
        if method == objects.CHUNK:
            asked.append((time.monotonic(), decode(body, tuple[Hash, int], limits.CONTROL_BYTES)[1]))
        return await call(self, method, body, **more)

    Connection.call = noted  # type: ignore[method-assign, assignment]


async def _nothing(_: Connection, method: str, body: bytes) -> bytes:
    return b""


ROLES: Final = {"relay": relay, "holder": holder, "asker": asker}

if __name__ == "__main__":
    asyncio.run(ROLES[sys.argv[1]](json.loads(sys.argv[2])))
    sys.stdout.flush()
    os._exit(0)  # what is still queued is of no interest
