"""Whole networks for tests: real processes, started by the real command, in a process group of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

LIMIT_SECONDS = 110


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    lines: list[str]
    errors: str

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    @property
    def result(self) -> dict[str, Any]:
        assert self.code == 0, self.errors + "\n".join(self.lines[-5:])
        last = self.events[-1]
        assert last["event"] == "result"
        return last


class Farflung:
    """The command line, with its runs below one folder."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("FARFLUNG_")}
        return subprocess.Popen(
            [sys.executable, "-m", "farflung.app.cli.main", *words],
            env={**clean, "FARFLUNG_RUNS": str(self.runs), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, process: subprocess.Popen[str]) -> Ended:
        try:
            out, errors = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            kill_tree(process)
            raise
        return Ended(process.returncode, out.splitlines(), errors)

    def __call__(self, *words: str, **environment: str) -> Ended:
        return self.finish(self.start(*words, **environment))


def kill_tree(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the whole group that `start` made."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture
def farflung(tmp_path: Path) -> Farflung:
    return Farflung(tmp_path / "runs")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Farflung, Ended]:
    """One finished tiny run, shared by all tests that only look at it."""
    command = Farflung(tmp_path_factory.mktemp("tiny") / "runs")
    ended = command("run", "--preset", "tiny", "--json", "--compare")
    assert ended.code == 0, ended.errors
    return command, ended
