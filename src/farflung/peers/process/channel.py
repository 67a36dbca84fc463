"""Connects a role's process with who started it: a supervisor by its pipes, or a person by signals and the log.

Either way `--config FILE` says what the role does. With `--supervised`, JSON lines go both ways: orders come in on
standard input, reports go out on standard output. When standard input ends, the supervisor is gone and the process ends
too: a killed run leaves nobody behind. Else reports are lines on standard error, and a signal ends the process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from farflung.core.codec import describe
from farflung.core.errors import (
    FarflungError,
    NetworkError,
    PolicyError,
    RunError,
    UsageError,
    VerificationError,
    type_and_text,
)
from farflung.core.events import AnyEvent, ProcessUsageEvent, to_json
from farflung.core.ids import PeerId
from farflung.net.counters import ByteCounter
from farflung.net.messages import MessageKind
from farflung.net.paths import PathType
from farflung.peers.process.config import ConfigT, read_role_config
from farflung.peers.process.user_dirs import choose_kernels

LINE_BYTES = 1 << 20
LEDGER, RELAY, REQUESTER = "ledger", "relay", "requester"  # names of processes
ACCOUNTS: Final = frozenset({"bytes", "usage", "way"})  # reports for a supervisor that adds them up

Report = dict[str, Any]

_KINDS: dict[int, type[FarflungError]] = {
    kind.exit_code: kind for kind in (UsageError, NetworkError, PolicyError, VerificationError, RunError)
}


class Channel(Protocol):
    """Who started this process: hears reports, gives orders."""

    def report(self, kind: str, **facts: Any) -> None:
        """Tells something."""

    async def next(self) -> Report | None:
        """The next order; None when the process is to end."""


class PipeChannel:
    """The channel to a supervisor."""

    def __init__(self) -> None:
        self._reader: asyncio.StreamReader | None = None

    def report(self, kind: str, **facts: Any) -> None:
        """Once the supervisor is gone nobody is told: the process is about to end."""
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.write(msgspec.json.encode({"kind": kind, **facts}).decode() + "\n")
            sys.stdout.flush()

    def fail(self, error: FarflungError) -> None:
        """Says why this process cannot go on, so that a person hears it in the error's own words."""
        facts = {"code": error.code, "message": error.message, "cause": error.cause, "hint": error.hint}
        self.report("failed", exit=error.exit_code, **facts)

    async def next(self) -> Report | None:
        """The next line of standard input; None when the supervisor is gone."""
        if self._reader is None:
            reader = self._reader = asyncio.StreamReader(limit=LINE_BYTES)
            loop = asyncio.get_running_loop()
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        line = await self._reader.readline()
        return msgspec.json.decode(line, type=Report) if line.endswith(b"\n") else None


class LogChannel:
    """The channel of a process that has no supervisor: lines on standard error, and SIGINT or SIGTERM ends it."""

    def __init__(self) -> None:
        self._is_over = asyncio.Event()
        self._is_listening = False

    def report(self, kind: str, **facts: Any) -> None:
        """One line; a note is what it says."""
        if kind == "note":
            sys.stderr.write(f"{facts['text']}\n")
        elif kind not in ACCOUNTS:
            said = " ".join(f"{name}={value}" for name, value in facts.items())
            sys.stderr.write(f"{kind} {said}".rstrip() + "\n")

    def fail(self, error: FarflungError) -> None:
        """The error's lines."""
        sys.stderr.write("".join(f"{line}\n" for line in error.lines()))

    async def next(self) -> None:
        """Until a signal comes."""
        self._is_listening = True
        await self._is_over.wait()

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Does a role's work to its end; what has not begun to listen when a signal comes is given up."""
        task = asyncio.ensure_future(work)

        def end() -> None:
            self._is_over.set()
            if not self._is_listening:
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end)
        with contextlib.suppress(asyncio.CancelledError):
            await task


