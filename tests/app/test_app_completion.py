"""Shell completion: verbs, options, runs, job files, keys; and the script that each shell is given."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from app_models import finished_run
from click.shell_completion import get_completion_class

from farflung.app.cli.completion import INSTALL, VARIABLE
from farflung.app.cli.main import VERBS, cli, main
from farflung.job.keys import keys


def completed(words: str, incomplete: str = "") -> list[str]:
    kind = get_completion_class("bash")
    assert kind is not None
    return [item.value for item in kind(cli, {}, "farflung", VARIABLE).get_completions(words.split(), incomplete)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FARFLUNG_RUNS", str(tmp_path / "runs"))
    return tmp_path


def test_verbs_are_completed() -> None:
    assert completed("") == list(VERBS)
    assert completed("", "ver") == ["verify-run", "version"]
    assert "--help" in completed("run", "--h")


@pytest.mark.parametrize("verb", ["status", "stop", "resume", "fetch", "sample", "eval", "export", "verify-run"])
def test_names_of_runs_are_completed(here: Path, verb: str) -> None:
    finished_run(here / "runs", "first", is_done=False)
    finished_run(here / "runs", "second", is_done=False)
    assert completed(verb, "f") == ["first"]
    assert set(completed(verb)) == {"first", "second"}


def test_job_files_and_folders_are_completed(here: Path) -> None:
    (here / "jobs").mkdir()
    for name in ("a.toml", "b.txt", "jobs/c.toml", ".hidden.toml"):
        (here / name).write_text("")
    assert completed("run") == ["jobs/", "a.toml"]
    assert completed("plan", "jobs/") == ["jobs/c.toml"]
    assert completed("run", "nowhere/") == []


def test_keys_and_presets_are_completed() -> None:
    assert completed("run --set", "sync.s") == ["sync.steps="]
    assert completed("plan --set") == [f"{key}=" for key in keys()]
    assert completed("run --preset", "t") == ["tiny"]


def test_a_broken_runs_folder_completes_nothing(here: Path) -> None:
    (here / "runs").write_text("a file")
    assert completed("status") == []


@pytest.mark.parametrize("shell", INSTALL)
def test_the_script_says_how_it_is_installed_and_is_one_that_the_shell_reads(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["completion", shell])
    script = capsys.readouterr().out
    assert script.splitlines()[0] == f"# To install: {INSTALL[shell]}"
    main(["completion", shell, "--json"])
    assert json.loads(capsys.readouterr().out)["script"] + "\n" in script
    program = shutil.which(shell)
    if program:
        (tmp_path / "script").write_text(script)
        subprocess.run([program, "-n", str(tmp_path / "script")], check=True)


def test_bash_completes_through_the_real_program(here: Path) -> None:
    environment = {**os.environ, VARIABLE: "bash_complete", "COMP_WORDS": "farflung ex", "COMP_CWORD": "1"}
    words = [sys.executable, "-m", "farflung.app.cli.main"]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout == "plain,export\n"
