"""A job's memory by its own module: started in the sandbox, asked once, looked at before it is believed."""

from __future__ import annotations

import select
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Final, cast

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import RunError
from farflung.host.io.process import PYTHON, start_worker, tail
from farflung.host.limits import Limits
from farflung.job.spec import JobSpec
from farflung.plan.footprint.traced import Traced, check, unanswered
from farflung.train.gauge.request import Gauge
from farflung.train.io import gauger
from farflung.train.io.worker import Channel
from farflung.train.messages import Broken

CPU_SECONDS: Final = 600  # of one trace: some five for a GPT of 4 layers
SECONDS: Final = 1200.0  # the same on a busy machine, and for a model that sleeps


def gauge(spec: JobSpec, module: bytes, seconds: float = SECONDS) -> Traced:
    """The trace of a job's step; `module` is the source of its model, empty for a built-in one.

    Raises RunError with the process' own code, or FF-PLAN-057 (it ended, or did not answer within `seconds`),
    UsageError FF-PLAN-056 (what it says makes no sense), and what host.io.process.start_worker raises.
    """
    folder = Path(tempfile.mkdtemp(prefix="farflung-gauger-"))
    log = folder / "gauger.log"
    try:
        bounds = Limits(cpu_seconds=CPU_SECONDS)
        worker = start_worker(folder / "scratch", log, bounds, command=(*PYTHON, "-m", gauger.MODULE))
        try:
            descriptor = worker.socket.fileno()
            channel = Channel(descriptor, descriptor, _Patience(seconds).wait)
            answer = _asked(channel, Gauge(spec, module))
        finally:
            worker.terminate(0)
        if answer is None:
            raise unanswered(
                tail(log).decode("utf-8", "replace").strip()[-200:] or "its process said nothing"
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if isinstance(answer, Broken):
        raise RunError(answer.code, answer.message, cause=answer.cause, hint=answer.hint)
    check(answer)
    return answer


def _asked(channel: Channel, request: Gauge) -> Traced | Broken | None:
    try:
        channel.write(encode(request))
        raw = channel.read()
    except (BrokenPipeError, ConnectionResetError):
        return None
    if raw is None:
        return None
    return cast(Traced | Broken, decode(raw, cast(type[Any], Traced | Broken), limits.CONTROL_BYTES))


class _Patience:
    """Waits for a descriptor, so many seconds in all."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def wait(self, descriptor: int, events: int) -> None:
        """Returns when it can be read or written. Raises RunError FF-PLAN-057."""
        poll = select.poll()
        poll.register(descriptor, events)
        if not poll.poll(max(0.0, 1000 * (self._until - time.monotonic()))):
            raise unanswered("it did not answer in time")
