"""Has a job's graph executed by a process in the sandbox that workers have, which ends with its answer.

A step in exact arithmetic takes memory that grows with the model, and a graph is what a stranger ships: neither is for
the process that holds a node's or a requester's keys.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from farflung.core.errors import RunError
from farflung.core.tensor_layout import TensorLayout
from farflung.host.io import temporary_folders
from farflung.host.io.worker_process import PYTHON, start_worker
from farflung.host.worker_limits import limits_for
from farflung.job.spec import JobSpec, Tolerance
from farflung.peers.program.stall_watch import watched
from farflung.train.blobs import Blob
from farflung.train.io.worker_pipe import GONE, WorkerPipe
from farflung.train.reply_bounds import ReplyBound
from farflung.verify.canon.graph_requests import GraphFinding, Request
from farflung.verify.canon.job_program import JobProgramParts
from farflung.verify.io.graph_process import MODULE

STEP_SECONDS: Final = 600  # of a processor, that a submitter lets one step take
NODE_TIMES: Final = 4  # so much longer may it take a node: it has another processor
MOST_SECONDS: Final = 24 * 3600  # of one process: the segment of an accusation has many steps


class JobGraph(NamedTuple):
    """A job's program, and what it is put together from: the packed data set, or the root of a large one, of which
    `tokens` are packed leaves, and what is shipped of its graph.
    """

    parts: JobProgramParts
    layout: TensorLayout
    tolerance: Tolerance
    data: Blob
    shipped: Blob
    tokens: Blob = b""

    @property
    def about(self) -> tuple[JobSpec, TensorLayout, Tolerance, Blob, Blob, Blob]:
        """As a request begins (verify.canon.graph_requests)."""
        return self.parts.spec, self.layout, self.tolerance, self.data, self.tokens, self.shipped


async def finding(request: Request, needed: int, folder: Path) -> GraphFinding:
    """What the graph finds. `needed`: bytes that its execution takes; `folder`: where states lie on their way.

    Raises RunError with the process' own code (verify.io.graph_process), FF-APP-692 (it ended without an answer),
    FF-APP-488 (it stalled), and what host.io.worker_process.start_worker raises.
    """
    own = temporary_folders.make("farflung-graph-")
    bound = ReplyBound(GraphFinding)
    try:
        bounds = limits_for(needed, MOST_SECONDS)
        process = await asyncio.to_thread(
            lambda: start_worker(own / "scratch", own / "graph.log", bounds, command=(*PYTHON, "-m", MODULE))
        )
        try:
            pipe = WorkerPipe(process.socket, lambda _: bound, folder)
            found: GraphFinding = await watched(process, pipe.request(request))
        except RunError as error:
            if error.code != GONE:
                raise
            raise RunError(
                "FF-APP-692",
                "the process that runs the job's graph has ended",
                cause=process.terminate(),
                hint="see that this machine has the memory that the plan names for trying the graph",
            ) from None
        finally:
            process.terminate(0)
    finally:
        shutil.rmtree(own, ignore_errors=True)
    return found
