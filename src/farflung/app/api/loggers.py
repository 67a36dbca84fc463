"""Provides callbacks that log a run to TensorBoard and to Weights & Biases; each needs its own extra.

The x axis is trained tokens, so that runs of different sizes can be laid over each other; bytes on the wire are told
beside it.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

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
            "FF-APP-187", f"{extra} is not installed", cause=str(error)[:200], hint=f"pip install 'farflung[{extra}]'"
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


class TensorBoard(Callback):
    """Writes event files that `tensorboard --logdir DIR` shows. Needs `pip install 'farflung[tensorboard]'`.

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
        self._write(state, state.tokens, values)
        self._write(state, state.sync_bytes, {"by_bytes/train_loss": values["train/loss"]})

    def on_evaluate(self, state: State) -> None:
        """The validation loss, where its state belongs."""
        assert state.heldout_loss is not None
        self._write(state, state.tokens_before(state.heldout_round), {"heldout/loss": state.heldout_loss})
        before = state.timeline.rounds.get(state.heldout_round - 1)
        sent = before.sync_bytes if before is not None else 0
        self._write(state, sent, {"by_bytes/heldout_loss": state.heldout_loss})

    def on_caught(self, caught: events.SlashEvent, state: State) -> None:
        """How many were caught so far."""
        self._write(state, state.tokens, {"audits/caught": float(len(state.timeline.caught))})

    def close(self) -> None:
        """Writes what is left."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, state: State, step: int, values: Mapping[str, float]) -> None:
        if self._writer is None:
            below = self._log_dir / state.run if self._log_dir is not None else state.folder / "tensorboard"
            self._writer = self._make(str(below))
        told = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        now, summary = time.time(), self._summary(value=told)
        self._writer.add_event(self._event(wall_time=now, step=step, summary=summary))


class WandB(Callback):
    """Logs to Weights & Biases. Needs `pip install 'farflung[wandb]'`.

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
        known = self._wandb.Settings.model_fields  # some are younger than the oldest version that we take
        settings = self._wandb.Settings(**{name: value for name, value in _QUIET.items() if name in known})
        config = {key: value for key, value in msgspec.structs.asdict(event).items() if key != "at"}
        chosen: dict[str, Any] = {"name": event.run, "settings": settings, "config": config, **self._options}
        if "WANDB_DIR" not in os.environ:
            chosen.setdefault("dir", str(state.folder))
        self._run = self._wandb.init(project=self._project, mode=self._mode, **chosen)
        self._run.define_metric("tokens")
        self._run.define_metric("*", step_metric="tokens")

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
            wanted = ("loss", "loss_baseline", "bytes_sent", "paid", "slashed", "refunded", "model_hash")
            self._run.summary.update({name: getattr(result, name) for name in wanted})

    def close(self) -> None:
        """Ends the run at W&B."""
        if self._run is not None:
            self._run.finish()

    def _log(self, values: Mapping[str, object]) -> None:
        if self._run is not None:
            self._run.log(dict(values))
