"""Runs the probes of `farflung check` in parallel, each in its own thread and with a time limit.

A probe that hangs (a dead network disk, a driver) keeps its thread, which ends with the process; the check goes on
without it. Probes that measure speed share one lane, in which one follows the other, so that they do not disturb
each other.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from farflung.core.errors import FarflungError, type_and_text
from farflung.host import machine_readings as r
from farflung.host import sandbox as order
from farflung.host.io import doctor_sockets as network
from farflung.host.io import doctor_storage as places
from farflung.host.io import doctor_torch, machine_probe, sandbox_tiers
from farflung.job.io.text_folders import stdlib_files

SECONDS: Final = 8.0  # for all probes; with the start of Python the whole check stays below 10 s
MARGIN: Final = 0.5  # seconds before the end in which a probe that started a process ends it
SPEED: Final = "speed"  # the lane of those that measure it
EXTRAS: Final = ("pandas", "transformers", "tensorboard", "wandb")
CGROUP: Final = Path("/sys/fs/cgroup")
ENDLESS: Final = 1 << 60  # what version 1 of control groups shows where there is no bound is above


class CheckProbe(NamedTuple):
    """What is measured under `name`: `measure(seconds left)`. Those of one `lane` follow each other."""

    name: str
    measure: Callable[[float], r.Reading]
    lane: str = ""


def probes(runs: Path, port: int | None) -> list[CheckProbe]:
    """All of them, in the order in which they are told. `runs`: where runs go; `port`: one to try."""
    found: list[CheckProbe] = [
        CheckProbe("python", lambda _: python()),
        CheckProbe("libraries", lambda _: libraries()),
        CheckProbe("torch", lambda left: doctor_torch.torch(left - MARGIN)),
        CheckProbe("speed", lambda _: r.ComputeSpeedReading(machine_probe.sgemm_flops()), SPEED),
        CheckProbe("cores", lambda _: cores()),
        CheckProbe("memory", lambda _: memory()),
        CheckProbe("disk", lambda _: places.disk(runs), SPEED),
        CheckProbe("runs", lambda _: places.folder(runs, "FARFLUNG_RUNS")),
        CheckProbe("temporary", lambda _: places.temporary()),
        CheckProbe("clock", lambda _: places.clock()),
        CheckProbe("loopback", lambda _: network.loopback(), SPEED),
        CheckProbe("ports", lambda _: network.ports()),
        CheckProbe("files", lambda _: files()),
        CheckProbe("processes", lambda _: processes()),
        CheckProbe("data", lambda _: data()),
        CheckProbe("random", lambda _: random()),
        CheckProbe("extras", lambda _: extras()),
        CheckProbe("sandbox", lambda _: sandbox()),
    ]
    if port is not None:
        found.insert(12, CheckProbe("port", lambda _: network.port(port)))
    return found


def net_probes() -> list[CheckProbe]:
    """What matters only with peers on other computers."""
    return [CheckProbe("congestion", lambda _: network.congestion())]


def measure(probes_to_run: Sequence[CheckProbe], seconds: float = SECONDS) -> dict[str, r.Reading]:
    """All readings after at most `seconds`; a probe that has not ended by then was missed."""
    stop = time.monotonic() + seconds
    found: dict[str, r.Reading] = {}
    lanes: dict[str, list[CheckProbe]] = {}
    for one in probes_to_run:
        lanes.setdefault(one.lane or one.name, []).append(one)
    threads = [threading.Thread(target=_lane, args=(lane, stop, found), daemon=True) for lane in lanes.values()]
    why = f"it did not end within {seconds:.3g} s"
    started = []
    for thread in threads:
        try:
            thread.start()
        except RuntimeError as error:  # a limit on processes; those that run will tell which
            why = str(error)
            continue
        started.append(thread)
    for thread in started:
        thread.join(max(0.0, stop - time.monotonic()))
    return {one.name: found.get(one.name) or r.MissingReading(why) for one in probes_to_run}


def _lane(lane: Sequence[CheckProbe], stop: float, found: dict[str, r.Reading]) -> None:
    for one in lane:
        left = stop - time.monotonic()
        if left <= 0:
            return
        try:
            found[one.name] = one.measure(left)
        except FarflungError as error:
            found[one.name] = r.ProbeErrorReading(error.code, error.message, error.cause, error.hint)
        except Exception as error:  # the task's boundary: one probe's fault is not the check's
            found[one.name] = r.MissingReading(type_and_text(error)[:200])


def python() -> r.PythonReading:
    """The interpreter."""
    major, minor, micro = sys.version_info[:3]
    return r.PythonReading((major, minor, micro), platform.python_implementation(), 64 if sys.maxsize > 2**32 else 32)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def libraries() -> r.LibrariesReading:
    """What this package's metadata requires, without its extras, and what is installed of it."""
    wanted = []
    for line in importlib.metadata.requires("farflung") or ():
        needed = re.match(r"([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9.]+))?", line)
        if needed and "extra" not in line:
            wanted.append((needed[1], needed[2] or "", _version(needed[1])))
    return r.LibrariesReading(tuple(wanted))


