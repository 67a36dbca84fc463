"""A run that stands on a finished one: real processes, from the flag to the second reader."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from app_trees import UNAUDITED, Ended, Farflung

from farflung.train import model_file

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("tree")]

SHORT = ("--preset", "tiny", "--set", "rounds=1", "--set", "evaluate.every=1", *UNAUDITED, "--json")


@pytest.fixture(scope="module")
def child(tiny: tuple[Farflung, Ended]) -> Ended:
    """A run of one round that `farflung resume` makes of a copy of the finished one, beside that copy."""
    command, _ = tiny
    copied = _copy(command)
    shutil.copytree(command.runs / copied.name, copied)
    ended = command("resume", str(copied), "--rounds", "+1", "--json")
    assert ended.code == 0, ended.errors
    return ended


def _copy(command: Farflung) -> Path:
    newest = command.newest()
    assert newest is not None
    return command.runs.parent / "children" / newest.name  # `tiny` stays the newest of its folder


def _out(command: Farflung) -> str:
    return f"{_copy(command)}-more"


def test_a_run_goes_on_from_the_weights_of_a_finished_one(tiny: tuple[Farflung, Ended], child: Ended) -> None:
    command, parent = tiny
    (said,) = [e for e in child.events if e["event"] == "stands-on"]
    assert (said["run"], said["rounds"], said["merges"]) == (parent.result["run"], 3, 3)
    assert child.result["loss_start"] == parent.result["loss"]
    assert f"run {parent.result['run']} has settled" in child.errors
    spec = json.loads((Path(_out(command)) / "resolved.json").read_bytes())["spec"]
    assert (spec["rounds"], spec["schedule"]["begin"], child.result["rounds"]) == (1, 9, 1)
    model = (Path(_out(command)) / "model.safetensors").read_bytes()
    shown = command("status", _out(command), "--json").events[0]["runs"][0]
    assert shown["stands_on"] == list(said["jobs"])
    assert model_file.read(model)[0].lineage == tuple(said["jobs"])


def test_the_second_reader_proves_both_and_the_step_between_them(
    tiny: tuple[Farflung, Ended], child: Ended, command: Callable[..., Ended]
) -> None:
    place, parent = tiny
    out, run = _out(place), str(place.runs / parent.result["run"])
    alone = command("verify-run", out)
    assert "not checked here" in "\n".join(alone.lines)
    assert alone.lines[-1].endswith(", but for what it stands on")
    both = command("verify-run", out, "--parent", run, "--json")
    assert both.code == 0, both.errors
    assert (both.events[0]["parents"], len(both.events[0]["lineage"])) == (1, 1)
    command("verify-run", out, "--parent", out).refusal("FF-VERI-126", 5)


def test_a_run_that_cannot_be_stood_on_stops_before_anything_begins(
    tiny: tuple[Farflung, Ended], command: Callable[..., Ended], tmp_path: Path
) -> None:
    place, parent = tiny
    run, out, broken = place.runs / parent.result["run"], tmp_path / "refused", tmp_path / "broken"
    begin = ("run", *SHORT, "--out", str(out), "--set")
    command(*begin, "model.start=nothing").refusal("FF-APP-350", 2)
    command(*begin[:-1], "--set", "model.width=64", "--set", f"model.start={run}").refusal("FF-APP-352", 2)
    shutil.copytree(run, broken)
    payload = next((broken / "export" / "payloads").iterdir())
    payload.write_bytes(payload.read_bytes()[:-1])
    command(*begin, f"model.start={broken}").refusal("FF-APP-351", 5)
    assert not out.exists()
