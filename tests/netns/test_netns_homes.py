"""A run whose providers and verifiers are in simulated homes ends as it does on loopback, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from farflung.local.netlab import namespaces, why_not

pytestmark = [pytest.mark.netns, pytest.mark.timeout(400)]

LISTENS = "0A"
SERVERS = {"198.19.1.2": "ledger", "198.19.2.2": "relay", "198.19.3.2": "requester", "198.19.4.2": "relay-2"}
SAME = ("loss", "model_hash", "sum", "paid", "refunded", "rounds")  # of the ledger's root: homes pay relays

Event = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    if why := why_not():
        pytest.skip(why)


def spaces_of(pid: int) -> list[str]:
    return [path.name for path in namespaces.NAMESPACES.glob(f"{namespaces.PREFIX}-{pid}.*")]


@contextmanager
def started(runs: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A tiny run; whatever happens, nothing of it is left."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FARFLUNG_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "farflung.app.cli.main", "run", "--preset", "tiny", "--json", *words],
        env={**clean, "FARFLUNG_RUNS": str(runs), "FARFLUNG_LAN": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        namespaces.remove(spaces_of(process.pid))


def events_of(process: subprocess.Popen[str]) -> Iterator[Event]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def ended(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    said = process.stderr.read()
    process.wait(60)
    return said


class Look:
    """What the kernel says of a run's processes: in which namespace each is, who listens, who talks with whom."""

    def __init__(self) -> None:
        self.pids: dict[str, int] = {}
        self.spaces: dict[str, set[int]] = {}
        self.listeners: set[str] = set()
        self.talks: dict[str, set[str]] = {}

    def meet(self, event: Event) -> None:
        if event["event"] == "process" and event["role"] != "worker":
            name = event["name"]
            self.pids[name] = event["pid"]
            self.spaces.setdefault(name, set()).add(os.stat(f"/proc/{event['pid']}/ns/net").st_ino)

    def around(self) -> None:
        for name, pid in self.pids.items():
            with suppress(OSError):  # it has just ended
                rows = [row.split() for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
                self.listeners |= {name for row in rows if row[3] == LISTENS}
                there = {address(row[2]) for row in rows if row[3] != LISTENS}
                self.talks.setdefault(name, set()).update(there)


def address(text: str) -> str:
    """An address as the kernel's tables have it: hexadecimal, in the machine's byte order."""
    return socket.inet_ntoa(struct.pack("=I", int(text.split(":")[0], 16)))


def test_a_run_through_homes_ends_as_on_loopback_though_its_ledger_is_killed(tiny: Any, tmp_path: Path) -> None:
    plain = tiny[1].result
    look, told = Look(), []
    with started(tmp_path, "--lab") as process:
        for event in events_of(process):
            told.append(event)
            look.meet(event)
            if event["event"] in ("joined", "opened", "round", "settled"):  # at each event it would fall behind the run
                look.around()
            if event["event"] == "opened" and event["round"] == 0:
                os.kill(look.pids["ledger"], signal.SIGKILL)
        result = told[-1]
        assert result["event"] == "result", ended(process)
        ended(process)
        assert spaces_of(process.pid) == []
    assert {key: result[key] for key in SAME} == {key: plain[key] for key in SAME}
    earned = [event for event in told if event["event"] == "relay-paid"]
    assert len(earned) == 2
    assert sum(event["bytes"] for event in earned) > result["bytes_by"]["sync"]
    assert all(event["paid"] == event["bytes"] * event["price"] >> 30 for event in earned)

    (homes,) = [event for event in told if event["event"] == "housed"]
    assert homes["names"] == ["provider-0", "provider-1", "verifier-0"]
    assert homes["routers"] == ["symmetric", "symmetric", "port_restricted"]
    here = {os.stat("/proc/self/ns/net").st_ino}
    assert all(len(where) == 1 for where in look.spaces.values()), "who died came back elsewhere"
    assert len({frozenset(where) for where in [*look.spaces.values(), here]}) == 4 + 3 + 1
    assert [event["name"] for event in told if event["event"] == "restarted"] == ["ledger"]

    by = result["bytes_by"]
    assert by["relay"] > by["sync"] > 0, "two homes behind symmetric routers meet at the relay only"
    assert look.listeners == set(SERVERS.values()), "somebody listens in a home"
    for name in homes["names"]:
        talks = {SERVERS.get(there, there) for there in look.talks[name]}
        assert talks >= {"ledger", "relay", "relay-2"}, name
        others = talks - set(SERVERS.values())
        assert all(there.startswith("198.18.") for there in others), "only routers of other homes are tried"


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.soak), signal.SIGTERM])
def test_a_run_that_is_stopped_removes_its_homes(number: int, tmp_path: Path) -> None:
    with started(tmp_path, "--lab") as process:
        for event in events_of(process):
            if event["event"] == "process" and event["role"] == "relay":
                assert len(spaces_of(process.pid)) == 1 + 4 + 2 * 3
                os.kill(process.pid, number)
        assert "FF-APP-130" in ended(process)
        assert process.returncode == 130
        assert spaces_of(process.pid) == []


def test_a_run_that_fails_removes_its_homes(tmp_path: Path) -> None:
    with started(tmp_path, "--lab") as process:
        for event in events_of(process):
            if event["event"] == "process" and event["name"] == "ledger":
                os.kill(event["pid"], signal.SIGKILL)  # again and again: that ends a run
        said = ended(process)
        assert "FF-APP-025" in said or "FF-NET-043" in said  # who came first, the supervisor or a client
        assert process.returncode in (1, 3)
        assert spaces_of(process.pid) == []
