"""A hostile worker in each sandbox tier: what it tries from inside is stopped and told; what is not, its gaps tell."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from farflung.core.io.process_mark import own_mark
from farflung.host import exit_reason, sandbox
from farflung.host.io import launch, sandbox_tiers
from farflung.host.io.worker_process import PYTHON, WorkerProcess, start_worker
from farflung.host.sandbox import SandboxGap
from farflung.host.worker_limits import MIB, WorkerLimits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandbox tiers above `limits` need Linux")
SMALL = WorkerLimits(data=256 * MIB, disk_bytes=8 * MIB, file_bytes=4 * MIB, threads=24)
CLOSED = (sandbox.BWRAP, sandbox.LANDLOCK)

# Tries every way out and sends the names of those that worked. `world`: what the test planted outside.
INTRUDER = """
import ctypes, fcntl, json, os, socket, struct, sys
channel = socket.socket(fileno=int(sys.argv[2]))
world = json.loads(sys.argv[1])

def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(2)
        s.connect(address)

def fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)

def trace():
    if ctypes.CDLL(None, use_errno=True).ptrace(16, world["victim"], None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    ctypes.CDLL(None).ptrace(17, world["victim"], None, None)

def by_pipe():
    fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, world["victim"])

def by_pipe_too():
    fcntl.fcntl(os.pipe()[0], 15, struct.pack("ii", 1, world["victim"]))  # F_SETOWN_EX

def by_socket():
    fcntl.ioctl(channel, 0x8901, struct.pack("i", world["victim"]))  # FIOSETOWN

def interfaces():
    asked = bytearray(struct.pack("iiP", 0, 0, 0) + bytes(64))
    fcntl.ioctl(channel, 0x8912, asked)  # SIOCGIFCONF: of the network to which the socket belongs, which is the host's
    fcntl.ioctl(channel, 0x8927, bytearray(b"lo" + bytes(38)))  # SIOCGIFHWADDR

def watch():
    library = ctypes.CDLL(None, use_errno=True)
    if library.inotify_add_watch(library.inotify_init1(0), world["run"].encode(), 0xFFF) < 0:
        raise OSError(ctypes.get_errno(), "inotify")

def names():
    if not os.listdir(world["run"]):
        raise OSError

ways = {
    "inet": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close(),
    "dial": lambda: connect(socket.AF_INET, tuple(world["tcp"])),
    "listen": lambda: socket.create_server(("127.0.0.1", 0)).close(),
    "pair": lambda: [s.close() for s in socket.socketpair()],
    "unix": lambda: connect(socket.AF_UNIX, world["unix"]),
    "abstract": lambda: connect(socket.AF_UNIX, "\\0" + world["abstract"]),
    "read home": lambda: open(world["key"]).read(),
    "read run": lambda: open(world["run"] + "/weights").read(),
    "list run": names,
    "write": lambda: open(world["run"] + "/planted", "w").close(),
    "chmod": lambda: os.chmod(world["key"], 0o644),
    "stat": lambda: os.stat(world["key"]),
    "attributes": lambda: os.listxattr(world["key"]),
    "watch": watch,
    "interfaces": interfaces,
    "passwd": lambda: open("/etc/passwd").read(),
    "environ": lambda: open("/proc/%d/environ" % world["victim"]).read(),
    "fork": fork,
    "spawn": lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0),
    "signal": lambda: os.kill(world["victim"], 0),
    "signal by pipe": by_pipe,
    "signal by pipe too": by_pipe_too,
    "signal by socket": by_socket,
    "trace": trace,
}
found = []
for name, way in ways.items():
    try:
        way()
    except (OSError, IndexError):
        continue
    found.append(name)
