"""The three commands of an open network, each a process with a state folder of its own: open, lend, run --on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_ports

pytestmark = pytest.mark.whole


class Person:
    """Somebody's computer: commands typed there, and what they print, a JSON object a line."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def types(self, *words: str) -> subprocess.Popen[str]:
        variables = {"XDG_CONFIG_HOME": str(self._folder / "c"), "XDG_STATE_HOME": str(self._folder / "s")}
        command = [sys.executable, "-m", "farflung.app.cli.main", *words, "--json"]
        environment = {**os.environ, **variables}
        begun = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=self._folder)
        self._started.append(begun)
        return begun

    def end(self) -> None:
        for each in self._started:
            if each.poll() is None:
                each.kill()
            each.wait()
            assert each.stdout is not None
            each.stdout.close()


@pytest.fixture
def people(tmp_path: Path) -> Iterator[dict[str, Person]]:
    names = ("operator", "lender", "second", "verifier", "requester")
    for name in names:
        (tmp_path / name).mkdir()
    found = {name: Person(tmp_path / name) for name in names}
    yield found
    for person in found.values():
        person.end()


def heard(process: subprocess.Popen[str], kind: str) -> dict[str, Any]:
    """The next line of that kind."""
    assert process.stdout is not None
    for line in process.stdout:
        said: dict[str, Any] = json.loads(line)
        if said.get("kind") == kind:
            return said
    raise AssertionError(f"it ended without {kind}")


def test_one_opens_three_lend_and_a_fifth_runs_a_job_on_them(people: dict[str, Person]) -> None:
    opened = people["operator"].types("network", "open", "net", "--port", str(free_ports(2)))
    assert opened.stdout is not None
    invitation = json.loads(opened.stdout.readline())["invitation"]
    lent = {
        name: people[name].types("lend", invitation, "--cores", "1", *flags)
        for name, flags in {"lender": (), "second": (), "verifier": ("--audit",)}.items()
    }
    for each in lent.values():
        heard(each, "waiting")
    run = people["requester"].types("run", "--preset", "tiny", "--on", invitation, "--yes", "--out", "run")
    reading = threading.Thread(target=run.communicate)
    reading.start()
    paid = {name: heard(each, "paid")["paid"] for name, each in lent.items()}
    reading.join()
    assert run.returncode == 0
    assert (paid["lender"], paid["second"]) == (576, 576)
    assert paid["verifier"] in (256, 320, 384)  # four audits of 64 tokens at least; the rest is drawn
    for each in lent.values():
        each.send_signal(signal.SIGTERM)
        assert each.wait() == 0
