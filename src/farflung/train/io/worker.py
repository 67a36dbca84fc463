"""Runs the worker process: it reads requests from its agent, answers each, and ends when the agent does.

While none has come it trains ahead, where a job's next round can be known (train.prefetched_round); a request waits
for the step that is under way.

`python -m farflung.train.io.worker FD` speaks over an inherited socket.
A message is its length (8 bytes, little-endian) and canonical bytes (core.codec) of a `train.worker_messages` struct.
Its blobs (train.blobs) follow. Those of a request lie in a file: their lengths (8 bytes each) come with its descriptor.
A length whose highest bit is set is of a whole file, whose descriptor comes behind that one. Those of a reply come one
by one, each behind its length.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from farflung.compress import kernels
from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import FarflungError, ProtocolError, RunError, type_and_text
from farflung.core.io.ordinary_files import open_ordinary
from farflung.core.io.spool_file import mapped, spooled
from farflung.core.mapped_pages import leave
from farflung.train import blobs, meta_kernels, worker_messages
from farflung.train.blobs import Blob
from farflung.train.io.import_without_gc import gc_paused

HEAD_BYTES = 8
OWN_FILE = 1 << 63  # in a length: the blob is a file of its own
FILES = 4  # of one request, at most
PIECE = limits.MIB
WORD_LENGTH = 4000  # characters of each text of a failure, so that it is no longer than a reply may be
Wait = Callable[[int, int], None]


class LentBlobs:
    """The blobs of a request on their way: their lengths, and descriptors of one file of what is no file already, then
    of those that are.
    """

    def __init__(self, long: Sequence[Blob], folder: Path | None) -> None:
        """Raises RunError FF-CORE-050, FF-TRAIN-113."""
        files = [blobs.file_of(blob) for blob in long]
        self._spool = spooled((() if file else blobs.parts_of(b) for file, b in zip(files, long, strict=True)), folder)
        self._opened: list[BinaryIO] = []
        try:
            self._opened += [_lent(file) for file in files if file is not None]
        except BaseException:
            self.close()
            raise
        sizes = zip(files, self._spool.sizes, strict=True)
        said = [size if file is None else OWN_FILE | file.size for file, size in sizes]
        self.lengths = b"".join(size.to_bytes(HEAD_BYTES, "little") for size in said)
        self.descriptors = [self._spool.readable, *(file.fileno() for file in self._opened)]

    def close(self) -> None:
        """They were sent, or will not be."""
        self._spool.close()
        for each in self._opened:
            each.close()


def _lent(file: blobs.FileBytes) -> BinaryIO:
    try:
        return open_ordinary(file.path, os.O_NOFOLLOW)
    except OSError as error:
        cause = error.strerror or str(error)
        hint = f"put {file.path} back as it was, then give the command again"
        raise RunError(
            "FF-TRAIN-113", f"{file.path.name} cannot be lent to a worker", cause=cause, hint=hint
        ) from error


class WorkerChannel:
    """A blocking, framed channel over two file descriptors."""

    def __init__(self, incoming: int, outgoing: int, wait: Wait | None = None) -> None:
        """`wait` waits until a descriptor can be read or written (events of `select.poll`); None: the kernel does."""
        self._incoming, self._outgoing, self._wait = incoming, outgoing, wait
        self._poll = select.poll()
        self._poll.register(incoming, select.POLLIN | getattr(select, "POLLRDHUP", 0))

    def read(self, most: int = limits.WORKER_BYTES) -> bytearray | None:
        """One message, or None when the other end is gone. Raises ProtocolError FF-TRAIN-091 (over `most` bytes).

        Memory is taken as bytes come, whatever length is claimed.
        """
        head = self._exactly(HEAD_BYTES)
        if head is None:
            return None
        size = int.from_bytes(head, "little")
        if size > most:
            raise too_long(size, most)
        return self._exactly(size)

    def write(self, data: bytes) -> None:
        """Sends one message. Raises OSError when the other end is gone, ProtocolError FF-TRAIN-091."""
        if len(data) > limits.WORKER_BYTES:
            raise too_long(len(data))
        self._send(len(data).to_bytes(HEAD_BYTES, "little"))
        self._send(data)

    def _send(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        while view:
            if self._wait is not None:
                self._wait(self._outgoing, select.POLLOUT)
            view = view[os.write(self._outgoing, view) :]

    def lend(self, long: Sequence[Blob]) -> None:
        """Sends the blobs of a request. Raises OSError when the other end is gone, and what LentBlobs raises."""
        lent = LentBlobs(long, None)
        try:
            if self._wait is not None:
                self._wait(self._outgoing, select.POLLOUT)
            with socket.socket(fileno=os.dup(self._outgoing)) as connection:
                sent = socket.send_fds(connection, [lent.lengths], lent.descriptors)
        finally:
            lent.close()
        self._send(lent.lengths[sent:])

    def lent(self, count: int) -> list[memoryview]:
        """The blobs of a request that was read. Raises EOFError when the other end is gone."""
        if not count:
            return []
        with socket.socket(fileno=os.dup(self._incoming)) as connection:
            head, descriptors, _, _ = socket.recv_fds(connection, 1, FILES)
        rest = self._exactly(HEAD_BYTES * count - len(head))
        if not head or rest is None:
            raise EOFError("it ended")
        lengths = bytes(head + rest)
        said = [int.from_bytes(lengths[i : i + HEAD_BYTES], "little") for i in range(0, len(lengths), HEAD_BYTES)]
        sizes, files = [0 if size & OWN_FILE else size for size in said], iter(descriptors[1:])
        try:
            views = mapped(descriptors[0] if descriptors else -1, sizes)
            return [
                mapped(next(files), [size & ~OWN_FILE])[0] if size & OWN_FILE else view
                for size, view in zip(said, views, strict=True)
            ]
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def write_blobs(self, long: Iterable[Blob]) -> None:
        """Sends the blobs of a reply. Raises OSError when the other end is gone."""
        for blob in long:
            self._send(len(blob).to_bytes(HEAD_BYTES, "little"))
            for part in blobs.parts_of(blob):
                self._send(part)
                leave(part)

    def is_closed(self) -> bool:
        """Whether the other end is gone; does not wait."""
        closed = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
        return any(event & closed for _, event in self._poll.poll(0))

    def is_waiting(self) -> bool:
        """Whether something was sent that is not read yet; does not wait."""
        return any(event & select.POLLIN for _, event in self._poll.poll(0))

    def _exactly(self, size: int) -> bytearray | None:
        data = bytearray()
        while len(data) < size:
            if self._wait is not None:
                self._wait(self._incoming, select.POLLIN)
            more = os.read(self._incoming, min(PIECE, size - len(data)))
            if not more:
                return None
            data += more
        return data


def too_long(size: int, most: int = limits.WORKER_BYTES) -> ProtocolError:
    """The error for a message of more than `most` bytes."""
    return ProtocolError(
        "FF-TRAIN-091",
        f"message of {size} bytes between agent and worker",
        cause=f"the limit is {most} bytes",
        hint="use a smaller model or data set",
    )


def broken(error: Exception) -> worker_messages.WorkerFailure:
    """Any failure as the reply that carries it; an unexpected one as FF-TRAIN-099."""
    if os.environ.get("FARFLUNG_DEBUG"):
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, FarflungError):
        words = (error.code, error.message, error.cause, error.hint)
    else:
        cause = type_and_text(error)[:2000]
        words = ("FF-TRAIN-099", "the worker met an unexpected error", cause, "run again with FARFLUNG_DEBUG=1")
    return worker_messages.WorkerFailure(*(word[:WORD_LENGTH].encode("utf-8", "replace").decode() for word in words))


def serve(channel: WorkerChannel, states: int = -1) -> None:
    """Answers requests in order until the agent is gone. `states`: the file that holds its vectors."""
    meta_kernels.leave_out()
    with gc_paused():
        from farflung.train.engine import WorkerEngine  # torch takes seconds to load: only here
        from farflung.train.io.mapped_vectors import MappedVectors

    store, data = MappedVectors(states), list[memoryview]()
    engine = WorkerEngine(time.perf_counter, lambda: _go_on(channel), store)
    while True:
        while not channel.is_waiting() and not channel.is_closed() and engine.prefetch():
            pass  # one step after another, until the agent says something
        raw = channel.read(limits.WORKER_BYTES)
        if raw is None:
            return
        try:
            request = decode(raw, cast(type[Any], worker_messages.Said), limits.WORKER_BYTES)
            lent = channel.lent(blobs.count(request))
            request = blobs.put(request, iter(lent))
            if isinstance(request, worker_messages.SetupCommand):
                data = lent
            if isinstance(request, worker_messages.AbandonCommand):
                engine.rest()  # the round before it will not be among the merged ones
                continue  # it was the reason of the answer before, or came too late
            reply: worker_messages.Reply = engine.handle(request)
            del request, lent
        except EOFError:
            return
        except Exception as error:
            reply = broken(error)
        reply, long = blobs.take(reply)
        channel.write(encode(reply))
        channel.write_blobs(long)
        del reply, long  # they may hold as many vectors as a step ahead needs
        for view in data:
            leave(view)


def _go_on(channel: WorkerChannel) -> None:
    """Ends the process when its agent is gone, and the work under way when the agent speaks before the answer."""
    if channel.is_closed():
        raise SystemExit(0)
    if channel.is_waiting():
        raise RunError(
            "FF-TRAIN-012",
            "the round was given up",
            cause="the network went on without this peer, which was too slow",
            hint="it takes part in the next round",
        )


def _open(descriptor: int) -> WorkerChannel:
    os.set_blocking(descriptor, True)
    os.set_inheritable(descriptor, False)
    return WorkerChannel(descriptor, descriptor)


def main() -> int:
    """Runs until the agent closes its end; returns the exit status."""
    try:
        kernels.use(os.environ.get("FARFLUNG_KERNELS") or "auto")
        serve(_open(int(sys.argv[1])), int(sys.argv[2]) if len(sys.argv) > 2 else -1)
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except FarflungError as error:
        sys.stderr.write("\n".join(error.lines()) + "\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
