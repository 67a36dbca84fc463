"""A worker never outlives its agent: whatever ends the agent, and however far the worker's start has come."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from farflung.host import exit_reason, sandbox
from farflung.host.io import sandbox_tiers
from farflung.host.io.launch import PYTHON, launch
from farflung.host.io.worker_process import start_worker
from farflung.host.sandbox import SandboxGap
from farflung.host.worker_limits import WorkerLimits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker ends when its socket does")
STOPPED = -1.0  # the command is stopped as soon as it is there, and goes on when its agent is dead
MOMENTS = (0.0, 0.001, 0.002, 0.004, 0.006, 0.008, 0.012, 0.016, 0.024, 0.032, 0.05, 0.1)  # s after the start
BUSY = (*PYTHON, "-S", "-c", "while True: pass")

AGENTS = """
import json, os, signal, sys, time
from pathlib import Path
from farflung.host.io.launch import launch
from farflung.host.io.worker_process import start_worker
from farflung.host.sandbox import SandboxGap
from farflung.host.worker_limits import WorkerLimits

tier, folder, mark, command, moments = json.load(sys.stdin)
for moment in moments:
    if os.fork() == 0:
        log = os.open(os.devnull, os.O_WRONLY)
        started = launch(tier, [*command, mark], WorkerLimits(), Path(folder), os.environ, log=log)
        if moment < 0:
            os.kill(started.process.pid, signal.SIGSTOP)
        else:
            time.sleep(moment)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.wait()[1] == signal.SIGKILL
"""


# Does all it can to live on: no signal for its parent, no descriptor, no signal heeded, children where it may.
SURVIVOR = """
import ctypes, os, signal, socket, sys, threading, time
code, mark, channel = sys.argv[1:4]
if len(sys.argv) == 4:
    for option, value in ((1, 0), (36, 1), (4, 0)):  # PDEATHSIG, CHILD_SUBREAPER, DUMPABLE
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    # what a thread becomes by exec has no signal for its parent any more
    again = [sys.executable, "-S", "-c", code, code, mark, channel, "again"]
    threading.Thread(target=os.execv, args=(again[0], again)).start()
    time.sleep(600)
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
try:
    if os.fork() == 0:
        os.setsid()
except OSError:
    pass
try:
    os.write(int(channel), b"u")
    os.closerange(0, 4096)
finally:
    while True:
        time.sleep(600)
"""
# A grandchild in a session of its own, in the control groups of the agent.
PARTING = """
import os, signal, socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
try:
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        places = {}
        for line in open("/proc/self/mountinfo"):
            before, _, after = line.partition(" - ")
            kind, _, controllers = after.split()[:3]
            names = controllers.split(",") if kind == "cgroup" else [""] if kind == "cgroup2" else []
            places.update(dict.fromkeys(names, before.split()[4]))
        for line in open("/proc/self/cgroup"):
            _, names, path = line.strip().split(":", 2)
            if "/farflung-" in path:
                open(places[names.split(",")[0]] + os.path.dirname(path) + "/cgroup.procs", "w").write(str(os.getpid()))
        channel.sendall(b"%d\\n" % os.getpid())
        os.closerange(0, 4096)
except OSError as error:
    channel.sendall(b"0\\n")
while True:
    signal.pause()
"""
AGENT = """
import json, os, signal, sys
from pathlib import Path
from farflung.host.io import cgroup
from farflung.host.io.worker_process import PYTHON, start_worker
tier, folder, mark, code, is_grouped = json.load(sys.stdin)
if not is_grouped:
    cgroup.create = lambda limits: None
folder = Path(folder)
worker = start_worker(folder / "scratch", folder / "log", command=(*PYTHON, "-S", "-c", code, code, mark), tier=tier)
for _ in range(2 if tier == "limits" else 1):
    assert worker.socket.recv(1) == b"u", worker.terminate()
