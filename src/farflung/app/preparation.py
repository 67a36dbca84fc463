"""Preparation: from what a person wrote to terms that can be hashed, with everything that they name on disk.

`terms.bin` is written last: a run that has it resumes from its own folder and reads nothing outside it again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from farflung.app import standing, tracing
from farflung.app.folder import RunFolder
from farflung.app.journal import Emitter, Journal
from farflung.app.local import LocalNetwork
from farflung.app.workplace import Worker, ask
from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import NS_OBJECT, digest
from farflung.core.errors import FarflungError, ProtocolError, RunError, VerificationError
from farflung.core.events import Warned
from farflung.core.ids import ZERO_HASH, Hash
from farflung.core.io.durable import write_atomic
from farflung.core.layout import Layout
from farflung.host.io.image import image_digest
from farflung.job import dataset
from farflung.job.io.read import read_dataset, read_module
from farflung.job.load import Resolved
from farflung.job.model import gpt_shapes
from farflung.job.spec import Ancestor, JobSpec, Terms, Tolerance
from farflung.train import messages, snapshot
from farflung.verify.margin import check_margins
from farflung.verify.tolerance import tolerance_of


class Prepared(msgspec.Struct, frozen=True):
    """What a run starts from."""

    terms: Terms
    ready: messages.Ready


async def read_inputs(folder: RunFolder, spec: JobSpec, base: Path, journal: Emitter) -> None:
    """Reads data, module and the run that this one stands on once, and keeps them in the run's folder."""
    if not folder.dataset_file.exists():
        data = read_dataset(spec.data, spec.model, base)
        write_atomic(folder.dataset_file, dataset.pack(data), "run.dataset")
    if spec.model.kind == "module" and not folder.module_file.exists():
        source, _ = read_module(spec.model.module, base)
        write_atomic(folder.module_file, source, "run.module")
    if not folder.terms_file.exists():
        await standing.read_base(folder, spec, base, journal)


def module_source(folder: RunFolder) -> bytes:
    """The user's model source, or nothing."""
    return folder.module_file.read_bytes() if folder.module_file.exists() else b""


def known_layout(spec: JobSpec) -> Layout | None:
    """The model's tensors as far as they are known without building it: of the built-in GPT."""
    return Layout.of(gpt_shapes(spec.model)) if spec.model.kind == "gpt" else None


async def prepare(folder: RunFolder, worker: Worker, network: LocalNetwork, journal: Journal) -> Prepared:
    """Sets the requester's worker up; makes round 0's public state and the terms, unless they are there, and tells the
    job's class.

    Raises RunError FF-APP-022 (other terms), VerificationError FF-APP-023 (an input was damaged since), and what
    tracing.classify raises.
    """
    spec, key = network.spec, network.keys.requester
    data, module = folder.dataset_file.read_bytes(), module_source(folder)
    terms = read_terms(folder, spec) if folder.terms_file.exists() else None
    if terms is not None:
        _check_inputs(folder, terms, data, module)
    ready = await ask(worker, messages.Setup(spec, data, module, 0, key.public), messages.Ready)
    if terms is not None:
        _tell_class(journal, terms)
        return Prepared(terms, ready)
    tracer = asyncio.create_task(tracing.trace(folder, spec, module))
    try:
        state = await ask(worker, messages.Initialize(), messages.State)
        layout = Layout.of(dict(state.shapes))
        initial, root, lineage = _first(folder, spec, state, layout)
        write_atomic(folder.initial_file, initial, "run.initial")
        tolerance = await _profile(worker, initial, layout) if spec.is_audited else Tolerance()
        made = (folder, spec, layout, tolerance, data, await tracer)
        program, unproven = await asyncio.to_thread(tracing.classify, *made)
    finally:
        tracer.cancel()
        await asyncio.gather(tracer, return_exceptions=True)
    terms = Terms(
        spec,
        digest(NS_OBJECT, data),
        _module_hash(module),
        layout,
        key.public,
        root,
        tolerance,
        lineage,
        stake=network.stake,
        program=program,
        unproven=unproven,
        image=image_digest() if spec.network.image == "mine" else ZERO_HASH,
    )
    write_atomic(folder.terms_file, encode(terms), "run.terms")
    _tell_class(journal, terms)
    _tell_speed(journal, spec)
    return Prepared(terms, ready)


