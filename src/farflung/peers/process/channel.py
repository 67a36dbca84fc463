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
from collections.abc import Awaitable, Callable
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
from farflung.core.ids import PeerId
from farflung.net.counters import ByteCounter
from farflung.net.messages import MessageKind
from farflung.net.paths import PathType
from farflung.peers.process.user_dirs import choose_kernels

LINE_BYTES = 1 << 20
LEDGER, RELAY, REQUESTER = "ledger", "relay", "requester"  # names of processes

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


def relay_names(count: int) -> tuple[str, ...]:
    """What the relays of a run are called."""
    return tuple(RELAY if number == 1 else f"{RELAY}-{number}" for number in range(1, count + 1))


def validator_names(count: int) -> tuple[str, ...]:
    """What the validators of a run are called."""
    return tuple(LEDGER if number == 1 else f"{LEDGER}-{number}" for number in range(1, count + 1))


def tell_way(peer: PeerId, way: PathType) -> None:
    """A node's process tells its supervisor."""
    report("way", peer=peer.hex(), way=way.value)
