"""Asks a saved model: for text, its loss or its tensors' names. The built-in GPT answers in this process, a user's own
model in a sandboxed one.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import ProtocolError, RunError
from farflung.core.io.extras import require
from farflung.host.io import temporary_folders
from farflung.host.io.machine_probe import memory_bytes
from farflung.host.io.worker_process import PYTHON, WorkerProcess, start_worker, tail
from farflung.host.worker_limits import unplanned_limits
from farflung.local.model.load import SavedModel
from farflung.peers.process.interrupts import InterruptHandler
from farflung.peers.program.stall_watch import StallWatch, look
from farflung.train import blobs
from farflung.train.inference_messages import (
    Answer,
    GenerateReply,
    GenerateRequest,
    ModelEvaluationReply,
    ModelEvaluationRequest,
    ParameterNamesReply,
    ParameterNamesRequest,
    Request,
)
from farflung.train.io import inference_process
from farflung.train.io.worker import WorkerChannel
from farflung.train.reply_bounds import ReplyBound
from farflung.train.worker_messages import WorkerFailure

TOKENS: Final = 256  # a sampled token is a byte
NAME: Final = 1024  # characters of a tensor's name
WORDS: Final = 2000  # characters of what a process says of its failure
_REPLIES: Final[Mapping[type[Request], ReplyBound]] = {
    GenerateRequest: ReplyBound(GenerateReply),
    ModelEvaluationRequest: ReplyBound(ModelEvaluationReply),
    ParameterNamesRequest: ReplyBound(ParameterNamesReply, limits.CONTROL_BYTES, 4 * limits.TENSORS),
}
_CODE: Final = re.compile("FF-[A-Z]{1,10}-[0-9]{3}")


def ask(saved: SavedModel, request: Request, interrupts: InterruptHandler | None = None) -> Iterator[Answer]:
    """The model's answers as they come. Raises what train.inference raises, RunError FF-APP-167 (the process ended).

    `interrupts`: those that the caller hears; None: as Python has it.
    """
    require("torch")
    interrupts = interrupts or InterruptHandler()
    with interrupts.held():
        from farflung.train import inference  # torch takes seconds to load
    if saved.card.kind == "gpt":
        for answer in inference.answer(request):
            interrupts.check()
            yield answer
        return
    folder = temporary_folders.make("farflung-teller-")
    log = folder / "teller.log"
    worker: WorkerProcess | None = None
    try:
        with interrupts.held():
            bounds, command = unplanned_limits(memory_bytes()), (*PYTHON, "-m", inference_process.MODULE)
            worker = start_worker(folder / "scratch", log, bounds, command=command)
        yield from _answers(worker, request, log, interrupts)
    finally:
        if worker is not None:
            worker.terminate(0)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(worker: WorkerProcess, request: Request, log: Path, interrupts: InterruptHandler) -> Iterator[Answer]:
    channel = WorkerChannel(worker.socket.fileno(), worker.socket.fileno(), partial(_wait, worker, interrupts))
    left = request.count if isinstance(request, GenerateRequest) else 1
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        light, long = blobs.take(request)
        channel.write(encode(light))
        channel.lend(long)
        while left and (answer := _next(channel, request)) is not None:
            if isinstance(answer, WorkerFailure):
                raise _said(answer)
            if not _is_possible(answer):
                raise _ended("it answered what was not asked")
            left -= 1
            yield answer
    if left:
        worker.terminate(0)  # its log is complete then
        raise _ended(tail(log).decode("utf-8", "replace").strip()[-200:] or "it said nothing")


def _wait(worker: WorkerProcess, interrupts: InterruptHandler, descriptor: int, events: int) -> None:
    """Waits for the process, which is given up where its model never returns. Raises RunError FF-APP-488."""
    watch = StallWatch(time.monotonic(), worker.usage()["cpu_seconds"])
    interrupts.wait(descriptor, events, partial(look, watch, worker, _so_far))


def _so_far(seconds: int) -> None:
    sys.stderr.write(f"the model's answer takes {seconds} s so far; Ctrl-C stops\n")
    sys.stderr.flush()


def _next(channel: WorkerChannel, request: Request) -> Answer | WorkerFailure | None:
    """The next reply, a few figures or names; None: the process ended. Raises RunError FF-APP-167 of anything else."""
    bound = _REPLIES[type(request)]
    try:
        raw = channel.read(bound.size)
        kind = cast(type[Any], bound.kind | WorkerFailure)
        return None if raw is None else cast(Answer, decode(raw, kind, bound.size, bound.values))
    except ProtocolError as error:
        raise _ended(f"it answered what was not asked: {error.message}") from error


def _said(answer: WorkerFailure) -> RunError:
    """What went wrong in the process, in its own words; a page of them is not read."""
    code = answer.code if _CODE.fullmatch(answer.code) else "FF-TRAIN-099"
    message, cause, hint = (text[:WORDS] for text in (answer.message, answer.cause, answer.hint))
    return RunError(code, message, cause=cause, hint=hint)


def _is_possible(answer: Answer) -> bool:
    """The process runs somebody's program: what it says is looked at before it is used."""
    if isinstance(answer, ParameterNamesReply):
        names = [*answer.made, *(name for pair in answer.tied for name in pair)]
        return len(names) <= 2 * limits.TENSORS and all(len(name) <= NAME for name in names)
    return not isinstance(answer, GenerateReply) or 0 <= answer.token < TOKENS


def _ended(cause: str) -> RunError:
    return RunError(
        "FF-APP-167",
        "the model's process ended without its answer",
        cause=cause,
        hint="see that the model fits into memory, and that its source runs",
    )
