"""Loads a saved model by its run, folder or file, and compares it with the ledger's record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

import msgspec
from numpy.typing import NDArray

from farflung.core import limits
from farflung.core.crypto import NS_OBJECT, digest
from farflung.core.errors import RunError, UsageError, VerificationError, VersionError
from farflung.core.file_header import check_json
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.io.durable_files import write_atomic
from farflung.core.io.ordinary_files import LINK
from farflung.core.io.spool_file import mapped_file
from farflung.job.spec import JobSpec
from farflung.ledger.receipt_file import BYTES, check_receipt_file, read_receipt_file
from farflung.ledger.table_rows import JobRow, JobState
from farflung.peers.rundir import folder
from farflung.peers.rundir.bounded_read import read_file, unreadable
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.genesis import NetworkKeys, chain_of
from farflung.peers.rundir.inputs import RESOLVED, read_terms
from farflung.peers.rundir.journal import read_timeline
from farflung.peers.rundir.runs import command_name, resolve_again, runs_folder
from farflung.train import model_file
from farflung.train.blobs import Blob
from farflung.train.model_file import ModelFileHeader, model_hash

MODEL: Final = "model.safetensors"
MODULE: Final = "module.py"


class SavedModel(NamedTuple):
    """A model file with its bytes, and the source of the module beside it (b"" for the built-in GPT)."""

    path: Path
    data: memoryview
    card: ModelFileHeader
    tensors: Mapping[str, NDArray[Any]]
    source: bytes
    run: RunFolder | None


def open_model(what: str | None) -> SavedModel:
    """The model of a run (by name or folder; None: the newest finished one), of a fetched folder, or of a file.

    Raises UsageError FF-APP-014 (no such run), FF-TRAIN-100 and -101 (no such file), RunError FF-APP-160 (the run is
    not finished), FF-APP-161 (cannot be read), VerificationError FF-TRAIN-102 (other tensors than it claims),
    FF-APP-165 (another source beside it).
    """
    path = Path(what) if what is not None else None
    if path is not None and path.is_dir() and not (path / "run.json").is_file() and (path / MODEL).is_file():
        path = path / MODEL
    if path is not None and path.is_file():
        return _read(path, None)
    run = finished(what)
    return _read(run.model_file, run)


def finished(name: str | None) -> RunFolder:
    """A finished run; without a name the newest. Raises UsageError FF-APP-014, RunError FF-APP-160."""
    base = runs_folder()
    if name is None:
        done = [run for run in folder.all_known(base) if run.model_file.is_file() and run.owner() is None]
        if done:
            return done[-1]
    run = folder.find(base, name)
    if not run.model_file.is_file() or read_timeline(run).result is None:
        is_running = run.owner() is not None
        raise RunError(
            "FF-APP-160",
            f"run {run.name} has no model yet",
            cause="it is running" if is_running else "it was stopped before its end",
            hint=f"farflung {'watch' if is_running else 'resume'} {command_name(run)}",
        )
    return run


def _read(path: Path, run: RunFolder | None) -> SavedModel:
    flags = os.O_NOFOLLOW if run is not None else 0  # a run may be a stranger's
    try:
        data = mapped_file(path, flags)
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from None
    said, tensors = model_file.read(data)
    if said.kind == "gpt":
        # What follows builds it by the sizes that the file claims.
        model_file.fit(said, model_file.gpt_layout(said), tensors)
    beside = path.parent / MODULE
    source = _source(beside, said, flags) if said.kind == "module" else b""
    return SavedModel(path, data, said, tensors, source, run)


def _source(path: Path, said: ModelFileHeader, flags: int) -> bytes:
    """The source of a model of the user's own. Raises RunError FF-APP-161, VerificationError FF-APP-165 (another)."""
    source = read_file(path, limits.MODULE_BYTES, flags)
    if digest(NS_OBJECT, source).hex() != said.source:
        raise VerificationError(
            "FF-APP-165",
            f"{path} is not the source that this model was trained with",
            cause=f"the model names the one whose hash is {said.source[:16]}...",
            hint="restore it from a copy, or fetch the model again with `farflung fetch`",
        )
    return source


