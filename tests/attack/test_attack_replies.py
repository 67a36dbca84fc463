"""A hostile model answers in its worker's place: replies too long, of too many values, or that never end."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from attack_world import LAYOUT, MEMBERS, SPEC

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.errors import FarflungError, ProtocolError, RunError
from farflung.core.ids import ZERO_HASH
from farflung.core.tensor_layout import TensorLayout
from farflung.local.model import text_generation
from farflung.plan.heap import HeapGrowth
from farflung.plan.step_trace import StepTrace
from farflung.train import blobs
from farflung.train import worker_messages as words
from farflung.train.inference_messages import (
    GenerateReply,
    GenerateRequest,
    ModelEvaluationRequest,
    ParameterNamesRequest,
)
from farflung.train.io.worker import WorkerChannel
from farflung.train.io.worker_pipe import WorkerPipe
from farflung.train.reply_bounds import ReplyBound, WorkerReplies
from farflung.train.run_log import Contribution
from farflung.verify.io.checker import CheckerClient
from farflung.verify.io.tracer import TracerClient, TraceStepRequest
from farflung.verify.submission_checks import CheckerSetup, PayloadCheckRequest

Talk = Callable[[socket.socket], Awaitable[Any]]

SETUP = words.SetupCommand(SPEC, b"", b"", 0, MEMBERS[0].public)
COMMANDS = (
    SETUP,
    words.InitializeCommand(),
    words.LoadCommand(0, b"", b""),
    words.TrainCommand(0),
    words.RewindCommand(0, b""),
    words.OpenSegmentCommand(0, 0),
    words.RerunCommand(b"", 0, 0, b""),
    words.ReencodeCommand(b"", MEMBERS[0].public, b""),
    words.ProfileCommand(b""),
    words.MergeCommand(0, ()),
    words.EvaluateCommand(b"", 8),
    words.LossProbeCommand(b"", (), (), 1, 0),
    words.BaselineCommand(b"", 1, 1, 1, 1),
)
C = Contribution(MEMBERS[0].public, 8, ZERO_HASH, ZERO_HASH, ZERO_HASH, ZERO_HASH, "none")


def asks(command: words.Request, layout: TensorLayout = LAYOUT) -> Talk:
    async def talk(connection: socket.socket) -> Any:
        replies = WorkerReplies(layout)
        replies.to(SETUP)
        return await WorkerPipe(connection, replies.to).request(command)

    return talk


def traces(kind: Any) -> Talk:
    async def talk(connection: socket.socket) -> Any:
        return await WorkerPipe(connection, lambda _: ReplyBound(kind)).request(words.TrainCommand(0))

    return talk


async def shapes(connection: socket.socket) -> Any:
    return await TracerClient(connection).trace(TraceStepRequest(SPEC, b""))


async def checks(connection: socket.socket) -> Any:
    client = CheckerClient(connection)
    client._bound(CheckerSetup(SPEC, LAYOUT, 8))  # it was set up
    return await client.check(PayloadCheckRequest(0, ZERO_HASH, C, None, b""))


async def samples(connection: socket.socket) -> Any:
    connection.setblocking(True)
    channel = WorkerChannel(connection.fileno(), connection.fileno())
    request = GenerateRequest(b"", b"", (1,), 1, 1.0, 0, 1.0, 0)
    return await asyncio.to_thread(text_generation._next, channel, request)


async def judges(connection: socket.socket) -> Any:
    connection.setblocking(True)
    channel = WorkerChannel(connection.fileno(), connection.fileno())
    return await asyncio.to_thread(text_generation._next, channel, ModelEvaluationRequest(b"", b"", b"", 1, 1))


async def names(connection: socket.socket) -> Any:
    connection.setblocking(True)
    channel = WorkerChannel(connection.fileno(), connection.fileno())
    return await asyncio.to_thread(text_generation._next, channel, ParameterNamesRequest(b"", b""))


CHANNELS: dict[str, Talk] = {
    **{type(command).__name__: asks(command) for command in COMMANDS},
    "memory": traces(StepTrace),
    "heap": traces(HeapGrowth),
    "tracer": shapes,
    "checker": checks,
    "sample": samples,
    "eval": judges,
    "names": names,
}


def refused(talk: Talk, said: bytes) -> FarflungError:
    """What a reader says of these bytes, and that it took no memory worth the name for what they claim."""

    async def test() -> FarflungError:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        with ours, theirs:
            sending = asyncio.ensure_future(loop.sock_sendall(theirs, said))
            try:
                tracemalloc.start()
                with pytest.raises((RunError, ProtocolError)) as caught:
                    async with asyncio.timeout(30):
                        await talk(ours)
                assert tracemalloc.get_traced_memory()[1] < 8 * len(said) + 4 * limits.MIB
            finally:
                tracemalloc.stop()
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        return caught.value

    return asyncio.run(test())


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


@pytest.mark.parametrize("channel", CHANNELS)
def test_a_claim_of_more_than_the_job_can_need_is_refused_before_a_byte_is_read(channel: str) -> None:
    for claim in (64 * limits.MIB, 1 << 30, 1 << 62):
        error = refused(CHANNELS[channel], claim.to_bytes(8, "little"))
        assert error.code in {"FF-TRAIN-091", "FF-VERI-110", "FF-VERI-065", "FF-APP-167"}


@pytest.mark.parametrize("channel", CHANNELS)
def test_values_are_counted_before_objects_are_made_of_them(channel: str) -> None:
    """Pairs of 3 bytes, which would take 80 each."""
    size = 60 * limits.KIB
    pairs = b"\xdd" + (size // 3).to_bytes(4, "big") + b"\x92\xa0\x90" * (size // 3)
    head = b"\x95\xa5state\x00\xc4\x20" + bytes(32) + b"\xc4\x00"
    error = refused(CHANNELS[channel], framed(head + pairs))
    assert error.code in {"FF-TRAIN-090", "FF-VERI-110", "FF-VERI-065", "FF-APP-167"}


def test_a_state_of_more_than_the_job_can_need_is_refused_before_a_byte_is_read() -> None:
    said, _ = blobs.take(words.OpenSegmentResult(b"", b"", b""))
    for claim in (64 * limits.MIB, 1 << 62):
        behind = framed(encode(said)) + claim.to_bytes(8, "little")
        assert refused(asks(words.OpenSegmentCommand(0, 0)), behind).code == "FF-TRAIN-091"


LARGE = TensorLayout.of({f"w{i:04}" * 32: (1,) for i in range(1 << 11)})  # its shapes may have 400 kB
MANY = 1 << 16
LIST = b"\xdd" + MANY.to_bytes(4, "big")
CROWDED: dict[str, tuple[words.Request, bytes]] = {  # well-formed until the list, and long within the bound
    "state": (
        words.InitializeCommand(),
        b"\x95\xa5state\x00\xc4\x20" + bytes(32) + b"\xc4\x00" + LIST + b"\x92\xa0\x90" * MANY,
    ),
    "trained": (words.TrainCommand(0), b"\x96\xa7trained\x00\xc4\x00\xc4\x00\x93\x90\x93" + LIST + b"\x01" * MANY),
    "reran": (words.RerunCommand(b"", 0, 0, b""), b"\x95\xa5reran\x96" + LIST + b"\x90" * MANY),
}


@pytest.mark.parametrize("name", CROWDED)
def test_too_many_values_within_the_bytes_of_a_state_are_refused(name: str) -> None:
    command, said = CROWDED[name]
    error = refused(asks(command, LARGE), framed(said))
    assert error.code == "FF-TRAIN-090"
    assert "the limit is" in error.cause


@pytest.mark.parametrize("channel", ["TrainCommand", "memory", "tracer", "checker"])
@pytest.mark.parametrize("said", [b"\x05", framed(bytes(99))[:20]], ids=["head", "body"])
def test_a_reply_that_begins_and_falls_silent_is_given_up(
    monkeypatch: pytest.MonkeyPatch, channel: str, said: bytes
) -> None:
    monkeypatch.setattr(limits, "REPLY_SECONDS", 0.01)
    error = refused(CHANNELS[channel], said)
    assert error.code in {"FF-TRAIN-090", "FF-VERI-110", "FF-VERI-065"}
    assert "of its reply" in error.cause


def test_a_reply_of_another_kind_than_was_asked_for_is_none() -> None:
    for command in COMMANDS:
        error = refused(asks(command), framed(encode(GenerateReply(1))))
        assert error.code == "FF-TRAIN-090"
    lost = words.LossResult(1.0, 1, 1, 1.0)
    assert refused(asks(words.TrainCommand(0)), framed(encode(lost))).code == "FF-TRAIN-090"


def test_what_a_worker_did_in_its_reply_is_remembered_so_that_it_is_ended() -> None:
    async def faults(said: bytes) -> str:
        ours, theirs = socket.socketpair()
        with theirs:
            pipe = WorkerPipe(ours, WorkerReplies(LAYOUT).to)
            theirs.sendall(said)
            theirs.shutdown(socket.SHUT_WR)
            with pytest.raises((RunError, ProtocolError)):
                await pipe.request(words.TrainCommand(0))
            pipe.close()
            return pipe.fault

    assert "a reply of 67108864 bytes" in asyncio.run(faults((64 * limits.MIB).to_bytes(8, "little")))
    assert "not of the expected type" in asyncio.run(faults(framed(b"abc")))
    assert asyncio.run(faults(b"")) == ""  # it ended: its process says why
