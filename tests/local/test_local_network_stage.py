"""A stage writes the files that `network open` and `lend` write, and each role reads them as its own."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from farflung.core.codec import encode
from farflung.job.spec import JobSpec, NetworkSpec
from farflung.local.jobs import resolve
from farflung.local.network.placement import SERVERS, NetlabPlacement, homes_of
from farflung.local.network.stage import LocalStage
from farflung.peers.node.config import NodeConfig
from farflung.peers.process.config import read_role_config, write_role_config
from farflung.peers.relay.config import RelayConfig
from farflung.peers.requester.main import RequesterConfig
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.validator.config import ValidatorConfigFile

PLAN = {
    "escrow": 1, "memory_bytes": 2, "dataset_bytes": 3, "answer_seconds": 1e-7, "relay_funds": 0, "relay_most": 0
}  # fmt: skip


def spec_of(providers: int = 5, verifiers: int = 2, hidden: int = 2) -> JobSpec:
    return JobSpec(network=NetworkSpec(providers, verifiers, hidden))


def told(stage: LocalStage, root: Path) -> dict[str, Any]:
    """What each process reads in its file, by its name."""
    folder = RunFolder(root)
    given: dict[str, Any] = {}
    for name, path in stage.write_seats(folder).items():
        given[name] = read_role_config(path, ValidatorConfigFile)
    stage.open_ledger(dict.fromkeys(stage.seats, 7))
    for name, path in stage.write_relays(folder).items():
        given[name] = read_role_config(path, RelayConfig)
    stage.open_relays(dict.fromkeys(stage.relays, 8))
    for node in stage.nodes:
        given[node.name] = read_role_config(stage.write_node(folder, node, 9, {}), NodeConfig)
    stage.write_requester(folder)
    path = write_role_config(root / "requester.toml", {**stage.network.requester(), **PLAN})
    given["requester"] = read_role_config(path, RequesterConfig)
    return given


def test_on_loopback_nobody_listens_anywhere_else_and_the_first_providers_are_at_the_relays(tmp_path: Path) -> None:
    stage = LocalStage(spec_of(), relays=2)
    given = told(stage, tmp_path)
    servers = [*SERVERS, "relay-2"]
    assert [given[name].host for name in servers] == ["127.0.0.1"] * 4
    nodes = [given[node.name] for node in stage.nodes]
    assert [len(node.relays) for node in nodes] == [2, 2, 0, 0, 0, 0, 0]
    assert given["requester"].relays == nodes[0].relays
    assert [relay.port for relay in nodes[0].relays] == [8, 8]
    assert {(node.ledger.port, node.flops, node.registers, node.disk_floor) for node in nodes} == {(7, 9, False, 0)}
    assert nodes[0].relays[0].peer != nodes[0].relays[1].peer
    for name in ("relay", "relay-2"):
        assert len(given[name].allow) == 1 + 5 + 2
        assert given[name].ledger == given["requester"].ledger
    assert not given["requester"].attaches
    assert given["requester"].answer_seconds == 1e-7


def test_in_homes_everybody_stays_at_the_relay_and_only_servers_listen(tmp_path: Path) -> None:
    stage = LocalStage(spec_of(), placement=NetlabPlacement(homes_of(spec_of()), 2), relays=2)
    given = told(stage, tmp_path)
    servers = {*SERVERS, "relay-2"}
    for name, config in given.items():
        if name in servers:
            assert config.host.startswith("198.19."), name
        else:
            assert len(config.relays) == 2, name
            assert not config.host, name
    assert len({given[name].host for name in servers}) == len(servers) == 4
    assert given["requester"].relayed


def test_a_job_does_not_know_of_homes() -> None:
    spec = spec_of(hidden=0)
    plain, housed = LocalStage(spec), LocalStage(spec, placement=NetlabPlacement(homes_of(spec)))
    assert encode(housed.network.spec) == encode(plain.network.spec) == encode(spec)
    assert encode(housed.genesis) == encode(plain.genesis)
    assert not plain.network.relays
    assert list(housed.network.relays) == ["relay"]
    assert (plain.network.reached.hidden, housed.network.reached.hidden) == (0, 5)


def test_each_machine_proves_a_node_key_that_its_account_certified(tmp_path: Path) -> None:
    stage = LocalStage(spec_of())
    given = told(stage, tmp_path)
    own = [given[name] for name in ("requester", *(node.name for node in stage.nodes))]
    proved = [config.credential for config in own]
    assert [each.account for each in proved] == [config.key.public for config in own]
    assert [config.key.public for config in own[1:]] == stage.keys.nodes
    assert {each.identity.epoch for each in proved} == {1}
    assert len({each.node.public for each in proved} | {config.key.public for config in own}) == 2 * len(own)


def test_only_the_owner_reads_a_stages_keys(tmp_path: Path) -> None:
    told(LocalStage(spec_of(2, 1, 1), validators=4), tmp_path)
    keys = [*tmp_path.rglob("*.key")]
    assert len(keys) == 4 + 1 + 2 * (3 + 1)
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}


def test_a_job_without_audits_has_no_verifier() -> None:
    unaudited = resolve.resolve("[audit]\nrate = 0\nprobation = 0", "local", {})[0].spec
    assert [node.role for node in LocalStage(unaudited).nodes] == ["provider"] * unaudited.network.providers


@pytest.mark.parametrize("text", ["plain", 'a "quoted\\ name', "tab\tand\x7f\x01", "Grüße \U0001f600", "é\u2028"])
def test_any_text_comes_back_from_a_configuration(text: str, tmp_path: Path) -> None:
    stage = LocalStage(spec_of(1, 1, 0))
    path = stage.write_node(RunFolder(tmp_path), stage.nodes[0], 0, {"name": text})
    stage.write_seats(RunFolder(tmp_path))
    assert read_role_config(path, NodeConfig).name == text
