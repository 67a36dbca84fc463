"""A ledger of one's own: made, run by four processes, looked at, joined and left, with errors that help."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from free_ports import free_ports

from farflung.app.cli.account import account
from farflung.app.cli.ledger import ledger
from farflung.app.cli.ledger_motion import _amended
from farflung.core import limits
from farflung.core.crypto import SigningKey
from farflung.core.errors import RunError, UsageError
from farflung.core.money import CREDIT
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.params import LedgerParams
from farflung.net.counters import ByteCounter
from farflung.peers.validator.bootstrap import begin
from farflung.peers.validator.config import read_config
from farflung.peers.validator.service import ValidatorService


def ask(*words: str) -> Result:
    return CliRunner().invoke(ledger, list(words), catch_exceptions=True)


def pay(config: str, to: str, amount: str, key: str) -> Result:
    return CliRunner().invoke(account, ["pay", to, amount, "--on", config, "--key", key, "--json"])


def test_a_new_ledger_has_a_key_and_a_configuration_for_each_validator(tmp_path: Path) -> None:
    said = ask("init", str(tmp_path / "l"), "--validators", "4", "--json")
    facts = json.loads(said.output)
    read = [read_config(tmp_path / "l" / f"validator-{i}" / "validator.toml") for i in (1, 2, 3, 4)]
    assert [setting.key.public.hex() for _, setting, _ in read] == facts["validators"]
    assert {setting.genesis.chain.hex() for _, setting, _ in read} == {facts["chain"]}
    assert [len(places) for _, _, places in read] == [3] * 4
    assert (tmp_path / "l" / "treasury.key").stat().st_mode & 0o077 == 0


def by(owner: str) -> tuple[str, ...]:
    return "--owner", owner, "--json"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("motion", "vote", "--on", "{config}", "abc"), "FF-APP-315"),
        (("motion", "admit", "--on", "{config}", "xyz"), "FF-APP-315"),
    ],
)
def test_names_and_amounts_that_are_none_are_refused_before_anybody_is_asked(
    tmp_path: Path, words: tuple[str, ...], code: str
) -> None:
    ask("init", str(tmp_path / "l"))
    config = str(tmp_path / "l" / "validator-1" / "validator.toml")
    owner = str(tmp_path / "l" / "treasury.key")
    error = ask(*(word.format(config=config) for word in words), *by(owner)).exception
    assert isinstance(error, UsageError)
    assert error.code == code


@pytest.mark.parametrize(
    ("to", "amount", "code"),
    [
        ("00" * 31, "1", "FF-APP-315"),
        ("00" * 32, "0", "FF-APP-318"),
        ("00" * 32, "1.0000000000001", "FF-APP-318"),
        ("00" * 32, "nan", "FF-APP-318"),
        ("00" * 32, "many", "FF-APP-318"),
    ],
)
def test_what_is_no_payment_is_refused(to: str, amount: str, code: str) -> None:
    assert getattr(pay("no.toml", to, amount, "no.key").exception, "code", "") == code


@pytest.mark.parametrize(
    "numbers",
    [
        ("fee=1",),
        ("fee_min=x",),
        ("fee_min=-1",),
        ("fee_min=20000000",),  # credits: above one
        ("fee_min=0.0000000000001",),
        ("committee_max=0",),
        ("idle_ms=1.5",),
    ],
)
def test_parameters_that_no_motion_may_name_are_told(numbers: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="FF-APP-317"):
        _amended(LedgerParams(), numbers)
    assert _amended(LedgerParams(), ("fee_min=0.00002", "idle_ms=9000")) == msgspec.structs.replace(
        LedgerParams(), fee_min=20_000_000, idle_ms=9000
    )


def test_a_folder_that_holds_something_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    error = ask("init", str(tmp_path)).exception
    assert isinstance(error, UsageError)
    assert error.code == "FF-APP-301"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ('hosst = "127.0.0.1"', "did you mean 'host'"),
        ('port = "x"', "port is 'x'"),
        ("port = true", "port is True"),
        ("keep_days = -1", "keep_days is -1"),
        ("judges = 65", "judges is 65"),
        ("judges = true", "judges is True"),
        ('[validators]\nabc = "127.0.0.1:1"', "not KEY = HOST:PORT"),
        ("port = [", "Invalid"),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_nearest_name(tmp_path: Path, line: str, hint: str) -> None:
    ask("init", str(tmp_path / "l"))
    path = tmp_path / "l" / "validator-1" / "validator.toml"
    path.write_text(line + "\n")
    with pytest.raises(UsageError, match="FF-APP-300") as caught:
        read_config(path)
    assert hint in caught.value.cause or hint == "Invalid"


@pytest.mark.parametrize(("cores", "judges"), [(1, 0), (2, 1), (4, 3), (64, 4)])
def test_a_validator_takes_processes_for_signatures_from_the_cores_it_leaves_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, judges: int
) -> None:
    ask("init", str(tmp_path / "l"))
    path = tmp_path / "l" / "validator-1" / "validator.toml"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert read_config(path)[1].judges == judges
    path.write_text("judges = 0\n")
    assert read_config(path)[1].judges == 0
    path.write_text("judges = 9\n")
    assert read_config(path)[1].judges == 9


def test_an_operator_says_how_long_transactions_are_kept(tmp_path: Path) -> None:
    ask("init", str(tmp_path / "l"))
    path = tmp_path / "l" / "validator-1" / "validator.toml"
    assert read_config(path)[1].keep_ms is None
    path.write_text("keep_days = 30\n")
    setting = read_config(path)[1]
    assert setting.keep_ms == 30 * 86_400_000

    async def kept() -> int | None:
        service = ValidatorService(setting, ByteCounter(), lambda: None)
        service.store.close()
        return service.store._keep_ms

    assert asyncio.run(kept()) == setting.keep_ms


class Network:
    """Four `farflung ledger validator` processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "l"
        port = free_ports(4)
        assert ask("init", str(self.folder), "--validators", "4", "--port", str(port)).exit_code == 0
        self.processes: dict[int, subprocess.Popen[str]] = {}

    def config(self, number: int) -> str:
        return str(self.folder / f"validator-{number}" / "validator.toml")

    def start(self, number: int) -> None:
        words = [sys.executable, "-m", "farflung.app.cli.main", "ledger", "validator", self.config(number), "--json"]
        process = self.processes[number] = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["validator"]

    def kill(self, number: int) -> None:
        process = self.processes.pop(number)
        process.kill()
        process.communicate()

    def standing(self) -> list[dict[str, Any]]:
        said = ask("status", self.config(1), "--json")
        found: list[dict[str, Any]] = json.loads(said.output)["validators"]
        return found

    def close(self) -> None:
        for process in self.processes.values():
            os.kill(process.pid, signal.SIGTERM)
        try:
            for process in self.processes.values():
                process.communicate(timeout=100)
        finally:
            for process in self.processes.values():
                process.kill()


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    made = Network(tmp_path)
    try:
        for number in (1, 2, 3, 4):
            made.start(number)
        yield made
    finally:
        made.close()


