"""Runs the checker, a separate process in which every foreign payload is parsed before any other process reads
it.

`python -m farflung.verify.io.checker FD` reads requests of verify.submission_checks from an inherited socket, framed
as those of train.io.worker, and answers each. It holds no key, opens nothing and loads no torch, so that a narrow
address space is enough for it. A payload that kills it is refused, and another one is started (`CheckerClient` raises
FF-VERI-065).
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any, Final, cast

from farflung.compress import kernels
from farflung.compress.merge import WeightedUpdate
from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import FarflungError, ProtocolError, RunError
from farflung.core.ids import PeerId
from farflung.job.codec_cost import codec_cost
from farflung.train import blobs
from farflung.train.contribution_trace import LoggedStatistics
from farflung.train.io import reply as replies
from farflung.train.io.worker import WorkerChannel
from farflung.train.reply_bounds import FIGURE, ReplyBound
from farflung.train.sync_arithmetic import Sync
from farflung.verify import submission_checks as rules
from farflung.verify.submission_checks import (
    CheckerSetup,
    PayloadCheckReply,
    PayloadCheckRequest,
    Reply,
    Request,
    RoundFlagsReply,
    RoundFlagsRequest,
)

FLAG_BYTES: Final = 128  # of one suspicion: a peer and a reason of one word


class CheckerState:
    """What the checker process holds: the job's rules, and the updates of rounds that are not concluded."""

    def __init__(self) -> None:
        self._setup: CheckerSetup | None = None
        self._seen: dict[int, dict[PeerId, tuple[WeightedUpdate, LoggedStatistics]]] = {}

    def handle(self, request: Request) -> Reply:
        """Answers one request. Raises RunError FF-VERI-064 when nothing was set up."""
        if isinstance(request, CheckerSetup):
            self._setup, self._seen = request, {}
            kernels.settle(codec_cost(request.spec, request.layout.size))
            return RoundFlagsReply(())
        if self._setup is None:
            raise RunError("FF-VERI-064", "the checker was asked before it knew the job")
        if isinstance(request, PayloadCheckRequest):
            return self._check(self._setup, request)
        seen = self._seen.pop(request.round, {})
        parts = [seen[peer][0] for peer in request.peers if peer in seen]
        stated = {peer: seen[peer][1] for peer in request.peers if peer in seen}
        is_chosen = self._setup.spec.sync.codec == "topk"
        found = rules.flags(self._setup.layout, parts, is_chosen=is_chosen, stated=stated)
        return RoundFlagsReply(tuple(found.items()))

    def _check(self, setup: CheckerSetup, request: PayloadCheckRequest) -> PayloadCheckReply:
        try:
            values = rules.decoded(Sync.of(setup.spec), setup.layout, request, setup.weight)
        except ProtocolError as error:
            return PayloadCheckReply(error.code, f"{error.message} ({error.cause})"[:500], ())
        c = request.contribution
        part = WeightedUpdate(c.peer, c.weight, values)
        self._seen.setdefault(request.round, {})[c.peer] = (part, c.stated)
        squares = rules.tensor_squares(setup.layout, values)
        return PayloadCheckReply("", "", rules.norms(squares))


class CheckerClient:
    """The coordinator's end of the socket, which it owns. One request at a time."""

    def __init__(self, connection: socket.socket, spool: Path | None = None) -> None:
        """`spool`: the folder in which payloads lie while they are moved; None: where temporary files lie."""
        connection.setblocking(False)
        self._connection, self._spool = connection, spool
        self._turn = asyncio.Lock()
        self._usable = True
        self._tensors = 0  # of the job that it was set up for

    async def setup(self, setup: CheckerSetup) -> None:
        """Must come first. Raises RunError FF-VERI-065 when the process is gone, as all the others."""
        await self._ask(setup)

    async def check(self, request: PayloadCheckRequest) -> PayloadCheckReply:
        """Judges one payload. When this raises FF-VERI-065, the payload is to be refused."""
        return cast(PayloadCheckReply, await self._ask(request))

    async def conclude(self, round: int, peers: tuple[PeerId, ...]) -> dict[PeerId, str]:
        """Which of `peers`, whose contributions of `round` are accepted, is suspicious, and why."""
        reply = await self._ask(RoundFlagsRequest(round, peers))
        return dict(cast(RoundFlagsReply, reply).flags)

    def close(self) -> None:
        """Closes the socket: the process then ends by itself."""
        self._usable = False
        self._connection.close()

    async def _ask(self, request: Request) -> Reply:
        async with self._turn:
            if not self._usable:
                raise _gone("it was closed")
            self._usable = False
            bound = self._bound(request)
            try:
                light, long = blobs.take(request)
                await replies.send(self._connection, encode(light))
                if long:
                    await replies.lend(self._connection, long, self._spool)
                reply = await replies.receive(self._connection, bound)
            except (ConnectionError, TimeoutError, EOFError, ProtocolError) as error:
                raise _gone(str(error) or type(error).__name__) from None
            if not isinstance(reply, bound.kind):
                raise _gone("it answers something else")
            self._usable = True
            return cast(Reply, reply)

    def _bound(self, request: Request) -> ReplyBound:
        """A norm for each tensor, or a reason for each peer."""
        match request:
            case CheckerSetup():
                self._tensors = len(request.layout.tensors)
                return ReplyBound(RoundFlagsReply)
            case PayloadCheckRequest():
                return ReplyBound(PayloadCheckReply).with_more(FIGURE * self._tensors, self._tensors)
            case RoundFlagsRequest():
                count = len(request.peers)
                return ReplyBound(RoundFlagsReply).with_more(FLAG_BYTES * count, 3 * count)


def _gone(cause: str) -> RunError:
    return RunError(
        "FF-VERI-065",
        "the checker process is gone",
        cause=cause,
        hint="its payload is refused and another checker is started; if it ends again, look at its memory limit",
    )


def serve(channel: WorkerChannel) -> None:
    """Answers requests in order until the other end is gone."""
    state = CheckerState()
    while (raw := channel.read()) is not None:
        request = decode(raw, cast(type[Any], Request), limits.WORKER_BYTES)
        channel.write(encode(state.handle(blobs.put(request, iter(channel.lent(blobs.count(request)))))))


def main() -> int:
    """Runs until the coordinator closes its end; returns the exit status."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.setblocking(True)
    descriptor = connection.detach()
    os.set_inheritable(descriptor, False)
    try:
        kernels.use(os.environ.get("FARFLUNG_KERNELS") or "auto")
        serve(WorkerChannel(descriptor, descriptor))
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except FarflungError as error:
        sys.stderr.write("\n".join(error.lines()) + "\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
