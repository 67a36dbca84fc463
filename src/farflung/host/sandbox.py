"""Defines the sandbox tiers of a worker: their parts, what a worker may access, and what each does not stop.

    bwrap      bubblewrap: own mounts, processes, network, users; seccomp on top, and Landlock where the kernel has it
    landlock   Landlock and seccomp from Python itself: the same file policy, no bubblewrap, no namespaces
    limits     resource limits and a scrubbed environment: stops accidents and floods, not an intruder

The strongest that works here is taken (host.io.sandbox_tiers); which one it was, and its gaps, are told to people and
recorded with the work. A worker may read the Python that runs it, this package and the system's libraries, and
write one scratch folder in memory. Nothing else exists for it: no home, no other run, no /etc beyond the loader's
cache. Its one channel is a socket that it inherits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

BWRAP: Final = "bwrap"
LANDLOCK: Final = "landlock"
LIMITS: Final = "limits"
ORDER: Final = (BWRAP, LANDLOCK, LIMITS)  # strongest first
MADE_OF: Final[Mapping[str, str]] = {
    BWRAP: "bwrap + seccomp: own file system, no network, no further processes",
    LANDLOCK: "Landlock + seccomp: closed file system, no network, no further processes",
    LIMITS: "resource limits and a scrubbed environment only",
}

SCRATCH: Final = "/scratch"  # where a worker in bwrap sees its memory folder
NOBODY: Final = "65534"
SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache")
PROCESSORS: Final = ("/sys/devices/system/cpu", "/sys/devices/system/node")  # torch chooses kernels by these
IN_PREFIX: Final = ("bin", "lib", "lib64", "pyvenv.cfg")  # not the prefix itself: it may be somebody's home
# Of /proc only single files: its folders tell of the host's connections, mounts, groups and other processes.
PROC_FILES: Final = ("/proc/cpuinfo",)
OWN_FILES: Final = ("/proc/self/status", "/proc/self/maps", "/proc/self/fd", "/proc/self/clear_refs")
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class SandboxGap(StrEnum):
    """Something that a tier does not stop, as a sentence for people."""

    KERNEL = "A fault in the host's kernel: the worker still makes system calls."
    MACHINE = "It learns the machine's processors, kernel and memory, how long it has been up and how busy it is."
    PATHS = (
        "It reads /usr and the folders of Python: which programs there are, and where they lie, perhaps in your home."
    )
    NAMES = "It learns the machine's name, and the numbers of your user and of processes."
    SYSTEM_FILES = "It reads what /proc and /sys tell of the whole machine: boot line, disks, mounts, load."
    METADATA = (
        "It can tell of a file whose name it guesses that it exists, its size, its times, and where a link points."
    )
    THREADS = "Threads are bounded by the user's total only: there is no cgroup for processes."
    SHARED_MEMORY = "Shared memory over the limit is noticed within a second, not refused: no cgroup for memory."
    CORES = "It may use more cores than it was given: there is no cgroup for processors."
    DISK_WATCHED = "Disk use over the limit is noticed within a second, not refused."
    DISK_CLEAR = "What it writes lies in clear on the host's disk until its lease ends."
    FILES = "It reads and writes every file that your user can: keys, other runs, all of your home."
    NETWORK = "It opens network connections, and listens for them."
    UNIX_SOCKETS = "It connects to the Unix sockets of other programs: agents, containers, your desktop."
    PROCESSES = "It starts processes, and signals, inspects and traces those of your user."
    FORKS = "The number of its processes has no bound: there is no cgroup, and root is not counted."
    ORPHANS = "Processes that it starts may outlive it, unbounded: they can leave its cgroup, where there is one."


class SandboxSupport(msgspec.Struct, frozen=True):
    """What this machine gives beside the tier itself."""

    is_root: bool
    controllers: frozenset[str]  # of "memory", "pids", "cpu": those in which a worker has a group of its own
    has_memory_folder: bool  # /dev/shm can be used
    has_landlock: bool  # the kernel has it: bubblewrap's tier uses it too


class SandboxTier(msgspec.Struct, frozen=True):
    """A tier as it runs here; `gaps` are sentences of `SandboxGap`."""

    name: str
    gaps: tuple[str, ...]

    @property
    def made_of(self) -> str:
        """What enforces it, and what that closes."""
        return MADE_OF[self.name]


def tier(name: str, facts: SandboxSupport) -> SandboxTier:
    """The tier with what it leaves open on such a machine."""
    return SandboxTier(name, tuple(gap.value for gap in SandboxGap if _is_open(gap, name, facts)))


def _is_open(gap: SandboxGap, name: str, facts: SandboxSupport) -> bool:
    is_open, has = name == LIMITS, facts.controllers
    match gap:
        case SandboxGap.KERNEL | SandboxGap.MACHINE | SandboxGap.PATHS:
            return True
        case SandboxGap.NAMES:
            return name != BWRAP
        case SandboxGap.SYSTEM_FILES:
            return is_open or (name == BWRAP and not facts.has_landlock)
        case SandboxGap.METADATA:
            return name == LANDLOCK
        case SandboxGap.THREADS:
            return "pids" not in has and not (is_open and facts.is_root)
        case SandboxGap.SHARED_MEMORY:
            return "memory" not in has
        case SandboxGap.CORES:
            return "cpu" not in has
        case SandboxGap.DISK_WATCHED:
            return name != BWRAP
        case SandboxGap.DISK_CLEAR:
            return is_open or (name == LANDLOCK and not facts.has_memory_folder)
        case SandboxGap.FORKS:
            return is_open and facts.is_root and "pids" not in has
    return is_open


def readable(prefixes: Sequence[str], package: str) -> tuple[str, ...]:
    """Paths that a worker may read and execute: Python's prefixes, the package's folder, the system's libraries."""
    python = [f"{prefix.rstrip('/')}/{part}" for prefix in prefixes for part in IN_PREFIX]
    return tuple(dict.fromkeys([*SYSTEM, *PROCESSORS, *python, package]))


