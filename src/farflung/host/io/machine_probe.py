"""Measures a machine and a process: what may be used here, how fast it is, what a process took."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import psutil

from farflung.core.errors import RunError
from farflung.host.worker_limits import THREAD_VARIABLES
from farflung.plan.machine import CPU_BUILD, GPU_BUILD, Capabilities, MachineMeasurements, TorchBuild

SIDE: Final = 384  # matrices of this side fit a core's cache and reach the library's full rate
BENCH_SECONDS: Final = 0.1
WINDOW: Final = 4  # products; of all windows the fastest counts
WINDOWS: Final = 16  # at least, in four times the seconds at most
CGROUP: Final = Path("/sys/fs/cgroup")
_VM: Final = re.compile(rb"^Vm(HWM|RSS):\s+(\d+) kB", re.MULTILINE)
_TICKS: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_ACCELERATOR: Final = re.compile(r"^(?:cuda|hip|rocm|xpu)\b[^=\n]*=\s*['\"]", re.MULTILINE)


def _cgroup(name: str) -> list[str]:
    try:
        return (CGROUP / name).read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return []


def cores() -> int:
    """Cores that this process may use: affinity mask and container quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup("cpu.max")
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
        allowed = min(allowed, math.ceil(int(quota[0]) / max(1, int(quota[1]))))
    return max(1, allowed)


def memory_bytes() -> int:
    """Memory that can be used now: available in the machine, and left in the container."""
    available = int(psutil.virtual_memory().available)
    bound, used = _cgroup("memory.max"), _cgroup("memory.current")
    if bound and used and bound[0].isdigit():
        available = min(available, max(0, int(bound[0]) - int(used[0])))
    return available


def disk_bytes(folder: Path) -> int:
    """Free bytes where `folder` lies; it, or a parent of it, exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def sgemm_flops(seconds: float = BENCH_SECONDS) -> float:
    """float32 FLOP/s of one core in NumPy's matrix product, per second of processor time.

    The fastest of some windows: what else runs here only slows a core down, and the market hires computers of similar
    speed. Measured with one thread: the threads of a library that wait for each other count as busy. Where this process
    was not started with one thread, a child is (0.3 s); raises RunError FF-HOST-002 when it fails.
    """
    if os.environ.get("OPENBLAS_NUM_THREADS") == "1":
        return _measure_sgemm(seconds)
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}
    command = [sys.executable, "-s", "-P", "-m", "farflung.host.io.machine_probe", repr(seconds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    try:
        return float(done.stdout)
    except ValueError:
        raise RunError(
            "FF-HOST-002",
            "this machine's speed cannot be measured",
            cause=done.stderr.strip()[-200:] or f"the benchmark ended with status {done.returncode}",
            hint="see that processes may be started here",
        ) from None


def _measure_sgemm(seconds: float) -> float:
    left = np.ones((SIDE, SIDE), np.float32)
    right, out = left.copy(), left.copy()
    np.matmul(left, right, out=out)
    began, best, count = time.perf_counter(), 0.0, 0
    while (passed := time.perf_counter() - began) < seconds or (count < WINDOWS and passed < 4 * seconds):
        start = time.process_time()
        for _ in range(WINDOW):
            np.matmul(left, right, out=out)
        best = max(best, 2.0 * SIDE**3 * WINDOW / max(1e-9, time.process_time() - start))
        count += 1
    return best


def machine() -> MachineMeasurements:
    """This machine as a plan assumes it."""
    return MachineMeasurements(
        cores=cores(), flops_per_core=sgemm_flops(), memory_bytes=memory_bytes(), torch=torch_build()
    )


@functools.cache
def torch_build() -> TorchBuild:
    """Which build of PyTorch is installed, by its own version.py, without loading it.

    Those for ROCm and XPU were not measured and count as those for CUDA.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return CPU_BUILD
    try:
        told = Path(found.origin).with_name("version.py").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return CPU_BUILD
    return GPU_BUILD if _ACCELERATOR.search(told) else CPU_BUILD


