"""A host into whose worker somebody reaches: its own watch sees it, and the node says so on the ledger."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest

from farflung.core import limits
from farflung.core.errors import NetworkError
from farflung.core.file_header import value_of
from farflung.core.ids import Hash, PeerId
from farflung.host import sandbox
from farflung.host.io.code_digest import image_digest
from farflung.host.io.worker_process import PYTHON, WorkerProcess, start_worker
from farflung.host.tamper_signs import CHANGED, PRIVILEGED, TRACED, UNFILTERED, TamperReport, signs_in, tampering_hash
from farflung.ledger.exclusions import HostTampered
from farflung.ledger.transactions import Op
from farflung.market.provider_offer import Capabilities
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.node import tamper_watch
from farflung.peers.node.tamper_watch import FORM, TamperWatch
from farflung.peers.process.channel import LogChannel

CHAIN, JOB, NODE = Hash(b"c" * 32), Hash(b"j" * 32), PeerId(b"n" * 32)
FACTS = Capabilities(2, 1 << 30, 1 << 30, 10**9, 1, "Linux", "x86_64", "2.13.0")
SLEEPS = (*PYTHON, "-c", "import time; time.sleep(60)")
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc and ptrace are Linux'")


def status(tracer: int = 0, privileges: int = 1, seccomp: int = 2, name: str = "python", state: str = "S") -> str:
    head = f"Name:\t{name}\nState:\t{state} (some words)\n"
    return f"{head}TracerPid:\t{tracer}\nNoNewPrivs:\t{privileges}\nSeccomp:\t{seccomp}\n"


# What is a sign


def test_a_worker_within_its_walls_gives_no_sign():
    """bubblewrap, its child and a worker; a kernel that does not tell is no sign either."""
    bwrap = status(seccomp=0, name="bwrap")
    assert signs_in(sandbox.BWRAP, [bwrap, bwrap, status()]) == ()
    assert signs_in(sandbox.BWRAP, [bwrap, bwrap]) == (), "its worker has just ended"
    assert signs_in(sandbox.BWRAP, [bwrap, status(0, 0, 0, state="Z")]) == ()
    assert signs_in(sandbox.LANDLOCK, [status()]) == ()
    assert signs_in(sandbox.LIMITS, [status(privileges=0, seccomp=0)]) == ()
    assert signs_in(sandbox.LANDLOCK, ["Name:\tpython\n"]) == ()
    assert signs_in(sandbox.BWRAP, []) == (), "a worker that is gone is told of otherwise"


@pytest.mark.parametrize("tier", sandbox.ORDER)
def test_a_tracer_anywhere_below_is_a_sign_in_every_tier(tier: str):
    assert signs_in(tier, [status(), status(tracer=7)]) == (TRACED,)


@pytest.mark.parametrize("tier", [sandbox.BWRAP, sandbox.LANDLOCK])
def test_a_wall_that_is_gone_is_a_sign(tier: str):
    assert signs_in(tier, [status(seccomp=0)]) == (UNFILTERED,)
    assert signs_in(tier, [status(), status(seccomp=0)]) == (UNFILTERED,)
    assert signs_in(tier, [status(privileges=0)]) == (PRIVILEGED,)
    assert signs_in(tier, [status(9, 0, 0)]) == (TRACED, PRIVILEGED, UNFILTERED)


# A real worker


def trace(pid: int) -> subprocess.Popen[bytes]:
    """A process that traces `pid` until its standard input is closed; skips where the kernel lets nobody."""
    program = (
        "import ctypes,sys;c=ctypes.CDLL(None,use_errno=True);"
        f"r=c.ptrace({PTRACE_SEIZE},{pid},None,None);print(r,flush=True);sys.stdin.read()"
    )
    tracer = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert tracer.stdout is not None
    if tracer.stdout.readline().strip() != b"0":
        tracer.communicate()
        pytest.skip("this kernel lets nobody trace")
    return tracer


@linux
def test_who_attaches_to_a_worker_is_seen_while_it_is_attached(tmp_path: Path):
    worker = start_worker(tmp_path / "scratch", tmp_path / "log", command=SLEEPS, tier=sandbox.LIMITS)
    try:
        assert worker.tampering() == ()
        tracer = trace(worker.pid)
        assert worker.tampering() == (TRACED,)
        tracer.communicate()
        assert worker.tampering() == ()
    finally:
        worker.terminate()


@linux
def test_the_strongest_sandbox_of_this_machine_stands_around_a_worker_that_works(tmp_path: Path):
    """No sign once it is up: a watch that cried at honest hosts would exclude them."""
    worker = start_worker(tmp_path / "scratch", tmp_path / "log", command=SLEEPS)
    try:
        for _ in range(200):
            if worker.tampering() == ():
                break
            time.sleep(0.05)
        assert worker.tampering() == ()
    finally:
        worker.terminate()


# What the node does then


class Quiet:
    """A worker around which all stands, unless told otherwise."""

    def __init__(self, signs: tuple[str, ...] = ()) -> None:
        self.signs = signs

    tier = sandbox.tier(sandbox.LIMITS, sandbox.SandboxSupport(False, frozenset(), True, True))

    def tampering(self) -> tuple[str, ...]:
        return self.signs


class Ledger:
    """Takes down what is submitted, or is away."""

    def __init__(self, *, is_away: bool = False) -> None:
        self.submitted: list[Op] = []
        self.is_away = is_away

    async def submit(self, op: Op) -> None:
        if self.is_away:
            raise NetworkError("FF-NET-001", "nobody answers")
        self.submitted.append(op)


def told(folder: Path, ledger: Ledger) -> TamperReport:
    async def work() -> None:
        watch = TamperWatch(folder, CHAIN, NODE, LogChannel())
        watch.follow(cast(LedgerClient, ledger))
        traced = cast(WorkerProcess, Quiet((TRACED,)))
        watch.attest(JOB, FACTS, traced)
        assert [watch.look("provider 1", JOB, traced) for _ in range(3)] == [True] * 3
        await asyncio.sleep(0)
        await watch.close()

    asyncio.run(work())
    (kept,) = folder.glob("tampering-*.bin")
    return value_of(FORM, kept.read_bytes(), TamperReport, limits.CONTROL_BYTES)


def test_the_ledger_hears_the_hash_of_the_report_that_the_node_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    ledger = Ledger()
    said = told(tmp_path, ledger)
    assert (said.chain, said.job, said.node, said.signs) == (CHAIN, JOB, NODE, (TRACED,))
    assert ledger.submitted == [HostTampered(JOB, tampering_hash(said))]
    assert "FF-APP-372" in capsys.readouterr().err


def test_a_ledger_that_is_away_is_told_of_and_the_report_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert told(tmp_path, Ledger(is_away=True)).signs == (TRACED,)
    assert "FF-NET-001" in capsys.readouterr().err


def test_code_that_changes_under_a_lease_is_told_of_once_and_ends_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The worker has loaded its own; it is the next one that would be another."""
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "inner" / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(tamper_watch, "image_digest", lambda: image_digest(package))
    monkeypatch.setattr(tamper_watch, "IMAGE_SECONDS", 0.0)
    watch, worker = TamperWatch(tmp_path, CHAIN, NODE, LogChannel()), cast(WorkerProcess, Quiet())
    first = watch.attest(JOB, FACTS, worker)
    assert (first.image, first.sandbox) == (image_digest(package), sandbox.LIMITS)
    assert not watch.look("provider 1", JOB, worker)
    (package / "inner" / "a.pyc").write_bytes(b"written by Python itself")
    assert not watch.look("provider 1", JOB, worker)
    assert not list(tmp_path.glob("tampering-*"))
    (package / "inner" / "a.py").write_text("x = 2\n")
    assert not any(watch.look("provider 1", JOB, worker) for _ in range(3))
    assert capsys.readouterr().err.count(CHANGED) == 1
    (kept,) = tmp_path.glob("tampering-*.bin")
    said = value_of(FORM, kept.read_bytes(), TamperReport, limits.CONTROL_BYTES)
    assert (said.began, said.now, said.signs) == (first.image, image_digest(package), (CHANGED,))
    assert watch.attest(JOB, FACTS, worker).image == first.image, "the same lease began with the same code"
    assert watch.attest(Hash(b"k" * 32), FACTS, worker).image == said.now


def test_a_file_that_moves_or_is_added_changes_the_image(tmp_path: Path):
    (tmp_path / "a.py").write_text("x = 1\n")
    before = image_digest(tmp_path)
    (tmp_path / "b.py").write_text("")
    added = image_digest(tmp_path)
    (tmp_path / "b.py").unlink()
    assert image_digest(tmp_path) == before
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    assert len({before, added, image_digest(tmp_path)}) == 3
