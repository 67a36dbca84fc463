"""The class of a job, found at its submission.

Its model is traced in a process of its own, beside the profile; with the profile's tolerances its program is put
together. Every node does that again with what it is sent.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from farflung.app import graphs
from farflung.app.folder import RunFolder
from farflung.core import limits
from farflung.core.canon.graph import graph_id
from farflung.core.canon.program import Program
from farflung.core.codec import encode
from farflung.core.errors import FarflungError, PolicyError, RunError, SpecError, VerificationError
from farflung.core.events import Classed
from farflung.core.io.durable import write_atomic
from farflung.core.layout import Layout
from farflung.core.money import format_credits, parse_credits
from farflung.host.io.process import PYTHON, start_worker
from farflung.host.limits import Limits
from farflung.job import dataset, proof
from farflung.job.spec import JobSpec, NetworkSpec, Terms, Tolerance
from farflung.verify.canon import shipping
from farflung.verify.canon.programs import Parts, assemble, check_program
from farflung.verify.canon.shipping import Shipped
from farflung.verify.io.tracer import Tracer, TraceStep

MODULE: Final = "farflung.verify.io.tracer"
CPU_SECONDS: Final = 600  # of one trace: some two for a GPT of 4 layers
SECONDS: Final = 1200.0  # the same on a busy machine, and for a model that sleeps


class Traced(NamedTuple):
    """What a model's trace gave: `verify.canon.shipping.Shipped` encoded, or why there is none."""

    shipped: bytes
    why: str


class Found(NamedTuple):
    """What a submission says of its class: the program of its work, or why there is none."""

    program: Program
    unproven: str


async def trace(folder: RunFolder, spec: JobSpec, module: bytes) -> Traced:
    """Traces the model where that decides the job's class. Raises what `classify` does of a model without a graph."""
    if why := proof.known(spec):
        return Traced(b"", why)
    request = TraceStep(_step_of(spec), module)
    try:
        found = await asyncio.to_thread(graphs.find, request)
        data = found if found is not None else encode(await _traced(folder, request))
        await asyncio.to_thread(shipping.read, data)
    except FarflungError as error:
        return Traced(b"", _unproven(spec, error))
    if found is None:
        await asyncio.to_thread(graphs.keep, request, data)
    return Traced(data, "")


def _step_of(spec: JobSpec) -> JobSpec:
    """What one step follows from: all else as it is where nobody says anything, so that one trace serves many jobs."""
    members = NetworkSpec(providers=spec.network.providers)
    return JobSpec(
        seed=spec.seed,
        batch=spec.batch,
        model=spec.model,
        optimizer=spec.optimizer,
        sync=spec.sync,
        network=members,
    )


def classify(
    folder: RunFolder, spec: JobSpec, layout: Layout, tolerance: Tolerance, data: bytes, traced: Traced
) -> Found:
    """The job's program, put together from its parts, of which `data` is the packed data set; what is shipped is kept
    in the run's folder.

    Raises SpecError FF-APP-341 (asked to be proven, and the model is outside the whitelist: the operation and the
    model's line are named), PolicyError FF-APP-342 (outcome only, and dearer than that may be).
    """
    if traced.why:
        return Found(Program(), traced.why[: limits.REASON_LENGTH])
    try:
        parts = shipping.read(traced.shipped)
        program = assemble(spec, layout, tolerance, *parts, dataset.unpack(data).train).program
    except FarflungError as error:
        return Found(Program(), _unproven(spec, error)[: limits.REASON_LENGTH])
    write_atomic(folder.graph_file, traced.shipped, "run.graph")
    return Found(program, "")


def told(terms: Terms) -> Classed:
    """The class as an event."""
    named = terms.program.graph.hex() if terms.is_proven else ""
    return Classed(is_proven=terms.is_proven, graph=named, reason=terms.unproven)


def graph_bytes(folder: RunFolder) -> bytes:
    """What is shipped of the model beside its module, or nothing."""
    return folder.graph_file.read_bytes() if folder.graph_file.exists() else b""


def parts(terms: Terms, data: bytes, shipped: bytes) -> Parts | None:
    """The job's program with all that it stands for, as this node makes it of the packed data set and of what it was
    sent; None: the job has none.

    Raises VerificationError FF-APP-343 (another graph than the terms name), ProtocolError of shipping.read, SpecError
    FF-VERI-100 to -102 (the terms state another program than their parts make).
    """
    if not terms.is_proven:
        return None
    graph, constants = shipping.read(shipped)
    if graph_id(graph) != terms.program.graph:
        raise VerificationError(
            "FF-APP-343",
            "the graph is not the one that the job's terms name",
            cause=f"its hash is {graph_id(graph)[:4].hex()}, the terms say {terms.program.graph[:4].hex()}",
            hint="take no part: a dispute over this job could not be played",
        )
    tokens = dataset.unpack(data).train
    made = assemble(terms.spec, terms.layout, terms.tolerance, graph, constants, tokens)
    check_program(terms.program, made)
    return made


async def _traced(folder: RunFolder, request: TraceStep) -> Shipped:
    """The tracer's answer; its process is gone when this returns."""
    bounds = Limits(cpu_seconds=CPU_SECONDS)
    scratch, log = folder.root / "tracer", folder.root / "tracer.log"
    process = start_worker(scratch, log, bounds, command=(*PYTHON, "-m", MODULE))
    try:
        async with asyncio.timeout(SECONDS):
            return await Tracer(process.socket).trace(request)
    except TimeoutError:
        raise RunError("FF-APP-344", f"the model was not traced within {SECONDS:.0f} s") from None
    finally:
        process.terminate()


def _unproven(spec: JobSpec, error: FarflungError) -> str:
    """Why the job has no program, if it may be without."""
    why = f"{error.message}: {error.cause}" if error.cause else error.message
    if spec.audit.proof == "proven":
        raise SpecError(
            "FF-APP-341",
            f"the job asks to be proven, but {error.message}",
            cause=error.cause,
            hint=error.hint or 'leave proof out of [audit], or set proof = "outcome"',
        ) from error
    if parse_credits(spec.unit_price) > proof.OUTCOME_PRICE:
        most = format_credits(proof.OUTCOME_PRICE)
        raise PolicyError(
            "FF-APP-342",
            f"{spec.unit_price} credits a token is too much for work that is {proof.UNPROVEN}",
            cause=why,
            hint=f'set unit_price = "{most}", or change the model',
        ) from error
    return why
