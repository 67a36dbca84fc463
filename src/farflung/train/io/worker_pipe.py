"""Implements the agent's end of the channel to its worker process (see train.io.worker for the format)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from farflung.core import limits
from farflung.core.codec import Wire, encode
from farflung.core.errors import ProtocolError, RunError
from farflung.train import blobs, worker_messages
from farflung.train.blobs import Blob
from farflung.train.io import reply as replies
from farflung.train.io.worker import too_long
from farflung.train.reply_bounds import ReplyBound, WorkerReplies

GONE: Final = "FF-TRAIN-090"


class WorkerPipe:
    """One worker behind a connected stream socket, which the pipe owns from then on.

    `fault`: what its process did that no worker does, after which it is of no use; "": nothing.
    """

    def __init__(
        self, connection: socket.socket, bound: Callable[[Any], ReplyBound] | None = None, spool: Path | None = None
    ) -> None:
        """`bound`: what may be replied to a request; None: as of a job whose layout is unknown. `spool`: the folder in
        which states lie while they are moved; None: where temporary files lie.
        """
        connection.setblocking(False)
        self._connection, self._spool = connection, spool
        self._bound: Callable[[Any], ReplyBound] = bound or WorkerReplies().to
        self._turn = asyncio.Lock()
        self._usable = True
        self._is_sent = False  # whole: the worker works on a request
        self.fault = ""

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its reply."""
        return self._turn.locked()

    async def request(self, message: Wire) -> Any:
        """Sends a request and waits for its reply; requests queue.

        Raises RunError with the worker's own code when it answers WorkerFailure, RunError FF-TRAIN-090 when it is gone,
        ProtocolError FF-TRAIN-091 (a message too long). A cancelled request leaves the pipe closed.
        """
        bound = self._bound(message)
        light, long = blobs.take(message)
        data = encode(light)
        if len(data) > limits.WORKER_BYTES:
            raise too_long(len(data), limits.WORKER_BYTES)
        async with self._turn:
            if not self._usable:
                raise gone("it was closed")
            self._usable = False
            reply = await self._exchange(data, long, bound)
            self._usable = True
        if isinstance(reply, worker_messages.WorkerFailure):
            raise RunError(reply.code, reply.message, cause=reply.cause, hint=reply.hint)
        return reply

    async def _exchange(self, data: bytes, long: Sequence[Blob], bound: ReplyBound) -> Any:
        try:
            await replies.send(self._connection, data)
            if long:
                await replies.lend(self._connection, long, self._spool)
            self._is_sent = True
            reply = await replies.receive(self._connection, bound)
            count = blobs.count(reply)
            return blobs.put(reply, iter(await replies.receive_blobs(self._connection, count, bound, self._spool)))
        except TimeoutError as error:
            self.fault = str(error)
            raise gone(self.fault) from None
        except (ConnectionError, EOFError) as error:
            raise gone(str(error) or type(error).__name__) from None
        except ProtocolError as error:
            self.fault = f"{error.message}: {error.cause}"
            if error.code == replies.TOO_LONG:
                raise
            raise gone(f"its reply cannot be read: {error.cause}") from error
        finally:
            self._is_sent = False

    async def abandon(self) -> None:
        """Lets the worker give up what it trains: its request then raises RunError FF-TRAIN-012."""
        if self._is_sent:
            self._is_sent = False
            with contextlib.suppress(ConnectionError):
                await replies.send(self._connection, encode(worker_messages.AbandonCommand()))

    def close(self) -> None:
        """Closes the socket: the worker then ends by itself."""
        self._usable = False
        self._connection.close()


def gone(cause: str) -> RunError:
    """The error for a worker that does not answer any more."""
    return RunError(
        GONE,
        "the worker process is gone",
        cause=cause,
        hint="ask again: another is started; if it ends again, look at its memory limit",
    )
