"""The worker process over a real socket pair."""

import asyncio
import os
import socket
import subprocess
import sys

import msgspec
import pytest

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.errors import ProtocolError, RunError
from farflung.core.mapped_pages import leave
from farflung.train import blobs, worker_messages
from farflung.train.io import reply as replies
from farflung.train.io.worker import WorkerChannel, broken
from farflung.train.io.worker_pipe import WorkerPipe
from farflung.train.worker_messages import AcceptedPayload, LoadCommand, MergeCommand, TrainCommand


def start():
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", "farflung.train.io.worker", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stderr=subprocess.PIPE,
    )
    theirs.close()
    return ours, process


def end(process):
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.mark.slow
def test_a_worker_trains_over_its_socket_and_ends_with_its_agent(setup, engine, tiny, user_job):
    async def talk(ours):
        pipe = WorkerPipe(ours)
        with pytest.raises(RunError) as early:
            await pipe.request(TrainCommand(0))
        assert early.value.code == "FF-TRAIN-080"
        spec, source = user_job("        return loss * float('nan')")
        with pytest.raises(RunError) as bad:
            await pipe.request(setup(spec, 0, source))
        assert bad.value.code == "FF-TRAIN-058"
        assert bad.value.hint
        await pipe.request(setup(tiny))
        began = await pipe.request(worker_messages.InitializeCommand())
        await pipe.request(LoadCommand(0, began.snapshot, b""))
        trained = await pipe.request(TrainCommand(0))
        part = AcceptedPayload(bytes([1]) * 32, trained.trace.statistics.tokens, trained.payload)
        merged, again = await asyncio.gather(pipe.request(MergeCommand(0, (part,))), pipe.request(TrainCommand(1)))
        pipe.close()
        with pytest.raises(RunError, match="FF-TRAIN-090"):
            await pipe.request(TrainCommand(0))
        return trained, merged, again

    ours, process = start()
    trained, merged, again = asyncio.run(talk(ours))
    code, errors = end(process)
    assert code == 0, errors
    assert errors == b""
    here = engine(tiny)
    mine = here.handle(TrainCommand(0))
    assert (mine.payload, mine.inner, mine.trace) == (trained.payload, trained.inner, trained.trace)
    assert (
        here.handle(MergeCommand(0, (AcceptedPayload(bytes([1]) * 32, mine.trace.statistics.tokens, mine.payload),)))
        == merged
    )
    assert here.handle(TrainCommand(1)).payload == again.payload


@pytest.mark.slow
def test_a_message_over_the_limit_ends_the_worker_before_it_is_read():
    ours, process = start()
    with ours:
        ours.sendall((limits.WORKER_BYTES + 1).to_bytes(8, "little"))
        code, errors = end(process)
    assert code == ProtocolError.exit_code
    assert b"FF-TRAIN-091" in errors


def test_a_whole_file_is_lent_as_it_lies_there(tmp_path):
    path = tmp_path / "dataset.bin"
    path.write_bytes(b"tokens" * 1000)

    async def lent(long):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours, theirs:
            await replies.lend(ours, long, tmp_path)
            return WorkerChannel(theirs.fileno(), theirs.fileno()).lent(len(long))

    first, file, last = asyncio.run(lent([b"abc", blobs.in_file(path, 6000), b"de"]))
    assert (bytes(first), bytes(file), bytes(last)) == (b"abc", b"tokens" * 1000, b"de")
    assert os.listdir(tmp_path) == ["dataset.bin"]
    leave(file)  # its pages are read again
    assert file == b"tokens" * 1000
    with pytest.raises(RunError, match="FF-TRAIN-113"):
        asyncio.run(lent([blobs.in_file(tmp_path / "gone", 1)]))
    with pytest.raises(ValueError, match="mmap length"):
        asyncio.run(lent([blobs.in_file(path, 9000)]))


def test_a_worker_that_dies_is_reported():
    async def talk():
        ours, theirs = socket.socketpair()
        pipe = WorkerPipe(ours)
        asked = asyncio.ensure_future(pipe.request(TrainCommand(0)))
        assert await asyncio.get_running_loop().run_in_executor(None, theirs.recv, 8)
        theirs.close()
        with pytest.raises(RunError, match="FF-TRAIN-090"):
            await asked
        with pytest.raises(RunError, match="FF-TRAIN-090"):
            await pipe.request(TrainCommand(0))
        pipe.close()

    asyncio.run(talk())


