"""Every example runs as it is written, with smaller settings; and so do the README's job and its Python."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.tree, pytest.mark.xdist_group("tree")]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
README = ROOT / "README.md"
LIMIT_SECONDS = 110
SMALL = {
    "rounds": "2",
    "batch": "2",
    "sync.steps": "2",
    "network.providers": "2",
    "evaluate.tokens": "1024",
    "evaluate.final_tokens": "1024",
}
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


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.toml")))
def test_an_example_job_trains_and_settles(name: str, tmp_path: Path) -> None:
    result = job(tmp_path, EXAMPLES / name)
    assert result["rounds"] == 2
    assert result["sum"] == 0
    assert result["loss"] < result["loss_start"]
    assert (tmp_path / "runs" / result["run"] / "model.safetensors").is_file()


def test_the_python_api_says_what_happens_and_hands_over_the_model(tmp_path: Path) -> None:
    out = python(tmp_path, str(EXAMPLES / "api.py"), "rounds=2", "sync.steps=2")
    assert re.search(r"^round 2 of 2: loss \d", out, re.MULTILINE)
    assert len(re.findall(r"earned \d+ micro-credits", out)) == 3  # two providers and their verifier
    assert "sum 0" in out


def test_a_network_that_was_killed_resumes_to_the_same_model(tmp_path: Path) -> None:
    out = python(tmp_path, str(EXAMPLES / "kill_and_resume.py"), "--rounds", "2", "--set", "sync.steps=2")
    assert "the same model, ledger and pay" in out.splitlines()


def test_the_readmes_job_and_python_run_as_written(tmp_path: Path) -> None:
    """README's TOML as job.toml on a small text, then README's Python; only sizes come from the environment."""
    text = README.read_text(encoding="utf-8")
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (path,) = re.findall(r'^path = "(.+?)"', toml, re.MULTILINE)
    (tmp_path / "job.toml").write_text(toml, encoding="utf-8")
    (tmp_path / path).mkdir()
    for number, source in enumerate([README, *sorted((ROOT / "docs").glob("*.md"))]):
        (tmp_path / path / f"{number}.txt").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    small = {f"FARFLUNG_{key.upper().replace('.', '_')}": value for key, value in SMALL.items()}
    python(tmp_path, "-c", code, **small)
    (model,) = (tmp_path / "runs").glob("*/model.safetensors")
    assert model.stat().st_size > 0
