"""`--dispute`: what a run is with it, that its folder alone says so, and that without it nothing is another."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.core.errors import UsageError
from farflung.job.cheat_names import DEFAULT, HONEST
from farflung.job.spec import JobSpec
from farflung.ledger.block import LOGICAL_MS
from farflung.local.jobs.resolve import resolve
from farflung.local.network.forecast import _SAME, _money, _same
from farflung.local.network.stage import LocalStage
from farflung.peers.rundir import folder
from farflung.peers.rundir.genesis import DISPUTE_BLOCKS, bond_of, chain_of, genesis_of
from farflung.peers.rundir.runs import resolve_again

SPEC = JobSpec()


def test_a_ledger_without_disputes_is_the_one_that_it_was() -> None:
    plain, disputed = genesis_of(SPEC), genesis_of(SPEC, disputes=True)
    assert plain == genesis_of(SPEC, disputes=False)
    assert (plain.params.dispute_ms, plain.params.bond_min) == (0, 0)
    assert disputed.params.dispute_ms == DISPUTE_BLOCKS * LOGICAL_MS
    assert disputed.params.bond_min == bond_of(SPEC) > 0
    assert plain.chain != disputed.chain


def test_whoever_contests_has_the_bond_beside_its_stake_and_its_fees() -> None:
    stage = LocalStage(SPEC, disputes=True)
    plain, rich = (dict(genesis_of(SPEC, disputes=each).accounts) for each in (False, True))
    assert all(rich[node] - plain[node] == bond_of(SPEC) for node in stage.keys.nodes)


def test_a_run_that_is_to_have_a_dispute_has_a_cheater() -> None:
    assert resolve(None, "local", {}, disputes=True)[1].cheat == DEFAULT
    _, own = resolve("rounds = 3", "local", {}, disputes=True)
    assert (own.cheat, own.disputes) == (DEFAULT, True)
    assert resolve("rounds = 3", "local", {})[1].cheat == HONEST
    assert resolve(None, "local", {}, cheat="noise", disputes=True)[1].cheat == "noise"


@pytest.mark.parametrize(
    ("flags", "cheat", "cause"),
    [
        ({}, HONEST, "nobody cheats"),
        ({"audit.rate": "0", "audit.probation": "0"}, None, "no audits"),
        ({"audit.rate": "0", "audit.probation": "0"}, DEFAULT, "no audits"),
    ],
)
def test_where_nobody_can_be_accused_a_dispute_is_an_error(
    flags: dict[str, str], cheat: str | None, cause: str
) -> None:
    with pytest.raises(UsageError) as raised:
        resolve(None, "local", flags, cheat=cheat, disputes=True)
    assert raised.value.code == "FF-APP-387"
    assert cause in raised.value.cause


def test_a_run_with_a_dispute_has_no_canaries() -> None:
    with pytest.raises(UsageError, match="FF-APP-396"):
        resolve(None, "local", {"audit.canaries": "0.1"}, cheat=DEFAULT, disputes=True)


def test_the_folder_alone_says_which_ledger_a_run_has(tmp_path: Path) -> None:
    resolved, identity = resolve(None, "tiny", {}, cheat="skip", disputes=True)
    run = folder.create(tmp_path / "run", identity)
    found = folder.RunFolder(run.root)
    assert chain_of(found, resolve_again(found).spec) == genesis_of(resolved.spec, disputes=True).chain
    text = found.identity_file.read_text()
    found.identity_file.write_text(text.replace('"disputes":true', '"disputes":false'))
    assert chain_of(found, resolved.spec) == genesis_of(resolved.spec).chain
    found.identity_file.write_text(text.replace(',"disputes":true', ""))  # of a version before
    assert chain_of(found, resolved.spec) == genesis_of(resolved.spec).chain
    run.unlock()


def test_a_disputed_run_repeats_its_model_and_not_its_ledger(tmp_path: Path) -> None:
    _, identity = resolve(None, "tiny", {}, cheat="skip", disputes=True)
    run = folder.create(tmp_path / "run", identity)
    assert "ledger_root" not in _same(run)
    assert "model_hash" in _same(run)
    run.unlock()
    _, identity = resolve(None, "tiny", {}, cheat="skip")
    plain = folder.create(tmp_path / "plain", identity)
    assert _same(plain) == _SAME
    assert _money(identity) != _money(run.read_identity())
    plain.unlock()
