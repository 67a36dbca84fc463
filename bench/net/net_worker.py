"""One process of the network benchmark that speaks farflung: `net_worker.py ROLE JSON`; it says facts as lines of JSON.

    relay     RelayServer at `host`; until it is ended
    receive   an Endpoint at `host`, or attached to `relay`; says what came of each transfer; until it is ended
    send      dials, asks once (set-up), asks some times (quiet), then sends `bytes` or for `seconds`; `times` over
    mesh      one of `count` homes: sends to all others through `relay` once the file `go` is there

All clocks are CLOCK_MONOTONIC, which every namespace of a machine shares. Bytes are those of whole messages that the
receiving handler was given, so what was lost, sent again, framed or encrypted counts for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import NetworkError
from farflung.core.ids import Hash
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import DIRECT, EndpointAddress
from farflung.net.io import socket_options
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.path_manager import PathManager
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_circuits import RelayLimits
from farflung.net.io.tcp_listener import ListenConfig
from farflung.net.messages import MessageKind
from farflung.peers.relay.main import allow_many_files
from farflung.peers.transfer.download import ObjectTransfer
from farflung.store.fetch_plan import FetchPlan
from farflung.store.sealed_objects import ObjectManifest

SEED: Final = 6
PIECE: Final = 1 << 20  # bytes of one bulk message
_ZEROS: Final = bytes(PIECE)
FIRST: Final = 96 * PIECE  # bytes of a long transfer whose time is told, too
SMALL: Final = 1 << 16  # of one in a mesh, whose circuits are slow
QUIET: Final = 8  # calls before the transfer begins
PAUSE: Final = 0.05  # seconds between two calls during it
GRACE: Final = 30.0  # for what must happen before a measurement begins

Options = dict[str, Any]


def key(name: str, index: int = 0) -> SigningKey:
    """The key of somebody in this benchmark."""
    return local_key(SEED, name, index)


def say(**facts: object) -> None:
    """A line for who started this process."""
    print(json.dumps(facts), flush=True)


def place(options: Options) -> tuple[str, int]:
    """Where to dial."""
    return options["host"], options["port"]


class Arrivals:
    """What comes of one transfer at a time: told once, at its last byte or its deadline."""

    def __init__(self) -> None:
        self._wanted = self._got = 0
        self._began = self._last = self._first = self._seconds = self._cpu = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._there = set[bytes]()

    async def handle(self, _: Connection, method: str, body: bytes) -> bytes:
        """begin: a transfer; put: a piece of it; chunk: one with its number, which may come twice; ask: an echo."""
        if method == "put":
            self._put(len(body))
        elif method == "chunk":
            fresh = body[:8] not in self._there
            self._there.add(body[:8])
            self._put(len(body) if fresh else 0)
        elif method == "begin":
            self._begin(json.loads(body))
        return body if method == "ask" else b""

    def _begin(self, asked: Options) -> None:
        self._wanted, self._got, self._seconds = asked["bytes"], 0, asked["seconds"]
        self._there.clear()
        self._began = self._last = asked["began"]
        self._first = 0.0
        self._cpu = time.process_time()
        left = self._began + self._seconds - time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(left, self._end, self._seconds)

    def _put(self, size: int) -> None:
        self._got += size
        self._last = time.monotonic()
        if self._got >= FIRST and not self._first:
            self._first = self._last - self._began
        if self._got >= self._wanted:
            self._end(self._last - self._began)

    def _end(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            spent = time.process_time() - self._cpu
            say(bytes=self._got, seconds=seconds, began=self._began, cpu=spent, first=self._first)


async def relay(options: Options) -> None:
    allow_many_files()
    server = RelayServer(
        key("relay"),
        listen=ListenConfig(options["host"], allow_remote=True),
        limits=RelayLimits(may_splice=options.get("splice", True)),
    )
    say(port=(await server.start())[1])
    await asyncio.Event().wait()


async def receive(options: Options) -> None:
    arrivals = Arrivals()
    if "relay" in options:
        endpoint = Endpoint(key("receive"), arrivals.handle, ByteCounter())
        endpoint.attach(key("relay").public, *options["relay"])
        await endpoint.attached()
        say(port=0)
    else:
        endpoint = Endpoint(
            key("receive"), arrivals.handle, ByteCounter(), listen=ListenConfig(options["host"], allow_remote=True)
        )
        say(port=(await endpoint.start())[1])
    await asyncio.Event().wait()


async def send(options: Options) -> None:
    socket_options.WANTED = options.get("wanted", socket_options.WANTED)
    endpoint = Endpoint(key("send"), _nothing, ByteCounter())
    if not options.get("paced", True):
        endpoint.pacer = None
    for _ in range(options["times"]):
        before = time.monotonic()
        connection, path_manager = await _reached(endpoint, options)
        await connection.call("ask", b"first")
        setup = time.monotonic() - before
        quiet = [await _asked(connection) for _ in range(QUIET)]
        facts = await _transfer(connection, path_manager, options) if options["bytes"] else {}
        tuned = connection.tuned
        say(setup=setup, quiet=quiet, congestion="" if tuned is None else tuned.congestion, **facts)
        if path_manager is not None:
            await path_manager.close()
        for each in endpoint.connections(connection.peer):
            each.close()
            await each.closed()
    await endpoint.close()


async def _reached(endpoint: Endpoint, options: Options) -> tuple[Connection, PathManager | None]:
    """The receiver; as a job does it where bulk may take several connections (`lanes`)."""
    peer, via = key("receive").public, key("relay").public if options.get("via") else None
    if not options.get("lanes"):
        return await endpoint.dial(peer, *place(options), relay=via), None
    path_manager = PathManager(endpoint, may_meet=False)
    path_manager.learn(peer, [EndpointAddress(*place(options), via or DIRECT)])
    return await path_manager.connection(peer), path_manager


async def _transfer(connection: Connection, path_manager: PathManager | None, options: Options) -> Options:
    """Sends until the last byte or the deadline; meanwhile asks now and then, where `asking` is set."""
    began, cpu = time.monotonic(), time.process_time()
    head = {"bytes": options["bytes"], "seconds": options["seconds"], "began": began}
    await connection.tell("begin", json.dumps(head).encode(), kind=MessageKind.SYNC)
    trips: list[tuple[float, float]] = []
    asking = asyncio.create_task(_keep_asking(connection, trips)) if options.get("asking") else None
    count = options["bytes"] // PIECE
    plan = FetchPlan[Connection](ObjectManifest(Hash(bytes(32)), options["bytes"], (Hash(bytes(32)),) * count))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(began + options["seconds"]):
            if path_manager is not None:
                await _over_all(connection, path_manager, plan)
            else:
                await _over(connection, iter(range(count)))
    if asking is not None:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    return {"trips": trips, "cpu": time.process_time() - cpu, "ways": max(1, len(plan.ways))}


async def _over(connection: Connection, left: Iterator[int]) -> None:
    """Takes a piece as often as there is room for one, until none is left and all are there."""
    for _ in left:
        await connection.tell("put", _ZEROS, kind=MessageKind.SYNC)
    await connection.call("ask", b"last", kind=MessageKind.SYNC, timeout=None)  # behind all of them


async def _over_all(connection: Connection, path_manager: PathManager, plan: FetchPlan[Connection]) -> None:
    """The same over all connections that share bulk, by the plan that carries a job's objects."""

    async def carry(way: Connection, index: int) -> None:
        await way.call("chunk", index.to_bytes(8, "big") + _ZEROS[8:], kind=MessageKind.SYNC, timeout=None)

    await ObjectTransfer(plan, (connection.peer,), path_manager.connection, carry).run()