def bwrap_options(
    paths: Sequence[str], environment: Mapping[str, str], scratch_bytes: int, link_of: Callable[[str], str | None]
) -> list[str]:
    """The options of bubblewrap.

    `link_of` tells where a path of `paths` points to if it is a symbolic link (/bin on merged systems), else None.
    The device folder and the root are memory as well: read-only, or they were a second scratch without a bound.
    """
    line = ["--unshare-all", "--unshare-user", "--uid", NOBODY, "--gid", NOBODY, "--cap-drop", "ALL"]
    line += ["--die-with-parent", "--new-session", "--hostname", "worker", "--clearenv"]
    for name, value in environment.items():
        line += ["--setenv", name, value]
    for path in paths:
        target = link_of(path)
        line += ["--symlink", target, path] if target is not None else ["--ro-bind-try", path, path]
    line += ["--proc", "/proc", "--dev", "/dev"]
    line += ["--perms", "0700", "--size", str(scratch_bytes), "--tmpfs", SCRATCH, "--chdir", SCRATCH]
    return [*line, "--remount-ro", "/dev", "--remount-ro", "/"]


def remedy(name: str, why: str) -> str:
    """The command that would make a tier work, from the words with which it failed; "" where none is known."""
    if name == BWRAP and "not installed" in why:
        return "apt-get install bubblewrap"
    if name == BWRAP and ("uid map" in why or "ew namespace" in why or "RTM_NEWADDR" in why):
        return (
            "sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0"
            " (those that your kernel has)"
        )
    if name == BWRAP and "mount proc" in why:
        return "docker run --security-opt systempaths=unconfined ..., or run the agent outside of the container"
    if name == BWRAP and "--size" in why:
        return "apt-get install --only-upgrade bubblewrap (0.8 or newer)"
    if name == LANDLOCK and "disabled" in why:
        return "add landlock to the kernel's command line: lsm=landlock,... , and boot again"
    if name == LANDLOCK and "no Landlock" in why:
        return "a Linux kernel of 5.13 or newer"
    return ""
