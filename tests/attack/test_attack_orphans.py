"""A worker never outlives its agent: whatever ends the agent, and however far the worker's start has come."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from farflung.host import sandbox
from farflung.host.io import sandbox_tiers
from farflung.host.io.launch import PYTHON, launch
from farflung.host.worker_limits import WorkerLimits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker ends when its socket does")
STOPPED = -1.0  # the command is stopped as soon as it is there, and goes on when its agent is dead
MOMENTS = (0.0, 0.001, 0.002, 0.004, 0.006, 0.008, 0.012, 0.016, 0.024, 0.032, 0.05, 0.1)  # s after the start
BUSY = (*PYTHON, "-S", "-c", "while True: pass")

AGENTS = """
import json, os, signal, sys, time
from pathlib import Path
from farflung.host.io.launch import launch
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


def all_end(mark: str) -> None:
    deadline = time.monotonic() + 30
    while left := marked(mark):
        assert time.monotonic() < deadline, f"they live on: {left}"
        time.sleep(0.02)


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