channel.sendall(json.dumps(found).encode() + b"\\n")
channel.recv(1)
"""
SIGNALS = ("signal", "signal by pipe", "signal by pipe too", "signal by socket")
OPENED_BY = {
    SandboxGap.NETWORK: {"inet", "dial", "listen", "pair", "interfaces"},
    SandboxGap.UNIX_SOCKETS: {"unix", "abstract", "pair"},
    SandboxGap.FILES: {"read home", "read run", "list run", "write", "chmod", "stat", "passwd", "attributes", "watch"},
    SandboxGap.METADATA: {"stat"},
    SandboxGap.PROCESSES: {"fork", "spawn", "trace", "environ", *SIGNALS},
}


STARTED: list[WorkerProcess] = []


@pytest.fixture(autouse=True)
def _no_worker_is_left() -> Iterator[None]:
    yield
    while STARTED:
        STARTED.pop().terminate()


@pytest.fixture(params=sandbox.ORDER)
def tier(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if why := sandbox_tiers.probe(name):
        assert sandbox.remedy(name, why), why  # a wall that is missing is no reason to skip
        pytest.skip(f"tier {name} does not work here: {why}")
    return name


@pytest.fixture
def world(tmp_path: Path) -> Iterator[str]:
    """What a host has: a key in a home, another run, a process of the user, listeners on TCP and Unix sockets."""
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    (tmp_path / "other-run").mkdir()
    key, weights = tmp_path / "home" / ".ssh" / "id_ed25519", tmp_path / "other-run" / "weights"
    key.write_text("a key")
    key.chmod(0o600)
    weights.write_text("weights")
    abstract = f"farflung-attack-{os.getpid()}"
    victim = subprocess.Popen(["/bin/sleep", "60"])
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as hidden,
    ):
        unix.bind(str(tmp_path / "agent.sock"))
        hidden.bind("\0" + abstract)
        unix.listen()
        hidden.listen()
        yield json.dumps(
            {
                "key": str(key),
                "run": str(tmp_path / "other-run"),
                "unix": str(tmp_path / "agent.sock"),
                "abstract": abstract,
                "tcp": list(tcp.getsockname()),
                "victim": victim.pid,
            }
        )
    victim.kill()
    victim.wait()


def start(folder: Path, tier: str, code: str, *arguments: str, limits: WorkerLimits = SMALL) -> WorkerProcess:
    scratch, log = folder / "scratch", folder / "worker.log"
    worker = start_worker(scratch, log, limits, command=(*PYTHON, "-c", code, *arguments), tier=tier)
    STARTED.append(worker)
    return worker


def line(worker: WorkerProcess) -> str:
    with worker.socket.dup() as copy, copy.makefile("r") as file:
        return file.readline()


def escapes(folder: Path, tier: str, world: str) -> set[str]:
    worker = start(folder, tier, INTRUDER, world)
    said = line(worker)
    why = worker.terminate()
    assert said, why
    return set(json.loads(said))


@pytest.mark.guarantee
def test_what_gets_out_is_exactly_what_the_gaps_say(tmp_path: Path, tier: str, world: str) -> None:
    gaps = sandbox_tiers.try_tier(tier).tier.gaps
    said: set[str] = set().union(*(ways for gap, ways in OPENED_BY.items() if gap in gaps))
    # root's worker has no capabilities, and some kernels let nobody trace: then even the weakest tier stops these
    perhaps = {"trace", "environ"} & said
    assert said - perhaps <= escapes(tmp_path, tier, world) <= said
    if tier == sandbox.BWRAP:
        assert not said
    if tier == sandbox.LIMITS:
        assert said == set().union(*OPENED_BY.values())


@pytest.mark.parametrize(
    ("tier", "rule", "lost"),
    [
        (sandbox.BWRAP, "seccomp=", {"inet", "fork", "spawn", "pair"}),
        (sandbox.LANDLOCK, "seccomp=", {"inet", "unix", "fork", "spawn", "pair", "chmod"}),
        (sandbox.LANDLOCK, "write=", {"read home", "read run", "list run", "write", "passwd"}),
    ],
)
def test_each_rule_is_what_stops_them(
    tmp_path: Path, world: str, tier: str, rule: str, lost: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := sandbox_tiers.probe(tier):
        assert sandbox.remedy(tier, why), why  # a wall that is missing is no reason to skip
        pytest.skip(f"tier {tier} does not work here: {why}")
    whole = launch._items
    monkeypatch.setattr(launch, "_items", lambda *given: [item for item in whole(*given) if not item.startswith(rule)])
    assert escapes(tmp_path, tier, world) >= lost


def test_what_it_writes_is_on_the_hosts_disk_only_if_the_gaps_say_so(tmp_path: Path, tier: str) -> None:
    code = """
import os, socket, sys, tempfile
with tempfile.NamedTemporaryFile(delete=False) as file:
    file.write(b"plain")
open("state", "wb").write(b"plain")
channel = socket.socket(fileno=int(sys.argv[1]))
channel.sendall(b"written\\n")
channel.recv(1)
"""
    worker = start(tmp_path, tier, code)
    assert line(worker) == "written\n"
    lies_there = (tmp_path / "scratch" / "state").exists()
    worker.terminate()
    assert lies_there == (SandboxGap.DISK_CLEAR in worker.tier.gaps)
    left = [path for path in launch.MEMORY.glob(f"{launch.PREFIX}{own_mark()}-*") if path.is_dir()]
    assert left == []


def test_a_fork_bomb_is_refused_or_bounded_and_nothing_of_it_is_left(tmp_path: Path, tier: str) -> None:
    code = """
import os, signal, socket, sys
channel, children, why = socket.socket(fileno=int(sys.argv[1])), [], None
for _ in range(50):
    try:
        child = os.fork()
    except OSError as error:
        why = error
        break
    if child == 0:
        signal.pause()
    children.append(child)
channel.sendall(repr(children).encode() + b"\\n")
channel.recv(1)
if why is not None:
    raise why