def _tell_class(journal: Journal, terms: Terms) -> None:
    """Once in a run, however often it is resumed."""
    if journal.timeline.classed is None:
        journal.emit(tracing.told(terms))


def _tell_speed(journal: Journal, spec: JobSpec) -> None:
    """Nodes of a local run share their machine, which no benchmark of one of them knows."""
    if spec.audit.speed:
        text = "audit.speed judges machines, and all nodes of this run share one"
        hint = "whom it has audited may differ when the run is repeated; 0 judges nobody"
        journal.emit(Warned(code="FF-APP-415", message=text, hint=hint))


def _first(
    folder: RunFolder, spec: JobSpec, made: messages.State, layout: Layout
) -> tuple[bytes, Hash, tuple[Ancestor, ...]]:
    """Round 0's public state, its root, and what it stands on: weights of a proven run, or those that were made."""
    base = standing.kept_base(folder)
    if base is None:
        return made.snapshot, made.root, ()
    state = standing.first_state(base, spec, layout)
    return snapshot.pack(state, layout), state.root(layout), base.lineage


async def _profile(worker: Worker, initial: bytes, layout: Layout) -> Tolerance:
    """The profile run: how far honest work on this very job may lie apart. Fixed before anybody works.

    Raises PolicyError FF-VERI-050 or -115 when audits could not tell work from none, or from less of it.
    """
    profiled = await ask(worker, messages.Profile(initial), messages.Profiled)
    tolerance = tolerance_of(profiled.noise)
    check_margins(tolerance, layout, profiled.shortcuts)
    return tolerance


def _module_hash(module: bytes) -> Hash:
    return digest(NS_OBJECT, module) if module else ZERO_HASH


def read_terms(folder: RunFolder, spec: JobSpec) -> Terms:
    """The terms that were fixed for this spec; raises RunError FF-APP-022, VerificationError FF-APP-023."""
    path = folder.terms_file
    try:
        terms = decode(path.read_bytes(), Terms, limits.LOG_RECORD_BYTES)
    except ProtocolError as error:
        raise _damaged(path, f"{error.message}: {error.cause}") from error
    if terms.spec != spec:
        raise RunError(
            "FF-APP-022",
            "the run was started with another configuration",
            cause="terms.bin does not agree with run.json",
            hint="start a new run with `farflung run`",
        )
    return terms


def _check_inputs(folder: RunFolder, terms: Terms, data: bytes, module: bytes) -> None:
    """What a run is resumed from is what its terms say, to the bit; and by that the terms are what they were."""
    if digest(NS_OBJECT, data) != terms.dataset:
        raise _damaged(folder.dataset_file, "its hash is not the one in the run's terms")
    if _module_hash(module) != terms.module:
        raise _damaged(folder.module_file, "its hash is not the one in the run's terms")
    try:
        tracing.parts(terms, data, tracing.graph_bytes(folder))
    except FarflungError as error:
        raise _damaged(folder.graph_file, error.message) from error
    try:
        initial = snapshot.unpack(folder.initial_file.read_bytes(), terms.layout)
        snapshot.check(initial, terms.layout, 0, terms.initial_root)
    except (OSError, FarflungError) as error:
        raise _damaged(folder.initial_file, str(error)) from error


def _damaged(path: Path, cause: str) -> VerificationError:
    return VerificationError(
        "FF-APP-023",
        f"{path.name} is damaged",
        cause=cause[:300],
        hint=f"restore {path} from a copy; without one, start a new run with `farflung run`",
    )


def plain(value: Any) -> Any:
    """Structs as dictionaries, for files that people and their tools read."""
    if isinstance(value, Wire):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    return value


def write_resolved(folder: RunFolder, resolved: Resolved) -> None:
    """The resolved configuration with the origin of each value."""
    text = {"spec": plain(resolved.spec), "origins": resolved.origins}
    write_atomic(
        folder.resolved_file, msgspec.json.format(msgspec.json.encode(text), indent=2), "run.resolved"
    )
