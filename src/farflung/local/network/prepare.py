"""Prepares a run: turns the user's job into terms that can be hashed, and stores every file it names.

`terms.bin` is written last: a run that has it resumes from its own folder and reads nothing outside it again.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from farflung.core import limits
from farflung.core.canon.program import CanonicalProgram
from farflung.core.canon.token_leaves import pack_leaves
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_OBJECT, digest
from farflung.core.errors import FarflungError, ProtocolError, VersionError
from farflung.core.events import WarningEvent
from farflung.core.ids import ZERO_HASH, Hash
from farflung.core.io.durable_files import write_atomic
from farflung.core.io.spool_file import mapped_file
from farflung.core.tensor_layout import TensorLayout
from farflung.host.io.code_digest import image_digest
from farflung.job import dataset, terms_file
from farflung.job.io.job_files import read_data, read_module
from farflung.job.spec import AncestorRun, JobSpec, JobTerms, Tolerance
from farflung.job.token_tree import DatasetRoot, opened, pack_root
from farflung.local.jobs import base_run
from farflung.local.network.joined_network import JoinedNetwork
from farflung.peers.node import graph_trial
from farflung.peers.node.workspace import WorkerHandle, ask
from farflung.peers.program import cache, trace
from farflung.peers.program.cache import ProfileRequest, TrialRequest
from farflung.peers.program.graph_runs import JobGraph
from farflung.peers.rundir.dataset_file import DatasetFile
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.inputs import damaged, module_source, read_terms, write_account
from farflung.peers.rundir.journal import EventEmitter, Journal
from farflung.train import public_state, worker_messages
from farflung.train.blobs import Blob, parts_of
from farflung.train.data_order import round_leaves
from farflung.verify.tolerance import tolerance_of
from farflung.verify.tolerance_margin import check_margins

# Why a graph cannot be used: no memory or no time for it here, another step than the one that is trained.
GRAPH_FAULTS: Final = frozenset({"FF-VERI-103", "FF-VERI-104", "FF-VERI-117", "FF-APP-692"})


class RunInputs(msgspec.Struct, frozen=True):
    """What a run starts from."""

    terms: JobTerms
    ready: worker_messages.SetupResult


async def read_inputs(folder: RunFolder, spec: JobSpec, base: Path, journal: EventEmitter) -> None:
    """Reads data, module and the run that this one stands on once, and keeps them in the run's folder."""
    if not folder.dataset_file.exists():
        read = read_data(spec.data, spec.model, base)
        write_account(folder, read.account)
        write_atomic(folder.dataset_file, dataset.packed(read.dataset), "run.dataset")
    if spec.model.kind == "module" and not folder.module_file.exists():
        source, _ = read_module(spec.model.module, base)
        write_atomic(folder.module_file, source, "run.module")
    if not folder.terms_file.exists():
        await base_run.read_base(folder, spec, base, journal)


async def prepare(folder: RunFolder, worker: WorkerHandle, network: JoinedNetwork, journal: Journal) -> RunInputs:
    """Sets the requester's worker up; makes round 0's public state and the terms, unless they are there, and tells the
    job's class.

    Raises RunError FF-APP-022 (other terms), VerificationError FF-APP-023 (an input was damaged since), and what
    trace.classify raises.
    """
    spec, account = network.spec, network.account
    data, module = DatasetFile(folder.dataset_file), module_source(folder)
    terms = read_terms(folder, spec) if folder.terms_file.exists() else None
    if terms is not None:
        await asyncio.to_thread(_check_inputs, folder, terms, data, module)
    setup = worker_messages.SetupCommand(spec, data.lent(), module, 0, account)
    ready = await ask(worker, setup, worker_messages.SetupResult)
    if terms is not None:
        _tell_class(journal, terms)
        return RunInputs(terms, ready)
    tracer = asyncio.create_task(trace.trace(folder, spec, module))
    try:
        state = await ask(worker, worker_messages.InitializeCommand(), worker_messages.StateResult)
        layout = TensorLayout.of(dict(state.shapes))
        large = await asyncio.to_thread(data.root, spec)
        named = await asyncio.to_thread(data.content) if large is None else large.name
        initial, root, lineage = _first(folder, spec, state, layout)
        write_atomic(folder.initial_file, iter(parts_of(initial)), "run.initial")
        initial = mapped_file(folder.initial_file)
        asked = ProfileRequest(spec, _module_hash(module), named, digest(NS_OBJECT, initial))
        tolerance = await _profile(worker, initial, layout, asked) if spec.is_audited else Tolerance()
        traced = await tracer
        tokens = data.parts().train if large is None else large.empty()[0]
        made = (folder, spec, layout, tolerance, tokens, traced)
        parts, unproven = await asyncio.to_thread(trace.classify, *made)
        if parts is not None:
            graph = JobGraph(parts, layout, tolerance, data.lent(), traced.shipped)
            if large is not None:
                graph = await asyncio.to_thread(_of_first_round, graph, data, large)
            unproven = await _tried(folder, worker, graph, asked)
        program = CanonicalProgram() if parts is None or unproven else parts.program
    finally:
        tracer.cancel()
        await asyncio.gather(tracer, return_exceptions=True)
    terms = JobTerms(
        spec,
        named,
        _module_hash(module),
        layout,
        account,
        root,
        tolerance,
        lineage,
        stake=network.stake,
        program=program,
        unproven=unproven,
        image=image_digest() if spec.network.image == "mine" else ZERO_HASH,
    )
    write_atomic(folder.terms_file, terms_file.write(terms), "run.terms")
    _tell_class(journal, terms)
    _tell_speed(journal, spec)
    return RunInputs(terms, ready)


