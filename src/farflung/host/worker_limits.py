"""Defines the resource limits of a worker process, as data, and the environment variables it is given.

The kernel enforces the bounds, by setrlimit and, where there is one, by a control group: they hold before the
worker's first import. Processor seconds have no bound unless one is set, since a lease ends by time and not by
work. Alone this is the weakest sandbox tier: it stops accidents and floods, not a determined intruder; those that
close file system and network come on top of it (host.sandbox, docs/threats).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from farflung.core.limits import MIB

GIB: Final = 1 << 30
THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# Threads that wait for others sleep: they would keep a core busy on which another process of a run computes.
WAITING: Final = {"OMP_WAIT_POLICY": "passive"}
# glibc's thresholds as they are once a process has freed a block of 32 MiB. Until then it returns to the kernel, after
# each training step, what the next step takes again: 1,000 page faults a step of the default model, 6 % of its time;
# of a step by the job's graph, in a node, a quarter.
HEAP: Final = {"MALLOC_MMAP_THRESHOLD_": str(32 * MIB), "MALLOC_TRIM_THRESHOLD_": str(64 * MIB)}
KERNELS: Final = ("numpy", "numba", "auto")  # what FARFLUNG_KERNELS may say
CPU_PERIOD: Final = 100_000  # microseconds over which a control group's share of the processors is counted
MAPPED_BYTES: Final = GIB  # of a process' resident memory: torch's libraries, which are files and not data
LOG_BYTES: Final = 16 * MIB  # what its log may grow to: `file_bytes` bounds every file, this one too


class WorkerLimits(msgspec.Struct, frozen=True):
    """Bounds of one worker. `processes` counts all of the user's processes and threads, so it is wide; `threads`
    counts the worker's own, and `cores` its processors: both need a control group.
    """

    # RLIMIT_AS: reserved, not used; a GPU runtime maps far more than it touches.
    address_space: int = 64 * GIB
    data: int = 8 * GIB  # RLIMIT_DATA: private writable memory, which on Linux is heap and anonymous maps
    open_files: int = 256
    processes: int = 16384
    file_bytes: int = LOG_BYTES
    core_bytes: int = 0  # a memory image would put the tenant's weights on disk
    cpu_seconds: int = 0  # 0: no bound
    disk_bytes: int = 256 * MIB  # of scratch, which is memory where the tier can have it so
    state_bytes: int = 0  # of the file in which it holds what is as long as the weights (train.io.mapped_vectors)
    threads: int = 256
    cores: int = 1  # 0: no bound

    def arguments(self) -> tuple[str, ...]:
        """`NAME=VALUE` for `host.io.confine`, by the kernel's names."""
        # a second between soft and hard: SIGXCPU first, which says why; who ignores it is killed
        cpu = (f"RLIMIT_CPU={self.cpu_seconds}:{self.cpu_seconds + 1}",) if self.cpu_seconds else ()
        return (
            f"RLIMIT_AS={self.address_space}",
            f"RLIMIT_DATA={self.data}",
            f"RLIMIT_NOFILE={self.open_files}",
            f"RLIMIT_NPROC={self.processes}",
            f"RLIMIT_FSIZE={self.file_bytes}",
            f"RLIMIT_CORE={self.core_bytes}",
            *cpu,
        )


def limits_for(worker_bytes: int, cpu_seconds: int = 0, state_bytes: int = 0) -> WorkerLimits:
    """Limits for a worker that is planned to peak at `worker_bytes`: twice that, and 1 GiB.

    `cpu_seconds`: most processor time of its whole lease; 0: none.
    """
    return _with_data(2 * worker_bytes + GIB, cpu_seconds, state_bytes)


def unplanned_limits(usable: int, cpu_seconds: int = 0) -> WorkerLimits:
    """Limits for a process that nobody has planned: the machine's `usable` bytes, WorkerLimits' own at least."""
    return _with_data(max(usable, WorkerLimits().data), cpu_seconds)


def _with_data(data: int, cpu_seconds: int, state_bytes: int = 0) -> WorkerLimits:
    """What is reserved, and mostly not used, is no less than what may be used twice over, and the file is mapped."""
    space = max(WorkerLimits().address_space, 2 * data + state_bytes)
    return WorkerLimits(address_space=space, data=data, cpu_seconds=cpu_seconds, state_bytes=state_bytes)


def cpu_bound(parameters: int, tokens: int, flops: int) -> int:
    """Processor seconds after which training so many tokens is no training any more (V5).

    Ten minutes, fifty times 6 N operations a token (Kaplan et al. 2020, section 2.1) at the core's measured rate, and a
    fiftieth of a second a token for models that reuse their weights. Slowness is not punished: seconds that a worker
    waits do not count.
    """
    return 600 + 50 * (6 * parameters * tokens // max(1, flops)) + tokens // 50


CARDS: Final = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # products on CUDA cards have the same bits each time


def scrubbed(environment: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """The worker's whole environment. No word of `environment` passes (paths, tokens, proxies, names): two switches of
    ours are set to values that are known here.
    """
    fixed = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(scratch), "TMPDIR": str(scratch), **CARDS}
    switches = {"FARFLUNG_DEBUG": "1"} if environment.get("FARFLUNG_DEBUG") else {}
    if environment.get("FARFLUNG_KERNELS") in KERNELS:
        switches["FARFLUNG_KERNELS"] = environment["FARFLUNG_KERNELS"]
    return one_threaded({**fixed, "PYTHONHASHSEED": "0", **switches})


def one_threaded(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment whose process computes with one thread unless it asks for more, and keeps up to 64 MiB that it
    freed: a role's beside its workers.
    """
    return {**environment, **dict.fromkeys(THREAD_VARIABLES, "1"), **WAITING, **HEAP}
