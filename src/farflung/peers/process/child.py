"""Starts a role's process with its configuration file and supervises it: gives orders, hears reports, stops it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from farflung.core.errors import FarflungError, RunError
from farflung.core.io.durable_files import foreign_file
from farflung.core.io.ordinary_files import ForeignFileError, open_own
from farflung.host.worker_limits import one_threaded
from farflung.peers.process.channel import LINE_BYTES, Report, as_error

GRACE_SECONDS = 5.0
_MODULES = {
    "provider": "farflung.peers.node.provider",
    "verifier": "farflung.peers.node.verifier",
    "requester": "farflung.peers.requester.main",
    "validator": "farflung.peers.validator.main",
    "relay": "farflung.peers.relay.main",
}


async def _spawned(role: str, errors: int, way: Sequence[str], *given: str) -> Process:
    """The role's process; its command begins with `way` and ends with what is given to the role.

    Cancelled half-way, asyncio would wait for ever for its pipes: it is ended once it is up.
    """
    words = (*way, sys.executable, "-I", "-m", _MODULES[role], "--supervised", *given)
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *words, stdin=PIPE, stdout=PIPE, stderr=errors, limit=LINE_BYTES, env=one_threaded(os.environ)
        )
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
        self._awaited: dict[str, deque[asyncio.Future[Report]]] = {}  # by kind of report, who asked first ahead

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @classmethod
    async def start(
        cls,
        name: str,
        role: str,
        config: Path,
        log: Path,
        on_report: Callable[[ChildProcess, Report], None],
        way: Sequence[str] = (),
        port: int = 0,
    ) -> ChildProcess:
        """Starts the role's module with its configuration file. Raises RunError FF-APP-024, FF-CORE-085.

        `way`: what the command begins with (local.network.placement). `port`: instead of the file's; 0: the file's.
        """
        try:
            errors = open_own(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except ForeignFileError as error:
            raise foreign_file(log, error.cause) from error
        except OSError as error:
            raise RunError(
                "FF-APP-024",
                f"{name} cannot be started",
                cause=f"{log}: {error.strerror or error}",
                hint=f"see that there is room and that {log.parent} can be written, then run `farflung resume`",
            ) from error
        try:
            words = ("--config", str(config), *(("--port", str(port)) if port else ()))
            process = await _spawned(role, errors, way, *words)
        finally:
            os.close(errors)
        child = cls(name, role, process)
        child._reader = asyncio.create_task(child._read(on_report))
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
            for waiting in (self.first, *(each for asked in self._awaited.values() for each in asked)):
                if not waiting.done():
                    waiting.set_exception(self.failure or self._died())
                    waiting.exception()  # retrieved: nobody may be waiting any more

    def _hear(self, said: Report, on_report: Callable[[ChildProcess, Report], None]) -> None:
        if said.get("kind") == "failed":
            self.failure = as_error(said)
        elif said.get("kind") == "ready" and not self.first.done():
            self.first.set_result(said)
        if asked := self._awaited.get(str(said.get("kind"))):
            waiting = asked.popleft()
            if not waiting.done():
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
        self._awaited.setdefault(answer, deque()).append(waiting)
        self.order(what)
        return await waiting

    async def gone(self) -> int:
        """Waits until the process has ended and all that it said was heard: its exit status."""
        if self._reader is not None:
            await asyncio.shield(self._reader)
        return await self._process.wait()

    async def stop(self) -> None:
        """Closes the pipe, waits, and ends the process by its own pid if it does not go."""
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
