"""Determines the class of a job when it is submitted, from a trace of its model.

Its model is traced in a process of its own, beside the profile; with the profile's tolerances its program is put
together. Every node does that again with what it is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec.structs import replace

from farflung.core import limits
from farflung.core.backoff import Backoff
from farflung.core.canon.graph import graph_id
from farflung.core.canon.token_leaves import TokenSource
from farflung.core.codec import encode
from farflung.core.errors import FarflungError, PolicyError, RunError, SpecError, VerificationError
from farflung.core.events import JobClassEvent
from farflung.core.file_header import FileFormat, body_of, headed
from farflung.core.io.durable_files import write_atomic
from farflung.core.io.retry import retry
from farflung.core.money import format_credits, parse_credits
from farflung.core.tensor_layout import TensorLayout
from farflung.host.io.machine_probe import memory_bytes
from farflung.host.io.worker_process import PYTHON, start_worker
from farflung.host.worker_limits import unplanned_limits
from farflung.job import proof_class
from farflung.job.dataset import Dataset
from farflung.job.spec import JobSpec, JobTerms, NetworkSpec, Tolerance
from farflung.peers.program import cache
from farflung.peers.program.stall_watch import watched
from farflung.peers.rundir.folder import RunFolder
from farflung.train.blobs import Blob
from farflung.verify.canon import graph_file
from farflung.verify.canon.graph_file import GraphFile
from farflung.verify.canon.job_program import JobProgramParts, assemble, check_program
from farflung.verify.io.tracer import TRACER_GONE, TracerClient, TraceStepRequest

MODULE: Final = "farflung.verify.io.tracer"
CPU_SECONDS: Final = 600  # of one trace: some two for a GPT of 4 layers
SECONDS: Final = 1200.0  # the same on a busy machine, and for a model that sleeps
TRIES: Final = 3  # to have one trace: a process that dies over each of them would die over more
_GRAPH: Final = FileFormat("graph")


class GraphTraceResult(NamedTuple):
    """What a model's trace gave: `verify.canon.graph_file.Shipped` encoded, or why there is none."""

    shipped: bytes
    why: str


class JobProgramResult(NamedTuple):
    """What a submission says of its class: the program of its work with its parts, or why there is none."""

    parts: JobProgramParts | None
    unproven: str


async def trace(folder: RunFolder, spec: JobSpec, module: bytes) -> GraphTraceResult:
    """Traces the model where that decides the job's class. Raises what `classify` does of a model without a graph."""
    if why := proof_class.known(spec):
        return GraphTraceResult(b"", why)
    request = TraceStepRequest(_step_of(spec), module)
    try:
        found = await asyncio.to_thread(cache.find, request)
        data = found if found is not None else encode(await _traced(folder, request))
        await asyncio.to_thread(graph_file.read, data)
    except FarflungError as error:
        return GraphTraceResult(b"", unproven(spec, error))
    if found is None:
        await asyncio.to_thread(cache.keep, request, data)
    return GraphTraceResult(data, "")


def _step_of(spec: JobSpec) -> JobSpec:
    """What one step follows from: all else as it is where nobody says anything, so that one trace serves many jobs."""
    return JobSpec(
        seed=spec.seed,
        batch=spec.batch,
        accumulate=spec.accumulate,
        model=replace(spec.model, recompute="none"),  # it changes no number
        optimizer=spec.optimizer,
        sync=spec.sync,
        network=NetworkSpec(providers=spec.network.providers),
    )


def classify(
    folder: RunFolder,
    spec: JobSpec,
    layout: TensorLayout,
    tolerance: Tolerance,
    tokens: TokenSource,
    traced: GraphTraceResult,
) -> JobProgramResult:
    """The job's program, put together from its parts, of which `tokens` is what is trained on; what is shipped is kept
    in the run's folder.

    Raises SpecError FF-APP-341 (asked to be proven, and the model is outside the whitelist: the operation and the
    model's line are named), PolicyError FF-APP-342 (outcome only, and more expensive than that may be).
    """
    if traced.why:
        return JobProgramResult(None, traced.why[: limits.REASON_LENGTH])
    try:
        parts = graph_file.read(traced.shipped)
        made = assemble(spec, layout, tolerance, *parts, tokens)
    except FarflungError as error:
        return JobProgramResult(None, unproven(spec, error)[: limits.REASON_LENGTH])
    write_atomic(folder.graph_file, headed(_GRAPH, traced.shipped), "run.graph")
    return JobProgramResult(made, "")


