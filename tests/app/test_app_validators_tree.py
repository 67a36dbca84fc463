"""A whole network whose ledger has four validators, of which one is killed: the same settlement as with one."""

from __future__ import annotations

from pathlib import Path

import pytest
from app_trees import Ended, Event, Farflung

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("tree"), pytest.mark.timeout(300)]

JOB = ("run", "--preset", "tiny", "--json")
SETTLED = ("model_hash", "slashed", "sum", "rounds")


def of(ended: Ended, kind: str) -> list[Event]:
    return [event for event in ended.events if event["event"] == kind]


def pay(ended: Ended, role: str) -> list[tuple[str, int]]:
    """What each node of a role was paid."""
    peers = {event["peer"] for event in of(ended, "process") if event["role"] == role}
    return sorted((s["peer"], s["paid"]) for s in of(ended, "settled") if s["peer"] in peers)


@pytest.fixture(scope="module")
def both(tiny: tuple[Farflung, Ended], tmp_path_factory: pytest.TempPathFactory) -> tuple[Farflung, Ended, Ended]:
    """Where the run of four validators is; the shared run, which has one; that of four."""
    farflung = Farflung(Path(tmp_path_factory.mktemp("validators")))
    return farflung, tiny[1], farflung(*JOB, "--validators", "4")


def test_the_settlement_is_that_of_one_validator(both: tuple[Farflung, Ended, Ended]) -> None:
    _, one, four = both
    assert {name: four.result[name] for name in SETTLED} == {name: one.result[name] for name in SETTLED}
    # Which segments verifiers are paid for, nobody can know before a committee's blocks are there.
    assert pay(four, "provider") == pay(one, "provider")
    assert len(pay(four, "verifier")) == len(pay(one, "verifier")) > 0
    for ended in both[1:]:
        told = ended.result
        assert told["paid"] == sum(paid for role in ("provider", "verifier") for _, paid in pay(ended, role))
    assert four.result["paid"] + four.result["refunded"] == one.result["paid"] + one.result["refunded"]


def test_one_validator_was_killed_and_all_four_hold_one_chain(both: tuple[Farflung, Ended, Ended]) -> None:
    _, one, four = both
    validators = {e["name"] for e in of(four, "process") if e["role"] == "validator"}
    assert validators == {"ledger", "ledger-2", "ledger-3", "ledger-4"}
    assert [e["name"] for e in of(four, "validator-killed")] == ["ledger-4"]
    assert [e["validators"] for e in of(four, "chains-compared")] == [4]
    assert [e["name"] for e in of(four, "restarted")] == ["ledger-4"]
    assert of(one, "validator-killed") + of(one, "chains-compared") == []


def test_the_plan_counts_what_validators_say_to_each_other(both: tuple[Farflung, Ended, Ended]) -> None:
    _, one, four = both
    alone, planned, measured = (
        next(e for e in of(ended, kind) if kind == "plan" or e["quantity"] == "control")
        for ended, kind in ((one, "compared"), (four, "plan"), (four, "compared"))
    )
    assert planned["validators"] == 4
    # Each plan also counts what is said in the seconds that it foresees on the machine as it is just then.
    more = measured["planned"] - alone["planned"]
    assert more == pytest.approx(planned["committee_bytes"], rel=0.01)
    # A computer that is too busy for time-outs sends more, never less.
    more = measured["measured"] - alone["measured"]
    assert 0.8 < more / planned["committee_bytes"] < 2


def test_whoever_reads_it_finds_it_true(both: tuple[Farflung, Ended, Ended]) -> None:
    farflung, _, four = both
    run = four.result["run"]
    said = farflung("verify-run", run, "--json").events[0]
    assert said["model_hash"] == four.result["model_hash"]
    receipt = farflung.runs / run / "export" / "receipts" / "requester.receipt"
    assert farflung("receipt", "verify", str(receipt), "--json").code == 0
    page = farflung("report", run, "--json")
    assert page.code == 0
