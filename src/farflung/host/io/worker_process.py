"""Starts and ends one worker process: a sandbox tier, own scratch, limits, bounded log, one socket."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from farflung.core.errors import RunError
from farflung.core.io.durable_files import foreign_file
from farflung.core.io.ordinary_files import ForeignFileError, check_folder, open_own
from farflung.core.io.spool_file import state_file
from farflung.core.units import format_bytes
from farflung.host import exit_reason, sandbox
from farflung.host.io import cgroup, machine_probe, sandbox_tiers
from farflung.host.io.launch import PYTHON, LaunchedProcess, launch
from farflung.host.sandbox import SandboxTier
from farflung.host.tamper_signs import signs_in
from farflung.host.worker_limits import MAPPED_BYTES, WorkerLimits

__all__ = ["PYTHON", "WorkerProcess", "start_worker", "tail"]

WORKER_MODULE: Final = "farflung.train.io.worker"
GRACE_SECONDS: Final = 2.0
LOG_TAIL: Final = 4096
FRESH_SECONDS: Final = 0.1  # for which a reading of the process tree serves all who ask
MOST_FILES: Final = 20_000  # in scratch; more than any library's temporary files


class PeakUsage(msgspec.Struct):
    """The largest use that was seen of a process."""

    peak_bytes: int = 0
    cpu_seconds: float = 0.0


class WorkerProcess:
    """A running worker. `socket` is the agent's end; the worker ends by itself when that is closed.

    Killing `pid` ends the worker; in bwrap it is bubblewrap's, with which the worker dies.
    """

    def __init__(
        self,
        started: LaunchedProcess,
        connection: socket.socket,
        log_path: Path,
        tier: SandboxTier,
        limits: WorkerLimits,
        group: cgroup.WorkerCgroup | None,
    ) -> None:
        self._started, self._process, self._limits = started, started.process, limits
        self._group, self._peak, self._broke, self._is_settled = group, PeakUsage(), "", False
        self._read: tuple[float, machine_probe.ProcessUsage] | None = None
        self.pid, self.socket, self.log_path, self.tier = started.process.pid, connection, log_path, tier

    def is_running(self) -> bool:
        """Whether the process has not ended."""
        if self._process.poll() is None:
            return True
        self._settle()
        return False

    def usage(self) -> dict[str, float]:
        """`peak_bytes` and `cpu_seconds` so far; after the end, as they were last seen."""
        if self.is_running():
            use = self._use()
            self._peak.peak_bytes = max(self._peak.peak_bytes, use.peak_bytes)
            counted = self._group.cpu_seconds() if self._group is not None else 0.0
            self._peak.cpu_seconds = max(self._peak.cpu_seconds, use.cpu_seconds, counted)
        return {"peak_bytes": self._peak.peak_bytes, "cpu_seconds": self._peak.cpu_seconds}

    def _use(self) -> machine_probe.ProcessUsage:
        """What the process and those below it take; read again when the last reading is older than FRESH_SECONDS."""
        now = time.monotonic()
        if self._read is None or now - self._read[0] > FRESH_SECONDS:
            self._read = now, machine_probe.use_of_tree(self.pid)
        return self._read[1]

    def over_limit(self) -> str:
        """Why the worker must be ended now; "" if it keeps its limits. Some 1 ms: call it a few times a second.

        Watches what the kernel does not bound in this tier: shared memory, disk, processor time of children.
        """
        if not self._broke and self.is_running():
            self._broke = self._watch()
        return self._broke

    def tampering(self) -> tuple[str, ...]:
        """What speaks for somebody else's hand in a worker that works; asks the kernel, some 0.2 ms."""
        statuses = machine_probe.statuses_of_tree(self.pid) if sys.platform == "linux" else []
        return signs_in(self.tier.name, statuses)

    def _watch(self) -> str:
        if not self._started.watchdog.is_running():
            return exit_reason.WATCHDOG
        bounds, use = self._limits, self._use()
        if use.resident_bytes > bounds.data + MAPPED_BYTES:
            return f"{exit_reason.MEMORY} of {format_bytes(bounds.data)}"
        if bounds.cpu_seconds and self.usage()["cpu_seconds"] > bounds.cpu_seconds + 1:
            return f"{exit_reason.PROCESSOR} of {bounds.cpu_seconds} s"
        folder = self._started.folder
        if folder is None:
            return ""
        held, files = machine_probe.folder_use(folder, MOST_FILES)
        if held > bounds.disk_bytes:
            return f"{exit_reason.DISK} of {format_bytes(bounds.disk_bytes)}"
        return f"{exit_reason.DISK}: more than {MOST_FILES} files" if files > MOST_FILES else ""

    def _settle(self) -> None:
        """After the end: reads what the kernel counted, then removes group and memory folder."""
        if self._is_settled:
            return
        self._is_settled = True
        if self._group is not None:
            self._peak.cpu_seconds = max(self._peak.cpu_seconds, self._group.cpu_seconds())
            broken = self._group.broken()
            self._group.remove()
        else:
            broken = cgroup.CgroupLimitCounts()
        self._started.discard()
        bounds, status = self._limits, self._status()
        if self._broke or status in (None, 0):
            return
        if broken.memory:
            self._broke = f"{exit_reason.MEMORY} of {format_bytes(bounds.data)}"
        elif status == -24 or (bounds.cpu_seconds and self._peak.cpu_seconds >= bounds.cpu_seconds):
            self._broke = f"{exit_reason.PROCESSOR} of {bounds.cpu_seconds} s"
        elif broken.processes:
            self._broke = f"{exit_reason.PROCESSES}, {bounds.threads}"

    def _status(self) -> int | None:
        status = self._process.poll()
        return exit_reason.through_bwrap(status) if self.tier.name == sandbox.BWRAP else status

    def terminate(self, grace: float = GRACE_SECONDS) -> str:
        """Closes the socket, sends SIGTERM, after `grace` seconds SIGKILL, to its group alone; says why it ended."""
        self.usage()
        self.socket.close()
        self._started.end(grace)
        return self.reason()

    def wait(self, seconds: float | None = None) -> int:
        """The exit status, -n for a signal; raises subprocess.TimeoutExpired."""
        self._process.wait(seconds)
        self._settle()
        status = self._status()
        assert status is not None
        return status

    def reason(self) -> str:
        """Why it ended, naming the limit that it broke; or that it runs."""
        if self.is_running():
            return exit_reason.reason(None, b"")
        return exit_reason.reason(self._status(), tail(self.log_path), self._broke)


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
    limits: WorkerLimits | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = (*PYTHON, "-m", WORKER_MODULE),
    tier: str | None = None,
) -> WorkerProcess:
    """Starts `command FD [STATES]` in a sandbox; FD is its end of the socket, all that reaches out. STATES is a file
    of `limits.state_bytes` beside the log, if there are any, which it may map.

    `tier` None: what FARFLUNG_SANDBOX names, else the strongest that works here. `scratch` stays empty where the
    tier has one in memory. Raises RunError FF-HOST-001, FF-CORE-085 (scratch or
    log is a link or not ours), PolicyError FF-HOST-003 to 005.
    """
    chosen, bounds = sandbox_tiers.choose(tier), limits or WorkerLimits()
    ours, theirs = socket.socketpair()
    group: cgroup.WorkerCgroup | None = None
    given = [theirs.fileno()]
    try:
        _make_private(scratch)
        if bounds.state_bytes:
            given.append(state_file(log_path.parent, bounds.state_bytes))
        group = cgroup.create(bounds)
        log = open_own(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.ftruncate(log, 0)
            started = launch(
                chosen.name,
                [*command, *map(str, given)],
                bounds,
                scratch,
                os.environ if environment is None else environment,
                log=log,
                descriptors=given,
                group=group,
            )
        finally:
            os.close(log)
    except OSError as error:
        ours.close()
        if group is not None:
            group.remove()
        if isinstance(error, ForeignFileError):
            raise foreign_file(Path(error.filename), error.cause) from error
        raise RunError(
            "FF-HOST-001",
            "the worker process cannot be started",
            cause=str(error)[:200],
            hint=f"see that {scratch} can be written and that processes may be started",
        ) from error
    finally:
        theirs.close()
        for descriptor in given[1:]:
            os.close(descriptor)
    return WorkerProcess(started, ours, log_path, chosen, bounds, group)


def _make_private(scratch: Path) -> None:
    """The folder exists and is its owner's alone, even if it was there before. Raises ForeignFileError."""
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_folder(scratch)
    scratch.chmod(0o700)
