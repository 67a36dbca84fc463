"""A small job between endpoints on loopback, in one process and without torch: real codecs, stores and signatures."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.core.codec import encode
from farflung.core.crypto import NS_OBJECT, SigningKey, digest, local_key
from farflung.core.errors import FarflungError, RunError
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.spec import AuditSpec, EvaluateSpec, JobSpec, JobTerms, ModelSpec, SyncSpec, Tolerance
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.messages import RemoteError
from farflung.peers.protocol import messages as protocol_messages
from farflung.peers.protocol.job_key import LeaseKey, wrap
from farflung.peers.transfer import objects
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import ObjectManifest, seal
from farflung.train import inner_state, public_state, segments, worker_messages
from farflung.train.contribution_trace import ContributionTrace, TrainingStatistics, units
from farflung.train.inner_state import InnerState
from farflung.train.public_state import PublicState
from farflung.train.run_log import payload_hash
from farflung.train.scores import ContributionScore
from farflung.train.segments import BorderState
from farflung.train.sync_arithmetic import Sync

REQUESTER, STRANGER = local_key(9, "requester"), local_key(9, "stranger")
MEMBERS = [local_key(9, "provider", i) for i in range(3)]
COURT = [local_key(9, "verifier", i) for i in range(3)]
VERIFIERS = COURT[:2]
JOB_KEY = b"\x07" * 32
DATA = b"what the job learns from " * 10

MODEL = ModelSpec(layers=1, width=4, heads=1, context=4, vocabulary=8)
SYNC = SyncSpec(method="diloco", codec="dense", value_bits=32, steps=2)
AUDITED = AuditSpec(segments=2, rate=1.0)  # everything is audited
SPEC = JobSpec(
    name="attack",
    rounds=3,
    batch=2,
    model=MODEL,
    sync=SYNC,
    evaluate=EvaluateSpec(tokens=8, final_tokens=8),
    audit=AUDITED,
)
LAYOUT = TensorLayout.of(gpt_shapes(MODEL))
SYNCED = Sync.of(SPEC)
BOUND = SYNCED.bound(LAYOUT)
OPTIMIZER = SPEC.optimizer
SEGMENTS = SPEC.segments
_LIMITS = tuple((name, (1 << 20,) * len(LAYOUT.tensors)) for name in ("params", "mean", "square"))  # 2^-10


def initial() -> PublicState:
    """Public state of round 0."""
    return SYNCED.initial(np.linspace(-1, 1, LAYOUT.size, dtype=np.float32))


TERMS = JobTerms(
    SPEC,
    digest(NS_OBJECT, DATA),
    ZERO_HASH,
    LAYOUT,
    REQUESTER.public,
    initial().root(LAYOUT),
    Tolerance(_LIMITS),
    stake=500,
)


HARM = 1.0  # the third member's data are bad on purpose


def step_of(member: int) -> Float32:
    """What one step of this member's training adds to its weights, wherever it stands; shape (LAYOUT.size,)."""
    drawn = np.random.default_rng(member).standard_normal(LAYOUT.size)
    return (0.001 * drawn).astype(np.float32)


def loss_at(step: int) -> float:
    """The loss of step `step` of a round."""
    return 2.0 - 0.25 * step


def trained(start: BorderState, member: int, steps: int) -> BorderState:
    """`steps` steps on from a border; the optimizer's vectors count them."""
    assert start.params is not None
    params = start.params
    for _ in range(steps):
        params = (params + step_of(member)).astype(np.float32)
    count = start.step + steps
    vectors = tuple(np.full(LAYOUT.size, weight * count, np.float32) for weight in (1, 2))
    return BorderState(start.round, count, params, vectors, start.residual)


