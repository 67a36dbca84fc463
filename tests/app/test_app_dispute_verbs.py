"""A dispute by hand: who accuses, answers and judges has a verb each, over real validators."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from core_asks import scheduled
from free_ports import free_ports

from farflung.app.cli.ledger import ledger
from farflung.app.cli.network_client import client_on, network_on
from farflung.core.codec import encode
from farflung.core.crypto import NS_EVIDENCE, NS_SPEC, SigningKey, digest
from farflung.core.errors import RunError, UsageError
from farflung.core.ids import ZERO_HASH
from farflung.core.money import CREDIT
from farflung.ledger import genesis_file
from farflung.ledger.block import Genesis
from farflung.ledger.transactions import (
    JobCreate,
    LeaseOffer,
    LeaseRole,
    NodeRegister,
    Op,
    Progress,
    Verdict,
    VerdictFinding,
    sign_offer,
    sign_verdict,
)
from farflung.peers.keys.files import new_account, read_account
from farflung.train.run_log import Contribution
from farflung.verify import evidence
from farflung.verify.commitment_check import commit, nonce_of
from farflung.verify.evidence import AuditEvidence
from farflung.verify.evidence import VerifierTestimony as Said

JOB, TRACE, ROOT = (digest(NS_SPEC, name) for name in (b"job", b"trace", b"root"))
STAKE, PRICE, UNITS, SOON = 1_000, 5, 100, 3_600_000
SEATS, BOND = 2, 7


def ask(*words: str) -> Result:
    return CliRunner().invoke(ledger, list(words), catch_exceptions=True)


class Court:
    """Two validators of a ledger with disputes, and a job with a node that two verifiers found false."""

    def __init__(self, folder: Path, dispute_ms: int = SOON) -> None:
        self.folder, self.processes = folder / "l", list[subprocess.Popen[str]]()
        port = free_ports(SEATS)
        ask("init", str(self.folder), "--validators", str(SEATS), "--port", str(port))
        self.config = self.folder / "validator-1" / "validator.toml"
        self.node = new_account(self.folder / "node.key")
        self.verifier = new_account(self.folder / "verifier.key")
        self.second = new_account(self.folder / "second.key")
        self.genesis = self._rewrite(dispute_ms)
        self.requester = read_account(self.folder / "treasury.key")

    def open(self) -> None:
        for number in range(1, SEATS + 1):
            self._start(self.folder / f"validator-{number}" / "validator.toml")

    def _rewrite(self, dispute_ms: int) -> Genesis:
        """A genesis in which an accusation is a dispute, and both sides have money."""
        files = sorted(self.folder.rglob("genesis.bin"))
        made = genesis_file.read(files[0].read_bytes())
        rich = tuple((key.public, CREDIT) for key in (self.node, self.verifier, self.second))
        law = msgspec.structs.replace(made.params, dispute_ms=dispute_ms, bond_min=BOND)
        made = msgspec.structs.replace(made, accounts=(*made.accounts, *rich), params=law)
        for file in files:
            file.write_bytes(genesis_file.write(made))
        return made

    def _start(self, config: Path) -> None:
        words = [sys.executable, "-m", "farflung.app.cli.main", "ledger", "validator", str(config), "--json"]
        self.processes.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        out = self.processes[-1].stdout
        assert out is not None
        assert json.loads(out.readline())["validator"]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def do(self, key: SigningKey, *ops: Op) -> None:
        network = network_on(str(self.config))

        async def work() -> None:
            async with client_on(network, key) as (client, _):
                await client.submit(*ops)

        asyncio.run(work())

    def _offer(self, key: SigningKey, role: LeaseRole, until: int) -> Any:
        offer = LeaseOffer(self.genesis.chain, JOB, key.public, PRICE, STAKE, UNITS, until, role)
        return sign_offer(key, offer)

    def work(self) -> Path:
        """The job, up to the evidence."""
        until = self.genesis.time + 10 * SOON
        caps = digest(NS_SPEC, b"caps")
        judges = (self.verifier, self.second)
        for key in (self.node, *judges):
            self.do(key, NodeRegister(caps, PRICE, STAKE, until))
        audits = (self._offer(key, LeaseRole.AUDIT, until) for key in judges)
        offers = (self._offer(self.node, LeaseRole.TRAIN, until), *audits)
        progress = Progress(JOB, 0, ROOT, TRACE, ((self.node.public, 10),))
        self.do(self.requester, JobCreate(JOB, 100_000, PRICE, 4, until), scheduled(JOB, offers), progress)
        payload = digest(NS_SPEC, b"payload")
        nonce = nonce_of(self.node, JOB, 0)
        c = Contribution(self.node.public, 10, payload, payload, nonce, TRACE, "none")
        about = (self.genesis.chain, JOB, 0, self.node.public, 0, TRACE)
        said = (Verdict(*about, key.public, VerdictFinding.FALSE, 3000, ROOT) for key in judges)
        testimonies = tuple(
            Said((), (), (), sign_verdict(key, verdict)) for key, verdict in zip(judges, said, strict=True)
        )
        promise = commit(self.node, JOB, 0, payload, 10, TRACE)
        found = AuditEvidence(JOB, 0, c, (promise,), ZERO_HASH, 0, "", (), (), testimonies)
        path = self.folder / "evidence.bin"
        path.write_bytes(evidence.write(encode(found)))
        return path

    def ask(self, verb: str, *words: str, owner: str = "") -> dict[str, Any]:
        signed = ("--owner", str(self.folder / owner)) if owner else ()
        said = ask("dispute", verb, "--on", str(self.config), *words, *signed, "--json")
        assert said.exit_code == 0, said.exception
        facts: dict[str, Any] = json.loads(said.output)
        return facts

    def refused(self, verb: str, *words: str, owner: str) -> str:
        error = ask("dispute", verb, "--on", str(self.config), *words, "--owner", str(self.folder / owner)).exception
        assert isinstance(error, RunError)
        return error.cause


@pytest.fixture
def court(tmp_path: Path) -> Iterator[Court]:
    made = Court(tmp_path)
    try:
        made.open()
        yield made
    finally:
        made.close()


@pytest.mark.slow
@pytest.mark.parametrize("verdict", ["guilty", "innocent"])
def test_each_side_says_its_part_and_the_jury_decides(court: Court, verdict: str) -> None:
    evidence, shown = str(court.work()), court.folder / "why.txt"
    shown.write_text("I did it, and here is the log")
    job, node = JOB.hex(), court.node.public.hex()
    opened = court.ask("open", evidence, owner="verifier.key")
    assert (opened["state"], opened["taken"], opened["pay"]) == ("open", STAKE, PRICE * UNITS)
    assert opened["accusers"] == sorted(key.public.hex() for key in (court.verifier, court.second))
    assert opened["jury"] == [each.hex() for each in court.genesis.validators]
    seats = ["validator-1/validator.key", "validator-2/validator.key"]
    assert "FF-LEDG-233" in court.refused("vote", job, node, "guilty", owner=seats[0])
    assert "FF-LEDG-232" in court.refused("answer", job, str(shown), "--bond", "0.000000000001", owner="node.key")
    answered = court.ask("answer", job, str(shown), owner="node.key")
    assert (answered["state"], answered["bond"]) == ("answered", BOND)
    assert answered["answer"] == digest(NS_EVIDENCE, shown.read_bytes()).hex()
    assert "FF-LEDG-234" in court.refused("vote", job, node, verdict, owner="node.key")
    first = court.ask("vote", job, node, verdict, owner=seats[0])
    assert (first["state"], first[verdict]) == ("answered", 1)
    assert "FF-LEDG-235" in court.refused("vote", job, node, verdict, owner=seats[0])
    decided = court.ask("vote", job, node, verdict, owner=seats[1])
    assert decided["state"] == ("upheld" if verdict == "guilty" else "overturned")
    assert court.ask("look", job, node) == decided
    told = ask("dispute", "look", "--on", str(court.config), job, node).output
    assert f"State    {decided['state']}" in told
    assert "Next" not in told
    assert all(len(line) <= 80 for line in told.splitlines())


@pytest.mark.slow
def test_where_nobody_disputes_the_stake_is_taken_and_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    court = Court(tmp_path, dispute_ms=0)
    try:
        court.open()
        assert court.ask("open", str(court.work()), owner="verifier.key")["state"] == "taken"
        error = ask("dispute", "look", "--on", str(court.config), JOB.hex(), court.node.public.hex()).exception
        assert isinstance(error, UsageError)
        assert error.code == "FF-APP-333"
    finally:
        court.close()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("open", "--on", "{config}", "{config}.none"), "FF-APP-331"),
        (("open", "--on", "{config}", "{config}"), "FF-APP-332"),
        (("answer", "--on", "{config}", "abc", "{config}"), "FF-APP-315"),
        (("answer", "--on", "{config}", "00" * 32, "{config}.none"), "FF-APP-331"),
        (("answer", "--on", "{config}", "00" * 32, "{config}", "--bond", "-1"), "FF-APP-318"),
        (("vote", "--on", "{config}", "00" * 32, "xyz", "guilty"), "FF-APP-315"),
    ],
)
def test_what_is_no_name_evidence_or_bond_is_refused_before_anybody_is_asked(
    tmp_path: Path, words: tuple[str, ...], code: str
) -> None:
    ask("init", str(tmp_path / "l"))
    config = str(tmp_path / "l" / "validator-1" / "validator.toml")
    owner = str(tmp_path / "l" / "treasury.key")
    error = ask("dispute", *(word.format(config=config) for word in words), "--owner", owner).exception
    assert isinstance(error, UsageError)
    assert error.code == code
