"""A process that is asked once: one request over its socket, its answers, the end (train.io.teller, train.io.gauger).

Started like a worker (host.io.process), in the same sandbox. Messages are framed as in train.io.worker; an error is a
`train.messages.Broken`.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any

from farflung.core.codec import encode
from farflung.train.io.worker import Channel, broken

Answers = Callable[[bytes], Iterable[Any]]  # of a request's bytes


def serve(channel: Channel, load: Callable[[], Answers]) -> None:
    """Answers one request. `load` takes seconds, for torch: it has them while the request is on its way."""
    answers = load()
    raw = channel.read()
    if raw is None:
        return
    try:
        for answer in answers(raw):
            channel.write(encode(answer))
    except Exception as error:
        channel.write(encode(broken(error)))


def main(load: Callable[[], Answers]) -> int:
    """Answers on the socket that the first argument names, and ends; also when nobody listens any more."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.setblocking(True)
    descriptor = connection.detach()
    os.set_inheritable(descriptor, False)
    try:
        serve(Channel(descriptor, descriptor), load)
    except (BrokenPipeError, ConnectionResetError):
        return 0
    return 0
