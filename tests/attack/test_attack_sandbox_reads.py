"""What a worker can read of the host: all of /proc and /sys, links, its environment, command lines and what calls say.

In each tier this is what the printed gaps name: nothing else is open, and what they name is. Names are those of the
real /proc and /sys, as a tier in which nothing can be listed still opens what it guesses.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farflung.host import sandbox
from farflung.host.io import launch, sandbox_tiers
from farflung.host.io.worker_process import PYTHON, start_worker
from farflung.host.sandbox import SandboxGap
from farflung.host.worker_limits import scrubbed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandbox tiers above `limits` need Linux")
BARE = "bwrap on a kernel without Landlock"
READS = frozenset(
    {
        SandboxGap.MACHINE,
        SandboxGap.PATHS,
        SandboxGap.NAMES,
        SandboxGap.SYSTEM_FILES,
        SandboxGap.METADATA,
        SandboxGap.FILES,
    }
)
USERS = "/home/somebody/.pyenv/bin"  # a folder that only the user's own PATH names
ENVIRONMENT = {"PATH": USERS, "LANG": USERS, "FARFLUNG_DEBUG": USERS, "FARFLUNG_KERNELS": USERS, "AWS_SECRET": USERS}
OPTIONS = r"--ro-bind-try\x00/usr\x00"  # of bubblewrap, as a command line holds them
MOST_NAMES = 3000  # of /sys, which has some 10^4 to 10^5 files, many of a kind

# Is told names to try and words that must not be seen; tells what it opened, where which word stood, what calls say.
READER = """
import ctypes, json, os, socket, sys, time
channel = socket.socket(fileno=int(sys.argv[1]))
names, words, lists = json.loads(channel.makefile("r").readline())
opened, links, seen = [], {}, []

def look(path):
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        return os.listdir(file) if os.path.isdir(path) else os.read(file, 1 << 16)
    finally:
        os.close(file)

for own in (os.getpid(), f"self/task/{os.getpid()}"):
    names += [name.replace("/proc/self/", f"/proc/{own}/") for name in names]
for root in ("/proc", "/sys") if lists else ():
    for folder, folders, files in os.walk(root):
        names += [f"{folder}/{name}" for name in (*files, *folders)]
for path in dict.fromkeys(names):
    text = ""
    try:
        text = links[path] = os.readlink(path)
    except OSError:
        pass
    try:
        text += str(look(path))
        opened.append(path)
    except (OSError, ValueError):
        pass
    seen += [(path, word) for word in words if word in text]
about = {
    "environment": dict(os.environ), "executable": sys.executable, "node": os.uname().nodename, "user": os.getuid(),
    "parent": os.getppid(), "self": os.getpid(), "up": time.clock_gettime(time.CLOCK_BOOTTIME), "links": links,
    "exists": os.path.exists(names[0]),
}
channel.sendall(json.dumps([opened, seen, about]).encode() + b"\\n")
channel.recv(1)
"""


@pytest.fixture(params=[*sandbox.ORDER, BARE])
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, frozenset[str]]:
    """A tier's name, and what it says that it leaves open."""
    name = sandbox.BWRAP if request.param == BARE else request.param
    if why := sandbox_tiers.probe(name):
        assert sandbox.remedy(name, why), why  # a wall that is missing is no reason to skip
        pytest.skip(f"tier {name} does not work here: {why}")
    facts = sandbox_tiers.sandbox_support()
    if request.param == BARE:
        monkeypatch.setattr(launch, "has_landlock", lambda: False)
        facts = msgspec.structs.replace(facts, has_landlock=False)
    return name, frozenset(sandbox.tier(name, facts).gaps)


def host_names(run: Path) -> Iterator[str]:
    """What lies in a run, and files of the real /proc (of the whole machine, and of some processes) and /sys."""
    yield from (f"{run}/weights", f"{run}/link")
    for process in ("self", "thread-self", "1", "2", str(os.getpid()), str(os.getppid())):
        for part in (*os.listdir("/proc/self"), *(f"net/{name}" for name in os.listdir("/proc/self/net"))):
            yield f"/proc/{process}/{part}"
    for folder, folders, files in os.walk("/proc"):
        folders[:] = [name for name in folders if not name.isdigit() and name not in ("self", "thread-self")]
        yield from (f"{folder}/{name}" for name in (*files, *folders))
    for place in sandbox.PROCESSORS:
        yield from (f"{folder}/{name}" for folder, _, files in os.walk(place) for name in files[:20])
    count = 0
    for folder, folders, files in os.walk("/sys"):
        folders.sort(key=lambda name: name in ("devices", "module"))
        yield from (f"{folder}/{name}" for name in (*files[:20], *folders))
        if (count := count + len(files[:20])) > MOST_NAMES:
            return


