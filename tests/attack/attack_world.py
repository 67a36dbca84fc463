"""A small job between endpoints on loopback, in one process and without torch: real codecs, stores and signatures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from farflung.app import objects, wire
from farflung.core.codec import encode
from farflung.core.crypto import NS_OBJECT, SigningKey, digest, local_key
from farflung.core.errors import FarflungError, RunError
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.core.layout import Layout
from farflung.job.model import gpt_shapes
from farflung.job.spec import EvaluateSpec, JobSpec, ModelSpec, SyncSpec, Terms
from farflung.net.counters import Counter
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.messages import RemoteError
from farflung.store.io.disk import Disk
from farflung.store.objects import Manifest, seal
from farflung.train import messages, snapshot
from farflung.train.snapshot import PublicState
from farflung.train.sync import Sync

REQUESTER, STRANGER = local_key(9, "requester"), local_key(9, "stranger")
MEMBERS = [local_key(9, "provider", i) for i in range(3)]
JOB_KEY = b"\x07" * 32
DATA = b"what the job learns from " * 10

MODEL = ModelSpec(layers=1, width=4, heads=1, context=4, vocabulary=8)
SYNC = SyncSpec(method="diloco", codec="dense_fp32", steps=2)
SPEC = JobSpec(
    name="attack", rounds=3, batch=2, model=MODEL, sync=SYNC, evaluate=EvaluateSpec(tokens=8, final_tokens=8)
)
LAYOUT = Layout.of(gpt_shapes(MODEL))
SYNCED = Sync.of(SYNC)
BOUND = SYNCED.codec.bound(LAYOUT)


def initial() -> PublicState:
    """Public state of round 0."""
    return SYNCED.initial(np.linspace(-1, 1, LAYOUT.size, dtype=np.float32))


TERMS = Terms(SPEC, digest(NS_OBJECT, DATA), ZERO_HASH, LAYOUT, REQUESTER.public, initial().root(LAYOUT))


class Worker:
    """What a worker process answers, from the real codec and merge; its training is a constant step."""

    def __init__(self, key: SigningKey) -> None:
        self.peer = key.public
        self.state = initial()
        self.trained: list[int] = []

    def payload(self, round: int, peer: PeerId | None = None) -> bytes:
        """The contribution of `peer` (this one) to a round, made from the state held now."""
        about = SYNCED.about(self.state, LAYOUT, peer or self.peer)._replace(round=round)
        step = np.float32(0.001 * (1 + self.peer[0]))
        return SYNCED.encode(None, np.full(LAYOUT.size, step, np.float32), LAYOUT, about)[1]

    async def request(self, message: messages.Request) -> messages.Reply:
        """As the agent's pipe does: an error of the worker arrives as RunError."""
        try:
            return self.answer(message)
        except FarflungError as error:
            raise RunError(error.code, error.message, cause=error.cause, hint=error.hint) from error

    def answer(self, message: messages.Request) -> messages.Reply:
        match message:
            case messages.Setup():
                return messages.Ready(100, 10, 2.0)
            case messages.Load(round, packed):
                self.state = snapshot.check(snapshot.unpack(packed, LAYOUT), LAYOUT, round)
            case messages.Train(round):
                self.trained.append(round)
                tokens = SPEC.round_tokens
                return messages.Trained(round, self.payload(round), b"inner", (2.0, 1.5), 0.1, tokens, 0.01)
            case messages.Merge(_, parts):
                self.state = SYNCED.apply(self.state, LAYOUT, parts)
        return messages.State(self.state.round, self.state.root(LAYOUT), b"", ())


class Party:
    """A key on the network with a store, from which members may fetch."""

    def __init__(self, key: SigningKey, folder: Path) -> None:
        self.key, self.disk = key, Disk(folder)
        self.shelf = objects.Shelf(self.disk, BOUND)
        self.asked: list[str] = []
        self.endpoint = Endpoint(key, self.handle, Counter())

    async def handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        self.asked.append(method)
        return self.shelf.serve(connection.peer, method, body)

    def put(self, data: bytes, key: bytes = JOB_KEY) -> Manifest:
        """Seals data into the own store."""
        manifest, chunks = seal(key, data)
        self.disk.put(manifest, chunks)
        return manifest

    @property
    def address(self) -> wire.Address:
        return wire.Address(self.key.public, *self.endpoint.address)


def start_order(
    home: Party, member: int, members: tuple[wire.Address, ...], state: PublicState
) -> wire.Start:
    """What an honest requester says to one member; everything that it names lies in `home`'s store."""
    dataset, module = home.put(DATA), home.put(b"")
    packed = home.put(snapshot.pack(state, LAYOUT))
    return wire.Start(TERMS.id, JOB_KEY, member, members, dataset, module, packed, state.round, ())


async def refusal(call: Awaitable[bytes]) -> str:
    """The code that a request is refused with, or `ok`. An internal error is a defect, whoever caused it."""
    code = "ok"
    try:
        await call
    except RemoteError as error:
        code = error.code
    assert not code.endswith("-099")
    return code


def hostile_bodies(real: bytes, seed: int, count: int = 12) -> Iterator[bytes]:
    """Random, truncated, flipped, extended and deeply nested bodies in the place of a real one."""
    rng = random.Random(seed)
    yield b""
    yield b"\xc1"
    yield b"\x91" * 5000
    yield b"\xdd\xff\xff\xff\xff" + bytes(20)
    yield b"\xc6\xff\xff\xff\xff"
    yield real + b"\0"
    for _ in range(count):
        yield rng.randbytes(rng.randrange(1, 300))
        yield real[: rng.randrange(len(real) or 1)]
        if real:
            place = rng.randrange(len(real))
            yield real[:place] + bytes([real[place] ^ (1 << rng.randrange(8))]) + real[place + 1 :]


def hostile_values(value: Any) -> Iterator[Any]:
    """Well-formed messages of the same type with one field out of every sensible range."""
    for changed in _worse(value):
        yield encode(changed)


def _worse(value: Any) -> list[Any]:
    match value:
        case bool() | None:
            return []
        case int():
            return [-1, -(1 << 63), (1 << 63) - 1, (1 << 64) - 1, 0]
        case float():
            return [-1.0, 1e308, 1e-308]
        case bytes():
            return [b"", b"x", bytes(31), bytes(33), bytes(64), bytes(100_000)]
        case str():
            return ["", "\x1b[2J", "x" * 100_000, "a..b", "\0"]
        case tuple():
            return [(), value * 2, value * 1000] if value else []
    fields, tag = value.__struct_fields__, value.__struct_config__.tag
    return [
        [*([tag] if tag else []), *(other if n == name else getattr(value, n) for n in fields)]
        for name in fields
        for other in _worse(getattr(value, name))
    ]


def within(seconds: float, test: Callable[[], Awaitable[None]]) -> None:
    """Runs a scenario; what hangs fails."""

    async def body() -> None:
        async with asyncio.timeout(seconds):
            await test()

    asyncio.run(body())
