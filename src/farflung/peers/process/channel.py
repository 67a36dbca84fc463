"""Connects a supervisor with the processes that it started: JSON lines in both directions.

Orders come in on standard input (the first one is the role's configuration, keys included, so that no secret
stands in an argument list or an environment); reports go out on standard output. When standard input ends, the
supervisor is gone and the process ends too: a killed run leaves nobody behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
import traceback
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from farflung.core.codec import describe
from farflung.core.errors import (
    FarflungError,
    NetworkError,
    PolicyError,
    RunError,
    UsageError,
    VerificationError,
)
from farflung.core.events import AnyEvent, ProcessUsageEvent, to_json
from farflung.net.counters import ByteCounter
from farflung.net.messages import MessageKind
from farflung.peers.process.compiling import choose_kernels

LINE_BYTES = 1 << 20
GRACE_SECONDS = 5.0
_MODULES = {
    "provider": "farflung.peers.node.provider",
    "verifier": "farflung.peers.node.verifier",
    "requester": "farflung.peers.requester.main",
    "validator": "farflung.peers.validator.main",
    "relay": "farflung.peers.relay.main",
}

Report = dict[str, Any]

_KINDS: dict[int, type[FarflungError]] = {
    kind.exit_code: kind for kind in (UsageError, NetworkError, PolicyError, VerificationError, RunError)
}


def report(kind: str, **facts: Any) -> None:
    """Tells the supervisor something (child's side). Once it is gone nobody is told: the process is about to end."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(msgspec.json.encode({"kind": kind, **facts}).decode() + "\n")
        sys.stdout.flush()


def report_failure(error: FarflungError) -> None:
    """Tells the supervisor why this process cannot go on, so that a person hears it in the error's own words."""
    facts = {"code": error.code, "message": error.message, "cause": error.cause, "hint": error.hint}
    report("failed", exit=error.exit_code, **facts)


def as_error(said: Report) -> FarflungError:
    """The error that a `failed` report tells of, of the same kind: it ends the command as it would have here."""
    facts = {key: str(said.get(key, "")) for key in ("message", "cause", "hint")}
    exit_code = said.get("exit")
    kind = _KINDS.get(exit_code, RunError) if isinstance(exit_code, int) else RunError
    return kind(str(said.get("code")), facts["message"], cause=facts["cause"], hint=facts["hint"])


class ReportingEmitter:
    """An emitter (peers.rundir.journal) in a process that keeps no journal: every event goes up the leash."""

    def emit(self, event: AnyEvent, *, durable: bool = False) -> None:
        """Hands one event to the supervisor, which stamps and stores it."""
        report("event", event=to_json(event), durable=durable)


def report_end(process: str, counter: ByteCounter) -> None:
    """The last report: what was sent and received, and what the process took."""
    used = report_usage(process)
    report("bytes", **by_name(counter))
    report("usage", process=process, peak_bytes=used.peak_bytes, cpu_seconds=used.cpu_seconds)


def report_usage(process: str) -> ProcessUsageEvent:
    """What this process has taken so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return ProcessUsageEvent(process=process, peak_bytes=peak, cpu_seconds=used.ru_utime + used.ru_stime)


def by_name(counter: ByteCounter) -> dict[str, int]:
    """Byte counts as events name them: sent by kind, and `received` to agree."""
    received = counter.received[MessageKind.SYNC] + counter.received[MessageKind.CONTROL]
    return {**{kind.name.lower(): size for kind, size in counter.sent.items()}, "received": received}


class ControlChannel:
    """What the supervisor says, line by line (child's side)."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    @classmethod
    async def open(cls) -> ControlChannel:
        """Reads standard input without blocking the loop."""
        reader = asyncio.StreamReader(limit=LINE_BYTES)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        return cls(reader)

    async def next(self) -> Report | None:
        """The next order; None when the supervisor is gone."""
        line = await self._reader.readline()
        return msgspec.json.decode(line, type=Report) if line.endswith(b"\n") else None


def run_role(main: Callable[[ControlChannel], Awaitable[None]]) -> None:
    """Runs a role's main function to its end and exits; the supervisor hears of an error in its own words."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the supervisor decides

    async def body() -> None:
        await main(await ControlChannel.open())

    try:
        choose_kernels()
        describe()
        asyncio.run(body())
    except FarflungError as error:
        report_failure(error)
        sys.exit(error.exit_code)
    except BaseException as error:
        if os.environ.get("FARFLUNG_DEBUG"):
            traceback.print_exc()
        report_failure(RunError("FF-APP-099", f"{type(error).__name__}: {error}"[:300]))
        sys.exit(1)


async def _spawned(role: str, errors: int, *way: str) -> Process:
    """The role's process; its command begins with `way`.

    Cancelled half-way, asyncio would wait for ever for its pipes: it is ended once it is up.
    """
    words = (*way, sys.executable, "-I", "-m", _MODULES[role])
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, stderr=errors, limit=LINE_BYTES)
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        process = await starting
        process.kill()
        await process.wait()
        raise


class ChildProcess:
    """A started process (supervisor's side)."""

    def __init__(self, name: str, role: str, process: Process) -> None:
        self.name, self.role = name, role
        self._process = process
        self.first: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self.failure: FarflungError | None = None
        self._reader: asyncio.Task[None] | None = None
        self._awaited: dict[str, asyncio.Future[Report]] = {}

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @classmethod
    async def start(
        cls,
        name: str,
        role: str,
        config: Report,
        log: Path,
        on_report: Callable[[ChildProcess, Report], None],
        way: Sequence[str] = (),
    ) -> ChildProcess:
        """Starts the role's module and gives it its configuration. Raises RunError FF-APP-024.

        `way`: what the command begins with (local.network.placement).
        """
        try:
            errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise RunError(
                "FF-APP-024",
                f"{name} cannot be started",
                cause=f"{log}: {error.strerror or error}",
                hint=f"see that there is room and that {log.parent} can be written, then run `farflung resume`",
            ) from error
        try:
            process = await _spawned(role, errors, *way)
        finally:
            os.close(errors)
        child = cls(name, role, process)
        child._reader = asyncio.create_task(child._read(on_report))
        child.order(config)
        return child

    async def _read(self, on_report: Callable[[ChildProcess, Report], None]) -> None:
        """Hears the process out. What it says may be too much for our own disk: then all who wait hear of that."""
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                with contextlib.suppress(msgspec.DecodeError):
                    self._hear(msgspec.json.decode(line, type=Report), on_report)
            await self._process.wait()
        except FarflungError as error:
            self.failure = error
            raise
        finally:
            for waiting in (self.first, *self._awaited.values()):
                if not waiting.done():
                    waiting.set_exception(self.failure or self._died())
                    waiting.exception()  # retrieved: nobody may be waiting any more

    def _hear(self, said: Report, on_report: Callable[[ChildProcess, Report], None]) -> None:
        if said.get("kind") == "failed":
            self.failure = as_error(said)
        elif said.get("kind") == "ready" and not self.first.done():
            self.first.set_result(said)
        waiting = self._awaited.pop(str(said.get("kind")), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(said)
        on_report(self, said)

    def _died(self) -> RunError:
        return RunError(
            "FF-APP-020",
            f"{self.name} ended before it did what it was asked",
            cause=f"exit status {self._process.returncode}",
            hint="look into its log in the run's folder",
        )

    def order(self, what: Report) -> None:
        """Sends one order; silently nothing when the process is gone (its end is noticed elsewhere)."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._process.stdin.write(msgspec.json.encode(what) + b"\n")

    async def ask(self, what: Report, answer: str) -> Report:
        """Sends an order and waits for the report of kind `answer`; raises what the process failed with, or
        RunError FF-APP-020 when it died.
        """
        if self._reader is not None and self._reader.done():
            raise self.failure or self._died()
        waiting: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self._awaited[answer] = waiting
        self.order(what)
        return await waiting

    async def gone(self) -> int:
        """Waits until the process has ended and all that it said was heard: its exit status."""
        if self._reader is not None:
            await asyncio.shield(self._reader)
        return await self._process.wait()

    async def stop(self) -> None:
        """Closes the leash, waits, and ends the process by its own pid if it does not go."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._process.stdin.close()
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._reader is not None:
            # Whoever waits for its end has heard it.
            await asyncio.gather(self._reader, return_exceptions=True)
