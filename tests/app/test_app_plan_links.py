"""`farflung plan --link`: the table, the choice with its reasons, and settings that do what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from farflung.app.cli.main import main
from farflung.job.methods.registry import METHODS
from farflung.job.spec import JobSpec
from farflung.local.jobs import resolve

STEP = ("--step", "1")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(["plan", *words])
    return capsys.readouterr().out


def facts(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(told(capsys, *words, "--json"))
    return said


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(["plan", *words])
    shown = capsys.readouterr()
    assert left.value.code == 2
    assert shown.out == ""
    return shown.err


@pytest.mark.parametrize("link", ["20/100/30ms", "1/1/200ms", "0.01/0.01/1s", "10000/10000/0.1ms"])
def test_the_table_fits_80_columns_and_marks_one_method(link: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, "--link", link, "--peers", "64", *STEP).splitlines()
    assert max(map(len, shown)) <= 80
    rows = [line for line in shown if line[2:].split(" ")[0] in METHODS]
    assert [row[2:].split()[0] for row in rows] == list(METHODS)
    assert sum(row.startswith("* ") for row in rows) == 1


def test_the_column_of_losses_says_which_dense_run_is_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    """Its own row `dense` lies far above: that is AdamW's, and the best is Muon's, which is no row."""
    text = " ".join(told(capsys, "--link", "100/100/10ms", "--peers", "4", "--step", "0.1").split())
    assert "above dense training with Muon, the best run after as many tokens" in text
    assert "the row dense is AdamW's" in text


def test_the_choice_is_said_with_reasons_and_settings_to_copy(capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, "--link", "20/100/30ms", "--peers", "8", *STEP)
    assert "20 Mbit/s up, 100 Mbit/s down, 30 ms there and back; 8 peers" in shown
    assert "* muloco" in shown
    assert "muloco loses least at its bytes" in " ".join(shown.split())
    assert "Set      --set sync.method=muloco --set network.providers=8" in shown


@pytest.mark.parametrize(
    ("link", "step", "peers"),
    [
        ("20/100/30ms", "1", 8),
        ("5/50/30ms", "2", 5),
        ("20/100/30ms", "0.04", 8),
        ("1000/1000/1ms", "1", 4),
        ("10000/10000/0.1ms", "1", 2),
        ("1/1/30ms", "0.05", 32),
    ],
)
@pytest.mark.parametrize("job", ["", '[optimizer]\nname = "sgd"\n\n[sync]\nmethod = "demo"\ntopk = 16\n'])
def test_what_is_said_to_set_gives_just_the_job_that_was_chosen(
    link: str, step: str, peers: int, job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(job.replace('name = "sgd"', 'name = "gradient"'))
    said = facts(capsys, str(path), "--link", link, "--step", step, "--peers", str(peers))
    flags = dict(one.split("=", 1) for one in said["set"])
    spec = resolve.resolve(path, "local", flags)[0].spec
    (row,) = [row for row in said["methods"] if row["method"] == said["chosen"]]
    assert spec.sync.method == said["chosen"]
    assert spec.sync.steps == row["steps"]
    assert spec.network.providers == peers
    again = facts(capsys, str(path), "--link", link, "--step", step, *[f"--set={one}" for one in said["set"]])
    assert (again["chosen"], again["set"][0]) == (said["chosen"], said["set"][0])
    for key in [key for key in flags if key != "sync.method"]:  # none of them is said in vain
        fewer = {k: v for k, v in flags.items() if k != key}
        assert _or_none(path, fewer) != spec, key


def _or_none(path: Path, flags: dict[str, str]) -> JobSpec | None:
    try:
        return resolve.resolve(path, "local", flags)[0].spec
    except Exception:
        return None


def test_a_server_that_fans_out_lets_each_upload_once(capsys: pytest.CaptureFixture[str]) -> None:
    one = facts(capsys, "--link", "5/50", "--peers", "20", *STEP)
    fanned = facts(capsys, "--link", "5/50", "--peers", "20", "--fan-out", *STEP)
    shown = told(capsys, "--link", "5/50", "--peers", "20", "--fan-out", *STEP)
    assert "a server fans out" in " ".join(shown.split())
    rows = zip(one["methods"], fanned["methods"], strict=True)
    assert all(f["up_a_step"] <= o["up_a_step"] for o, f in rows)


def test_without_seconds_a_step_this_computer_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert "this computer's, on one core" in " ".join(told(capsys, "--link", "20/100").split())
    assert "as you say" in told(capsys, "--link", "20/100", *STEP)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--link", "fast"), "FF-PLAN-010"),
        (("--link", "20"), "FF-PLAN-010"),
        (("--link", "0/0"), "FF-PLAN-011"),
        (("--link", "20/100", "--peers", "1"), "FF-APP-175"),
        (("--link", "20/100", "--peers", "9999"), "FF-APP-175"),
        (("--link", "20/100", "--step", "0"), "FF-APP-176"),
        (("--link", "20/100", "--step", "nan"), "FF-APP-176"),
        (("--peers", "8"), "FF-APP-177"),
        (("--step", "8"), "FF-APP-177"),
        (("--fan-out",), "FF-APP-177"),
    ],
)
def test_what_cannot_be_planned_is_said_with_a_command_that_can(
    words: tuple[str, ...], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = refusal(capsys, *words)
    assert shown.startswith(f"error[{code}]: ")
    assert "  cause: " in shown
    assert "  try:   " in shown


@pytest.mark.slow
def test_a_plan_says_which_method_is_taken_where_a_job_names_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = told(capsys, "--preset", "tiny")
    method = JobSpec().sync.method
    assert f"sync.method is not set: {method}, the " in " ".join(plain.split())
    assert "picks one for links" in " ".join(plain.split())
    named = told(capsys, "--preset", "tiny", "--set", "sync.method=sparse_loco")
    assert "is not set" not in named
    (event,) = told(capsys, "--preset", "tiny", "--json").splitlines()
    assert json.loads(event)["event"] == "plan"
