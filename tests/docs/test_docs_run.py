"""What the pages tell a reader to type is typed here, in order, in an empty folder, with smaller settings.

Blocks marked `sh` are commands and `python` is one program; installing is shown in blocks marked `bash`. Those that
start networks are run when a page or an example has changed (.ci/extras pages); that each command and each name which
a page shows exists is seen always (test_docs_links).
"""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIMIT_SECONDS = 200  # of one command
# Settings win over a job file when they come from the environment: the commands stay as they are shown.
SMALL = {
    "FARFLUNG_ROUNDS": "2",
    "FARFLUNG_BATCH": "2",
    "FARFLUNG_SYNC_STEPS": "2",
    "FARFLUNG_SCHEDULE_WARMUP": "2",
    "FARFLUNG_NETWORK_PROVIDERS": "2",
    "FARFLUNG_NETWORK_VERIFIERS": "1",
    "FARFLUNG_NETWORK_HIDDEN": "0",
    "FARFLUNG_MODEL_CONTEXT": "32",
    "FARFLUNG_DATA_LIMIT": "400000",
    "FARFLUNG_EVALUATE_TOKENS": "1024",
    "FARFLUNG_EVALUATE_FINAL_TOKENS": "1024",
}
SMALL_GPT = {"FARFLUNG_MODEL_LAYERS": "1", "FARFLUNG_MODEL_WIDTH": "32", "FARFLUNG_MODEL_HEADS": "2"}
TEXT = "".join(f"{n} times {m} is {n * m}.\n" for n in range(60) for m in range(60))


def blocks(page: str, language: str) -> list[str]:
    """The page's blocks in this language."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [body for kind, body in FENCE.findall(text) if kind == language]


def typed(folder: Path, *words: str) -> str:
    """Runs a program as a reader would, with `farflung` on the PATH; what it printed. It must end well."""
    programs = folder / "bin"
    if not programs.exists():
        programs.mkdir()
        command = programs / "farflung"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m farflung.app.cli.main "$@"\n')
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FARFLUNG_")}
    process = subprocess.Popen(
        words,
        cwd=folder,
        env={**clean, **SMALL, **SMALL_GPT, "PATH": f"{programs}:{os.environ['PATH']}"},
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
    assert process.returncode == 0, f"{words}\n{errors}{out[-2000:]}"
    return out


def type_all(folder: Path, page: str) -> list[str]:
    """Every line of the page's `sh` blocks; what each printed."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines() if line.strip()]
    return [typed(folder, "sh", "-c", line) for line in lines]


@pytest.mark.extra(name="pages")
def test_the_start_ends_with_a_text_and_a_checked_run(tmp_path: Path) -> None:
    said = type_all(tmp_path, "start.md")
    assert len(said) >= 7
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "model.safetensors").is_file()
    assert (run / "report.html").is_file()
    assert any("def main" in text for text in said)  # the text begins with its prompt
    assert "verified: the log is consistent (it does not say who made it)" in said[-1]


@pytest.mark.extra(name="pages")
def test_the_page_on_your_own_training_runs_from_the_first_job_to_the_exported_model(tmp_path: Path) -> None:
    (tmp_path / "my-text.txt").write_text(TEXT, encoding="utf-8")
    type_all(tmp_path, "train.md")
    program = "\n".join(blocks("train.md", "python"))
    assert "farflung.run(" in program
    said = typed(tmp_path, sys.executable, "-W", "error::SyntaxWarning", "-c", program)
    assert re.search(r"^round 2 of 2: \d", said, re.MULTILINE)  # a callback that fails does not end a run
    assert "model.safetensors" in said
    assert "7 times 8 is" in said


def test_the_program_on_the_page_of_python_runs(tmp_path: Path) -> None:
    typed(tmp_path, sys.executable, "-c", "\n".join(blocks("api.md", "python")))