@pytest.mark.slow
def test_four_validators_are_served_looked_at_joined_and_left(network: Network, tmp_path: Path) -> None:
    treasury = str(network.folder / "treasury.key")
    newcomer = tmp_path / "new"
    assert ask("init", str(newcomer)).exit_code == 0  # for its key; its genesis is the network's
    place = newcomer / "validator-1"
    (place / "genesis.bin").write_bytes((network.folder / "genesis.bin").read_bytes())
    others = (network.folder / "validator-1" / "validator.toml").read_text().split("[validators]")[1]
    (place / "validator.toml").write_text(f"port = {free_ports(1)}\n[validators]{others}")
    joined = ask("join", str(place / "validator.toml"), "--owner", treasury, "--stake", "5", "--json")
    assert json.loads(joined.output)["stake"] == 5 * CREDIT
    seats = [str(network.folder / f"validator-{number}" / "validator.key") for number in (1, 2, 3)]
    moved = ask("motion", "admit", "--on", network.config(1), json.loads(joined.output)["validator"], *by(seats[0]))
    motion = json.loads(moved.output)
    assert (motion["state"], len(motion["voters"]), motion["seats"]) == ("open", 1, 4)
    states = [
        json.loads(ask("motion", "vote", "--on", network.config(1), motion["motion"], *by(seat)).output)["state"]
        for seat in seats[1:]
    ]
    assert states == ["open", "passed"]  # three of four are more than two thirds
    look = ask("motion", "look", "--on", network.config(2), motion["motion"], "--json")
    assert json.loads(look.output)["says"].startswith("admit ")
    paid = pay(network.config(1), json.loads(joined.output)["owner"], "0.25", seats[1])
    assert json.loads(paid.output)["amount"] == CREDIT // 4
    assert (
        abs(json.loads(paid.output)["balance"] - 3 * CREDIT // 4) < CREDIT // 10_000
    )  # fees, paid and earned as a leader
    assert ask("leave", str(place / "validator.toml"), "--owner", treasury).exit_code == 0
    network.kill(4)
    deadline = time.monotonic() + 30
    while [each["answers"] for each in network.standing()].count(True) != 3:
        assert time.monotonic() < deadline
    assert max(each.get("height", 0) for each in network.standing()) >= 2
    for number in (1, 2, 3):
        network.kill(number)
    error = ask("status", network.config(1)).exception
    assert getattr(error, "code", "") == "FF-APP-302"


def test_an_audit_executes_what_a_validator_wrote(tmp_path: Path) -> None:
    assert ask("init", str(tmp_path / "l")).exit_code == 0
    config = tmp_path / "l" / "validator-1" / "validator.toml"
    _, setting, _ = read_config(config)
    store = LedgerStore.open(setting.folder / "chain.db", setting.genesis)
    chain = store.load(setting.key)
    for _ in range(3):
        store.commit(chain, (), chain.head.time + 1000)
    store.close()
    facts = json.loads(ask("audit", str(config), "--json").output)
    root = chain.state.root.hex()
    assert facts == {"height": 3, "first": 1, "executed": 3, "state": root}
    assert "executed  3 of 3 blocks" in ask("audit", str(config)).output
    connection = sqlite3.connect(setting.folder / "chain.db")
    with connection:
        connection.execute("UPDATE bodies SET txs = x'00' WHERE height = 2")
    connection.close()
    error = ask("audit", str(config)).exception
    assert isinstance(error, RunError)
    assert error.code == "FF-LEDG-081"


def test_a_validator_that_was_away_begins_from_a_snapshot_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_BLOCKS", 3)
    port = free_ports(2)
    assert ask("init", str(tmp_path / "l"), "--validators", "1", "--port", str(port)).exit_code == 0
    _, setting, _ = read_config(tmp_path / "l" / "validator-1" / "validator.toml")
    late = replace(setting, folder=tmp_path / "late", key=SigningKey(bytes(32)), port=port + 1)
    late.folder.mkdir()

    async def play() -> None:
        service = ValidatorService(setting, ByteCounter(), lambda: None)
        for _ in range(4):
            service.store.commit(service.chain, (), service.chain.head.time + 1000)
        host, where = await service.open({})
        places = {setting.key.public: (host, where)}
        assert (await begin(late, places)).height == 4
        assert (await begin(late, places)).height == 0
        await service.close()
        status = await begin(late, places)
        assert (status.height, status.silent) == (0, 1), "nobody answers: it begins anyway"

    asyncio.run(play())
    store = LedgerStore.open(late.folder / "chain.db", setting.genesis)
    assert store.load().head.height == 4
    store.close()
