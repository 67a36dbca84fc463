"""Loads the run that a new one builds on (V4), after proving it from its own log, and stores it.

What is kept are its final public state (`base-state.bin`) and what the new run's terms say of it (`base.bin`, written
last); nothing outside the folder is read again. The new run begins with fresh state in all other respects: momentum and
moments belong to another schedule and perhaps to another method, and what peers held privately left with them.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.codec import Wire
from farflung.core.errors import FarflungError, SpecError, UsageError, VerificationError
from farflung.core.events import LineageEvent
from farflung.core.file_header import FileFormat, file_of, value_of
from farflung.core.io.durable_files import write_atomic
from farflung.core.io.spool_file import mapped_file
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import AncestorRun, JobSpec
from farflung.peers.network import model_transfer
from farflung.peers.network.account import own_account
from farflung.peers.network.model_transfer import ModelSource
from farflung.peers.network.published_model import PREFIX, query_of
from farflung.peers.rundir.bounded_read import unreadable
from farflung.peers.rundir.export import read_export
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.genesis import chain_of
from farflung.peers.rundir.journal import EventEmitter
from farflung.peers.rundir.network_record import read_genesis, read_network
from farflung.peers.rundir.runs import command_name, resolve_again, runs_folder
from farflung.train import public_state
from farflung.train.blobs import parts_of
from farflung.train.public_state import PublicState
from farflung.train.sync_arithmetic import Sync
from farflung.verify.run_replay import ReplayResult, prove_base

_GENESIS: Final = "genesis.bin"
_BASE: Final = FileFormat("base-weights", 2)


class BaseWeights(Wire, frozen=True):
    """Of a proven run whose final state is kept: its tensors, and the lineage of who begins with its weights."""

    lineage: tuple[AncestorRun, ...]
    layout: TensorLayout


async def read_base(folder: RunFolder, spec: JobSpec, base: Path, journal: EventEmitter) -> None:
    """Proves the run that `model.start` names, unless that was done, and keeps what it came to in the run's folder.

    A model of the network (`net:NAME`) is fetched, and held against the ledger.

    Raises SpecError FF-APP-350 (there is no such run), VerificationError FF-APP-351 (it does not hold), UsageError
    FF-APP-650 (the run is on no network), and what peers.network.model_transfer raises.
    """
    if not spec.model.start or folder.base_file.exists():
        return
    began, merges, signatures = time.monotonic(), 0, 0
    if spec.model.start.startswith(PREFIX):
        name = spec.model.start
        found = await model_transfer.find(source_of(folder, name), query_of(name))
        lineage, layout = found.lineage, found.terms.layout
        public = await model_transfer.fetch(source_of(folder, name), found, folder.root)
    else:
        parent = find_exported(spec.model.start, base)
        proven = await asyncio.to_thread(_proved, parent)
        name, lineage, layout, public = (
            parent.name,
            (proven.itself, *proven.terms.lineage),
            proven.terms.layout,
            proven.public,
        )
        merges, signatures = proven.report.merges, proven.report.signatures
    kept = BaseWeights(lineage, layout)
    write_atomic(folder.base_state_file, iter(parts_of(public_state.pieces(public, layout))), "run.base")
    write_atomic(folder.base_file, file_of(_BASE, kept), "run.base")
    jobs = tuple(ancestor.job.hex() for ancestor in lineage)
    journal.emit(
        LineageEvent(
            run=name, jobs=jobs, root=lineage[0].root.hex(), rounds=public.round,
            merges=merges, signatures=signatures, seconds=round(time.monotonic() - began, 3),
        )
    )  # fmt: skip


def source_of(folder: RunFolder, start: str) -> ModelSource:
    """The network that the run is on. Raises UsageError FF-APP-650 where it is on none."""
    record = read_network(folder)
    if record is None:
        raise UsageError(
            "FF-APP-650",
            f"{start} is on a network, and this run is not",
            cause="a published model is fetched from the seats of the network that the run is on",
            hint="farflung run job.toml --on NETWORK",
        )
    return ModelSource(read_genesis(folder), record.ledger, own_account())


def find_exported(start: str, base: Path | None = None) -> RunFolder:
    """A run with its exported log: by its name, or by a path that starts at `base`. Raises SpecError FF-APP-350."""
    for root in (runs_folder() / start, (base or Path()) / start):
        if (root / "export" / _GENESIS).is_file():
            return RunFolder(root)
    raise SpecError(
        "FF-APP-350",
        f"there is no finished run {start[:100]!r} to start from",
        cause="its folder must hold its exported log: a fetched model alone proves nothing",
        hint="`farflung status` lists runs; `farflung resume` finishes one",
    )


def _proved(parent: RunFolder) -> ReplayResult:
    try:
        spec = resolve_again(parent).spec if parent.identity_file.exists() else None
        return prove_base(read_export(parent), chain_of(parent, spec) if spec is not None else None)
    except FarflungError as error:
        raise VerificationError(
            "FF-APP-351",
            f"run {parent.name} cannot be stood on",
            cause=f"{error.code}: {error.message}",
            hint=f"farflung verify-run {command_name(parent)}",
        ) from error


def kept_base(folder: RunFolder) -> BaseWeights | None:
    """What the run stands on, if it stands on one. Raises VersionError FF-CORE-095, ProtocolError FF-CORE-096."""
    if not folder.base_file.exists():
        return None
    return value_of(_BASE, folder.base_file.read_bytes(), BaseWeights, limits.CONTROL_BYTES)


def first_state(folder: RunFolder, base: BaseWeights, spec: JobSpec, layout: TensorLayout) -> PublicState:
    """Round 0's public state: the weights that `base` ended with, all else fresh. Raises SpecError FF-APP-352 (another
    layout), RunError FF-APP-161, and what public_state.unpack raises.
    """
    check_layout(layout, base.layout)
    try:
        kept = mapped_file(folder.base_state_file)
    except OSError as error:
        raise unreadable(folder.base_state_file, error.strerror or str(error)) from None
    return Sync.of(spec).initial(public_state.unpack(kept, layout).params)


def check_layout(layout: TensorLayout, start: TensorLayout) -> None:
    """Raises SpecError FF-APP-352: a model of `layout` cannot take tensors of `start`."""
    if layout != start:
        here, there = ({t.name: t.shape for t in each.tensors} for each in (layout, start))
        odd = sorted(set(here.items()) ^ set(there.items()))[:1]
        raise SpecError(
            "FF-APP-352",
            "this model cannot start with the weights of that run",
            cause=f"{odd[0][0]} is in one of them only, or of another shape there",
            hint="give [model] the sizes that it had there, or leave model.start out",
        )
