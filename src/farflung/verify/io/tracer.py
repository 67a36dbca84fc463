"""Runs the tracer, a separate process that turns a job's model into the canonical graph of one step, once, and
ends.

`python -m farflung.verify.io.tracer FD` answers one request from an inherited socket, framed as those of
train.io.worker. It runs the user's module in the sandbox that workers have, and no other process traces: torch's
tracing patches its own dispatch, and a trace that fails half-way must not leave its mark on the process that draws
initial weights and measures noise. So a trace has bounds of its own, too, and runs beside the profile.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Final, cast

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import FarflungError, ProtocolError, RunError, VerificationError
from farflung.job.spec import JobSpec
from farflung.train.io import reply as replies
from farflung.train.io.import_without_gc import gc_paused
from farflung.train.io.worker import WorkerChannel, broken
from farflung.train.reply_bounds import ReplyBound
from farflung.train.worker_messages import WorkerFailure
from farflung.verify.canon.graph_file import SHIPPED_BYTES, GraphFile, pack

TRACER_GONE: Final = "FF-VERI-110"
REPLY_BYTES: Final = SHIPPED_BYTES + limits.REPLY_BYTES


class TraceStepRequest(Wire, frozen=True, tag="trace-step"):
    """The job, and the source of its model, empty for a built-in one."""

    spec: JobSpec
    module: bytes


class TracerClient:
    """The submitter's end of the socket, which it owns: one request."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection

    async def trace(self, request: TraceStepRequest) -> GraphFile:
        """The graph's bytes and constants, not looked into.

        Raises VerificationError with the tracer's own code when the model has no canonical graph, RunError FF-VERI-110
        when the process is gone or answers something else.
        """
        bound = ReplyBound(GraphFile, REPLY_BYTES, limits.GRAPH_INPUTS + limits.REPLY_VALUES)
        try:
            await replies.send(self._connection, encode(request))
            reply = await replies.receive(self._connection, bound)
        except (ConnectionError, TimeoutError, EOFError, ProtocolError) as error:
            raise RunError(
                TRACER_GONE,
                "the tracer process is gone",
                cause=str(error) or type(error).__name__,
                hint="tracer.log in the run's folder says more; without its graph a job is outcome only",
            ) from None
        if isinstance(reply, WorkerFailure):
            raise VerificationError(reply.code, reply.message, cause=reply.cause, hint=reply.hint)
        return cast(GraphFile, reply)


def answer(request: TraceStepRequest) -> GraphFile | WorkerFailure:
    """The graph of one step with its constants, or why there is none. Loads torch."""
    from farflung.train import flat_model  # torch takes seconds to load: only here
    from farflung.verify.canon.step_graph import buffers, traced

    try:
        built = flat_model.build(request.spec, request.module)
        found = pack(traced(built, request.spec), buffers(built))
        constants = sum(map(len, found.constants))
        if len(found.graph) > limits.GRAPH_BYTES or constants > limits.CONSTANTS_BYTES:
            raise VerificationError(
                "FF-VERI-111",
                "the graph of one step is too large",
                cause=f"{len(found.graph)} bytes and {constants} of constants, and the limits are "
                f"{limits.GRAPH_BYTES} and {limits.CONSTANTS_BYTES}",
                hint="make the model smaller, or run the job as outcome only",
            )
        return found
    except FarflungError as error:
        return broken(error)


def main() -> int:
    """Answers one request; returns the exit status."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.setblocking(True)
    descriptor = connection.detach()
    os.set_inheritable(descriptor, False)
    channel = WorkerChannel(descriptor, descriptor)
    try:
        if (raw := channel.read()) is not None:
            with gc_paused():  # torch loads what its tracing needs when that begins
                reply = answer(decode(raw, TraceStepRequest, limits.WORKER_BYTES))
            channel.write(encode(reply))
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except FarflungError as error:
        sys.stderr.write("\n".join(error.lines()) + "\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
