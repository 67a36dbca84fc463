"""Provides callbacks that log a run to TensorBoard, Weights & Biases and MLflow; each needs its own extra.

The x axis of a run is trained tokens, so that runs of different sizes can be laid over each other; bytes on the wire
are told beside it. Of a group of farflung.sync the same callbacks log each round's report, by `on_sync`; its x axis is
the round.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

import msgspec

from farflung.app.api.callbacks import Callback, State
from farflung.core import events
from farflung.core.errors import UsageError
from farflung.core.events import AnyEvent

# Settings of W&B under which it logs the figures that it is given, and nothing else.
_QUIET: Final[Mapping[str, Any]] = {
    "quiet": True,
    "console": "off",
    "save_code": False,
    "disable_code": True,
    "disable_git": True,
    "host": "",
    "program": "",
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}


def _part(module: str, extra: str) -> ModuleType:
    """An optional module; raises UsageError FF-APP-187 where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            "FF-APP-187", f"{extra} is not installed", cause=str(error)[:200], hint=f"pip install {extra}"
        ) from error


def _of_round(state: State) -> dict[str, float]:
    last = state.timeline.last_round
    assert last is not None
    return {
        "train/loss": last.loss,
        "bytes/sync": float(state.sync_bytes),
        "bytes/sent": float(state.sent_bytes),
        "round/seconds": last.seconds,
        "round/peers": float(last.peers),
    }


class SyncCurves(Protocol):
    """What a logger reads of a group's round, a farflung.sync.RoundReport."""

    @property
    def round(self) -> int:
        """From 0."""

    @property
    def bytes_up(self) -> int:
        """This peer's."""

    @property
    def bytes_down(self) -> int:
        """This peer's."""

    @property
    def exchange_seconds(self) -> float:
        """Until all was merged."""

    @property
    def waited_seconds(self) -> float:
        """While training stood still."""

    @property
    def accepted(self) -> tuple[int, ...]:
        """Ranks."""


def _of_report(report: SyncCurves, values: Mapping[str, float]) -> dict[str, float]:
    return {
        "sync/bytes_up": float(report.bytes_up),
        "sync/bytes_down": float(report.bytes_down),
        "sync/exchange_seconds": report.exchange_seconds,
        "sync/waited_seconds": report.waited_seconds,
        "sync/peers": float(len(report.accepted)),
        **{f"train/{name}": float(value) for name, value in values.items()},
    }