class Worker:
    """What a worker process answers, from the real codec, merge and border states; a step of its training adds a
    constant. It serves a provider and a verifier alike.
    """

    def __init__(self, key: SigningKey, member: int = 0) -> None:
        self.peer, self.member = key.public, member
        self.state, self.inner = initial(), InnerState()
        self.states: tuple[BorderState, ...] = ()
        self._after: InnerState | None = None
        self.trained: list[int] = []
        self.asked: list[str] = []
        self.bends: dict[type, Callable[[Any], Any]] = {}  # what a hostile one says in the place of a reply

    def payload(self, round: int, peer: PeerId | None = None) -> bytes:
        """The contribution of `peer` (this one) to a round, made from the state held now."""
        return self._encoded(round, peer, self._train()[-1])

    def _train(self) -> tuple[BorderState, ...]:
        at = BorderState(self.state.round, self.inner.step, self.state.params, self.inner.vectors, self.inner.residual)
        states = [at]
        for first, after in itertools.pairwise(SPEC.borders):
            states.append(trained(states[-1], self.member, after - first))
        return tuple(states)

    def _encoded(self, round: int, peer: PeerId | None, end: BorderState) -> bytes:
        assert end.params is not None
        about = SYNCED.about(self.state, LAYOUT, peer or self.peer)._replace(round=round)
        return SYNCED.codec(0).encode(None, end.params - self.state.params, LAYOUT, about)[1]

    def trace_of(self, payload: bytes, states: tuple[BorderState, ...] = ()) -> ContributionTrace:
        """What stands under the root of a round that went through these states (those of the last one)."""
        losses = tuple(loss_at(step) for step in range(SPEC.sync.steps))
        said = TrainingStatistics(losses, 0.1, SPEC.round_tokens)
        return ContributionTrace(
            segments.borders(LAYOUT, OPTIMIZER, states or self.states, None, None), said, payload_hash(payload)
        )

    async def abandon(self) -> None:
        """There is never anything to give up."""

    async def request(self, message: worker_messages.Request) -> worker_messages.Reply:
        """As the agent's pipe does: an error of the worker arrives as RunError."""
        try:
            reply = self.answer(message)
        except FarflungError as error:
            raise RunError(error.code, error.message, cause=error.cause, hint=error.hint) from error
        return self.bends.get(type(message), lambda said: said)(reply)

    def answer(self, message: worker_messages.Request) -> worker_messages.Reply:
        self.asked.append(type(message).__name__)
        match message:
            case worker_messages.SetupCommand():
                self.member = message.member
                return worker_messages.SetupResult(100, 10, 2.0)
            case worker_messages.TrainCommand(round):
                return self._trained(round)
            case worker_messages.OpenSegmentCommand(round, segment):
                return self._opened(round, segment)
            case worker_messages.RerunCommand():
                return _rerun(message)
            case worker_messages.ReencodeCommand():
                return _reencode(message)
            case worker_messages.LossProbeCommand():
                return _probe(message)
            case worker_messages.LoadCommand(round, packed):
                self.state = public_state.check(public_state.unpack(packed, LAYOUT), LAYOUT, round)
                self._hold(message.inner)
            case worker_messages.RewindCommand():
                self._hold(message.inner)
            case worker_messages.MergeCommand(_, parts):
                self.state = SYNCED.apply(self.state, LAYOUT, parts)
                is_in = any(part.peer == self.peer for part in parts)
                after = self._after if self._after is not None and is_in else self.inner
                self.inner, self._after, self.states = after, None, ()
        return worker_messages.StateResult(self.state.round, self.state.root(LAYOUT), b"", ())

    def _hold(self, packed: bytes) -> None:
        self.inner = inner_state.unpack(packed, OPTIMIZER, LAYOUT) if packed else InnerState()
        self.states, self._after = (), None

    def _trained(self, round: int) -> worker_messages.TrainResult:
        self.trained.append(round)
        self.states = self._train()
        end = self.states[-1]
        self._after = InnerState(round + 1, end.step, end.vectors, None)
        payload = self._encoded(round, None, end)
        packed = inner_state.pack(self._after, OPTIMIZER, LAYOUT)
        return worker_messages.TrainResult(round, payload, packed, self.trace_of(payload), 0.01)

    def _opened(self, round: int, segment: int) -> worker_messages.OpenSegmentResult:
        if not self.states or self.states[0].round != round:
            raise RunError("FF-TRAIN-081", "the states of this round are not held")
        _check_segment(segment)
        return worker_messages.OpenSegmentResult(
            start=segments.pack(segments.start(self.states, segment), OPTIMIZER, LAYOUT),
            end=segments.pack(segments.end(self.states, segment), OPTIMIZER, LAYOUT),
            last=segments.pack(segments.last(self.states), OPTIMIZER, LAYOUT),
        )


def _check_segment(segment: int) -> None:
    if not 0 <= segment < SEGMENTS:
        raise segments.unfit(f"a round has no segment {segment}")