@pytest.mark.parametrize(
    ("sent", "error", "code"),
    [
        ((limits.WORKER_BYTES + 1).to_bytes(8, "little"), ProtocolError, "FF-TRAIN-091"),
        (b"\x03\0\0\0\0\0\0\0abc", RunError, "FF-TRAIN-090"),
    ],
)
def test_a_reply_that_breaks_the_rules_closes_the_pipe(sent, error, code):
    async def talk():
        ours, theirs = socket.socketpair()
        pipe = WorkerPipe(ours)
        theirs.sendall(sent)
        with pytest.raises(error, match=code):
            await pipe.request(TrainCommand(0))
        with pytest.raises(RunError, match="FF-TRAIN-090"):
            await pipe.request(TrainCommand(0))
        pipe.close()
        theirs.close()

    asyncio.run(talk())


def test_a_cancelled_request_leaves_no_reply_for_the_next():
    async def talk():
        ours, theirs = socket.socketpair()
        pipe = WorkerPipe(ours)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(pipe.request(TrainCommand(0)), 0.01)
        with pytest.raises(RunError, match="FF-TRAIN-090"):
            await pipe.request(TrainCommand(1))
        pipe.close()
        theirs.close()

    asyncio.run(talk())


def test_an_unexpected_error_is_carried_without_a_traceback(capsys):
    reply = broken(ValueError("what it said"))
    assert reply.code == "FF-TRAIN-099"
    assert "ValueError: what it said" in reply.cause
    assert capsys.readouterr().err == ""


def test_an_error_text_that_is_not_unicode_is_still_carried():
    assert encode(broken(ValueError("\ud800")))


def test_a_worker_sees_that_its_agent_is_gone_without_waiting():
    ours, theirs = socket.socketpair()
    with theirs:
        channel = WorkerChannel(theirs.fileno(), theirs.fileno())
        assert not channel.is_closed()
        ours.sendall(b"more to read")
        assert not channel.is_closed()
        ours.close()
        assert channel.is_closed()


def test_training_stops_between_steps_when_the_agent_is_gone(engine):
    left = iter([None])

    def pulse():
        if next(left, "gone"):
            raise SystemExit(0)

    one = engine()
    one._pulse = pulse
    with pytest.raises(SystemExit):
        one.handle(TrainCommand(0))
    assert next(left, "empty") == "empty"


def test_the_agents_side_loads_no_torch():
    names = (
        "worker_messages",
        "data_order",
        "inner_state",
        "segments",
        "contribution_trace",
        "public_state",
        "sync_arithmetic",
        "io.worker_pipe",
        "io.worker",
    )
    code = ";".join(f"import farflung.train.{name}" for name in names)
    check = f"{code};import sys;sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-I", "-c", check], check=False).returncode == 0


@pytest.mark.whole
def test_a_worker_gives_up_a_round_and_holds_what_it_held(setup, engine, tiny):
    """An order to give up that comes when nothing is under way changes nothing."""
    job = msgspec.structs.replace(tiny, sync=msgspec.structs.replace(tiny.sync, steps=100_000))

    async def talk(ours):
        pipe = WorkerPipe(ours)
        await pipe.request(setup(job))
        began = await pipe.request(worker_messages.InitializeCommand())
        await pipe.request(LoadCommand(0, began.snapshot, b""))
        training = asyncio.ensure_future(pipe.request(TrainCommand(0)))
        for _ in range(3000):
            await asyncio.sleep(0.01)
            if pipe._is_sent:
                break
        await asyncio.sleep(0.2)
        await pipe.abandon()
        with pytest.raises(RunError, match="FF-TRAIN-012"):
            await training
        await pipe.abandon()
        pipe._is_sent = True  # as if the answer had been on its way
        await pipe.abandon()
        trained = await pipe.request(TrainCommand(0, 8))
        pipe.close()
        return trained

    ours, process = start()
    trained = asyncio.run(talk(ours))
    assert end(process)[0] == 0
    assert trained.payload == engine(job).handle(TrainCommand(0, 8)).payload
