"""Starts a command in a sandbox tier: the one place that assembles the parts of a tier on this machine.

    [sh: join the control group] [bwrap ...] python -m farflung.host.io.confine ITEMS -- COMMAND

Each becomes the next (exec), but for bwrap, whose child the command is. Beside it runs a process of host.io.watchdog,
through which all that it prints goes into its log.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from farflung.host import sandbox
from farflung.host.io import landlock, temporary_folders
from farflung.host.io.cgroup import WorkerCgroup
from farflung.host.worker_limits import WorkerLimits, scrubbed

# `-I` would ignore PYTHONHASHSEED. With a scrubbed environment these two leave nothing else of it: no user site,
# no script folder on the path.
PYTHON: Final = (sys.executable, "-s", "-P")
MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a private folder in it, made by mkdtemp
PREFIX: Final = "farflung-"
PACKAGE: Final = Path(__file__).resolve().parents[2]  # where farflung itself lies

PAUSE: Final = 0.005  # s between two looks whether a process has ended

# A process writes its own number: it is in the group before its first instruction, whatever the agent is doing.
JOIN: Final = """while [ "$1" != -- ]; do echo $$ > "$1" || exit 125; shift; done
shift; unset PWD OLDPWD; exec "$@" """


class ParentDeathPipe:
    """A pipe whose closing ends the worker when its agent dies, at any point of start-up.

    The agent holds the end that writes and never writes; the command that it starts inherits the end that reads. When
    the agent ends, or lets go, the kernel closes the pipe, and sends SIGKILL to the process group that owns the other
    end (fcntl(2), F_SETOWN and F_SETSIG). That is the worker's own, in whatever namespace it is, by word of
    host.io.confine, which ends at once if the agent is gone by then; bubblewrap ends with its last process.

    A parent-death signal alone leaves a gap: bubblewrap's init asks for it when the worker may run already, and does
    not look whether its parent still lives. It stays the second wall: a worker's program may close the pipe. Forgetting
    the agent's side, as when a start is broken off, ends the worker as `cut` does.
    """

    def __init__(self) -> None:
        """Raises OSError. `far` is what the command inherits; the agent closes it when that has started."""
        self.far, held = os.pipe()
        self._held = os.fdopen(held, "wb", 0)
        if sys.platform == "linux":  # elsewhere a worker ends when its socket does
            fcntl.fcntl(self.far, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(self.far, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)

    def cut(self) -> None:
        """Ends what hangs on it. A second time does nothing."""
        self._held.close()


class Watchdog:
    """The agent's side of host.io.watchdog, for one worker that runs.

    Its pipe is another than the worker's: that one could open an end of its own pipe again, and hold it.
    """

    FINISH_SECONDS: Final = 5.0  # to write what lies in a pipe; a disk that stands still is not waited for

    def __init__(self, worker: int, source: int, log: int, most: int, leaves: tuple[str, Sequence[str]]) -> None:
        """`leaves`: the folder in memory ("-": none) and the groups that are to go with the worker. Raises OSError."""
        far, held = os.pipe()
        self._held = os.fdopen(held, "wb", 0)
        folder, groups = leaves
        try:
            self._process = subprocess.Popen(
                [*PYTHON, "-m", "farflung.host.io.watchdog", str(worker), str(far), str(most), folder, *groups],
                stdin=source,
                stdout=log,
                stderr=subprocess.DEVNULL,
                env=scrubbed({}, Path("/")),
                cwd="/",
                pass_fds=(far,),
                start_new_session=True,
            )
        except BaseException:
            self._held.close()
            raise
        finally:
            os.close(far)

    def is_running(self) -> bool:
        """Whether it does its work: it never ends before it is told to."""
        return self._process.poll() is None

    def finish(self) -> None:
        """The worker has ended: returns when all that it printed is in its log. A second time does nothing."""
        if self._held.closed:
            return
        with contextlib.suppress(OSError):
            self._held.write(b".")
        self._held.close()
        try:
            self._process.wait(self.FINISH_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class LaunchedProcess(msgspec.Struct, frozen=True):
    """A process and the folder that it writes, as the host sees it; None: its own memory, gone with it.

    `is_ours`: the folder was made for it in memory, and ends with it. The process ends with its `death_pipe`, and by
    its `watchdog` when its agent is gone.
    """

    process: subprocess.Popen[bytes]
    folder: Path | None
    is_ours: bool
    death_pipe: ParentDeathPipe
    watchdog: Watchdog

    def end(self, grace: float) -> None:
        """SIGTERM, after `grace` seconds SIGKILL, to its group; returns when it has ended.

        To the group, and while its number is still its own: bubblewrap's child waits for a word of its parent, which
        would never come from a dead one.
        """
        pid, until = self.process.pid, time.monotonic() + grace
        if self.process.poll() is None:
            os.killpg(pid, signal.SIGTERM)
            while time.monotonic() < until and not self._has_ended():
                time.sleep(PAUSE)
            if self.process.returncode is None:
                os.killpg(pid, signal.SIGKILL)
        self.process.wait()

    def _has_ended(self) -> bool:
        """Leaves it its number, where the system can."""
        if sys.platform != "linux":
            return self.process.poll() is not None
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def discard(self) -> None:
        """Completes its log, and removes what it leaves, in memory and of processes. Only after its end."""
        self.death_pipe.cut()
        self.watchdog.finish()
        if self.folder is not None and self.is_ours:
            shutil.rmtree(self.folder, ignore_errors=True)


def python_paths() -> tuple[str, ...]:
    """What a worker may read, on this machine."""
    program = Path(sys.executable)
    prefixes = [sys.prefix, sys.base_prefix, sys.exec_prefix, str(program.resolve().parents[1])]
    prefixes += [str(Path(prefix).resolve()) for prefix in prefixes]
    return sandbox.readable(prefixes, str(PACKAGE))


def link_of(path: str) -> str | None:
    """Where a symbolic link of the root folder points to; None for anything else."""
    place = Path(path)
    return os.readlink(path) if place.parent == Path("/") and place.is_symlink() else None


def has_memory_folder() -> bool:
    """Whether a private folder can be had in memory."""
    return MEMORY.is_dir() and os.access(MEMORY, os.W_OK | os.X_OK) and sys.platform == "linux"


def has_landlock() -> bool:
    """Whether this kernel has Landlock, and takes it from us."""
    try:
        return landlock.abi() > 0
    except OSError:
        return False


def launch(
    tier: str,
    command: Sequence[str],
    limits: WorkerLimits,
    scratch: Path,
    environment: Mapping[str, str],
    *,
    log: int,
    descriptors: Sequence[int] = (),
    group: WorkerCgroup | None = None,
) -> LaunchedProcess:
    """Starts `command` confined; the caller owns the descriptors. Raises OSError.

    What it prints is text in `log`, of at most `limits.file_bytes`.
    """
    folder: Path | None = None
    if tier != sandbox.BWRAP:
        folder = temporary_folders.make(PREFIX, MEMORY) if tier == sandbox.LANDLOCK and has_memory_folder() else scratch
    is_ours = folder not in (None, scratch)
    seen = Path(sandbox.SCRATCH) if folder is None else folder.resolve()
    given, entrances = scrubbed(environment, seen), group.entrances() if group is not None else []
    before = ["/bin/sh", "-c", JOIN, "sh", *entrances, "--"] if entrances else []
    death_pipe = ParentDeathPipe()
    opened = [death_pipe.far, *(pipe := os.pipe())]
    source, printed = pipe
    process: subprocess.Popen[bytes] | None = None
    try:
        if tier == sandbox.BWRAP:
            opened.append(options := _bwrap_options(given, limits.disk_bytes))
            before += [_bwrap_program(), "--args", str(options), "--"]
        items = [f"death_pipe={death_pipe.far}", *_items(tier, limits, str(seen))]
        process = subprocess.Popen(
            [*before, *PYTHON, "-m", "farflung.host.io.confine", *items, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            env=given,
            cwd=folder if folder is not None else "/",
            pass_fds=(*descriptors, death_pipe.far, *opened[3:]),
            start_new_session=True,  # signals to its own group must not reach the agent, nor Ctrl-C bwrap
        )
        leaves = (str(folder) if is_ours else "-", [str(Path(entrance).parent) for entrance in entrances])
        watchdog = Watchdog(process.pid, source, log, limits.file_bytes, leaves)
    except BaseException:  # an interrupt too: whatever may have started must not be left alone
        death_pipe.cut()
        if process is not None:
            process.kill()
            process.wait()
        if folder is not None and is_ours:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return LaunchedProcess(process, folder, is_ours, death_pipe, watchdog)


def _bwrap_program() -> str:
    program = shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin")
    if program is None:
        raise FileNotFoundError("bubblewrap is not installed")
    return program


def _bwrap_options(environment: Mapping[str, str], scratch_bytes: int) -> int:
    """A descriptor from which bubblewrap reads its options: its command line can be read from inside."""
    options = sandbox.bwrap_options(python_paths(), environment, scratch_bytes, link_of)
    descriptor = os.memfd_create("bwrap")
    try:
        os.write(descriptor, "".join(f"{option}\0" for option in options).encode())
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _items(tier: str, limits: WorkerLimits, scratch: str) -> list[str]:
    """What `host.io.confine` is to do in this tier."""
    items = list(limits.arguments())
    if tier != sandbox.BWRAP:  # which sees to it by itself, once it is up
        items.append(f"parent={os.getpid()}")
    if tier == sandbox.LANDLOCK or (tier == sandbox.BWRAP and has_landlock()):  # which guards bubblewrap's own /proc
        items += [f"read={path}" for path in (*python_paths(), *sandbox.PROC_FILES)]
        items += [f"device={path}" for path in sandbox.DEVICES]
        items += [f"own={path}" for path in sandbox.OWN_FILES]
        items.append(f"write={scratch}")
        items.append(f"list={PACKAGE.parent}")  # Python finds packages by listing
    if tier != sandbox.LIMITS:
        items.append(f"seccomp={platform.machine()}")
    return items
