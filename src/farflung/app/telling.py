"""Asks a handed-over model: the built-in GPT in this process, a model of the user's own in a sandboxed one."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from farflung.app.handed import Handed
from farflung.app.interrupts import Interrupts
from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import RunError
from farflung.host.io.process import PYTHON, WorkerProcess, start_worker, tail
from farflung.train.io import teller
from farflung.train.io.worker import Channel
from farflung.train.messages import Broken
from farflung.train.questions import Answer, Judged, Request, Sample, Told

TOKENS: Final = 256  # a sampled token is a byte
WORDS: Final = 2000  # characters of what a process says of its failure
_CODE: Final = re.compile("FF-[A-Z]{1,10}-[0-9]{3}")


def ask(handed: Handed, request: Request, interrupts: Interrupts | None = None) -> Iterator[Answer]:
    """The model's answers as they come. Raises what train.telling raises, RunError FF-APP-167 (the process ended).

    `interrupts`: those that the caller hears; None: as Python has it.
    """
    interrupts = interrupts or Interrupts()
    with interrupts.held():
        from farflung.train import telling  # torch takes seconds to load
    if handed.card.kind == "gpt":
        for answer in telling.answers(request):
            interrupts.check()
            yield answer
        return
    folder = Path(tempfile.mkdtemp(prefix="farflung-teller-"))
    log = folder / "teller.log"
    worker: WorkerProcess | None = None
    try:
        with interrupts.held():
            worker = start_worker(folder / "scratch", log, command=(*PYTHON, "-m", teller.MODULE))
        yield from _answers(worker, request, log, interrupts)
    finally:
        if worker is not None:
            worker.terminate(0)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(worker: WorkerProcess, request: Request, log: Path, interrupts: Interrupts) -> Iterator[Answer]:
    kind = cast(type[Any], Told | Judged | Broken)
    channel = Channel(worker.socket.fileno(), worker.socket.fileno(), interrupts.wait)
    left = request.count if isinstance(request, Sample) else 1
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        channel.write(encode(request))
        while left and (raw := channel.read()) is not None:
            answer = decode(raw, kind, limits.PIPE_BYTES)
            if isinstance(answer, Broken):
                raise _said(answer)
            if isinstance(answer, Told) is not isinstance(request, Sample) or not _is_possible(answer):
                raise _ended("it answered what was not asked")
            left -= 1
            yield answer
    if left:
        raise _ended(tail(log).decode("utf-8", "replace").strip()[-200:] or "it said nothing")


def _said(answer: Broken) -> RunError:
    """What went wrong in the process, in its own words; a page of them is not read."""
    code = answer.code if _CODE.fullmatch(answer.code) else "FF-TRAIN-099"
    message, cause, hint = (text[:WORDS] for text in (answer.message, answer.cause, answer.hint))
    return RunError(code, message, cause=cause, hint=hint)


def _is_possible(answer: Answer) -> bool:
    """The process runs somebody's program: what it says is looked at before it is used."""
    return not isinstance(answer, Told) or 0 <= answer.token < TOKENS


def _ended(cause: str) -> RunError:
    return RunError(
        "FF-APP-167",
        "the model's process ended without its answer",
        cause=cause,
        hint="see that the model fits into memory, and that its source runs",
    )
