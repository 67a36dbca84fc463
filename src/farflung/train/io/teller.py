"""The process that runs a model of the user's own to use it: one request over its socket, its answers, the end.

`python -m farflung.train.io.teller FD`, started like a worker (host.io.process), in the same sandbox. Messages are
framed as in train.io.worker; an error is a `train.messages.Broken`.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any, Final, cast

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.train import questions
from farflung.train.io.worker import Channel, broken

MODULE: Final = "farflung.train.io.teller"


def serve(channel: Channel) -> None:
    """Answers one request."""
    from farflung.train import telling  # torch takes seconds to load: only here

    raw = channel.read()
    if raw is None:
        return
    try:
        request = decode(raw, cast(type[Any], questions.Request), limits.PIPE_BYTES)
        for answer in telling.answers(request):
            channel.write(encode(answer))
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
