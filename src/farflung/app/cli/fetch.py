"""Implements the commands that take a model out of its run.

`fetch` hands over the model that was paid for, `export` writes it in formats for other programs.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from farflung.app.cli.completion import run_names
from farflung.core.errors import FarflungError
from farflung.core.units import format_bytes
from farflung.local.model import hf_export, load, model_card
from farflung.local.model.load import MODEL, MODULE, SavedModel
from farflung.local.model.text_generation import ask
from farflung.peers.rundir.journal import read_timeline
from farflung.peers.rundir.runs import resolve_again
from farflung.train.inference_messages import ParameterNamesReply, ParameterNamesRequest

RECEIPT: Final = "requester.receipt"
RESOLVED: Final = "resolved.json"
_RUN = click.argument("name", metavar="[RUN]", required=False, shell_complete=run_names)
_OUT = click.option("--out", type=click.Path(file_okay=True, path_type=Path), help="A new folder to write into.")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


def _write(folder: Path, files: Mapping[str, bytes | memoryview]) -> list[dict[str, Any]]:
    """Writes the files; what was written, for people and programs."""
    load.write_files(folder, files)
    return [
        {"file": str(folder / name), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    ]


def _say(as_json: bool, facts: dict[str, Any], next_step: str) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(facts).decode() + "\n")
        return
    lines = [f"{'in ' + facts['folder']:<32} {'sha256'}"]
    lines += [
        f"{Path(row['file']).name:<23} {format_bytes(row['bytes']):>7}  {row['sha256']}" for row in facts["files"]
    ]
    named = "as the ledger says" if facts["on_ledger"] else "which the ledger does not name: no round was closed"
    lines.append(f"model {facts['model']}, {named}")
    sys.stdout.write("\n".join([*lines, f"next  {next_step}"]) + "\n")


@click.command(epilog="Example: farflung fetch --out my-model")
@_RUN
@_OUT
@_JSON
def fetch(name: str | None, out: Path | None, as_json: bool) -> None:
    """Copy a finished run's model, receipt and settings into a folder of yours.

    The model is compared with its hash on the ledger first. RUN: its name or folder; the newest by default.
    """
    run = load.finished(name)
    folder = out or Path(run.name)
    load.check_free(folder)
    held = load.open_model(str(run.root))
    found = load.on_ledger(run, held.data)
    files: dict[str, bytes | memoryview] = {
        MODEL: held.data,
        RECEIPT: load.receipt_bytes(run),
        RESOLVED: load.settings(run),
    }
    if held.source:
        files[MODULE] = held.source
    rows = _write(folder, files)
    facts = {"run": run.name, "folder": str(folder), "files": rows, "model": found.model, "on_ledger": found.is_named}
    _say(as_json, facts, f"farflung sample {folder}")


@click.command(epilog="Example: farflung export --format hf --out my-model-hf")
@_RUN
@click.option(
    "--format",
    "kind",
    type=click.Choice(["safetensors", "hf"]),
    default="hf",
    show_default=True,
    help="hf: a folder that transformers loads. safetensors: the plain tensors.",
)
@_OUT
@_JSON
def export(name: str | None, kind: str, out: Path | None, as_json: bool) -> None:
    """Write a finished run's model for other programs, with a model card.

    RUN: its name or folder; the newest by default.
    """
    run = load.finished(name)
    folder = out or Path(f"{run.name}-{kind}")
    load.check_free(folder)
    held = load.open_model(str(run.root))
    if kind == "hf":
        hf_export.check(held.card)
    found = load.on_ledger(run, held.data)
    files = exported(held, kind, found.model, folder.name)
    rows = _write(folder, files)
    facts = {
        "run": run.name,
        "folder": str(folder),
        "format": kind,
        "files": rows,
        "model": found.model,
        "on_ledger": found.is_named,
    }
    library = "transformers" if kind == "hf" else "safetensors"
    _say(as_json, facts, f"see {folder / 'README.md'}, and load it with {library}")


def exported(held: SavedModel, kind: str, model_hash: str, folder: str) -> dict[str, bytes]:
    """The files of an export by name, a model card among them."""
    import safetensors.numpy

    assert held.run is not None
    result = read_timeline(held.run).result
    assert result is not None
    spec = resolve_again(held.run).spec
    names = None if kind == "hf" else names_of(held)
    text = model_card.readme(held.card, spec, result, model_hash, folder, names)
    if kind == "hf":
        return hf_export.files(held.card, held.tensors, text)
    plain = bytes(safetensors.numpy.save(dict(held.tensors), {"format": "pt"}))
    return {MODEL: plain, "README.md": text.encode()}


def names_of(held: SavedModel) -> model_card.TensorNames:
    """What a model's state holds beside its file. Its tensors are written though the module cannot be built here."""
    if held.card.kind == "gpt":
        return model_card.TensorNames()
    try:
        (found,) = ask(held, ParameterNamesRequest(held.data, held.source))
    except FarflungError:
        return model_card.TensorNames(is_known=False)
    assert isinstance(found, ParameterNamesReply)
    return model_card.TensorNames(found.tied, found.made)