class TensorBoard(Callback):
    """Writes event files that `tensorboard --logdir DIR` shows. Needs `pip install tensorboard`.

    `log_dir`: each run gets a folder of its name below it; None: the folder `tensorboard` in the run's own folder.
    Steps are trained tokens; tags below `by_bytes/` have bytes of sync traffic as their steps.
    Raises UsageError FF-APP-187 at once where TensorBoard is not installed.
    """

    def __init__(self, log_dir: str | Path | None = None) -> None:
        self._event = _part("tensorboard.compat.proto.event_pb2", "tensorboard").Event
        self._summary = _part("tensorboard.compat.proto.summary_pb2", "tensorboard").Summary
        self._make = _part("tensorboard.summary.writer.event_file_writer", "tensorboard").EventFileWriter
        self._log_dir = None if log_dir is None else Path(log_dir)
        self._writer: Any = None

    def on_round_end(self, state: State) -> None:
        """Losses, bytes, seconds and peers of the round."""
        values = _of_round(state)
        self._write(self._folder(state), state.tokens, values)
        self._write(self._folder(state), state.sync_bytes, {"by_bytes/train_loss": values["train/loss"]})

    def on_evaluate(self, state: State) -> None:
        """The validation loss, where its state belongs."""
        assert state.heldout_loss is not None
        tokens = state.tokens_before(state.heldout_round)
        self._write(self._folder(state), tokens, {"heldout/loss": state.heldout_loss})
        before = state.timeline.rounds.get(state.heldout_round - 1)
        sent = before.sync_bytes if before is not None else 0
        self._write(self._folder(state), sent, {"by_bytes/heldout_loss": state.heldout_loss})

    def on_caught(self, caught: events.SlashEvent, state: State) -> None:
        """How many were caught so far."""
        self._write(self._folder(state), state.tokens, {"audits/caught": float(len(state.timeline.caught))})

    def on_sync(self, report: SyncCurves, **values: float) -> None:
        """One round of a group, below `log_dir` or `tensorboard` here: bytes, seconds, peers, and what is given
        besides: `loss=2.5`.
        """
        self._write(self._log_dir or Path("tensorboard"), report.round, _of_report(report, values))

    def close(self) -> None:
        """Writes what is left."""
        if self._writer is not None:
            self._writer.close()

    def _folder(self, state: State) -> Path:
        return self._log_dir / state.run if self._log_dir is not None else state.folder / "tensorboard"

    def _write(self, folder: Path, step: int, values: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = self._make(str(folder))
        told = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        now, summary = time.time(), self._summary(value=told)
        self._writer.add_event(self._event(wall_time=now, step=step, summary=summary))


class WandB(Callback):
    """Logs to Weights & Biases. Needs `pip install wandb`.

    `mode`: "online", "offline" or "disabled"; None: what WANDB_MODE says, and "offline" without it. So nothing is
    sent anywhere unless you say so; `wandb sync` sends an offline run later.
    `options` go to `wandb.init` as they are (entity, group, tags, dir, …). Only figures of the run are logged: no
    source, no console, and of the computer its platform alone.
    Raises UsageError FF-APP-187 at once where W&B is not installed.
    """

    def __init__(self, project: str = "farflung", *, mode: str | None = None, **options: Any) -> None:
        self._wandb: Any = _part("wandb", "wandb")
        self._project, self._options = project, options
        self._mode = mode or os.environ.get("WANDB_MODE") or "offline"
        self._run: Any = None

    def on_event(self, event: AnyEvent, state: State) -> None:
        """Opens the run under its own name, in its own folder; its plan is the configuration."""
        if not isinstance(event, events.PlanEvent):
            return
        config = {key: value for key, value in msgspec.structs.asdict(event).items() if key != "at"}
        self._open("tokens", name=event.run, config=config, dir=str(state.folder))

    def on_sync(self, report: SyncCurves, **values: float) -> None:
        """One round of a group: bytes, seconds, peers, and what is given besides: `loss=2.5`."""
        if self._run is None:
            self._open("round")
        self._log({"round": report.round, **_of_report(report, values)})

    def _open(self, axis: str, **chosen: Any) -> None:
        """`dir` is where its files lie, unless WANDB_DIR or the options name another place."""
        known = self._wandb.Settings.model_fields  # some are younger than the oldest version that we take
        settings = self._wandb.Settings(**{name: value for name, value in _QUIET.items() if name in known})
        if "WANDB_DIR" in os.environ:
            chosen.pop("dir", None)
        said = {"settings": settings, **chosen, **self._options}
        self._run = self._wandb.init(project=self._project, mode=self._mode, **said)
        self._run.define_metric(axis)
        self._run.define_metric("*", step_metric=axis)

    def on_round_end(self, state: State) -> None:
        """Losses, bytes, seconds and peers of the round."""
        self._log({"tokens": state.tokens, **_of_round(state)})

    def on_evaluate(self, state: State) -> None:
        """The validation loss, where its state belongs."""
        self._log({"tokens": state.tokens_before(state.heldout_round), "heldout/loss": state.heldout_loss})

    def on_caught(self, caught: events.SlashEvent, state: State) -> None:
        """How many were caught so far."""
        self._log({"tokens": state.tokens, "audits/caught": len(state.timeline.caught)})

    def on_end(self, result: events.RunResultEvent) -> None:
        """The result as the run's summary."""
        if self._run is not None:
            wanted = ("loss", "loss_baseline", "bytes_sent", "paid", "slashed", "refunded", "pay_burnt", "model_hash")
            self._run.summary.update({name: getattr(result, name) for name in wanted})

    def close(self) -> None:
        """Ends the run at W&B."""
        if self._run is not None:
            self._run.finish()

    def _log(self, values: Mapping[str, object]) -> None:
        if self._run is not None:
            self._run.log(dict(values))


class MLflow(Callback):
    """Logs to MLflow. Needs `pip install mlflow`.

    `tracking_uri`: a server or a store; None: what MLFLOW_TRACKING_URI says, and without it `mlflow.db` in the run's
    folder, which `mlflow ui --backend-store-uri sqlite:///RUN/mlflow.db` shows. So nothing is sent anywhere unless you
    say so. Steps are trained tokens; the plan of the run is its parameters.
    Raises UsageError FF-APP-187 at once where MLflow is not installed.
    """

    def __init__(self, experiment: str = "farflung", *, tracking_uri: str | None = None) -> None:
        self._mlflow: Any = _part("mlflow", "mlflow")
        self._experiment = experiment
        self._uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._client: Any = None
        self._run = ""

    def on_event(self, event: AnyEvent, state: State) -> None:
        """Opens the run under its own name; its plan is the parameters."""
        if isinstance(event, events.PlanEvent):
            said = msgspec.structs.asdict(event)
            told = {key: str(value)[:500] for key, value in said.items() if isinstance(value, str | int | float)}
            self._open(state.folder, event.run, {key: value for key, value in told.items() if key != "at"})

    def on_round_end(self, state: State) -> None:
        """Losses, bytes, seconds and peers of the round."""
        self._log(state.tokens, _of_round(state))

    def on_evaluate(self, state: State) -> None:
        """The validation loss, where its state belongs."""
        assert state.heldout_loss is not None
        self._log(state.tokens_before(state.heldout_round), {"heldout/loss": state.heldout_loss})

    def on_caught(self, caught: events.SlashEvent, state: State) -> None:
        """How many were caught so far."""
        self._log(state.tokens, {"audits/caught": float(len(state.timeline.caught))})

    def on_sync(self, report: SyncCurves, **values: float) -> None:
        """One round of a group, in `mlflow.db` here: bytes, seconds, peers, and what is given besides: `loss=2.5`."""
        if self._client is None:
            self._open(Path(), "sync", {})
        self._log(report.round, _of_report(report, values))

    def close(self) -> None:
        """Ends the run at MLflow."""
        if self._client is not None:
            self._client.set_terminated(self._run)

    def _open(self, folder: Path, name: str, config: Mapping[str, str]) -> None:
        uri = self._uri or f"sqlite:///{(folder / 'mlflow.db').absolute()}"
        self._client = self._mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
        found = self._client.get_experiment_by_name(self._experiment)
        chosen = found.experiment_id if found is not None else self._client.create_experiment(self._experiment)
        self._run = self._client.create_run(chosen, run_name=name).info.run_id
        for key, value in config.items():
            self._client.log_param(self._run, key, value)

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        if self._client is not None:
            for name, value in values.items():
                self._client.log_metric(self._run, name, value, step=step)
