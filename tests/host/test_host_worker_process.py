"""A worker runs confined: limits, environment, scratch and socket are as promised, and only it is ended."""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from pathlib import Path

import pytest

from farflung.core.errors import RunError
from farflung.host import sandbox
from farflung.host.io import machine_probe, sandbox_tiers, worker_process
from farflung.host.io.launch import has_landlock
from farflung.host.io.worker_process import PYTHON, WorkerProcess, start_worker, tail
from farflung.host.worker_limits import WorkerLimits

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own limits differ")

REPORT = """
import json, os, resource, signal, socket, stat, sys
s = socket.socket(fileno=int(sys.argv[1]))
names = ["RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_CORE"]
facts = {
    "limits": {n: resource.getrlimit(getattr(resource, n)) for n in names},
    "environment": dict(os.environ),
    "cwd": os.getcwd(),
    "hash": sys.flags.hash_randomization,
    "safe_path": sys.flags.safe_path,
    "user_site": sys.flags.no_user_site,
    "files": sorted(int(f) for f in os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else [],
    "sigint": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
    "fd": int(sys.argv[1]),
}
if sys.platform == "linux":
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
s.sendall(json.dumps(facts).encode() + b"\\n")
s.recv(1)
"""


@pytest.fixture(autouse=True, params=[name for name in sandbox.ORDER if not sandbox_tiers.probe(name)])
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each tier that works here; what is promised of a worker holds in all of them."""
    name: str = request.param
    monkeypatch.setenv(sandbox_tiers.VARIABLE, name)
    return name


def start(folder: Path, code: str, limits: WorkerLimits | None = None, **environment: str) -> WorkerProcess:
    return start_worker(
        folder / "scratch",
        folder / "worker.log",
        limits,
        environment={"PATH": os.environ["PATH"], **environment},
        command=(*PYTHON, "-c", code),
    )


def line(worker: WorkerProcess) -> bytes:
    with worker.socket.dup() as copy, copy.makefile("rb") as file:
        return file.readline()


def finish(worker: WorkerProcess) -> int:
    status = worker.wait(100)
    worker.socket.close()
    return status


GROWS = """
import json, mmap, os, socket, sys
s, states = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
size, told = os.fstat(states).st_size, {}
page = mmap.mmap(states, mmap.PAGESIZE, offset=size - mmap.PAGESIZE)
page[:4] = b"kept"
for name, grow in (
    ("ftruncate", lambda: os.ftruncate(states, size + 1)),
    ("fallocate", lambda: os.posix_fallocate(states, size, 4096)),
    ("pwrite", lambda: os.pwrite(states, b"more", size)),
):
    try:
        grow()
        told[name] = "done"
    except OSError as error:
        told[name] = error.strerror
