"""Adds `--tensorboard`, `--wandb` and `--mlflow` to a command: live curves of its run, by the callbacks of the API."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from farflung.app.api.callbacks import Callback, Callbacks
from farflung.app.api.loggers import MLflow, TensorBoard, WandB
from farflung.peers.rundir.journal import Watcher

LOGGERS: Final[Mapping[str, Callable[[], Callback]]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
_HELP: Final = {
    "tensorboard": "Live curves. Also --wandb, --mlflow.",
    "wandb": "Curves to W&B; offline unless WANDB_MODE=online.",
    "mlflow": "Curves to MLflow; in RUN/mlflow.db by default.",
}
SHOWN: Final = "tensorboard"  # in a help of one screen; it names the others
_WANTED: Final = "farflung.curves"


def _note(context: click.Context, option: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        context.meta.setdefault(_WANTED, []).append(str(option.name))


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of all loggers; `watched` knows which were given."""
    for name in sorted(LOGGERS):
        hides, said = name != SHOWN, _HELP[name]
        add = click.option(f"--{name}", is_flag=True, expose_value=False, callback=_note, hidden=hides, help=said)
        command = add(command)
    return command


@contextlib.contextmanager
def watched(root: Path, see: Watcher) -> Iterator[Sequence[Watcher]]:
    """Who watches the run in `root`: `see`, and the loggers that were asked for, which are closed at the end.

    Raises UsageError FF-APP-187 where one is not installed.
    """
    wanted = click.get_current_context().meta.get(_WANTED, [])
    hooks = Callbacks(root, [LOGGERS[name]() for name in wanted])
    try:
        yield [see, hooks] if wanted else [see]
    finally:
        hooks.close()
