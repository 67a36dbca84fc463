"""The three commands of an open network, each a process with a state folder of its own: open, lend, run --on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_ports

from farflung.core.money import MICRO, parse_credits
from farflung.ledger import genesis_file
from farflung.ledger.block import read_block
from farflung.ledger.earnings_tally import JobAttest
from farflung.ledger.transactions import JobSettle
from farflung.peers.rundir.export import read_export
from farflung.peers.rundir.folder import RunFolder

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("open network"), pytest.mark.timeout(300)]  # one, for all
TWO = ("--set", "network.verifiers=2")


class Person:
    """Somebody's computer: commands typed there, and what they print, a JSON object a line."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def types(self, *words: str) -> subprocess.Popen[str]:
        variables = {"XDG_CONFIG_HOME": str(self._folder / "c"), "XDG_STATE_HOME": str(self._folder / "s")}
        command = [sys.executable, "-m", "farflung.app.cli.main", *words, "--json"]
        environment = {**os.environ, **variables}
        with (self._folder / "errors").open("a") as errors:
            begun = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                cwd=self._folder,
                start_new_session=True,
            )
        self._started.append(begun)
        return begun

    @property
    def errors(self) -> str:
        """What all of it said beside its output."""
        return (self._folder / "errors").read_text()

    def copy(self, folder: str, to: str) -> None:
        shutil.copytree(self._folder / folder, self._folder / to, symlinks=True)

    def end(self) -> None:
        for each in self._started:
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()
            assert each.stdout is not None
            each.stdout.close()


def heard(process: subprocess.Popen[str], kind: str, key: str = "kind") -> dict[str, Any]:
    """The next line of that kind."""
    assert process.stdout is not None
    for line in process.stdout:
        said: dict[str, Any] = json.loads(line)
        if said.get(key) == kind:
            return said
    raise AssertionError(f"it ended without {kind}")


@dataclass(frozen=True)
class OpenNetwork:
    """A network of four who lend, its invitation, and two who run jobs there."""

    folder: Path
    people: dict[str, Person]
    invitation: str
    lent: dict[str, subprocess.Popen[str]]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenNetwork]:
    folder, people = tmp_path_factory.mktemp("open"), dict[str, Person]()
    for name in ("operator", "lender", "second", "verifier", "checker", "requester", "twice"):
        (folder / name).mkdir()
        people[name] = Person(folder / name)
    try:
        yield _lending(folder, people)
    finally:
        for person in people.values():
            person.end()


def _lending(folder: Path, people: dict[str, Person]) -> OpenNetwork:
    opened = people["operator"].types("network", "open", "net", "--port", str(free_ports(2)))
    assert opened.stdout is not None
    invitation = json.loads(opened.stdout.readline())["invitation"]
    lent = {
        name: people[name].types("lend", invitation, "--cores", "1", *flags)
        for name, flags in {"lender": (), "second": (), "verifier": ("--audit",), "checker": ("--audit",)}.items()
    }
    for each in lent.values():
        heard(each, "waiting")
    return OpenNetwork(folder, people, invitation, lent)


def test_one_opens_four_lend_and_a_sixth_runs_a_job_on_them(network: OpenNetwork) -> None:
    """The law leaves ten minutes for claims; two verifiers of other owners attest the end, so nobody waits for them."""
    people, invitation, lent = network.people, network.invitation, network.lent
    run = people["requester"].types("run", "--preset", "tiny", *TWO, "--on", invitation, "--yes", "--out", "run")
    reading = threading.Thread(target=run.communicate)
    reading.start()
    paid = {name: heard(lent[name], "paid")["paid"] for name in ("lender", "second")}
    sent = [heard(lent[name], "sent")["amount"] for name in ("lender", "second")]
    reading.join()
    assert run.returncode == 0
    assert all(0 < amount <= 576 * MICRO for amount in sent)  # to the lender's account, but for fees
    assert paid == {"lender": 576 * MICRO, "second": 576 * MICRO}
    folder = network.folder / "requester" / "run"
    result = json.loads((folder / "events.jsonl").read_text().splitlines()[-1])
    assert result["paid"] // MICRO - 2 * 576 in (256, 320, 384)  # four audits of 64 tokens at least; the rest is drawn
    exported = read_export(RunFolder(folder))
    assert genesis_file.read(exported.genesis).params.window_ms == 600_000
    ops = [op for block in exported.blocks for signed in read_block(block).txs for op in signed.tx.ops]
    (attested,) = [op for op in ops if isinstance(op, JobAttest)]
    assert len({mark.signer for mark in attested.marks}) == 2
    assert isinstance(ops[ops.index(attested) + 1], JobSettle)
    published = people["requester"].types("publish", "run", "--name", "tiny", "--licence", "MIT")
    assert published.stdout is not None
    root = json.loads(published.stdout.readline())["root"]
    words = ("--on", invitation, "--yes", "--out", "again", "--set", "model.start=net:tiny", "--rounds", "1")
    second = people["requester"].types("run", "--preset", "tiny", *TWO, *words)
    second.communicate()
    assert second.returncode == 0
    journal = [json.loads(line) for line in (folder.parent / "again" / "events.jsonl").read_text().splitlines()]
    assert next(said["root"] for said in journal if said["event"] == "stands-on") == root
    assert {heard(lent[name], "paid")["paid"] for name in ("lender", "second")} == {192 * MICRO}
    (told,) = re.findall(r"Price    about ([0-9.]+) credits", people["requester"].errors)[1:]
    assert (
        abs(journal[-1]["paid"] - parse_credits(told)) <= parse_credits(told) / 100
    )  # one round: all of it is audited
    taken = people["requester"].types("publish", "--withdraw", "tiny")
    assert taken.stdout is not None
    assert json.loads(taken.stdout.readline())["withdrawn"] == "tiny"
    again = people["requester"].types("run", "--preset", "tiny", *words[:-1], "1", "--out", "none")
    again.communicate()
    assert again.returncode != 0
    assert "FF-APP-641" in people["requester"].errors


def test_of_two_live_copies_of_a_run_the_one_resumed_later_ends_it_and_nobody_is_slashed(network: OpenNetwork) -> None:
    """The other runs of the network are over: its four lenders take this one, and end when they are told to."""
    person, lent = network.people["twice"], network.lent
    words = ("--preset", "tiny", *TWO, "--rounds", "12", "--on", network.invitation, "--yes", "--out", "run")
    first = person.types("run", *words)
    for _ in range(2):
        heard(first, "round", "event")
    os.killpg(first.pid, signal.SIGSTOP)
    person.copy("run", "copy")
    copy = person.types("resume", "copy")
    heard(copy, "round", "event")
    os.killpg(first.pid, signal.SIGCONT)
    said, _ = first.communicate()
    assert first.returncode not in (0, None)
    assert "another process of" in person.errors
    assert "FF-APP-605" in person.errors or "FF-APP-604" in person.errors
    events = [json.loads(line) for line in copy.communicate()[0].splitlines() + said.splitlines()]
    assert copy.returncode == 0
    assert not [each for each in events if each.get("event") in ("caught", "perjury")]
    assert events
    for name in ("lender", "second"):
        assert heard(lent[name], "paid")["paid"] == 12 * 192 * MICRO
    for each in lent.values():
        each.send_signal(signal.SIGTERM)
        assert each.wait() == 0