def _of_first_round(graph: JobGraph, data: DatasetFile, root: DatasetRoot) -> JobGraph:
    """The same with the tokens that member 0 has in round 0, in place of all."""
    leaves = data.trees().train.leaves(round_leaves(graph.parts.spec, root.train, 0, 0))
    return graph._replace(data=pack_root(root), tokens=pack_leaves(leaves))


async def _tried(folder: RunFolder, worker: WorkerHandle, graph: JobGraph, asked: ProfileRequest) -> str:
    """Why the job cannot have its program, whose graph is tried here as each node will; empty: it can.

    Raises what trace.unproven raises, and what the worker raises of training that fails.
    """
    request = TrialRequest(*asked)
    if await asyncio.to_thread(cache.find, request) is not None:
        return ""
    public = public_state.unpack(mapped_file(folder.initial_file), graph.layout)
    try:
        await graph_trial.try_step(worker, graph, public, 0, folder.root)
    except FarflungError as error:
        if error.code not in GRAPH_FAULTS:
            raise
        folder.graph_file.unlink(missing_ok=True)
        return trace.unproven(asked.spec, error)[: limits.REASON_LENGTH]
    await asyncio.to_thread(cache.keep, request, b"")
    return ""


def _tell_class(journal: Journal, terms: JobTerms) -> None:
    """Once in a run, however often it is resumed."""
    if journal.timeline.classed is None:
        journal.emit(trace.told(terms))


def _tell_speed(journal: Journal, spec: JobSpec) -> None:
    """Nodes of a local run share their machine, which no benchmark of one of them knows."""
    if spec.audit.speed:
        text = "audit.speed judges machines, and all nodes of this run share one"
        hint = "whom it has audited may differ when the run is repeated; 0 judges nobody"
        journal.emit(WarningEvent(code="FF-APP-415", message=text, hint=hint))


def _first(
    folder: RunFolder, spec: JobSpec, made: worker_messages.StateResult, layout: TensorLayout
) -> tuple[Blob, Hash, tuple[AncestorRun, ...]]:
    """Round 0's public state, its root, and what it stands on: weights of a proven run, or those that were made."""
    base = base_run.kept_base(folder)
    if base is None:
        return made.snapshot, made.root, ()
    state = base_run.first_state(folder, base, spec, layout)
    return public_state.pieces(state, layout), state.root(layout), base.lineage


async def _profile(worker: WorkerHandle, initial: Blob, layout: TensorLayout, asked: ProfileRequest) -> Tolerance:
    """The profile run: how far honest work on this very job may lie apart. Fixed before anybody works; that of a job
    which was profiled on this machine before is the same, and kept.

    Raises PolicyError FF-VERI-050 or -115 when audits could not tell work from none, or from less of it.
    """
    profiled = await asyncio.to_thread(_kept_profile, asked)
    if profiled is None:
        profiled = await ask(worker, worker_messages.ProfileCommand(initial), worker_messages.ProfileResult)
        await asyncio.to_thread(cache.keep, asked, encode(profiled))
    tolerance = tolerance_of(profiled.noise, asked.spec.numerics.bits)
    check_margins(tolerance, layout, profiled.shortcuts)
    return tolerance


def _kept_profile(asked: ProfileRequest) -> worker_messages.ProfileResult | None:
    kept = cache.find(asked)
    try:
        return None if kept is None else decode(kept, worker_messages.ProfileResult, limits.WORKER_BYTES)
    except ProtocolError:
        return None


def _module_hash(module: bytes) -> Hash:
    return digest(NS_OBJECT, module) if module else ZERO_HASH


def _check_inputs(folder: RunFolder, terms: JobTerms, data: DatasetFile, module: bytes) -> None:
    """What a run is resumed from is what its terms say, to the bit; and by that the terms are what they were."""
    if not data.is_named(terms.dataset):
        raise damaged(folder.dataset_file, "its hash is not the one in the run's terms")
    if _module_hash(module) != terms.module:
        raise damaged(folder.module_file, "its hash is not the one in the run's terms")
    large = data.root(terms.spec)
    try:
        is_root = large is not None and large.name == terms.dataset
        named = partial(opened, pack_root(large)) if large is not None and is_root else data.parts
        trace.parts(terms, named, trace.graph_bytes(folder))
    except VersionError:
        raise
    except FarflungError as error:
        raise damaged(folder.graph_file, error.message) from error
    try:
        initial = public_state.unpack(mapped_file(folder.initial_file), terms.layout)
        public_state.check(initial, terms.layout, 0, terms.initial_root)
    except VersionError:
        raise
    except (OSError, FarflungError) as error:
        raise damaged(folder.initial_file, str(error)) from error