async def _keep_asking(connection: Connection, trips: list[tuple[float, float]]) -> None:
    """Adds when each call began, in seconds from now, and how long it took."""
    began = time.monotonic()
    while True:
        when = time.monotonic() - began
        trips.append((when, await _asked(connection)))
        await asyncio.sleep(PAUSE)


async def _asked(connection: Connection) -> float:
    """Seconds of a small question and its answer."""
    before = time.monotonic()
    await connection.call("ask", b"x" * 32)
    return time.monotonic() - before


async def _nothing(_: Connection, method: str, body: bytes) -> bytes:
    return b""


async def mesh(options: Options) -> None:
    """Says what came from each other home between two instants, the same for all homes."""
    me, others = options["index"], [n for n in range(options["count"]) if n != options["index"]]
    names = {key("home", n).public: n for n in others}
    heard: list[tuple[float, int, int]] = []  # when, from whom, bytes

    async def handle(connection: Connection, method: str, body: bytes) -> bytes:
        heard.append((time.monotonic(), names[connection.peer], len(body)))
        return b""

    endpoint = Endpoint(key("home", me), handle, ByteCounter())
    endpoint.attach(key("relay").public, *place(options))
    await endpoint.attached()
    connections = [await _met(endpoint, n, options) for n in others if n > me]
    deadline = time.monotonic() + GRACE
    while len(connections) < len(others) and time.monotonic() < deadline:  # those that dial us
        await asyncio.sleep(PAUSE)
        connections = [one for n in others if (one := endpoint.connection(key("home", n).public)) is not None]
    say(met=len(connections))
    began = await asyncio.to_thread(begin, Path(options["go"]), deadline + GRACE)
    first = began + options["warm"]
    end = first + options["seconds"]
    await asyncio.gather(*(_flood(connection, end) for connection in connections))
    got, known = dict.fromkeys(others, 0), set()
    for when, who, size in heard:
        if first <= when < end:
            got[who] += size * (who in known)  # the first one of each had begun to come before
            known.add(who)
    say(got=got)


def begin(go: Path, deadline: float) -> float:
    """The instant that the file names, once it is there: the same for all homes."""
    while time.monotonic() < deadline:
        if go.exists() and (word := go.read_text()):
            return float(word)
        time.sleep(PAUSE)
    raise TimeoutError(f"no {go.name}")


async def _met(endpoint: Endpoint, other: int, options: Options) -> Connection:
    """Dials until the other one is there."""
    deadline = time.monotonic() + GRACE
    while True:
        try:
            peer = key("home", other).public
            return await endpoint.dial(peer, *place(options), relay=key("relay").public)
        except NetworkError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(2 * PAUSE)


async def _flood(connection: Connection, end: float) -> None:
    """Sends as fast as it goes, until nobody counts any more."""
    body = bytes(SMALL)
    with contextlib.suppress(TimeoutError, NetworkError):  # a home that was done a moment before us
        async with asyncio.timeout_at(end + 4 * PAUSE):  # nobody's line runs empty before the last instant
            while True:
                await connection.tell("put", body, kind=MessageKind.SYNC)


ROLES: Final = {"relay": relay, "receive": receive, "send": send, "mesh": mesh}

if __name__ == "__main__":
    asyncio.run(ROLES[sys.argv[1]](json.loads(sys.argv[2])))
    sys.stdout.flush()
    os._exit(0)  # what is still queued is of no interest
