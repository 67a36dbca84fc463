"""Creates a control group for each worker: memory, processes, processors; v1, v2, both at once, or none.

The kernel says where this process stands (/proc/self/cgroup) and where the hierarchies are mounted
(/proc/self/mountinfo). v1: a group below our own in each controller's hierarchy. v2: controllers are given to a
group's children only while the group itself holds no process, so the place is below our own group if that works,
else beside it (a user's systemd session allows that). Controllers that cannot be had are left out: the tier tells.
A group is named after the agent's process: what a killed agent left is swept by the next.
Sources: kernel Documentation/admin-guide/cgroup-v1, cgroup-v2.rst.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from farflung.core.io.process_mark import has_ended, own_mark
from farflung.host.worker_limits import CPU_PERIOD, WorkerLimits

CONTROLLERS: Final = ("memory", "pids", "cpu")
PREFIX: Final = "farflung-"
REMOVE_SECONDS: Final = 1.0  # a large process takes this long to be torn down at worst
_count = itertools.count()
_left: list[WorkerCgroup] = []


class CgroupRoot(msgspec.Struct, frozen=True):
    """Where groups can be made, and the controllers that act there. `version` 1 or 2."""

    version: int
    folder: Path
    controllers: tuple[str, ...]


class CgroupLimitCounts(msgspec.Struct, frozen=True):
    """What the kernel counted of a group's attempts to go over its bounds."""

    memory: bool = False
    processes: bool = False


class WorkerCgroup:
    """One worker's group: a folder in each hierarchy."""

    def __init__(self, folders: Mapping[Path, CgroupRoot]) -> None:
        self._folders = dict(folders)

    @property
    def controllers(self) -> frozenset[str]:
        """Those of CONTROLLERS that bound this group."""
        return frozenset(c for where in self._folders.values() for c in where.controllers if c in CONTROLLERS)

    def entrances(self) -> list[str]:
        """Files into which a process writes its number to join."""
        return [str(folder / "cgroup.procs") for folder in self._folders]

    def broken(self) -> CgroupLimitCounts:
        """Which bounds the kernel had to enforce."""
        memory = processes = False
        for folder, where in self._folders.items():
            if "memory" in where.controllers:
                name = "memory.events" if where.version == 2 else "memory.oom_control"
                memory |= _counter(folder / name, "oom_kill") > 0
            if "pids" in where.controllers:
                processes |= _counter(folder / "pids.events", "max") > 0
        return CgroupLimitCounts(memory, processes)

    def cpu_seconds(self) -> float:
        """Processor time of all processes that were ever in the group; 0 where nobody counts it."""
        for folder, where in self._folders.items():
            if where.version == 2:
                return _counter(folder / "cpu.stat", "usage_usec") / 1e6
            if "cpuacct" in where.controllers:
                return int("0" + _read(folder / "cpuacct.usage").strip()) / 1e9
        return 0.0

    def remove(self, seconds: float = REMOVE_SECONDS) -> bool:
        """Ends whatever is still in the group, and the group. False: the next one will try again."""
        stop = time.monotonic() + seconds
        while self._folders:
            for folder in list(self._folders):
                _end_members(folder)
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    del self._folders[folder]
                except OSError:
                    continue
                else:
                    del self._folders[folder]
            if self._folders and time.monotonic() >= stop:
                _left.append(self)
                return False
            if self._folders:
                time.sleep(0.005)
        return True


def cgroup_roots(proc: Path = Path("/proc/self")) -> list[CgroupRoot]:
    """Where this process may make groups, by the two tables in `proc`; none where there are no control groups."""
    mounts = _mounts(_read(proc / "mountinfo"))
    found: dict[Path, CgroupRoot] = {}
    for line in _read(proc / "cgroup").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        wanted = [c for c in names.split(",") if c in (*CONTROLLERS, "cpuacct")]
        if not names and "" in mounts:
            where = _place_v2(_below(*mounts[""], path))
            if where is not None:
                found[where.folder] = where
        elif wanted and wanted[0] in mounts:
            folder = _below(*mounts[wanted[0]], path)
            if folder is not None:
                found[folder] = CgroupRoot(1, folder, tuple(wanted))
    return list(found.values())


