"""The class of a job, found at its submission: its model is traced in a process of its own, beside the profile."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from farflung.app.folder import RunFolder
from farflung.core import limits
from farflung.core.canon import graph
from farflung.core.canon.program import Program
from farflung.core.crypto import NS_GRAPH, digest
from farflung.core.errors import FarflungError, PolicyError, RunError, SpecError, VerificationError
from farflung.core.events import Classed
from farflung.core.io.durable import write_atomic
from farflung.core.money import format_credits, parse_credits
from farflung.host.io.process import PYTHON, start_worker
from farflung.host.limits import Limits
from farflung.job import proof
from farflung.job.spec import JobSpec, Terms
from farflung.verify.io.tracer import Tracer, TraceStep

MODULE: Final = "farflung.verify.io.tracer"
CPU_SECONDS: Final = 600  # of one trace: some two for a GPT of 4 layers
SECONDS: Final = 1200.0  # the same on a busy machine, and for a model that sleeps


class Found(NamedTuple):
    """What a submission says of its class: the program that names the graph, or why there is none."""

    program: Program
    unproven: str


async def classify(folder: RunFolder, spec: JobSpec, module: bytes) -> Found:
    """Traces the model where that decides the job's class, and keeps the graph in the run's folder.

    Raises SpecError FF-APP-341 (asked to be proven, and the model is outside the whitelist: the operation and the
    model's line are named), PolicyError FF-APP-342 (outcome only, and dearer than that may be).
    """
    if why := proof.known(spec):
        return Found(Program(), why[: limits.REASON_LENGTH])
    try:
        data = await _traced(folder, TraceStep(spec, module))
        await asyncio.to_thread(graph.read, data)
    except FarflungError as error:
        return _unproven(spec, error)
    write_atomic(folder.graph_file, data, "run.graph")
    return Found(Program(graph=digest(NS_GRAPH, data)), "")


def told(terms: Terms) -> Classed:
    """The class as an event."""
    named = terms.program.graph.hex() if terms.is_proven else ""
    return Classed(is_proven=terms.is_proven, graph=named, reason=terms.unproven)


def graph_bytes(folder: RunFolder) -> bytes:
    """The graph that the run's terms name, or nothing."""
    return folder.graph_file.read_bytes() if folder.graph_file.exists() else b""


def check_shipped(terms: Terms, data: bytes) -> None:
    """What a node was sent as the job's graph is the one that its terms name, and a sound one.

    Raises VerificationError FF-APP-343 (another one), ProtocolError of core.canon.graph.read (no graph).
    """
    if not terms.is_proven:
        return
    if digest(NS_GRAPH, data) != terms.program.graph:
        raise VerificationError(
            "FF-APP-343",
            "the graph is not the one that the job's terms name",
            cause=f"its hash is {digest(NS_GRAPH, data)[:4].hex()}, the terms say {terms.program.graph[:4].hex()}",
            hint="take no part: a dispute over this job could not be played",
        )
    graph.read(data)


async def _traced(folder: RunFolder, request: TraceStep) -> bytes:
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


def _unproven(spec: JobSpec, error: FarflungError) -> Found:
    """The job without a graph, if it may be."""
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
    return Found(Program(), why[: limits.REASON_LENGTH])
