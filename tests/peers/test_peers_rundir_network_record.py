"""A run's folder says which network it is on, and nothing of it is trusted unread."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, VersionError
from farflung.job.spec import JobSpec
from farflung.ledger.block import Genesis
from farflung.peers.process.config import HexId, LedgerConfig, ListenerConfig
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.genesis import chain_of
from farflung.peers.rundir.network_record import NetworkRecord, node_name, read_network, write_network

SEATS = [SigningKey(bytes([i]) * 32).public for i in range(1, 4)]
OTHERS = tuple(ListenerConfig(HexId(key), "192.0.2.7", 4520 + i) for i, key in enumerate(SEATS))
RECORD = NetworkRecord(
    "lab", LedgerConfig(HexId(SEATS[0]), "::1", 4520, OTHERS[1:]), 1_800_000_000_000, 77, OTHERS[2:], 100
)
GENESIS = Genesis("lab", 1_790_000_000_000, ((SEATS[0], 5),), (SEATS[0],))


def test_a_record_is_read_as_it_was_written_and_names_the_chain(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert read_network(run) is None
    write_network(run, GENESIS, RECORD)
    found = read_network(run)
    assert found is not None
    assert all(getattr(found, name) == getattr(RECORD, name) for name in NetworkRecord.__struct_fields__)
    assert chain_of(run, JobSpec()) == GENESIS.chain
    assert len({node_name(key) for key in SEATS}) == len(SEATS)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda data: b"", "FF-APP-023"),
        (lambda data: data[:-9], "FF-APP-023"),
        (lambda data: b"[" * 60_000, "FF-APP-023"),
        (lambda data: data.replace(SEATS[0].hex().encode(), b"ab"), "FF-APP-023"),
        (lambda data: data.replace(b'"format": 1', b'"format": 9'), "FF-CORE-095"),
        (lambda data: b" " * (1 << 20) + data, "FF-APP-161"),
    ],
)
def test_a_damaged_or_foreign_record_is_named(tmp_path: Path, change: object, code: str) -> None:
    run = RunFolder(tmp_path)
    write_network(run, GENESIS, RECORD)
    run.network_file.write_bytes(change(run.network_file.read_bytes()))  # type: ignore[operator]
    with pytest.raises((FarflungError, VersionError)) as raised:
        read_network(run)
    assert raised.value.code == code


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    (tmp_path / "elsewhere.json").write_text("{}")
    run.network_file.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(FarflungError) as raised:
        read_network(run)
    assert raised.value.code == "FF-APP-161"
