"""Runs a process that serves one request over its socket, answers and ends.

Its users are train.io.inference_process, train.io.memory_process and verify.io.graph_process.

Started like a worker (host.io.worker_process), in the same sandbox. Messages are framed as in train.io.worker; an
error is a `train.worker_messages.WorkerFailure`.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.train import blobs
from farflung.train.io.worker import WorkerChannel, broken

Answers = Callable[[Any], Iterable[Any]]  # of a request


def serve(channel: WorkerChannel, kind: Any, load: Callable[[], Answers]) -> None:
    """Answers one request, of `kind`. `load` takes seconds, for torch: it has them while the request is on its way."""
    answers = load()
    raw = channel.read(limits.WORKER_BYTES)
    if raw is None:
        return
    try:
        request = decode(raw, kind, limits.WORKER_BYTES)
        for answer in answers(blobs.put(request, iter(channel.lent(blobs.count(request))))):
            channel.write(encode(answer))
    except Exception as error:
        channel.write(encode(broken(error)))


def main(kind: Any, load: Callable[[], Answers]) -> int:
    """Answers on the socket that the first argument names, and ends; also when nobody listens any more."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.setblocking(True)
    descriptor = connection.detach()
    os.set_inheritable(descriptor, False)
    try:
        serve(WorkerChannel(descriptor, descriptor), kind, load)
    except (BrokenPipeError, ConnectionResetError):
        return 0
    return 0
