"""Keeps the supervisor's own worker, which builds the first weights, measures noise and losses.

One that dies is started again, told its job again, and asked again: nothing that it is asked for depends on what it was
asked before, but for the job and for where one machine alone began.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from farflung.core.backoff import Backoff
from farflung.core.errors import FarflungError, RunError
from farflung.core.events import ProcessRestartEvent, ProcessUsageEvent, WarningEvent
from farflung.core.io.retry import retry
from farflung.core.tensor_layout import TensorLayout
from farflung.host.io.worker_process import WorkerProcess
from farflung.local.network.restarts import RESTARTS
from farflung.peers.program.stall_watch import watched
from farflung.peers.rundir.journal import EventEmitter
from farflung.train import worker_messages
from farflung.train.blobs import Blob
from farflung.train.io.worker_pipe import GONE, WorkerPipe, gone
from farflung.train.reply_bounds import WorkerReplies

NAME: Final = "requester worker"
MOST_SECONDS: Final = 7200.0  # of processor time for one of the requests below; some thirty for a GPT of 4 layers
_WORK: Final[Mapping[type[worker_messages.Request], str]] = {  # by what it is asked for; the rest tells of itself
    worker_messages.SetupCommand: "building and trying the model",
    worker_messages.InitializeCommand: "making the first weights",
    worker_messages.ProfileCommand: "measuring the numerical noise of one step",
    worker_messages.EvaluateCommand: "measuring the validation loss",
}


class SupervisorWorker:
    """A worker (peers.node.workspace.WorkerHandle), whichever process it is at the moment; requests queue."""

    def __init__(
        self, start: Callable[[], WorkerProcess], emitter: EventEmitter, layout: TensorLayout | None = None
    ) -> None:
        """`start` is called at once, and for each further life. `layout`: None where it builds the model first."""
        self._start, self._emitter, self._replies = start, emitter, WorkerReplies(layout)
        self._turn = asyncio.Lock()
        self._setup: worker_messages.SetupCommand | None = None
        self._began: Blob = b""  # public state from which one machine alone began
        self._peak, self._cpu_seconds = 0, 0.0  # of those that died
        self._is_stopped = False
        self._live()

    def _live(self) -> None:
        self._process = self._start()
        self._pipe = WorkerPipe(self._process.socket, self._replies.to, self._process.log_path.parent)
        self._knows_job = self._trains_alone = False

    async def request(self, message: worker_messages.Request) -> worker_messages.Reply:
        """Sends one request and waits for its reply, of the next process when one dies over it.

        Raises what train.io.worker_pipe.WorkerPipe raises, RunError FF-APP-025 when each process dies over it,
        FF-TRAIN-090 when one broke its limits.
        """
        async with self._turn:
            if isinstance(message, worker_messages.SetupCommand):
                self._setup = message
            elif isinstance(message, worker_messages.BaselineCommand):
                self._began = message.snapshot or self._began
            try:
                return await retry(
                    lambda: self._reply(message),
                    Backoff.every(0.0),
                    self._may_pass,
                    tries=RESTARTS + 1,
                    on_pause=lambda _error, _waited: self._restart(),
                )
            except RunError as error:
                if error.code != GONE or self._is_stopped:
                    raise
                why = self._process.terminate()
                if self._process.over_limit():
                    raise gone(why) from error
                raise RunError(
                    "FF-APP-025",
                    "the supervisor's worker dies again and again",
                    cause=f"{RESTARTS + 1} deaths over one request; the last time: {why}",
                    hint=f"look into {self._process.log_path}, then run `farflung resume`",
                ) from error

    async def abandon(self) -> None:
        """Lets it give up what it trains: nobody asks for that here."""
        await self._pipe.abandon()

    async def _reply(self, message: worker_messages.Request) -> worker_messages.Reply:
        if not self._knows_job and self._setup is not None and message is not self._setup:
            await self._asked(self._setup)
        self._knows_job = True
        is_alone = isinstance(message, worker_messages.BaselineCommand)
        if isinstance(message, worker_messages.BaselineCommand) and not self._trains_alone:
            message = replace(message, snapshot=self._began)
        reply: worker_messages.Reply = await self._asked(message)
        self._trains_alone = self._trains_alone or is_alone
        if isinstance(reply, worker_messages.StateResult):
            self._replies.layout = TensorLayout.of(dict(reply.shapes))
        return reply

    async def _asked(self, message: worker_messages.Request) -> Any:
        """The reply of this process, which is ended if it stalls. Raises RunError FF-APP-488."""

        def tell(seconds: int) -> None:
            work = _WORK.get(type(message))
            if work is not None:
                said = f"{work} takes {seconds} s so far"
                self._emitter.emit(
                    WarningEvent(code="FF-APP-487", message=said, hint="Ctrl-C stops, and `farflung resume` goes on")
                )

        most = MOST_SECONDS if type(message) in _WORK else math.inf
        return await watched(self._process, self._pipe.request(message), tell, most)

    def _may_pass(self, error: FarflungError) -> bool:
        """A death passes; not that of a process which would break its own limit again."""
        return error.code == GONE and not self._is_stopped and not self._process.over_limit()

    def _restart(self) -> None:
        began = asyncio.get_running_loop().time()
        self._count()
        why = self._process.terminate()
        self._live()
        seconds = asyncio.get_running_loop().time() - began
        self._emitter.emit(ProcessRestartEvent(name=NAME, why=why, seconds=round(seconds, 3)))

    def _count(self) -> None:
        used = self._process.usage()
        self._peak = max(self._peak, int(used["peak_bytes"]))
        self._cpu_seconds += used["cpu_seconds"]

    def stop(self) -> None:
        """Ends it; nobody starts it again. Tells what all its lives took."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._count()
        self._process.terminate()  # nobody is left behind, whatever becomes of the journal
        self._emitter.emit(ProcessUsageEvent(process=NAME, peak_bytes=self._peak, cpu_seconds=self._cpu_seconds))
