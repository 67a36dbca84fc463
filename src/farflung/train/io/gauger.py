"""The process that goes through a job's step to find its memory: one request over its socket, its answer, the end.

`python -m farflung.train.io.gauger FD`, started like a worker (host.io.process), in the same sandbox: a user's module
is a program, and nothing of it runs where it is planned. Messages are framed as in train.io.worker; an error is a
`train.messages.Broken`.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Final

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.train.gauge.request import Gauge
from farflung.train.io.loading import uncollected
from farflung.train.io.worker import Channel, broken

MODULE: Final = "farflung.train.io.gauger"


def serve(channel: Channel) -> None:
    """Answers one request."""
    with uncollected():  # torch takes seconds to load: only here
        from farflung.train.gauge import jobs

    raw = channel.read()
    if raw is None:
        return
    try:
        channel.write(encode(jobs.answer(decode(raw, Gauge, limits.PIPE_BYTES))))
    except Exception as error:
        channel.write(encode(broken(error)))


def main() -> int:
    """Answers, and ends; also when nobody listens any more."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.setblocking(True)
    descriptor = connection.detach()
    os.set_inheritable(descriptor, False)
    try:
        serve(Channel(descriptor, descriptor))
    except (BrokenPipeError, ConnectionResetError):
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