def told(terms: JobTerms) -> JobClassEvent:
    """The class as an event."""
    named = terms.program.graph.hex() if terms.is_proven else ""
    return JobClassEvent(is_proven=terms.is_proven, graph=named, reason=terms.unproven)


def graph_bytes(folder: RunFolder) -> bytes:
    """What is shipped of the model beside its module, or nothing. Raises VersionError FF-CORE-095, ProtocolError
    FF-CORE-096.
    """
    return body_of(_GRAPH, folder.graph_file.read_bytes()) if folder.graph_file.exists() else b""


def parts(terms: JobTerms, data: Callable[[], Dataset], shipped: Blob) -> JobProgramParts | None:
    """The job's program with all that it stands for, as this node makes it of the data set and of what it was sent;
    None: the job has none.

    Raises VerificationError FF-APP-343 (another graph than the terms name), ProtocolError of shipping.read, SpecError
    FF-VERI-100 to -102 (the terms state another program than their parts make).
    """
    if not terms.is_proven:
        return None
    graph, constants = graph_file.read(shipped)
    if graph_id(graph) != terms.program.graph:
        raise VerificationError(
            "FF-APP-343",
            "the graph is not the one that the job's terms name",
            cause=f"its hash is {graph_id(graph)[:4].hex()}, the terms say {terms.program.graph[:4].hex()}",
            hint="take no part: a dispute over this job could not be played",
        )
    made = assemble(terms.spec, terms.layout, terms.tolerance, graph, constants, data().train)
    check_program(terms.program, made)
    return made


async def _traced(folder: RunFolder, request: TraceStepRequest) -> GraphFile:
    """The tracer's answer, of the next process when one dies over it: a death says nothing of the model."""
    return await retry(
        lambda: _answer(folder, request), Backoff.every(0.0), lambda error: error.code == TRACER_GONE, tries=TRIES
    )


async def _answer(folder: RunFolder, request: TraceStepRequest) -> GraphFile:
    """What one process answers; it is gone when this returns."""
    bounds = unplanned_limits(memory_bytes(), CPU_SECONDS)
    scratch, log = folder.root / "tracer", folder.root / "tracer.log"
    process = start_worker(scratch, log, bounds, command=(*PYTHON, "-m", MODULE))
    try:
        async with asyncio.timeout(SECONDS):
            return await watched(process, TracerClient(process.socket).trace(request))
    except TimeoutError:
        raise RunError("FF-APP-344", f"the model was not traced within {SECONDS:.0f} s") from None
    finally:
        process.terminate()


def unproven(spec: JobSpec, error: FarflungError) -> str:
    """Why the job has no program, if it may be without. Raises SpecError FF-APP-341, PolicyError FF-APP-342."""
    why = f"{error.message}: {error.cause}" if error.cause else error.message
    if spec.audit.proof == "proven":
        raise SpecError(
            "FF-APP-341",
            f"the job asks to be proven, and it cannot be: {error.message}",
            cause=error.cause,
            hint=error.hint or 'leave proof out of [audit], or set proof = "outcome"',
        ) from error
    if parse_credits(spec.unit_price) > proof_class.OUTCOME_PRICE:
        most = format_credits(proof_class.OUTCOME_PRICE)
        raise PolicyError(
            "FF-APP-342",
            f"{spec.unit_price} credits a token is too much for work that is {proof_class.UNPROVEN}",
            cause=why,
            hint=f'set unit_price = "{most}", or change the model',
        ) from error
    return why