told["size"], told["links"] = os.fstat(states).st_size, os.fstat(states).st_nlink
s.sendall(json.dumps(told).encode() + b"\\n")
s.recv(1)
"""


@LINUX
def test_a_workers_file_of_states_is_mapped_and_does_not_grow(tmp_path: Path) -> None:
    """Its length is all the disk that a stranger's model can take by it."""
    limits = WorkerLimits(state_bytes=64 << 20)
    worker = start(tmp_path, "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + GROWS, limits)
    told = json.loads(line(worker))
    worker.terminate()
    assert (told.pop("size"), told.pop("links")) == (64 << 20, 0)
    assert "done" not in told.values(), told


@LINUX
def test_limits_hold_and_nothing_of_the_agent_is_inherited(tmp_path: Path, tier: str) -> None:
    secret = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(secret, True)
    limits = WorkerLimits(data=1 << 30, open_files=64)
    worker = start(tmp_path, REPORT, limits, AWS_SECRET="s3cret", FARFLUNG_DEBUG="1", LD_PRELOAD_X="x")
    facts = json.loads(line(worker))
    os.close(secret)
    worker.terminate()
    for item in limits.arguments():
        name, _, value = item.partition("=")
        assert all(0 <= bound <= int(value) for bound in facts["limits"][name]), name
    assert facts["limits"]["RLIMIT_NOFILE"] == [64, 64]
    place = {"bwrap": "/scratch", "landlock": "/dev/shm/farflung-"}.get(tier, str(tmp_path.resolve()))
    given = facts["environment"]
    assert given.keys() <= {
        "PATH",
        "LANG",
        "HOME",
        "TMPDIR",
        "PYTHONHASHSEED",
        "FARFLUNG_DEBUG",
        "CUBLAS_WORKSPACE_CONFIG",
        "LC_CTYPE",
        "PWD",
    } | {
        "OMP_WAIT_POLICY",
        "MALLOC_MMAP_THRESHOLD_",
        "MALLOC_TRIM_THRESHOLD_",
        *(f"{name}_NUM_THREADS" for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")),
    }
    assert given["HOME"].startswith(place)
    assert {given["HOME"], given["TMPDIR"], facts["cwd"]} == {given["HOME"]}
    assert (facts["hash"], facts["safe_path"], facts["user_site"]) == (0, True, 1)
    assert facts["sigint"]
    death_pipe, opened_by_listing = 1, 1
    held = len(sandbox.OWN_FILES) if tier == "landlock" or (tier == "bwrap" and has_landlock()) else 0
    assert len(facts["files"]) == 3 + 1 + death_pipe + opened_by_listing + held
    assert facts["fd"] in facts["files"]


def test_scratch_is_its_owners_alone_even_if_it_was_open_before(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir(mode=0o755)
    worker = start(tmp_path, "pass")
    assert finish(worker) == 0
    assert stat.S_IMODE((tmp_path / "scratch").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "worker.log").stat().st_mode) == 0o600
    assert worker.reason() == "it ended by itself"


@LINUX
def test_the_log_cannot_grow_beyond_its_bound(tmp_path: Path) -> None:
    code = "import os\ntry:\n    while True: os.write(2, b'x' * 4096)\nexcept OSError: pass"
    worker = start(tmp_path, code, WorkerLimits(file_bytes=100_000))
    assert finish(worker) == 0
    assert (tmp_path / "worker.log").stat().st_size == 100_000


@LINUX
def test_memory_beyond_the_bound_is_refused_by_the_kernel(tmp_path: Path) -> None:
    worker = start(tmp_path, "b = bytearray(1 << 30)", WorkerLimits(data=256 << 20))
    assert finish(worker) == 1
    assert worker.reason() == "over its memory limit; exit status 1; its last words: MemoryError"


def test_terminate_ends_a_worker_that_ignores_sigterm(tmp_path: Path, tier: str) -> None:
    code = """
import signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
socket.socket(fileno=int(sys.argv[1])).sendall(b"up\\n")
while True: time.sleep(60)
"""
    worker = start(tmp_path, code)
    assert line(worker) == b"up\n"
    assert worker.is_running()
    assert worker.reason() == "it is running"
    # Bubblewrap heeds it, and the worker dies with it.
    signal_name = "SIGTERM" if tier == "bwrap" else "SIGKILL"
    assert worker.terminate(grace=0.05).startswith(signal_name)
    assert not worker.is_running()
    assert worker.terminate().startswith(signal_name)  # a second time does no harm


def test_a_worker_that_has_ended_is_never_signalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = start(tmp_path, "raise SystemExit(3)")
    assert worker.wait(100) == 3
    for name in ("kill", "killpg"):
        monkeypatch.setattr(os, name, lambda *_: pytest.fail("a pid that may be another's was signalled"))
    assert worker.terminate() == "exit status 3"


def test_closing_the_agents_end_reaches_the_worker(tmp_path: Path) -> None:
    worker = start(tmp_path, "import socket,sys; socket.socket(fileno=int(sys.argv[1])).recv(1)")
    assert worker.is_running()
    worker.socket.close()
    assert worker.wait(100) == 0


def test_a_worker_that_cannot_start_is_a_run_error(tmp_path: Path) -> None:
    (tmp_path / "scratch").write_text("a file")
    with pytest.raises(RunError) as error:
        start(tmp_path, "pass")
    assert error.value.code == "FF-HOST-001"


def test_usage_is_kept_after_the_end(tmp_path: Path) -> None:
    worker = start(tmp_path, REPORT)
    line(worker)
    worker.terminate()
    usage = worker.usage()
    assert usage["peak_bytes"] > 1_000_000
    assert usage["cpu_seconds"] > 0


def test_a_missing_log_has_no_tail(tmp_path: Path) -> None:
    assert tail(tmp_path / "none") == b""
    (tmp_path / "log").write_bytes(b"abcdef")
    assert tail(tmp_path / "log", 3) == b"def"


def test_one_look_at_a_worker_reads_its_processes_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reads: list[int] = []

    def read(pid: int) -> machine_probe.ProcessUsage:
        reads.append(pid)
        return machine_probe.ProcessUsage(1, 1, 1.0)

    monkeypatch.setattr(machine_probe, "use_of_tree", read)
    monkeypatch.setattr(worker_process, "FRESH_SECONDS", math.inf)
    worker = start_worker(
        tmp_path / "s", tmp_path / "log", WorkerLimits(cpu_seconds=9), command=("sleep", "9"), tier="limits"
    )
    try:
        assert (worker.over_limit(), worker.usage()["cpu_seconds"]) == ("", 1.0)
        assert reads == [worker.pid]
        monkeypatch.setattr(worker_process, "FRESH_SECONDS", -1.0)
        worker.usage()
        assert len(reads) == 2
    finally:
        worker.terminate(0)