def as_error(said: Report) -> FarflungError:
    """The error that a `failed` report tells of, of the same kind: it ends the command as it would have here."""
    facts = {key: str(said.get(key, "")) for key in ("message", "cause", "hint")}
    exit_code = said.get("exit")
    kind = _KINDS.get(exit_code, RunError) if isinstance(exit_code, int) else RunError
    return kind(str(said.get("code")), facts["message"], cause=facts["cause"], hint=facts["hint"])


class ChannelEmitter:
    """An emitter (peers.rundir.journal) in a process that keeps no journal: every event goes up the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def emit(self, event: AnyEvent, *, durable: bool = False) -> None:
        """Hands one event to the supervisor, which stamps and stores it."""
        self._channel.report("event", event=to_json(event), durable=durable)


async def until_let_go(work: Coroutine[Any, Any, None], orders: Coroutine[Any, Any, None]) -> None:
    """Does work until the orders end; raises what it failed with."""
    working, following = asyncio.ensure_future(work), asyncio.ensure_future(orders)
    try:
        await asyncio.wait({working, following}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        await following
    finally:
        working.cancel()
        following.cancel()
        await asyncio.gather(working, following, return_exceptions=True)


def report_end(channel: Channel, process: str, sent: dict[str, int]) -> None:
    """The last report: what was sent and received (`by_name`), and what the process took."""
    used = report_usage(process)
    channel.report("bytes", **sent)
    channel.report("usage", process=process, peak_bytes=used.peak_bytes, cpu_seconds=used.cpu_seconds)


def report_note(channel: Channel, error: FarflungError) -> None:
    """What a person is to read, though the process goes on."""
    channel.report("note", text="\n".join(error.lines()))


def report_path(channel: Channel, peer: PeerId, path: PathType) -> None:
    """A node tells by which type of path it reaches a peer."""
    channel.report("way", peer=peer.hex(), way=path.value)


def report_usage(process: str) -> ProcessUsageEvent:
    """What this process has taken so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return ProcessUsageEvent(process=process, peak_bytes=peak, cpu_seconds=used.ru_utime + used.ru_stime)


def by_name(counter: ByteCounter) -> dict[str, int]:
    """Byte counts as events name them: sent by kind, and `received` to agree."""
    received = counter.received[MessageKind.SYNC] + counter.received[MessageKind.CONTROL]
    return {**{kind.name.lower(): size for kind, size in counter.sent.items()}, "received": received}


def run_role(main: Callable[[ConfigT, Channel], Coroutine[Any, Any, None]], kind: type[ConfigT]) -> None:
    """Runs a role's main function to its end and exits: as its configuration file says, and by a supervisor's orders
    where there is one.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--config", type=Path, metavar="FILE", required=True, help="Of the role: TOML, or FILE.json.")
    parser.add_argument("--supervised", action="store_true", help="Orders on stdin, reports on stdout; end with it.")
    parser.add_argument("--port", type=int, default=0, help="To listen on, whatever the file says.")
    given = parser.parse_args()
    channel = PipeChannel() if given.supervised else LogChannel()

    async def work() -> None:
        config = read_role_config(given.config, kind)
        if given.port:
            config = msgspec.structs.replace(config, port=given.port)
        done = main(config, channel)
        await (channel.run(done) if isinstance(channel, LogChannel) else done)

    if given.supervised:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the supervisor decides
    try:
        choose_kernels()
        describe()
        asyncio.run(work())
    except FarflungError as error:
        channel.fail(error)
        sys.exit(error.exit_code)
    except BaseException as error:
        if os.environ.get("FARFLUNG_DEBUG"):
            traceback.print_exc()
        channel.fail(RunError("FF-APP-099", f"unexpected error: {type_and_text(error)}"[:300]))
        sys.exit(1)


def relay_names(count: int) -> tuple[str, ...]:
    """What the relays of a run are called."""
    return tuple(RELAY if number == 1 else f"{RELAY}-{number}" for number in range(1, count + 1))


def validator_names(count: int) -> tuple[str, ...]:
    """What the validators of a run are called."""
    return tuple(LEDGER if number == 1 else f"{LEDGER}-{number}" for number in range(1, count + 1))