def _mounts(table: str) -> dict[str, tuple[str, str]]:
    """Controller ("" for v2): (the hierarchy's root that is mounted, where)."""
    found: dict[str, tuple[str, str]] = {}
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        names = [""] if kind[0] == "cgroup2" else kind[2].split(",")
        found.update(dict.fromkeys(names, (fields[3], fields[4])))
    return found


def _below(root: str, mount: str, path: str) -> Path | None:
    """Where a group's path lies; None if it is outside of what is mounted."""
    if path == root or root == "/":
        return Path(mount) / path[len(root.rstrip("/")) :].lstrip("/")
    if path.startswith(root + "/"):
        return Path(mount) / path[len(root) + 1 :]
    return Path(mount) if path == "/" else None


def _place_v2(own: Path | None) -> CgroupRoot | None:
    if own is None:
        return None
    for folder in (own, own.parent):
        offered = set(_read(folder / "cgroup.controllers").split()) & set(CONTROLLERS)
        missing = offered - set(_read(folder / "cgroup.subtree_control").split())
        for name in sorted(missing):
            _write(folder / "cgroup.subtree_control", f"+{name}")
        given = offered & {n.lstrip("+") for n in _read(folder / "cgroup.subtree_control").split()}
        if given and os.access(folder, os.W_OK):
            return CgroupRoot(2, folder, tuple(c for c in CONTROLLERS if c in given))
    return None


def create(limits: WorkerLimits, roots: Iterable[CgroupRoot] | None = None) -> WorkerCgroup | None:
    """A group with the bounds of `limits`; None where there is none to be had."""
    _left[:] = [group for group in list(_left) if not group.remove(0)]
    name = f"{PREFIX}{own_mark()}-{next(_count)}"
    made: dict[Path, CgroupRoot] = {}
    for where in cgroup_roots() if roots is None else roots:
        sweep(where.folder)
        folder = where.folder / name
        try:
            folder.mkdir()
        except OSError:
            continue
        set_here = tuple(c for c in where.controllers if _bound(folder, where.version, c, limits))
        made[folder] = msgspec.structs.replace(where, controllers=set_here)
    group = WorkerCgroup(made)
    if not group.controllers:
        group.remove()
        return None
    return group


def _bound(folder: Path, version: int, controller: str, limits: WorkerLimits) -> bool:
    """Writes one controller's bounds; False when the kernel does not take them."""
    memory = limits.data + limits.disk_bytes  # scratch is memory too
    quota = limits.cores * CPU_PERIOD + CPU_PERIOD // 10 if limits.cores else -1
    match controller, version:
        case "pids", _:
            return _write(folder / "pids.max", str(limits.threads))
        case "memory", 2:
            _write(folder / "memory.swap.max", "0")
            return _write(folder / "memory.max", str(memory))
        case "memory", _:
            done = _write(folder / "memory.limit_in_bytes", str(memory))
            _write(folder / "memory.memsw.limit_in_bytes", str(memory))
            return done
        case "cpu", 2:
            return _write(folder / "cpu.max", f"{quota if quota > 0 else 'max'} {CPU_PERIOD}")
        case "cpu", _:
            _write(folder / "cpu.cfs_period_us", str(CPU_PERIOD))
            return _write(folder / "cpu.cfs_quota_us", str(quota))
    return True  # cpuacct counts, and bounds nothing


def sweep(folder: Path) -> None:
    """Removes the groups of agents that are gone."""
    for left in folder.glob(f"{PREFIX}*"):
        if has_ended(left.name.removeprefix(PREFIX).partition("-")[0]):
            _end_members(left)
            try:
                left.rmdir()
            except OSError:
                continue


def _end_members(folder: Path) -> None:
    for pid in _read(folder / "cgroup.procs").split():
        if pid.isdigit() and int(pid) > 1:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except OSError:
                continue


def _counter(path: Path, name: str) -> int:
    """The value of the line `name N` of a control file; 0 where there is none."""
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _write(path: Path, value: str) -> bool:
    try:
        path.write_text(value, encoding="ascii")
    except OSError:
        return False
    return True