print(worker._started.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(params=sandbox.ORDER)
def tier(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if why := sandbox_tiers.probe(name):
        pytest.skip(f"tier {name} does not work here: {why}")
    return name


@pytest.fixture
def mark() -> Iterator[str]:
    """A word that stands in the command lines of this test's workers alone."""
    word = f"worker-of-{uuid.uuid4().hex}"
    yield word
    for process in marked(word):
        process.kill()


def marked(mark: str) -> list[psutil.Process]:
    """What lives of them."""
    assert len(mark) > 32
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def ends_with(is_so: Callable[[], bool], words: str) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline, words
        time.sleep(0.02)


def all_end(mark: str) -> None:
    ends_with(lambda: not marked(mark), "they live on")


@pytest.mark.slow
def test_a_worker_ends_when_its_agent_is_killed_in_any_moment_of_the_start(
    tmp_path: Path, tier: str, mark: str
) -> None:
    orders = [tier, str(tmp_path), mark, BUSY, [*MOMENTS, STOPPED, STOPPED]]
    subprocess.run([sys.executable, "-c", AGENTS], input=json.dumps(orders), text=True, check=True, timeout=300)
    for process in marked(mark):
        process.send_signal(signal.SIGCONT)
    all_end(mark)


@pytest.mark.slow
@pytest.mark.parametrize("grace", [0.0, 60.0])
def test_nothing_of_a_worker_is_left_when_it_is_ended_in_any_moment_of_its_start(
    tmp_path: Path, tier: str, mark: str, grace: float
) -> None:
    log = os.open(os.devnull, os.O_WRONLY)
    for moment in MOMENTS:
        started = launch(tier, [*BUSY, mark], WorkerLimits(), tmp_path, os.environ, log=log)
        time.sleep(moment)
        started.end(grace)
        started.discard()
    os.close(log)
    all_end(mark)


def test_a_worker_that_nobody_holds_any_more_ends(tmp_path: Path, tier: str, mark: str) -> None:
    log = os.open(os.devnull, os.O_WRONLY)
    started = launch(tier, [*BUSY, mark], WorkerLimits(), tmp_path, os.environ, log=log)
    os.close(log)
    started.death_pipe.cut()
    started.process.wait(60)
    started.discard()
    all_end(mark)


@pytest.mark.slow
@pytest.mark.parametrize("is_grouped", [True, False], ids=["with a control group", "without"])
def test_a_model_that_does_all_it_can_to_live_on_ends_with_its_agent(
    tmp_path: Path, tier: str, mark: str, is_grouped: bool
) -> None:
    orders = json.dumps([tier, str(tmp_path), mark, SURVIVOR, is_grouped])
    agent = subprocess.run([sys.executable, "-c", AGENT], input=orders, text=True, capture_output=True, timeout=300)
    assert agent.returncode == -signal.SIGKILL, agent.stderr
    all_end(mark)
    if tier == sandbox.LANDLOCK:
        ends_with(lambda: not os.path.exists(agent.stdout.strip()), "its memory folder is left")


def test_a_watchdog_that_is_ended_is_missed(tmp_path: Path, tier: str, mark: str) -> None:
    worker = start_worker(tmp_path / "scratch", tmp_path / "log", command=(*BUSY, mark), tier=tier)
    assert worker.over_limit() == ""
    worker._started.watchdog._process.kill()
    ends_with(lambda: worker.over_limit() == exit_reason.WATCHDOG, "the agent does not see it")
    assert worker.terminate(0).startswith(exit_reason.WATCHDOG)
    all_end(mark)


def test_children_live_on_exactly_where_the_gaps_say_so(tmp_path: Path, tier: str) -> None:
    """The weakest tier's: nothing there keeps a program from whatever its user can do."""
    worker = start_worker(tmp_path / "scratch", tmp_path / "log", command=(*PYTHON, "-S", "-c", PARTING), tier=tier)
    with worker.socket.dup() as copy, copy.makefile("r") as file:
        child = int(file.readline() or 0)
    assert (child != 0) is (SandboxGap.ORPHANS in worker.tier.gaps), worker.terminate()
    worker.terminate(0)
    if child:
        assert psutil.Process(child).status() != psutil.STATUS_ZOMBIE
        os.kill(child, signal.SIGKILL)