"""
    gaps = sandbox_tiers.try_tier(tier).tier.gaps
    if SandboxGap.FORKS in gaps or (tier == sandbox.LIMITS and SandboxGap.THREADS in gaps):
        pytest.skip("no cgroup bounds processes here, as the gaps say: not tried")
    worker = start(tmp_path, tier, code)
    children = json.loads(line(worker))
    if tier in CLOSED:
        assert children == []
    else:
        assert 10 < len(children) < SMALL.threads
    worker.socket.sendall(b"x")
    assert worker.wait(100) == 1
    expected = exit_reason.REFUSED if tier in CLOSED else exit_reason.PROCESSES
    assert worker.reason().startswith(expected)
    for child in children:
        if psutil.pid_exists(child):
            assert psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_memory_hog_is_refused(tmp_path: Path, tier: str) -> None:
    code = "held = []\nwhile True: held.append(bytearray(16 << 20))"
    worker = start(tmp_path, tier, code)
    assert worker.wait(60) == 1
    assert worker.reason().startswith(f"{exit_reason.MEMORY}; exit status 1")


def test_a_hog_of_shared_memory_is_killed_by_its_group(tmp_path: Path, tier: str) -> None:
    if SandboxGap.SHARED_MEMORY in sandbox_tiers.try_tier(tier).tier.gaps:
        pytest.skip("no cgroup bounds memory here, as the gaps say: not tried")
    code = """
import mmap
held = mmap.mmap(-1, 600 << 20)
for at in range(0, len(held), 1 << 20):
    held[at : at + (1 << 20)] = bytes(1 << 20)
"""
    worker = start(tmp_path, tier, code)
    assert worker.wait(60) == -signal.SIGKILL
    assert worker.reason().startswith(f"{exit_reason.MEMORY} of 268 MB; SIGKILL")


def test_a_disk_filler_is_refused_or_noticed(tmp_path: Path, tier: str) -> None:
    code = """
import socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
for index in range(8):
    with open(f"filler-{index}", "wb") as file:
        file.write(bytes(3 << 20))
channel.sendall(b"24 MiB\\n")
channel.recv(1)
"""
    worker = start(tmp_path, tier, code)
    said = line(worker)
    if SandboxGap.DISK_WATCHED in worker.tier.gaps:
        assert said == "24 MiB\n"
        assert worker.over_limit().startswith(f"{exit_reason.DISK} of 8.39 MB")
        assert worker.terminate().startswith(exit_reason.DISK)
    else:
        assert said == ""
        assert worker.wait(100) == 1
        assert worker.over_limit() == ""
        assert worker.reason().startswith(f"{exit_reason.DISK}; exit status 1; its last words: OSError: [Errno 28]")


def test_one_large_file_is_refused(tmp_path: Path, tier: str) -> None:
    worker = start(tmp_path, tier, "open('large', 'wb').write(bytes(5 << 20))")
    assert worker.wait(100) == 1
    assert worker.reason().startswith(f"{exit_reason.DISK}; exit status 1; its last words: OSError: [Errno 27]")


@pytest.mark.whole
def test_an_endless_loop_ends_with_its_processor_time(tmp_path: Path, tier: str) -> None:
    worker = start(tmp_path, tier, "while True: pass", limits=WorkerLimits(cpu_seconds=1))
    assert worker.wait(100) == -signal.SIGXCPU
    assert worker.reason() == f"{exit_reason.PROCESSOR} of 1 s; SIGXCPU: over its processor time"


@pytest.mark.whole
def test_who_ignores_the_first_warning_is_killed_for_it(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    worker = start(tmp_path, sandbox_tiers.strongest().name, code, limits=WorkerLimits(cpu_seconds=1))
    while worker.is_running():  # as the provider does
        worker.usage()
        time.sleep(0.05)
    assert worker.reason() == (
        f"{exit_reason.PROCESSOR} of 1 s; SIGKILL: somebody, or the kernel for lack of memory, killed it"
    )


ASLEEP = """
import signal, socket, sys
held = bytearray(b"x") * (64 << 20)
socket.socket(fileno=int(sys.argv[1])).sendall(b"up\\n")
while True: signal.pause()
"""


def test_killing_its_pid_ends_the_worker_and_the_real_one_is_counted(tmp_path: Path, tier: str) -> None:
    worker = start(tmp_path, tier, ASLEEP)
    assert line(worker) == "up\n"
    assert worker.usage()["peak_bytes"] > 64 << 20
    assert worker.usage()["cpu_seconds"] > 0
    assert worker.over_limit() == ""
    os.kill(worker.pid, signal.SIGKILL)
    assert worker.socket.recv(1) == b""  # the last holder of the other end is gone
    assert worker.wait(100) == -signal.SIGKILL
    worker.socket.close()
