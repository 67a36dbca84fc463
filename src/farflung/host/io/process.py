"""Starts and ends one worker process: own scratch folder, scrubbed environment, limits, bounded log, one socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from farflung.core.errors import RunError
from farflung.host.ending import reason
from farflung.host.io import probe
from farflung.host.limits import Limits, scrubbed

WORKER_MODULE: Final = "farflung.train.io.worker"
GRACE_SECONDS: Final = 2.0
LOG_TAIL: Final = 4096

# `-I` would ignore PYTHONHASHSEED. With a scrubbed environment these two leave nothing else of it: no user site,
# no script folder on the path.
PYTHON: Final = (sys.executable, "-s", "-P")


class Peak(msgspec.Struct):
    """The largest use that was seen of a process."""

    peak_bytes: int = 0
    cpu_seconds: float = 0.0


class WorkerProcess:
    """A running worker. `socket` is the agent's end; the worker ends by itself when that is closed."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket, log_path: Path) -> None:
        self._process, self._peak = process, Peak()
        self.pid, self.socket, self.log_path = process.pid, connection, log_path

    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def usage(self) -> dict[str, float]:
        """`peak_bytes` and `cpu_seconds` so far; after the end, as they were last seen."""
        if self.is_running():
            peak, seconds = probe.usage(self.pid)
            self._peak.peak_bytes = max(self._peak.peak_bytes, peak)
            self._peak.cpu_seconds = max(self._peak.cpu_seconds, seconds)
        return {"peak_bytes": self._peak.peak_bytes, "cpu_seconds": self._peak.cpu_seconds}

    def terminate(self, grace: float = GRACE_SECONDS) -> str:
        """Closes the socket, sends SIGTERM, after `grace` seconds SIGKILL, to this pid alone; says why it ended."""
        self.usage()
        self.socket.close()
        if self.is_running():
            self._process.terminate()  # a child that is not yet waited for keeps its pid: no other is hit
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return self.reason()

    def wait(self, seconds: float | None = None) -> int:
        """The exit status; raises subprocess.TimeoutExpired."""
        return self._process.wait(seconds)

    def reason(self) -> str:
        """Why it ended, or that it runs."""
        return reason(self._process.poll(), tail(self.log_path))


def tail(path: Path, size: int = LOG_TAIL) -> bytes:
    """The last bytes of a file; nothing when it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read(size)
    except OSError:
        return b""


def start_worker(
    scratch: Path,
    log_path: Path,
    limits: Limits | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = (*PYTHON, "-m", WORKER_MODULE),
) -> WorkerProcess:
    """Starts `command FD` confined; FD is its end of the socket. Raises RunError FF-HOST-001."""
    ours, theirs = socket.socketpair()
    try:
        _make_private(scratch)
        given = scrubbed(os.environ if environment is None else environment, scratch.resolve())
        confined = [*PYTHON, "-m", "farflung.host.io.confine", *(limits or Limits()).arguments(), "--"]
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            process = subprocess.Popen(
                [*confined, *command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=given,
                cwd=scratch,
                pass_fds=(theirs.fileno(),),
            )
        finally:
            os.close(log)
    except OSError as error:
        ours.close()
        raise RunError(
            "FF-HOST-001",
            "the worker process cannot be started",
            cause=str(error)[:200],
            hint=f"see that {scratch} can be written and that processes may be started",
        ) from error
    finally:
        theirs.close()
    return WorkerProcess(process, ours, log_path)


def _make_private(scratch: Path) -> None:
    """The folder exists and is its owner's alone, even if it was there before."""
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch.chmod(0o700)
