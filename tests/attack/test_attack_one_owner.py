"""The nodes of one owner: no two of them enter one job, in whatever role, so that nobody is counted as two owners."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farflung.app.cli import lend
from farflung.app.cli.lend_account import NodeMoney
from farflung.core.crypto import SigningKey
from farflung.core.errors import PolicyError
from farflung.core.ids import Hash, PeerId
from farflung.peers.node import home as homes
from farflung.peers.node.job_claims import JobClaims
from farflung.peers.protocol.directory import NodeOwner

ONE, TWO = (SigningKey(bytes([i]) * 32).public for i in (1, 2))
JOB, OTHER = (Hash(bytes([i]) * 32) for i in (7, 8))


def takes(folder: Path | None, node: PeerId, job: Hash) -> str:
    try:
        JobClaims(folder, node).take(job)
    except PolicyError as error:
        return error.code
    return "yes"


@pytest.mark.parametrize(
    ("before", "node", "job", "said"),
    [
        ([], ONE, JOB, "yes"),
        ([(ONE, JOB)], ONE, JOB, "yes"),  # it started again, or comes back
        ([(ONE, JOB)], TWO, JOB, "FF-APP-624"),
        ([(ONE, JOB)], TWO, OTHER, "yes"),
        ([(ONE, JOB), (TWO, OTHER)], ONE, OTHER, "FF-APP-624"),
    ],
)
def test_a_job_takes_one_node_of_an_owner(
    tmp_path: Path, before: list[tuple[PeerId, Hash]], node: PeerId, job: Hash, said: str
) -> None:
    folder = tmp_path / "jobs"
    assert [takes(folder, *each) for each in before] == ["yes"] * len(before)
    assert takes(folder, node, job) == said
    assert all(not path.name.startswith(".") for path in folder.iterdir())  # nothing half-written is left


def test_nodes_of_a_local_stage_are_of_as_many_owners_as_there_are() -> None:
    assert takes(None, ONE, JOB) == takes(None, TWO, JOB) == "yes"


def test_the_claim_of_a_job_that_is_over_is_removed_and_no_other(tmp_path: Path) -> None:
    for job in (JOB, OTHER):
        assert takes(tmp_path, ONE, job) == "yes"
    (tmp_path / "README").write_text("not a claim")

    async def is_over(job: Hash) -> bool:
        return job == JOB

    asyncio.run(JobClaims(tmp_path, TWO).clear(is_over))
    assert {path.name for path in tmp_path.iterdir()} == {OTHER.hex(), "README"}


def test_slots_have_homes_of_their_own_and_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    wanted = [("lend", 1), ("lend", 2), ("audit", 1), ("audit", 64)]
    made = [homes.home_of("commons", role, slot) for role, slot in wanted]
    for home in made:
        home.mkdir(parents=True)
        (home / homes.CONFIG).touch()
    assert [home.name for home in made] == ["lend", "lend-2", "audit", "audit-64"]
    assert homes.known_homes("commons") == homes.known_homes() == made
    assert [homes.is_verifier(home) for home in made] == [False, False, True, True]
    assert lend.LendOptions(slot=2).words() == ["--slot", "2"]


@pytest.mark.parametrize(
    ("seats", "claims"), [(["127.0.0.1", "localhost"], None), (["127.0.0.1", "net.example"], "../jobs")]
)
def test_nodes_on_a_network_of_several_computers_share_their_claims(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seats: list[str], claims: str | None
) -> None:
    written: dict[str, Any] = {}
    monkeypatch.setattr(lend, "write_role_config", lambda _, values: written.update(values))
    monkeypatch.setattr(lend, "read_role_config", lambda *_: None)
    known: Any = SimpleNamespace(
        name="commons", relays=(), ledger=None, seats=[SimpleNamespace(host=host) for host in seats]
    )
    owner = NodeOwner.of(SigningKey(bytes(32)), ONE)
    lend._configured(known, lend.LendOptions(), tmp_path / "lend", 1, NodeMoney(3, 2, 1), owner)
    assert written.get("claims") == claims
    assert ("owner_signature" in written) is (claims is not None)  # on one computer its owner is everybody
    assert (written["owner"], written["stake"], written["fees"]) == (owner.account.hex(), 3, 2)
