"""`network upgrade`: nothing goes on by a program that comes to other rows, and whoever runs an older one is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from free_ports import free_ports
from msgspec.structs import replace

from farflung.app.cli import network_upgrade
from farflung.app.cli.main import cli
from farflung.app.cli.systemd_unit import user_units, write_unit
from farflung.core.errors import RunError, UsageError
from farflung.core.ids import Hash
from farflung.core.release import VERSION
from farflung.ledger.block import Block, vote_for
from farflung.ledger.chain import Chain
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.votes import VoteKind, certificate_of, sign_vote
from farflung.peers.keys.files import read_account
from farflung.peers.network import operator_folder
from farflung.peers.network.card import FaucetTerms, NetworkCard
from farflung.peers.network.join import version_notes
from farflung.peers.network.operator_folder import NetworkPlaces


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> operator_folder.OperatorFolder:
    """A network's folder whose seat does not run."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    operator_folder.make(tmp_path / "n", NetworkPlaces("town", "127.0.0.1", "127.0.0.1", free_ports(2)))
    made = operator_folder.read(tmp_path / "n")
    _, setting, _ = network_upgrade.read_config(made.root / operator_folder.SEAT)
    setting.folder.mkdir(parents=True, exist_ok=True)
    LedgerStore.open(setting.folder / "chain.db", setting.genesis).close()
    return made


def test_a_seat_that_does_not_run_is_checked_by_its_file_and_its_card_asks_for_this_version(
    found: operator_folder.OperatorFolder,
) -> None:
    seat = found.root / operator_folder.SEAT
    seat.write_text(seat.read_text().replace(f'least = "{VERSION}"', 'least = "0.0.1"') + "# mine\n")
    ended = CliRunner().invoke(
        cli, ["network", "upgrade", str(found.root), "--require", "--json"], catch_exceptions=False
    )
    said = json.loads(ended.stdout)
    assert (said["installed"], said["blocks"], said["restarted"], said["nodes"]) == (VERSION, 0, False, {})
    assert said["seats"][0]["why"]
    assert f'least = "{VERSION}"' in seat.read_text()
    assert seat.read_text().endswith("# mine\n")
    assert max(map(len, network_upgrade.lines(said))) <= 120
    seat.write_text(seat.read_text().replace("least", "most"))
    with pytest.raises(UsageError, match="FF-APP-545"):
        operator_folder.require_version(found.root, VERSION)


def test_a_program_that_comes_to_other_rows_restarts_nothing(found: operator_folder.OperatorFolder) -> None:
    key = read_account(found.root / "seat" / "validator.key")
    block, _ = Chain(found.genesis, key).propose((), found.genesis.time + 1)
    assert network_upgrade.check_chain(found, [block]) == 1
    header = replace(block.header, state=Hash(bytes(32)))  # as a program of another law has it
    vote = sign_vote(key, 0, vote_for(header, 1, VoteKind.FINALIZE))
    with pytest.raises(RunError, match="FF-APP-690"):
        network_upgrade.check_chain(found, [Block(header, (), certificate_of([vote], 1))])


@pytest.mark.parametrize(("answer", "code"), [(0, ""), (1, "FF-APP-691")])
def test_a_service_that_open_wrote_is_restarted_and_its_failure_is_said(
    found: operator_folder.OperatorFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: int, code: str
) -> None:
    tool = tmp_path / "bin" / "systemctl"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/typed\nexit {answer}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    write_unit("farflung-network-town", "a network", ["network", "open"], user_units())
    ended = CliRunner().invoke(cli, ["network", "upgrade", str(found.root)])
    assert (tmp_path / "typed").read_text().split() == ["--user", "restart", "farflung-network-town"]
    assert getattr(ended.exception, "code", "") == code


@pytest.mark.parametrize(("newest", "is_told"), [(VERSION, False), ("0.0.1", False), ("9.1.0", True)])
def test_whoever_joins_hears_of_a_newer_network(newest: str, is_told: bool) -> None:
    nobody: Any = bytes(32)
    card = NetworkCard(2, "0.0.1", newest, (3,), "town", nobody, nobody, 0, (), (), FaucetTerms(), False, "")
    told = version_notes(card)
    assert bool(told) is is_told
    assert not told or f"runs farflung 9.1.0, this computer {VERSION}" in told[0]


@pytest.mark.parametrize(
    ("seat", "said"),
    [
        ({"seat": "ab" * 32, "version": "0.0.1", "why": ""}, "runs farflung 0.0.1: its operator upgrades it"),
        ({"seat": "ab" * 32, "version": VERSION, "why": ""}, f"runs farflung {VERSION}"),
        ({"seat": "ab" * 32, "version": "", "why": "FF-APP-602 of another format"}, "FF-APP-602"),
    ],
)
def test_each_seat_is_shown_with_its_version(seat: dict[str, str], said: str) -> None:
    facts: dict[str, Any] = {"installed": VERSION, "job_format": 3, "seats": [seat], "nodes": {"0.0.1": 2}}
    facts |= {"left_out": 2, "law": 1, "known_law": 1, "blocks": 4, "required": False, "restarted": False}
    text = "\n".join(network_upgrade.lines(facts))
    assert f"abababab {said}" in text or said in text
    assert "2 nodes with farflung 0.0.1" in text
