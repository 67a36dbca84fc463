"""Checks submissions in a strongly sandboxed process of its own; replaces it when a payload kills it.

Who is blamed for the end of a checker: a process that looked at others' payloads before may have died of them, of a
cancelled request, or of the machine. So the payload is judged once more, alone, by a fresh process; what ends that one
as well is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Final, TypeVar

from farflung.core.errors import ProtocolError, RunError
from farflung.core.ids import PeerId
from farflung.host.io.worker_process import PYTHON, WorkerProcess, start_worker
from farflung.host.worker_limits import GIB, WorkerLimits
from farflung.job.spec import JobTerms
from farflung.verify.io.checker import CheckerClient
from farflung.verify.submission_checks import CheckerSetup, PayloadCheckReply, PayloadCheckRequest

MODULE: Final = "farflung.verify.io.checker"
CPU_SECONDS: Final = 24 * 3600  # of one process; a payload that takes CHECK_SECONDS is refused long before
CHECK_SECONDS: Final = 60.0
ROUNDS_KEPT: Final = 2  # whose payloads a new process is shown again: the open one, and one still under audit
# Bytes of memory for each parameter: one payload on its way, and the decoded updates of each peer.
PAYLOAD_FACTOR: Final = 64
PEER_FACTOR: Final = 4 * ROUNDS_KEPT

AnswerT = TypeVar("AnswerT")


class CheckerSupervisor:
    """One job's checker, whichever process it is at the moment."""

    def __init__(self, folder: Path, terms: JobTerms) -> None:
        """`folder`: for its log and scratch."""
        self._folder, self._terms = folder, terms
        self._process: WorkerProcess | None = None
        self._checker: CheckerClient | None = None
        self._turn = asyncio.Lock()
        # What was found good, by round, until it is concluded.
        self._good: dict[int, dict[PeerId, PayloadCheckRequest]] = {}

    async def check(self, request: PayloadCheckRequest) -> None:
        """Raises ProtocolError with the fault of a payload; one that kills a fresh checker, or keeps it, is refused."""
        async with self._turn:
            checked = await self._judged(request)
            if checked.code:
                raise ProtocolError(checked.code, checked.words)
            if self._terms.spec.is_audited:
                self._good.setdefault(request.round, {})[request.contribution.peer] = request
                self._good = {r: good for r, good in self._good.items() if r > request.round - ROUNDS_KEPT}
            else:  # nobody will ever conclude the round
                await self._bounded((await self._ready()).conclude(request.round, ()))

    async def conclude(self, round: int, peers: tuple[PeerId, ...]) -> dict[PeerId, str]:
        """Which accepted peers are suspicious, and why. Every one of them was checked before."""
        async with self._turn:
            try:
                found = await self._bounded((await self._ready()).conclude(round, peers), len(peers))
            except RunError:
                # It died of what lay in its memory, or was killed: once more with what was accepted.
                found = await self._bounded((await self._ready()).conclude(round, peers), len(peers))
            self._good.pop(round, None)
        return found

    def close(self) -> None:
        """Ends the process, and forgets what it was shown."""
        self._end()
        self._good.clear()

    async def _judged(self, request: PayloadCheckRequest) -> PayloadCheckReply:
        try:
            return await self._bounded((await self._ready()).check(request))
        except RunError:
            alone = await self._start()
        try:
            checked = await self._bounded(alone.check(request))
        except RunError as error:
            raise ProtocolError(error.code, error.message, cause=error.cause, hint=error.hint) from error
        await self._show(alone)
        return checked

    async def _bounded(self, answer: Awaitable[AnswerT], payloads: int = 1) -> AnswerT:
        """The checker's answer. A process that gave none, whatever kept it from that, is ended: it is of no more use.

        Raises RunError FF-VERI-065 when it is gone, FF-APP-096 when it is stuck.
        """
        seconds = CHECK_SECONDS * max(1, payloads)
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            self._end()
            raise RunError(
                "FF-APP-096", "the checker is stuck in a payload", cause=f"no answer in {seconds:.0f} s"
            ) from None
        except BaseException:
            self._end()
            raise

    async def _ready(self) -> CheckerClient:
        """The process that stands, or a new one that knows what was found good."""
        if self._checker is None:
            await self._show(await self._start())
        assert self._checker is not None
        return self._checker

    async def _start(self) -> CheckerClient:
        self._end()
        factor = PAYLOAD_FACTOR + PEER_FACTOR * self._terms.spec.network.providers
        bounds = WorkerLimits(data=GIB + factor * self._terms.layout.size, cpu_seconds=CPU_SECONDS)
        command = (*PYTHON, "-m", MODULE)
        scratch, log = self._folder / "checker", self._folder / "checker.log"
        self._process = start_worker(scratch, log, bounds, command=command)
        checker = self._checker = CheckerClient(self._process.socket, self._folder)
        spec = self._terms.spec
        await self._bounded(checker.setup(CheckerSetup(spec, self._terms.layout, spec.round_tokens)))
        return checker

    async def _show(self, checker: CheckerClient) -> None:
        """A new process is shown again what was found good."""
        for good in [check for by_peer in self._good.values() for check in by_peer.values()]:
            await self._bounded(checker.check(good))

    def _end(self) -> None:
        if self._checker is not None:
            self._checker.close()
        if self._process is not None:
            self._process.terminate()
        self._process = self._checker = None
