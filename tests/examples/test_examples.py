"""Every example runs as it is written, with smaller settings; and so do the README's commands.

They are run when a page, an example or the Python API has changed (.ci/extras pages).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.whole, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
README = ROOT / "README.md"
LIMIT_SECONDS = 300  # of one command, on a machine that other tests keep busy
SMALL = {
    "rounds": "2",
    "batch": "2",
    "sync.steps": "2",
    "network.providers": "2",
    "network.verifiers": "1",
    "network.hidden": "0",
    "evaluate.tokens": "1024",
    "evaluate.final_tokens": "1024",
}
# What the README shows is of the built-in model: that is made small, too.
SMALL_GPT = {
    "model.layers": "1",
    "model.width": "32",
    "model.heads": "2",
    "model.context": "32",
    "data.limit": "400000",
    "schedule.warmup": "2",
}
ENVIRONMENT = {f"FARFLUNG_{key.upper().replace('.', '_')}": value for key, value in {**SMALL, **SMALL_GPT}.items()}
CLI = ("-m", "farflung.app.cli.main")


def python(folder: Path, *words: str, **environment: str) -> str:
    """Runs Python with runs below `folder`, in a process group of its own; what it said."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FARFLUNG_")}
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env={**clean, "FARFLUNG_RUNS": str(folder / "runs"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert process.returncode == 0, errors + out[-2000:]
    return out


def job(folder: Path, path: Path) -> dict[str, Any]:
    """The result of `farflung run` on an example, made small."""
    settings = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    out = python(folder, *CLI, "run", str(path), "--json", *settings)
    events = [json.loads(line) for line in out.splitlines()]
    assert events[-1]["event"] == "result"
    result: dict[str, Any] = events[-1]
    return result


JOBS = sorted(path.name for path in EXAMPLES.glob("*.toml"))
PAGES = pytest.mark.extra(name="pages")


@PAGES
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.slow
def test_an_example_job_trains_and_settles(name: str, tmp_path: Path) -> None:
    result = job(tmp_path, EXAMPLES / name)
    assert result["rounds"] == 2
    assert result["sum"] == 0
    assert result["loss"] < result["loss_start"]
    assert (tmp_path / "runs" / result["run"] / "model.safetensors").is_file()
    text = python(tmp_path, *CLI, "sample", result["run"], "--prompt", "def ", "--tokens", "8")
    assert text.startswith("def ")


@PAGES
@pytest.mark.slow
def test_the_python_api_says_what_happens_and_hands_over_the_model(tmp_path: Path) -> None:
    out = python(tmp_path, str(EXAMPLES / "api.py"), "rounds=2", "sync.steps=2")
    assert re.search(r"^round 2 of 2: loss \d", out, re.MULTILINE)
    assert len(re.findall(r"earned \d+ pico-credits", out)) == 3  # two providers and their verifier
    assert "sum 0" in out
    assert "it writes: " in out
    assert re.search(r"^recomputed: \d+ merges", out, re.MULTILINE)


@PAGES
@pytest.mark.slow
def test_callbacks_hear_rounds_audits_and_checkpoints(tmp_path: Path) -> None:
    out = python(tmp_path, str(EXAMPLES / "callbacks.py"), "rounds=2", "sync.steps=2")
    assert re.search(r"^round 2/2: \d+ tokens, \d+ bytes of sync traffic", out, re.MULTILINE)
    assert "holds" in out
    assert "stored model.safetensors after 2 rounds" in out
    assert "best validation loss" in out
    (run,) = (tmp_path / "runs").iterdir()
    has_tensorboard = importlib.util.find_spec("tensorboard") is not None
    assert bool(list(run.glob("tensorboard/events.*"))) is has_tensorboard


@PAGES
@pytest.mark.slow
def test_a_network_that_was_killed_resumes_to_the_same_model(tmp_path: Path) -> None:
    out = python(tmp_path, str(EXAMPLES / "kill_and_resume.py"), "--rounds", "2", "--set", "sync.steps=2")
    assert "the same model, ledger and pay" in out.splitlines()


@PAGES
@pytest.mark.slow
def test_the_readmes_commands_run_in_their_order_as_written(tmp_path: Path) -> None:
    """From a job that `init` wrote to a text, an export and a second reader; only sizes come from the environment."""
    lines = re.findall(r"^    (farflung .*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    verbs = [shlex.split(line, comments=True)[1:] for line in lines]
    assert [words[0] for words in verbs[:3]] == ["init", "plan", "run"]
    said = {words[0]: python(tmp_path, *CLI, *words, **ENVIRONMENT) for words in verbs}
    assert said["sample"].startswith("import ")
    assert "Verify" in said["verify-run"]
    assert (tmp_path / "job.toml").is_file()
