"""A network of one's own: opened by one command, joined, looked at, paid in, stopped and opened again where it was."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from free_ports import free_ports

from farflung.app.cli.main import cli
from farflung.app.cli.systemd_unit import write_unit
from farflung.core.errors import FarflungError
from farflung.core.money import CREDIT
from farflung.core.release import VERSION
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.peers.keys.files import new_account
from farflung.peers.network import operator_backup, operator_folder
from farflung.peers.network.account import own_account, slot_key
from farflung.peers.network.invitation import read
from farflung.peers.node.home import CONFIG, home_of, own_key

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("network-verbs")]  # one network, which the last tests end


class Opened(NamedTuple):
    """A network that runs."""

    folder: Path
    said: dict[str, Any]
    process: subprocess.Popen[str]

    @property
    def invitation(self) -> str:
        return str(self.said["invitation"])


def start(folder: Path, *words: str) -> Opened:
    command = [sys.executable, "-m", "farflung.app.cli.main", "network", "open", str(folder), "--json", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return Opened(folder, json.loads(process.stdout.readline()), process)


def end(network: Opened, number: int = signal.SIGTERM) -> int:
    network.process.send_signal(number)
    network.process.communicate(timeout=60)
    return network.process.returncode


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        yield folder


@pytest.fixture(scope="module")
def network(home: Path) -> Iterator[Opened]:
    found = start(home / "network", "--port", str(free_ports(2)), "--name", "town")
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.process.kill()
        found.process.communicate()


def ask(*words: str) -> dict[str, Any]:
    ended = CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False)
    return dict(json.loads(ended.stdout))


def code(*words: str) -> str:
    error = CliRunner().invoke(cli, list(words)).exception
    assert isinstance(error, FarflungError), error
    return error.code


def test_an_opened_network_is_joined_by_its_invitation_and_shows_how_it_is(home: Path, network: Opened) -> None:
    said = ask("network", "status", "--on", network.invitation)
    assert [seat["answers"] for seat in said["seats"]] == [True]
    assert [relay["why"] for relay in said["relays"]] == [""]
    assert (said["nodes"], said["online"], said["faucet"]["grant"]) == (0, 0, 10 * CREDIT)
    assert ask("network", "status", str(network.folder))["chain"] == said["chain"] == network.said["chain"]
    assert ask("network", "nodes", "--on", "town") == {"name": "town", "nodes": []}
    shown = CliRunner().invoke(cli, ["network", "status", "--on", "town"], catch_exceptions=False).output
    assert "worth nothing" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_an_upgrade_executes_the_running_chain_first(network: Opened) -> None:
    said = ask("network", "upgrade", str(network.folder))
    assert [(seat["version"], seat["why"]) for seat in said["seats"]] == [(VERSION, "")]
    assert (said["nodes"], said["restarted"]) == ({}, False)


def test_an_account_is_made_and_the_treasury_pays_it(home: Path, network: Opened) -> None:
    own = ask("account", "show", "--on", network.invitation)
    assert own["balance"] == 0
    treasury = str(network.folder / "treasury.key")
    paid = ask("account", "pay", own["account"], "2.5", "--on", "town", "--key", treasury)
    assert paid["amount"] == 5 * CREDIT // 2
    assert ask("account", "show")["balance"] == 5 * CREDIT // 2  # the only network that is known here
    assert code("account", "show", "--key", str(home / "none.key")) == "FF-APP-260"
    [entry] = ask("account", "statement")["entries"]
    assert entry["amount_credits"] == "2.500000"
    lent = home_of("town", "lend", 2)
    lent.mkdir(parents=True)
    (lent / CONFIG).touch()
    node = own_key(lent, slot_key(own_account(), read(network.invitation).chain, "lend", 2)).public.hex()
    ask("account", "pay", node, "0.5", "--on", "town", "--key", treasury)
    shown = ask("account", "show")
    assert [(each["node"], each["balance"], each["is_here"]) for each in shown["nodes"]] == [(node, CREDIT // 2, True)]
    text = CliRunner().invoke(cli, ["account", "statement"], catch_exceptions=False).stdout
    assert f"Node     lend-2 ({node[:8]}): 0.500000 credits, 0.000000 at stake" in text
    assert f"farflung ledger statement {node[:16]} --on town" in text
    assert ask("ledger", "show", own["account"], "--on", "town")
    assert ask("ledger", "status", "--on", network.invitation)["height"] == 2


def test_an_invitation_with_a_token_ends_when_it_says(network: Opened) -> None:
    text = ask("network", "invite", str(network.folder), "--uses", "3", "--days", "2")["invitation"]
    found = read(text)
    assert (found.chain.hex(), len(found.token), found.expires > 0) == (network.said["chain"], 26, True)


def test_another_operator_asks_for_a_seat_and_follows_the_ledger(home: Path, network: Opened) -> None:
    folder, port = home / "second", free_ports(2)
    treasury = str(network.folder / "treasury.key")
    words = (network.invitation, str(folder), "--host", "127.0.0.1", "--port", str(port), "--key", treasury)
    new_account(home / "poor.key")
    assert code("network", "seat", *words[:-1], str(home / "poor.key")) in ("FF-APP-070", "FF-APP-320")
    assert not folder.exists()
    asked = ask("network", "seat", *words)
    founder = network.folder / "seat"
    admitted = ask(
        *("ledger", "motion", "admit", asked["validator"], "--on", "town"), *("--owner", str(founder / "validator.key"))
    )
    assert admitted["state"] == "passed"
    assert code("network", "seat", *words) == "FF-APP-543"
    second = start(folder)
    try:
        assert second.said["seat"]["key"] == asked["validator"]
        assert second.said["chain"] == network.said["chain"]
        assert second.said["relays"] == network.said["relays"]
        wanted, shown = {asked["validator"], network.said["seat"]["key"]}, set[str]()
        for _ in range(20):  # a seat that a busy computer lets answer late is known by the next question
            shown = {seat["validator"] for seat in ask("network", "status", "--on", network.invitation)["seats"]}
            if shown >= wanted:
                break
        assert shown >= wanted
    finally:
        assert end(second) == 0


def test_a_backup_of_a_running_network_brings_all_of_it_back(home: Path, network: Opened) -> None:
    file, folder = home / "town.backup", home / "copy"
    ask("network", "backup", str(file), str(network.folder))
    assert file.stat().st_mode & 0o777 == 0o600
    assert code("network", "backup", str(file), str(network.folder)) == "FF-APP-549"
    assert ask("network", "restore", str(file), str(folder))["chain"] == network.said["chain"]
    for key in ("treasury.key", "faucet.key", "seat/validator.key", "relay/relay.key"):
        assert (folder / key).read_bytes() == (network.folder / key).read_bytes()
        assert (folder / key).stat().st_mode & 0o777 == 0o600
    assert code("network", "restore", str(file), str(folder)) == "FF-APP-543"
    found = operator_folder.read(folder)
    with contextlib.closing(LedgerStore.open(folder / "seat" / "data" / "chain.db", found.genesis)) as store:
        now = ask("network", "status", "--on", network.invitation)["seats"][0]["height"]
        assert 0 < store.load().head.height <= now


@pytest.mark.parametrize("names", [(), ("x",), ("FORMAT", "../x"), ("FORMAT", "treasury.key", "treasury.key")])
def test_what_is_no_backup_is_not_restored(tmp_path: Path, names: tuple[str, ...]) -> None:
    file = tmp_path / "bad"
    with tarfile.open(file, "w") as archive:
        for name in names:
            operator_backup._add(archive, name, b"farflung network-backup 1 0.1.0\n")
    assert code("network", "restore", str(file), str(tmp_path / "new")) == "FF-APP-551"
    file.write_bytes(b"x" * 3000)
    assert code("network", "restore", str(file), str(tmp_path / "new")) == "FF-APP-551"
    assert [each.name for each in tmp_path.iterdir()] == ["bad"]


def test_a_network_goes_on_where_it_was(home: Path, network: Opened) -> None:
    """Last of these: it ends the network and opens it again."""
    assert end(network, signal.SIGINT) == 0
    assert code("network", "status", str(network.folder)) == "FF-APP-547"
    again = start(network.folder)
    try:
        assert again.said == network.said
        assert ask("network", "status", "--on", "town")["seats"][0]["height"] >= 0
        os.kill(again.process.pid, 0)
    finally:
        assert end(again) == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("network", "status", "{folder}"), "FF-APP-545"),
        (("network", "invite", "{folder}"), "FF-APP-545"),
        (("network", "open", "{folder}"), "FF-APP-543"),
        (("network", "open", "{new}", "--name", "My Net"), "FF-APP-544"),
        (("network", "open", "{new}", "--host", "a b"), "FF-APP-544"),
        (("network", "nodes", "--on", "nowhere"), "FF-APP-528"),
        (("account", "show", "--on", "farflung1cut"), "FF-APP-522"),
    ],
)
def test_what_cannot_be_done_has_a_code(tmp_path: Path, home: Path, words: tuple[str, ...], expected: str) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "x").write_text("x")
    assert code(*(word.format(folder=folder, new=tmp_path / "new") for word in words)) == expected


def test_a_unit_starts_the_same_command(tmp_path: Path) -> None:
    said = write_unit("farflung-network-town", "a network", ["network", "open", "/srv/my net"], tmp_path / "units")
    text = (tmp_path / "units" / "farflung-network-town.service").read_text()
    assert "bin/farflung network open '/srv/my net'\n" in text
    assert any("enable --now farflung-network-town" in line for line in said)


def test_a_folder_whose_files_are_damaged_says_so(tmp_path: Path) -> None:
    operator_folder.make(tmp_path / "n", operator_folder.NetworkPlaces("town", "127.0.0.1", "127.0.0.1", 4520))
    file = tmp_path / "n" / operator_folder.SEAT
    good = file.read_text()
    for bad in (
        "[[[",
        good.replace("host", "hots"),
        good.replace("port = ", 'port = "x" # '),
        "[network]\nrelays = 3\n",
    ):
        file.write_text(bad)
        assert code("network", "status", str(tmp_path / "n")) == "FF-APP-545"