def _torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def capabilities(folder: Path, flops: int | None = None, threads: int = 1) -> Capabilities:
    """What a provider here declares of a slot that keeps its data in `folder`. `flops`: as it was measured before."""
    return Capabilities(
        cores=cores(),
        memory_bytes=memory_bytes(),
        disk_bytes=disk_bytes(folder),
        flops=int(sgemm_flops()) if flops is None else flops,
        threads=threads,
        system=platform.system(),
        machine=platform.machine(),
        torch=_torch_version(),
    )


def usage(pid: int) -> tuple[int, float]:
    """Peak resident bytes and processor seconds of process `pid`; zeros when it is gone."""
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return max(_peak_resident(pid), process.memory_info().rss), times.user + times.system
    except psutil.Error:
        return 0, 0.0


class ProcessUsage(NamedTuple):
    """What a process and those that it started take."""

    peak_bytes: int
    resident_bytes: int
    cpu_seconds: float


def use_of_tree(pid: int) -> ProcessUsage:
    """The sum over process `pid` and all below it, of those that are there; children that ended count as theirs."""
    read = _use_by_proc if sys.platform == "linux" else _use_by_psutil
    found = [use for one in [pid, *descendants(pid)] if (use := read(one)) is not None]
    peak, resident, seconds = (sum(values) for values in zip(*found, strict=True)) if found else (0, 0, 0.0)
    return ProcessUsage(int(peak), int(resident), float(seconds))


def _use_by_proc(pid: int) -> ProcessUsage | None:
    """A process by two files of /proc, in a third of psutil's time: an agent asks some times a second."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = file.read().rpartition(b")")[2].split()[11:15]  # utime, stime, cutime, cstime
        with open(f"/proc/{pid}/status", "rb") as file:
            sizes = dict(_VM.findall(file.read()))
    except OSError:
        return None
    now = 1024 * int(sizes.get(b"RSS", 0))
    return ProcessUsage(max(1024 * int(sizes.get(b"HWM", 0)), now), now, sum(map(int, ticks)) / _TICKS)


def _use_by_psutil(pid: int) -> ProcessUsage | None:
    try:
        process = psutil.Process(pid)
        times, now = process.cpu_times(), int(process.memory_info().rss)
    except psutil.Error:
        return None
    ended = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return ProcessUsage(now, now, times.user + times.system + ended)


def statuses_of_tree(pid: int) -> list[str]:
    """What /proc says of process `pid` and all below it, of those that are there."""
    found: list[str] = []
    for one in [pid, *descendants(pid)]:
        with suppress(OSError), open(f"/proc/{one}/status", encoding="utf-8", errors="replace") as file:
            found.append(file.read())
    return found


def descendants(pid: int) -> list[int]:
    """Numbers of all processes below `pid`, by /proc alone where the kernel lists them, else by a walk of all."""
    try:
        named = [Path(f"/proc/{pid}/task/{task}/children").read_bytes() for task in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        try:
            return [child.pid for child in psutil.Process(pid).children(recursive=True)]
        except psutil.Error:
            return []
    children = [int(number) for line in named for number in line.split()]
    return children + [below for child in children for below in descendants(child)]


def folder_use(folder: Path, most: int) -> tuple[int, int]:
    """Bytes on disk and number of entries below `folder`; stops counting after `most` entries."""
    held = entries = 0
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            entries += 1
            try:
                held += os.lstat(os.path.join(place, name)).st_blocks * 512
            except OSError:
                continue
        if entries > most:
            break
    return held, entries


def _peak_resident(pid: int) -> int:
    """VmHWM of /proc (Linux), 0 elsewhere: psutil knows the present size only."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    sys.stdout.write(repr(_measure_sgemm(float(sys.argv[1]))))
