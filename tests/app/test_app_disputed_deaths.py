"""Players of a dispute die in the middle of their game: who comes back plays on, who has nothing to say loses."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from app_trees import Ended, Farflung, stored_events

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900), pytest.mark.xdist_group("tree")]

LIMIT_SECONDS = 600
LOOK_SECONDS = 0.1
DRAWN = ("--set", "audit.rate=1", "--set", "rounds=8")  # the cheater is, whatever the job's id and the blocks'
WORDS = ("run", "--preset", "tiny", "--dispute", *DRAWN, "--json")

Event = dict[str, Any]
Meddle = Callable[[Path], None]  # with a run in this folder


def told(run: Path, kind: str) -> list[Event]:
    return [event for event in stored_events(run) if event["event"] == kind]


def kill(run: Path, peer: str) -> str:
    """SIGKILL to the process of a node; its name."""
    newest = [event for event in told(run, "process") if event["peer"] == peer][-1]
    os.kill(newest["pid"], signal.SIGKILL)
    return str(newest["name"])


def verifiers(run: Path) -> set[str]:
    return {event["peer"] for event in told(run, "process") if event["role"] == "verifier"}


def accused(run: Path) -> str:
    (caught,) = told(run, "caught")
    return str(caught["peer"])


def played(farflung: Farflung, words: tuple[str, ...], stage: str, meddle: Meddle) -> tuple[Ended, Event]:
    """A run with a dispute, and its ruling; `meddle` is called once, as soon as the game is at this stage."""
    process = farflung.start(*words)
    while process.poll() is None:
        run = farflung.newest()
        if run is not None and any(event["stage"] == stage for event in told(run, "played")):
            meddle(run)
            break
        time.sleep(LOOK_SECONDS)
    ended = farflung.finish(process)
    assert ended.result["sum"] == 0
    assert farflung("verify-run", ended.result["run"]).code == 0
    (ruled,) = (event for event in ended.events if event["event"] == "ruled")
    return ended, ruled


@pytest.mark.parametrize("stage", ["first", "descend", "show"])
def test_both_sides_are_killed_in_the_middle_of_a_game_and_play_on(tmp_path: Path, stage: str) -> None:
    def meddle(run: Path) -> None:
        for node in (accused(run), *verifiers(run)):
            kill(run, node)

    ended, ruled = played(Farflung(tmp_path / "runs", limit=LIMIT_SECONDS), WORDS, stage, meddle)
    back = {event["name"] for event in ended.events if event["event"] == "restarted"}
    assert any(name.startswith("provider") for name in back)
    assert any(name.startswith("verifier") for name in back)
    assert (ruled["ended"], ruled["by"], ruled["silent"]) == ("upheld", "element", [])


def test_an_accused_that_denied_and_then_has_nothing_to_say_loses_by_the_clock(tmp_path: Path) -> None:
    def meddle(run: Path) -> None:
        name = kill(run, accused(run))
        shutil.rmtree(run / "providers" / name.removeprefix("provider-") / "briefs")

    ended, ruled = played(Farflung(tmp_path / "runs", limit=LIMIT_SECONDS), WORDS, "offered", meddle)
    assert (ruled["ended"], ruled["by"], ruled["silent"]) == ("upheld", "silence", ["accused"])
    assert ended.result["slashed"] == ruled["slashed"] > 0


def test_a_committee_plays_it_to_one_element_though_validators_are_killed(tmp_path: Path) -> None:
    def meddle(run: Path) -> None:
        validators = {event["peer"] for event in told(run, "process") if event["role"] == "validator"}
        assert len(validators) == 4
        kill(run, min(validators))

    words = (*WORDS, "--validators", "4")
    _, ruled = played(Farflung(tmp_path / "runs", limit=LIMIT_SECONDS), words, "first", meddle)
    assert (ruled["ended"], ruled["by"], ruled["silent"]) == ("upheld", "element", [])
