"""Live curves from the command line, and of groups of farflung.sync: each logger is given what the run says."""

from __future__ import annotations

import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from extras_told import TOLD

from farflung.app.api import loggers
from farflung.app.cli import curves
from farflung.app.cli.run import resume, run
from farflung.core.errors import UsageError
from farflung.sync import RoundReport
from farflung.watch.fold import RunTimeline, fold


class Tracker:
    """As much of MLflow's client as a logger uses."""

    def __init__(self, **places: str) -> None:
        self.places, self.metrics, self.ended = places, list[tuple[str, float, int]](), list[str]()

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return name

    def create_run(self, experiment: str, run_name: str) -> Any:
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=f"{experiment}/{run_name}"))

    def log_param(self, run: str, key: str, value: str) -> None:
        assert run

    def log_metric(self, run: str, name: str, value: float, step: int) -> None:
        self.metrics.append((name, value, step))

    def set_terminated(self, run: str) -> None:
        self.ended.append(run)


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> list[Tracker]:
    """The clients of MLflow that were made."""
    made: list[Tracker] = []

    def client(**places: str) -> Tracker:
        made.append(Tracker(**places))
        return made[-1]

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(loggers, "_part", lambda module, extra: types.SimpleNamespace(MlflowClient=client))
    return made


@pytest.mark.parametrize("words", [(), ("--mlflow",)])
def test_a_command_tells_the_loggers_that_it_was_asked_for(
    tracker: list[Tracker], tmp_path: Path, words: Sequence[str]
) -> None:
    @click.command()
    @curves.options
    def command() -> None:
        seen: list[object] = []
        with curves.watched(tmp_path, lambda event, timeline: seen.append(event)) as watchers:
            timeline = RunTimeline()
            for event in TOLD:
                timeline = fold(timeline, event)
                for watch in watchers:
                    watch(event, timeline)
        assert seen == list(TOLD)

    CliRunner().invoke(command, words, catch_exceptions=False)
    assert len(tracker) == len(words)
    for made in tracker:
        assert made.ended == ["farflung/day-n"]
        assert made.places["tracking_uri"] == f"sqlite:///{tmp_path / 'mlflow.db'}"
        assert [(value, step) for name, value, step in made.metrics if name == "train/loss"] == [(4.5, 100), (3.5, 200)]


def test_run_and_resume_have_every_logger() -> None:
    for command in (run, resume):
        named = {word for option in command.params for word in option.opts}
        assert {f"--{name}" for name in curves.LOGGERS} <= named


def test_a_logger_that_is_missing_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(module: str) -> None:
        raise ImportError(module)

    monkeypatch.setattr(loggers.importlib, "import_module", missing)
    done = CliRunner().invoke(run, ["--preset", "tiny", "--mlflow", "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, UsageError)
    assert done.exception.code == "FF-APP-187"
    assert "pip install mlflow" in done.exception.hint
    assert not (tmp_path / "out").exists()


def test_a_group_of_sync_is_logged_by_its_rounds(tracker: list[Tracker]) -> None:
    curve = loggers.MLflow()
    for round in (0, 1):
        curve.on_sync(RoundReport(round, 10, 20 + round, 30, 0.5, 0.25, (0, 1), {}), loss=2.5 - round)
    curve.close()
    (made,) = tracker
    assert [(value, step) for name, value, step in made.metrics if name == "train/loss"] == [(2.5, 0), (1.5, 1)]
    assert [(value, step) for name, value, step in made.metrics if name == "sync/bytes_up"] == [(20.0, 0), (21.0, 1)]
    assert made.ended == ["farflung/sync"]