def _rerun(asked: worker_messages.RerunCommand) -> worker_messages.RerunResult:
    _check_segment(asked.segment)
    if not 0 <= asked.member < len(MEMBERS):
        raise RunError("FF-TRAIN-090", "the worker cannot train as this member")
    public = public_state.unpack(asked.snapshot, LAYOUT)
    start = segments.unpack(asked.start, OPTIMIZER, LAYOUT, public.round)
    if (start.params is None) is (asked.segment > 0):
        raise segments.unfit("weights are told from border 1 on, and there always")
    at = replace(start, params=public.params) if start.params is None else start
    first, after = SPEC.borders[asked.segment : asked.segment + 2]
    end = trained(at, asked.member, after - first)
    border = segments.border(LAYOUT, OPTIMIZER, asked.segment + 1, end)
    losses = tuple(loss_at(step) for step in range(first, after))
    packed = segments.pack(replace(end, residual=None), OPTIMIZER, LAYOUT)
    return worker_messages.RerunResult(border, packed, losses, 0.01)


def _reencode(asked: worker_messages.ReencodeCommand) -> worker_messages.ReencodeResult:
    public = public_state.unpack(asked.snapshot, LAYOUT)
    last = segments.unpack(asked.last, OPTIMIZER, LAYOUT, public.round)
    if last.params is None or last.vectors:
        raise segments.unfit("an end of a round is its weights, and perhaps a residual")
    about = SYNCED.about(public, LAYOUT, asked.peer)
    residual, payload = SYNCED.codec(0).encode(last.residual, last.params - public.params, LAYOUT, about)
    roots = segments.params_root(LAYOUT, last.params), segments.unsent_root(LAYOUT, residual, None)
    return worker_messages.ReencodeResult(payload_hash(payload), *roots)


def _probe(asked: worker_messages.LossProbeCommand) -> worker_messages.LossProbeResult:
    """Losses that fall by a nat where weights go as the first two members' do, and on each one's data as its own do."""
    public = public_state.unpack(asked.snapshot, LAYOUT)
    good = step_of(0) + step_of(1) - HARM * step_of(2)
    each: list[ContributionScore] = []
    for member, part in zip(asked.members, asked.parts, strict=True):
        change = SYNCED.alone(public, LAYOUT, part) - public.params
        held, own = (float(change @ way) / float(way @ way) for way in (good, step_of(member)))
        sign = -1 if HARM and member == 2 else 1  # on true data
        each.append(ContributionScore(part.peer, units(3 - held), units(3.0), units(3 - sign * own)))
    return worker_messages.LossProbeResult(units(3.0), tuple(each), 0.01)


class Party:
    """A key on the network with a store, from which members may fetch."""

    def __init__(self, key: SigningKey, folder: Path) -> None:
        self.key, self.disk = key, DiskObjectStore(folder)
        self.shelf = objects.ObjectServer(self.disk, BOUND)
        self.asked: list[str] = []
        self.endpoint = Endpoint(key, self.handle, ByteCounter())

    async def handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        self.asked.append(method)
        return self.shelf.serve(connection.peer, method, body)

    def put(self, data: bytes, key: bytes = JOB_KEY) -> ObjectManifest:
        """Seals data into the own store."""
        manifest, chunks = seal(key, data)
        self.disk.put(manifest, chunks)
        return manifest

    @property
    def address(self) -> protocol_messages.PeerAddress:
        return protocol_messages.PeerAddress(self.key.public, (EndpointAddress(*self.endpoint.address),))


def start_order(
    home: Party,
    member: int,
    members: tuple[protocol_messages.PeerAddress, ...],
    state: PublicState,
    lease_key: bytes | None = None,
) -> protocol_messages.LeaseStartRequest:
    """What an honest requester says to one member; everything that it names lies in `home`'s store."""
    wrapped = wrap(lease_key or LeaseKey().public, TERMS.id, JOB_KEY)
    dataset, module, graph = home.put(DATA), home.put(b""), home.put(b"")
    packed = home.put(public_state.pack(state, LAYOUT))
    verifiers = tuple(key.public for key in COURT)
    supplies = (dataset, module, graph, packed, state.round, ())
    return protocol_messages.LeaseStartRequest(TERMS.id, wrapped, member, members, verifiers, *supplies)


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


def soaked(cases: Sequence[Any], ids: Sequence[str], kept: str) -> list[Any]:
    """Cases of one check, each with its name: those whose names are kept run always, the others in `make soak`."""
    left = set(kept.split(", "))
    assert left <= set(ids), left - set(ids)
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), id=name, marks=() if name in left else pytest.mark.soak
        )
        for case, name in zip(cases, ids, strict=True)
    ]
