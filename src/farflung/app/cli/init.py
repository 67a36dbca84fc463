"""Implements the command `init`, which writes an example job that runs unchanged.

The keys that people change first are set, the others are comments.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from farflung.core.errors import RunError, UsageError
from farflung.core.release import VERSION
from farflung.job import job_toml
from farflung.job.io.job_files import read_dataset
from farflung.job.keys import KEYS
from farflung.local.jobs import resolve

JOB: Final = "job.toml"
MODULE: Final = "model.py"
NAME: Final = "build"

# What people change first, with the values that the example has where they are not the defaults.
ACTIVE: Final = (
    "name", "seed", "rounds", "batch", "budget",
    "model.layers", "model.width", "model.heads", "model.context",
    "data.path", "data.heldout",
    "optimizer.lr", "schedule.warmup", "sync.steps",
    "network.providers", "network.verifiers",
    "evaluate.every",
)  # fmt: skip
OF_MODULE: Final = ("model.kind", "model.module", "model.context", "model.vocabulary")
SHOWN: Final[Mapping[str, Any]] = {"name": "example", "rounds": 8, "budget": "1", "network.providers": 3}

SOURCE: Final = '''\
"""A model of your own: it predicts each token from the WINDOW tokens before it.

What farflung asks of a module:

- a function without arguments returns it; its file needs no other file,
- module(x_BT, y_BT) takes int64 tokens and returns one finite scalar, the loss; or module(x_BT) returns logits,
- parameters are float32 and are all trained; buffers stay constant (LayerNorm is fine, BatchNorm is not),
- logits(x_BT), if it is there, lets `farflung sample` write text with the model.

Shapes: B sequences, T tokens, D channels of an embedding, H hidden channels, V tokens of the vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

WINDOW = 8


class Windowed(nn.Module):
    def __init__(self, width: int = 24, hidden: int = 96, vocabulary: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.mix = nn.Conv1d(width, hidden, WINDOW)
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary)

    def logits(self, x_BT: Tensor) -> Tensor:
        """A score for each token that may come next, (B, T, V)."""
        x_BDT = self.embed(x_BT).transpose(1, 2)
        past_BDT = functional.pad(x_BDT, (WINDOW - 1, 0))  # nothing from the future
        hidden_BTH = torch.tanh(self.norm(self.mix(past_BDT).transpose(1, 2)))
        scores_BTV: Tensor = self.head(hidden_BTH)
        return scores_BTV

    def forward(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token; y is x one place later."""
        return functional.cross_entropy(self.logits(x_BT).flatten(0, 1), y_BT.flatten())


def build() -> nn.Module:
    return Windowed()
'''


def document(kind: str = "gpt", data: str | None = None) -> str:
    """The example job: active keys, and every other key as a comment with its default."""
    values: dict[str, Any] = {**SHOWN, **({"data.path": data} if data is not None else {})}
    active: tuple[str, ...] = ACTIVE
    if kind == "module":
        active = tuple(k for k in ACTIVE if not k.startswith("model.")) + OF_MODULE
        values |= {"model.kind": "module", "model.module": f"{MODULE}:{NAME}"}
    plan = [f"#     farflung plan {JOB}     what it takes, before anything starts"]  # known for the gpt only
    rows = [
        f"# A job of farflung {VERSION}. Paths start from this file's folder.",
        "#",
        *(plan if kind == "gpt" else []),
        f"#     farflung run {JOB}",
        "#",
        "# A line that begins with # shows a key that you may add, with its default.",
    ]
    section = None
    for dotted, key in KEYS.items():
        if key.section != section:
            section = key.section
            rows += ["", f"[{section}]"] if section else [""]
        is_active = dotted in active
        pair = f"{key.name} = {job_toml.toml_value(values.get(dotted, key.default) if is_active else key.default)}"
        rows.append(f"{pair if is_active else '# ' + pair:<34} # {job_toml.ABOUT[dotted]}".rstrip())
    return "\n".join(rows) + "\n"


def _place(where: Path) -> Path:
    """The job file that is meant: a name that ends in .toml, else a folder."""
    return where if where.suffix == ".toml" and not where.is_dir() else where / JOB


def _relative(data: str, folder: Path) -> str:
    """`data`, given from the present folder, as it is written in a job file of `folder`."""
    if data == "stdlib":
        return data
    path = Path(data).expanduser().absolute()
    return os.path.relpath(path, folder) if path.is_relative_to(folder.parent) else str(path)


def _write(files: Mapping[Path, str]) -> None:
    """All of the files, or none when one is there. Raises UsageError FF-APP-168, RunError FF-APP-169."""
    for path in files:
        if path.exists():
            other = path.with_name(f"{path.stem}-2{path.suffix}")
            raise UsageError(
                "FF-APP-168",
                f"{path} is there already",
                cause="init never overwrites a file",
                hint=f"farflung init {other if path.suffix == '.toml' else path.parent / 'another'}",
            )
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise RunError(
                "FF-APP-169",
                f"cannot write {path}",
                cause=error.strerror or str(error),
                hint="name a folder that you may write to: farflung init FOLDER",
            ) from error


@click.command(epilog="Example: farflung init my-job --data my-text.txt")
@click.argument("where", metavar="[FOLDER|FILE]", default=".", type=click.Path(path_type=Path))
@click.option("--data", metavar="PATH", help="Your text: a file, a folder, or tokens in .npy. Default: stdlib.")
@click.option(
    "--model",
    "kind",
    type=click.Choice(["gpt", "module"]),
    default="gpt",
    help="The built-in GPT, or a module of your own: writes model.py, too.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def init(where: Path, data: str | None, kind: str, as_json: bool) -> None:
    """Write an example job that runs as it is, every key explained; nothing is overwritten."""
    place = _place(where)
    folder = place.absolute().parent
    text = document(kind, _relative(data, folder) if data is not None else None)
    files = {place: text} | ({place.parent / MODULE: SOURCE} if kind == "module" else {})
    if data is not None:  # data that cannot be used is said now, not by a job file that fails
        here = Path.cwd()  # `folder` need not be there yet
        resolved, _ = resolve.resolve(document(kind, _relative(data, here)), resolve.SHOWN, {})
        read_dataset(resolved.spec.data, resolved.spec.model, here)
    _write(files)
    if as_json:
        said = {"files": [str(path) for path in files], "job": str(place), "data": data or "stdlib"}
        sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
        return
    for path in files:
        sys.stdout.write(f"wrote {path}\n")
    steps = [f"farflung plan {place}", f"farflung run {place}"]
    sys.stdout.write("next  " + "\n      ".join(steps if kind == "gpt" else steps[1:]) + "\n")
