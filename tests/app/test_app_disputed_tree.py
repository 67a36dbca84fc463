"""`farflung run --dispute`: a cheater denies it in a whole network, and one element that the law computes decides."""

from __future__ import annotations

import json
from typing import Any

import pytest
from app_trees import Farflung

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("disputed"), pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def disputed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Farflung, Any]:
    command = Farflung(tmp_path_factory.mktemp("disputed") / "runs", limit=400)
    drawn = ("--set", "audit.rate=1", "--set", "rounds=8")  # its cheater is, whatever the job's id
    ended = command("run", "--preset", "tiny", "--dispute", *drawn, "--json")
    assert ended.code == 0, ended.errors
    return command, ended


def told(ended: Any, kind: str) -> list[dict[str, Any]]:
    return [each for each in ended.events if each["event"] == kind]


def test_the_cheater_denies_and_loses_by_one_element(disputed: tuple[Farflung, Any]) -> None:
    _, ended = disputed
    (caught,), (ruled,) = told(ended, "caught"), told(ended, "ruled")
    assert caught["pending"] > 0
    assert (ruled["peer"], ruled["round"], ruled["segment"]) == tuple(
        caught[name] for name in ("peer", "round", "segment")
    )
    assert (ruled["ended"], ruled["by"], ruled["silent"]) == ("upheld", "element", [])
    assert ruled["other"] == ruled["law"] != ruled["accused"]
    assert ended.result["caught"] == [caught["peer"]]


def test_every_place_of_the_game_is_told_once_and_hashes_differ(disputed: tuple[Farflung, Any]) -> None:
    _, ended = disputed
    played = told(ended, "played")
    stages = [each["stage"] for each in played]
    assert stages[:2] == ["offered", "first"]
    assert stages[-2:] == ["show", "referee"]
    assert set(stages[2:-2]) <= {"descend"}
    assert len({(each["stage"], each["level"]) for each in played}) == len(played)
    assert all(each["accused"] != each["other"] for each in played[2:])
    heights = [each["height"] for each in played]
    assert heights == sorted(heights)


def test_money_adds_up_and_the_bond_is_lost_with_the_stake(disputed: tuple[Farflung, Any]) -> None:
    _, ended = disputed
    result, (ruled,) = ended.result, told(ended, "ruled")
    assert result["sum"] == 0
    assert result["slashed"] == ruled["slashed"] > told(ended, "caught")[0]["pending"]
    assert (result["bounty"], result["burnt"]) == (ruled["bounty"], ruled["burnt"])


def test_a_reader_shows_it_and_the_log_proves_it(disputed: tuple[Farflung, Any]) -> None:
    command, ended = disputed
    (ruled,) = told(ended, "ruled")
    name = ended.result["run"]
    shown = "\n".join(command("watch", name, "--dispute", "1").lines)
    assert f"the law {ruled['law']}" in shown
    facts = json.loads(command("watch", name, "--dispute", "1", "--json").lines[0])
    assert facts["ruled"]["law"] == ruled["law"]
    assert command("verify-run", name).code == 0
