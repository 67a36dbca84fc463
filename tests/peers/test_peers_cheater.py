"""A provider that cheats in a whole network of real processes: it is drawn and caught.

`farflung run --dispute`: it denies that, and one element that the law computes decides; it is slashed, and shown to a
reader.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from app_trees import Farflung

from farflung.core.ids import PeerId
from farflung.job import terms_file
from farflung.job.spec import JobSpec
from farflung.peers.requester.audits import evidence_file
from farflung.peers.rundir.genesis import cheater_of
from farflung.verify.evidence import evidence_fault, evidence_hash
from farflung.verify.evidence import read as read_evidence

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("cheated"), pytest.mark.timeout(500)]

SETTINGS = (
    "network.providers=3",
    "network.verifiers=2",
    "audit.rate=1.0",
    "audit.segments=1",  # whichever is drawn: no segment of the cheater's is honest
)
FIRST = 1  # the round in which a cheat begins


@pytest.fixture(scope="module")
def cheated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Farflung, Any]:
    """The command, and a finished run in which one of three providers makes every second step only, and denies it."""
    command = Farflung(tmp_path_factory.mktemp("cheated") / "runs", limit=400)
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    ended = command("run", "--preset", "tiny", "--json", "--dispute", *settings)
    assert ended.code == 0, ended.errors
    return command, ended


def folder(cheated: tuple[Farflung, Any]) -> Path:
    command, ended = cheated
    return command.runs / ended.result["run"]


def spec_of(run: Path) -> JobSpec:
    return terms_file.read((run / "terms.bin").read_bytes()).spec


def test_the_one_that_was_drawn_to_cheat_is_caught_and_nobody_else(cheated: tuple[Farflung, Any]) -> None:
    _, ended = cheated
    (caught,) = [e for e in ended.events if e["event"] == "caught"]  # told once
    name = f"provider-{cheater_of(spec_of(folder(cheated)))}"
    assert caught["peer"] == next(e["peer"] for e in ended.events if e.get("name") == name and e["peer"])
    assert caught["round"] == FIRST
    assert ended.result["caught"] == [caught["peer"]]
    assert {e["peer"] for e in ended.events if e["event"] == "left"} == {caught["peer"]}
    found = [e for e in ended.events if e["event"] == "audit"]
    accused = [e for e in found if e["finding"] != "holds"]
    assert [(e["peer"], e["round"], e["finding"]) for e in accused] == [(caught["peer"], FIRST, "false")]
    assert len(accused[0]["verifiers"]) == 2


def test_no_credit_is_lost_and_the_cheater_is_paid_nothing(cheated: tuple[Farflung, Any]) -> None:
    _, ended = cheated
    result = ended.result
    assert result["sum"] == 0
    (cheater,) = result["caught"]
    paid = {e["peer"]: e["paid"] for e in ended.events if e["event"] == "settled"}
    assert paid.pop(cheater) == 0
    assert len(paid) == 4
    assert all(amount > 0 for amount in paid.values())
    assert result["slashed"] > 0
    assert result["slashed"] == result["bounty"] + result["burnt"]
    assert result["burnt"] >= result["bounty"]


def test_what_was_opened_is_kept_under_the_hash_that_the_ledger_names(cheated: tuple[Farflung, Any]) -> None:
    _, ended = cheated
    (caught,) = [e for e in ended.events if e["event"] == "caught"]
    run, peer = folder(cheated), PeerId(bytes.fromhex(caught["peer"]))
    path = evidence_file(run / "evidence", caught["round"], peer)
    assert list((run / "evidence").iterdir()) == [path]
    evidence = read_evidence(path.read_bytes())
    assert evidence_hash(evidence).hex() == caught["evidence"]
    assert evidence_fault(evidence, spec_of(run)) == ""


def test_a_second_reader_finds_the_same_draws_verdicts_and_payments(cheated: tuple[Farflung, Any]) -> None:
    command, ended = cheated
    checked = command("verify-run", ended.result["run"], "--condemned", "--json")
    assert checked.code == 0, checked.errors
    (caught,) = (event for event in ended.events if event["event"] == "caught")
    again = {"round": caught["round"], "peer": caught["peer"], "came": "other"}
    assert checked.events[0]["retried"] == [again]
    assert checked.events[0]["paid"] == ended.result["paid"]
    assert (checked.events[0]["slashed"], checked.events[0]["evidence"]) == (1, 1)


def told(ended: Any, kind: str) -> list[dict[str, Any]]:
    return [each for each in ended.events if each["event"] == kind]


def test_the_cheater_denies_and_loses_by_one_element(cheated: tuple[Farflung, Any]) -> None:
    _, ended = cheated
    (caught,), (ruled,) = told(ended, "caught"), told(ended, "ruled")
    assert caught["pending"] > 0
    assert (ruled["peer"], ruled["round"], ruled["segment"]) == tuple(
        caught[name] for name in ("peer", "round", "segment")
    )
    assert (ruled["ended"], ruled["by"], ruled["silent"]) == ("upheld", "element", [])
    assert ruled["other"] == ruled["law"] != ruled["accused"]
    assert ended.result["caught"] == [caught["peer"]]


def test_every_place_of_the_game_is_told_once_and_hashes_differ(cheated: tuple[Farflung, Any]) -> None:
    _, ended = cheated
    played = told(ended, "played")
    stages = [each["stage"] for each in played]
    assert stages[:2] == ["offered", "first"]
    assert stages[-2:] == ["show", "referee"]
    assert set(stages[2:-2]) <= {"descend"}
    assert len({(each["stage"], each["level"]) for each in played}) == len(played)
    assert all(each["accused"] != each["other"] for each in played[2:])
    heights = [each["height"] for each in played]
    assert heights == sorted(heights)


def test_money_adds_up_and_the_bond_is_lost_with_the_stake(cheated: tuple[Farflung, Any]) -> None:
    _, ended = cheated
    result, (ruled,) = ended.result, told(ended, "ruled")
    assert result["sum"] == 0
    assert result["slashed"] == ruled["slashed"] > told(ended, "caught")[0]["pending"]
    assert (result["bounty"], result["burnt"]) == (ruled["bounty"], ruled["burnt"])


def test_a_reader_shows_it_and_the_log_proves_it(cheated: tuple[Farflung, Any]) -> None:
    command, ended = cheated
    (ruled,) = told(ended, "ruled")
    name = ended.result["run"]
    shown = "\n".join(command("watch", name, "--dispute", "1").lines)
    assert f"the law {ruled['law']}" in shown
    facts = json.loads(command("watch", name, "--dispute", "1", "--json").lines[0])
    assert facts["ruled"]["law"] == ruled["law"]
    assert command("verify-run", name).code == 0
