"""Runs the process that executes a job's graph: one request (train.io.one_shot_process), in the sandbox of workers.

A step in exact arithmetic takes some times the memory of the model. Here it has bounds of its own, and is gone with
the process; who asks for it holds nothing that grows with the model. The graph comes from whoever submitted the job.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from farflung.compress import kernels
from farflung.core.canon.program import SegmentSteps
from farflung.core.errors import RunError
from farflung.core.units import Seconds, format_seconds
from farflung.job import token_tree
from farflung.train import public_state, segments
from farflung.train.io import one_shot_process
from farflung.verify.canon import accusation_check, graph_file, step_check, tensor_kernels
from farflung.verify.canon.execute import products
from farflung.verify.canon.graph_requests import AccusationRequest, GraphFinding, GraphRequest, Request
from farflung.verify.canon.job_program import JobProgramParts, assemble

MODULE: Final = "farflung.verify.io.graph_process"
SIDE: Final = 256  # of the matrices whose product shows how fast this processor multiplies


def answer(request: Request) -> Iterator[GraphFinding]:
    """The finding. Raises what verify.canon.step_check and job_program raise, RunError FF-VERI-117 (too slow here)."""
    parts = _parts(request)
    layout, spec = request.layout, request.spec
    public = public_state.unpack(request.public, layout).params
    if isinstance(request, AccusationRequest):
        start, claimed = (
            segments.unpack(each, spec.optimizer, layout, request.round) for each in (request.start, request.claimed)
        )
        steps = SegmentSteps(request.first, request.steps)
        yield GraphFinding(accusation_check.is_false(parts, layout, public, request.seat, steps, (start, claimed)))
        return
    _check_time(parts, request.seconds)
    begin, end = (segments.unpack(each, spec.optimizer, layout, request.round) for each in (request.begin, request.end))
    step_check.check_step(parts, layout, request.tolerance, public, request.member, (begin, end))
    yield GraphFinding(is_false=False)


def _parts(request: GraphRequest) -> JobProgramParts:
    graph, constants = graph_file.read(request.shipped)
    tokens = token_tree.opened(request.data, request.tokens).train
    return assemble(request.spec, request.layout, request.tolerance, graph, constants, tokens)


def _check_time(parts: JobProgramParts, most: int) -> None:
    """Nearly all of a step are products of matrices, whose number is known: nobody waits for what takes too long."""
    work = products(parts.graph)
    tensor_kernels.foresee(work)
    one = np.ones((1, SIDE, SIDE), np.float32)
    tensor_kernels.matmul(one, one)  # compiled, where that pays
    began = time.perf_counter()
    tensor_kernels.matmul(one, one)
    seconds = (time.perf_counter() - began) * work / SIDE**3
    if seconds > most:
        raise RunError(
            "FF-VERI-117",
            "one step by the job's graph takes too long",
            cause=f"{work:.3g} products take {format_seconds(Seconds(seconds))} of this processor, and "
            f"{format_seconds(Seconds(most))} are waited for",
            hint='take a smaller batch, context or model, or set audit.proof = "outcome"',
        )


def load() -> one_shot_process.Answers:
    """What answers."""
    kernels.use(os.environ.get("FARFLUNG_KERNELS") or "auto")
    return answer


def main() -> int:
    """Answers one request; returns the exit status."""
    kind: Any = Request
    return one_shot_process.main(kind, load)


if __name__ == "__main__":
    sys.exit(main())