def settings(run: RunFolder) -> bytes:
    """The resolved configuration for whoever gets the model: of the data and the source the names, not the folders.

    Raises RunError FF-APP-161, VersionError FF-CORE-095.
    """
    text = read_file(run.resolved_file, 4 * limits.SPEC_BYTES, os.O_NOFOLLOW)
    try:
        check_json(RESOLVED, text, 0)
        said = msgspec.json.decode(text)
        model, data = said["spec"]["model"], said["spec"]["data"]
        file, colon, function = model["module"].rpartition(":")
        model["module"] = f"{PurePath(file).name}{colon}{function}"
        data["path"] = PurePath(data["path"]).name
        if model.get("start"):
            model["start"] = PurePath(model["start"]).name
        return msgspec.json.format(msgspec.json.encode(said), indent=2)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise unreadable(run.resolved_file, f"it is damaged: {error}"[:200]) from error


class ModelRecord(NamedTuple):
    """A model's hash, and whether the ledger names it: a job that ended before its first round has no model there."""

    model: str
    is_named: bool


def on_ledger(run: RunFolder, data: Blob) -> ModelRecord:
    """The hash of a run's model file, compared with what the ledger recorded, by the run's own receipt.

    The receipt is the requester's, of the end of this very job. Raises VerificationError FF-APP-162 (another file
    than the recorded one), FF-APP-472 (the receipt is of another party, or does not prove it), FF-LEDG-07x (it does not
    hold), and what read_terms raises.
    """
    said, spec = model_hash(data), resolve_again(run).spec
    held = read_receipt_file(receipt_bytes(run))
    rows = check_receipt_file(held, chain_of(run, spec))
    requester, job = _requester(run, spec), _job(run, spec, data)
    row = next((row for row in rows if isinstance(row, JobRow) and row.job == job), None)
    if held.party != requester:
        raise _no_receipt(run, "it is the receipt of another party")
    if row is None or row.requester != requester or row.state in (JobState.CREATED, JobState.RUNNING):
        raise _no_receipt(run, "it does not prove how this job ended")
    is_recorded = row.output != ZERO_HASH
    if is_recorded and said != row.output:
        raise VerificationError(
            "FF-APP-162",
            f"the model file of run {run.name} is not the one on the ledger",
            cause=f"its hash is {said.hex()[:16]}..., the ledger says {row.output.hex()[:16]}...",
            hint=f"farflung verify-run {run.name}",
        )
    return ModelRecord(said.hex(), is_recorded)


def _requester(run: RunFolder, spec: JobSpec) -> PeerId:
    """On a network whom the run's terms name; on this computer who follows from the job, whatever wrote its terms."""
    if run.network_file.exists():
        return read_terms(run, spec).requester
    return NetworkKeys(spec).requester.public


def _job(run: RunFolder, spec: JobSpec, data: Blob) -> Hash:
    """The job by its terms; where another farflung wrote them by the model's card, which the recorded hash covers."""
    try:
        return read_terms(run, spec).id
    except VersionError:
        return Hash(bytes.fromhex(model_file.read(data)[0].job))


def _no_receipt(run: RunFolder, cause: str) -> VerificationError:
    return VerificationError(
        "FF-APP-472",
        f"the receipt in run {run.name} does not name its model",
        cause=cause,
        hint=f"farflung verify-run {run.name}, or copy export/receipts/requester.receipt again",
    )


def receipt_bytes(run: RunFolder) -> bytes:
    """What the requester of a run keeps as proof of what was paid, read through no link. Raises RunError FF-APP-161."""
    path = run.export / "receipts" / "requester.receipt"
    for above in (run.export, path.parent):
        if above.is_symlink():
            raise unreadable(above, LINK)
    return read_file(path, BYTES, os.O_NOFOLLOW)


def check_free(out: Path) -> None:
    """Raises UsageError FF-APP-163 when `out` is no folder to write into: a file, or not empty."""
    if (out.is_dir() and not any(out.iterdir())) or not os.path.lexists(out):
        return
    raise UsageError(
        "FF-APP-163",
        f"{out} is in use",
        cause="it is a folder that is not empty" if out.is_dir() else "it is a file",
        hint=f"choose another with --out {out.name or 'model'}-2",
    )


def write_files(out: Path, files: Mapping[str, bytes | memoryview]) -> None:
    """Writes whole files into a new or empty folder, all or none. Raises UsageError FF-APP-163, RunError FF-APP-164."""
    try:
        check_free(out)
        is_new = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_room(out, error.strerror or str(error)) from error
    try:
        for name, data in files.items():
            write_atomic(out / name, data, "run.fetch")
    except RunError as error:
        for name in files:
            (out / name).unlink(missing_ok=True)
        if is_new:
            out.rmdir()
        raise _no_room(out, error.cause) from error


def _no_room(out: Path, cause: str) -> RunError:
    return RunError("FF-APP-164", f"cannot make the folder {out}", cause=cause, hint="choose another with --out")