def extras() -> r.ExtrasReading:
    """Versions of optional parts; none of them is imported."""
    return r.ExtrasReading(tuple((name, _version(name)) for name in EXTRAS))


def cores() -> r.CoresReading:
    """Cores by affinity and container, and the whole machine's load."""
    return r.CoresReading(machine_probe.cores(), os.cpu_count() or 1, os.getloadavg()[0])


def _groups(controller: str) -> list[Path]:
    """Folders of the control groups that this process is in, from its own to the outermost, of either version."""
    try:
        lines = Path("/proc/self/cgroup").read_text("ascii", "replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        root = CGROUP / controller if names else CGROUP
        inner = root / path.strip("/")
        found += [inner, *(parent for parent in inner.parents if parent.is_relative_to(root))]
    return found


def _bound(controller: str, limits: Sequence[str], counts: Sequence[str]) -> tuple[int, int]:
    """The least room that a group around this process leaves: (bound, used); (-1, 0) where there is no bound."""
    found = []
    for group in _groups(controller):
        limit = next((n for name in limits if (n := _number(group / name)) >= 0), -1)
        if 0 <= limit < ENDLESS:
            found.append((limit, max(0, *(_number(group / name) for name in counts))))
    return min(found, key=lambda pair: pair[0] - pair[1], default=(-1, 0))


def _number(file: Path) -> int:
    try:
        return int(file.read_text("ascii"))
    except (OSError, ValueError):  # not there, or the word `max`
        return -1


def memory() -> r.MemoryReading:
    """Memory of the machine and what may be taken of it."""
    bound, used = _bound("memory", ("memory.max", "memory.limit_in_bytes"), ("memory.current", "memory.usage_in_bytes"))
    usable = machine_probe.memory_bytes()
    if bound >= 0:
        usable = min(usable, max(0, bound - used))
    return r.MemoryReading(int(psutil.virtual_memory().total), usable, max(0, bound), machine_probe.torch_build())


def files() -> r.OpenFilesReading:
    """RLIMIT_NOFILE."""
    soft, hard = (_endless(n) for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    return r.OpenFilesReading(soft, hard)


def _endless(limit: int) -> int:
    return -1 if limit == resource.RLIM_INFINITY else limit


def processes() -> r.ProcessesReading:
    """RLIMIT_NPROC, which counts the user's threads and does not bind root, and the container's bound."""
    me = os.getuid()
    running = 0
    for process in psutil.process_iter(["uids", "num_threads"]):
        owner = process.info["uids"]
        running += process.info["num_threads"] or 1 if owner is not None and owner.real == me else 0
    limits = resource.getrlimit(resource.RLIMIT_NPROC)
    soft, hard = (_endless(n) if me != 0 else -1 for n in limits)
    bound, inside = _bound("pids", ("pids.max",), ("pids.current",))
    return r.ProcessesReading(soft, running, bound, inside, hard)


def data() -> r.DefaultDataReading:
    """Reads Python's own library, as the default run does."""
    found = stdlib_files()
    return r.DefaultDataReading(len(found), sum(len(text) for _, text in found))


def random() -> r.RandomReading:
    """Asks for bytes without waiting for them."""
    if not hasattr(os, "getrandom"):
        return r.RandomReading(len(os.urandom(16)) == 16)
    try:
        return r.RandomReading(len(os.getrandom(16, os.GRND_NONBLOCK)) == 16)
    except BlockingIOError:
        return r.RandomReading(False)


def sandbox() -> r.SandboxReading:
    """The tier that workers get, and each tier as it was tried."""
    refused = None
    try:
        chosen = sandbox_tiers.choose().name
    except FarflungError as error:
        chosen, refused = "", r.ProbeErrorReading(error.code, error.message, error.cause, error.hint)
    seen = [sandbox_tiers.try_tier(name) for name in order.ORDER]
    return r.SandboxReading(
        chosen, tuple(r.TierReading(one.tier, one.why, one.command) for one in seen), sandbox_tiers.VARIABLE, refused
    )