def read_by(folder: Path, tier: str) -> tuple[list[str], list[list[str]], dict[str, Any]]:
    """What a worker opened, where which of the host's words stood, and what calls told it."""
    run = folder / "run"
    run.mkdir()
    (run / "weights").write_text("weights")
    (run / "link").symlink_to("elsewhere")
    # what the weakest tier leaves open needs no search, and not every file there is harmless to open
    few = [f"{run}/weights", "/proc/cpuinfo", "/proc/loadavg", "/proc/self/status", f"/proc/{os.getpid()}/cmdline"]
    names, lists = (few, False) if tier == sandbox.LIMITS else (list(host_names(run)), True)
    worker = start_worker(
        folder / "scratch", folder / "worker.log", environment=ENVIRONMENT, command=(*PYTHON, "-c", READER), tier=tier
    )
    try:
        with worker.socket.dup() as copy, copy.makefile("rw") as file:
            file.write(json.dumps([names, [str(folder / "worker.log"), USERS, OPTIONS], lists]) + "\n")
            file.flush()
            said = file.readline()
    finally:
        worker.terminate()
    assert said, worker.reason()
    opened, seen, about = json.loads(said)
    return opened, seen, about


def gap_of(path: str, own: str) -> SandboxGap | None:
    """The gap that names what lies at `path`; None for a file in which a process reads of itself."""
    if path in (f"{own}/{Path(name).name}" for own in ("/proc/self", own) for name in sandbox.OWN_FILES):
        return None
    if path in sandbox.PROC_FILES or any((path + "/").startswith(f"{folder}/") for folder in sandbox.PROCESSORS):
        return SandboxGap.MACHINE
    return SandboxGap.SYSTEM_FILES if path.startswith(("/proc/", "/sys/")) else SandboxGap.FILES


@pytest.mark.guarantee
def test_what_can_be_read_of_the_host_is_exactly_what_the_gaps_name(
    tmp_path: Path, case: tuple[str, frozenset[str]]
) -> None:
    tier, gaps = case
    opened, seen, about = read_by(tmp_path, tier)
    own = f"/proc/{about['self']}"
    home, by_gap = about["environment"]["HOME"], dict[SandboxGap, list[str]]()
    mine = (home, str(Path(sys.executable).resolve()))
    for path in opened:
        if about["links"].get(path) not in mine and (gap := gap_of(path, own)) is not None:
            by_gap.setdefault(gap, []).append(path)
    assert {f"{own}/status", "/proc/self/status"} & set(opened), "a worker reads of itself"
    found = {gap: paths[:9] for gap, paths in by_gap.items()}
    if about["exists"] and SandboxGap.FILES not in gaps:  # more than that is said where all files are open
        found[SandboxGap.METADATA] = [about["links"].get(f"{tmp_path}/run/link")]
        assert found[SandboxGap.METADATA] == ["elsewhere"]
    if (about["node"], about["user"], about["parent"]) == (platform.node(), os.getuid(), os.getpid()):
        found[SandboxGap.NAMES] = [about["node"]]
    else:
        assert about["node"] == "worker"
        assert (about["user"], about["parent"]) == (int(sandbox.NOBODY), 1)
    if about["up"] > 0:
        found.setdefault(SandboxGap.MACHINE, [])
    if about["executable"] == sys.executable:
        found[SandboxGap.PATHS] = [about["executable"]]
    assert set(found) == READS & gaps, found
    assert seen == [], "a command line, link or file tells the host's folders"
    given = {name: value for name, value in about["environment"].items() if name != "PWD"}
    assert given == scrubbed({"FARFLUNG_DEBUG": "1"}, Path(home))
    assert USERS not in str(about)


@pytest.mark.parametrize("tier", [sandbox.BWRAP, sandbox.LANDLOCK])
def test_a_folder_of_proc_that_is_opened_again_is_seen(
    tmp_path: Path, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walk above finds what it is to find."""
    if sandbox_tiers.probe(tier) or not launch.has_landlock():
        pytest.skip(f"tier {tier} does not work here: {sandbox_tiers.probe(tier)}, or there is no Landlock")
    monkeypatch.setattr(sandbox, "OWN_FILES", ("/proc/self",))
    opened, _, _ = read_by(tmp_path, tier)
    assert {"/proc/self/net/unix", "/proc/self/mountinfo", "/proc/self/cgroup"} <= set(opened)
