"""Checks signatures in worker processes, so that the validator's own core is left for sequential work.

A thread owns each worker process: it sends a chunk of encoded transactions and waits for the answer. A worker that
died, or does not answer within the time limit, is killed and another one gets the chunk; after TRIES of them the asker
is told. So every question is answered or refused in bounded time, and what waits is bounded as well.
"""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Final, NamedTuple

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.errors import RunError
from farflung.ledger.io.signature_worker import flags, receive, send

Answer = tuple[bool, ...]  # of each transaction: whether its form and its signature hold
TRIES: Final = 3
SECONDS: Final = 20  # for a chunk: a thousand times what a full one takes
PROGRAM: Final = (sys.executable, "-s", "-P", "-m", "farflung.ledger.io.signature_worker")


class _SignatureBatch(NamedTuple):
    message: bytes
    size: int
    answer: Future[Answer]


class _SignatureWorker:
    """One process and the socket to it; raises OSError where it cannot be started."""

    def __init__(self, program: Sequence[str], seconds: int) -> None:
        self._link, theirs = socket.socketpair()
        try:
            with theirs:
                words = [*program, str(theirs.fileno())]
                self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        except OSError:
            self._link.close()
            raise
        self._link.settimeout(seconds)

    def judge(self, chunk: _SignatureBatch) -> Answer:
        """The answer; raises OSError when the process is gone, or does not answer in time."""
        send(self._link, chunk.message)
        return flags(receive(self._link, (chunk.size + 7) // 8), chunk.size)

    def end(self) -> None:
        """Ends the process at once."""
        self.process.kill()
        self.process.wait()
        self._link.close()


class SignaturePool:
    """Worker processes that judge transactions. Use as a context manager, or `close` it."""

    def __init__(self, workers: int, *, seconds: int = SECONDS, program: Sequence[str] = PROGRAM) -> None:
        self._seconds, self._program = seconds, program
        self._waiting: queue.Queue[_SignatureBatch | None] = queue.Queue(limits.JUDGE_CHUNKS + workers)
        self._turn = threading.Lock()
        self._is_closed = False
        self._workers: dict[int, _SignatureWorker] = {}
        self._threads = [
            threading.Thread(target=self._serve, args=(seat,), name=f"judge-{seat}", daemon=True)
            for seat in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> SignaturePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """The processes that are up; each starts with its first chunk."""
        with self._turn:
            return [worker.process.pid for worker in self._workers.values()]

    def ask(self, transactions: Sequence[bytes]) -> Future[Answer]:
        """Whether each of these encoded transactions is sound, some time later.

        Raises RunError FF-LEDG-201 too much waits already, -202 closed; ValueError for more than JUDGE_BYTES. The
        future fails with RunError FF-LEDG-200 when no worker answers, -202 when closed before one did.
        """
        message = encode(tuple(transactions))
        if len(message) > limits.JUDGE_BYTES:
            raise ValueError(f"{len(message)} bytes of transactions in one chunk")
        chunk = _SignatureBatch(message, len(transactions), Future())
        with self._turn:
            if self._is_closed:
                raise _closed()
            if self._waiting.qsize() >= limits.JUDGE_CHUNKS:
                raise RunError(
                    "FF-LEDG-201",
                    "too many transactions wait to be judged",
                    cause=f"{limits.JUDGE_CHUNKS} chunks of them wait for {len(self._threads)} processes",
                    hint="send fewer at a time, or give the validator more processes for signatures",
                )
            self._waiting.put_nowait(chunk)
        return chunk.answer

    def close(self) -> None:
        """Ends all processes; what was not answered fails."""
        with self._turn:
            is_first, self._is_closed = not self._is_closed, True
            while is_first and not self._waiting.empty():
                chunk = self._waiting.get_nowait()
                if chunk is not None and chunk.answer.set_running_or_notify_cancel():
                    chunk.answer.set_exception(_closed())
            for _ in self._threads if is_first else ():
                self._waiting.put_nowait(None)
            for worker in self._workers.values():
                worker.process.kill()  # its thread sees that, and cleans up
        for thread in self._threads:
            thread.join()

    def _serve(self, seat: int) -> None:
        while (chunk := self._waiting.get()) is not None:
            if not chunk.answer.set_running_or_notify_cancel():
                continue
            try:
                self._settle(seat, chunk)
            finally:
                if not chunk.answer.done():  # nobody waits for ever, whatever happened
                    chunk.answer.set_exception(_closed())
        self._drop(seat)

    def _settle(self, seat: int, chunk: _SignatureBatch) -> None:
        cause = "they ended"
        for _ in range(TRIES):
            try:
                chunk.answer.set_result(self._worker(seat).judge(chunk))
                return
            except OSError as error:
                cause = str(error) or type(error).__name__
                self._drop(seat)
            if self._is_closed:
                return
        chunk.answer.set_exception(
            RunError(
                "FF-LEDG-200",
                "signatures cannot be judged",
                cause=f"{TRIES} processes in a row gave no answer: {cause}",
                hint="see that there are memory and processes to spare, then start the validator again",
            )
        )

    def _worker(self, seat: int) -> _SignatureWorker:
        worker = self._workers.get(seat)
        if worker is None:
            worker = _SignatureWorker(self._program, self._seconds)
            with self._turn:
                self._workers[seat] = worker
                if self._is_closed:
                    worker.process.kill()
        return worker

    def _drop(self, seat: int) -> None:
        with self._turn:
            worker = self._workers.pop(seat, None)
        if worker is not None:
            worker.end()


def _closed() -> RunError:
    return RunError(
        "FF-LEDG-202",
        "no signature is judged any more",
        cause="the validator is being stopped",
        hint="hand the transaction in again when the validator is back",
    )
