"""Submission checks in a process of their own, in the strongest sandbox here; replaced when a payload kills it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from farflung.core.errors import ProtocolError, RunError
from farflung.core.ids import PeerId
from farflung.host.io.process import PYTHON, WorkerProcess, start_worker
from farflung.host.limits import GIB, Limits
from farflung.job.spec import Terms
from farflung.verify.check import Check, CheckerSetup
from farflung.verify.io.checker import Checker

MODULE: Final = "farflung.verify.io.checker"
FACTOR: Final = (
    64  # bytes of memory for each parameter: decoded updates of a round's peers, and their products
)


class Inspection:
    """One job's checker, whichever process it is at the moment."""

    def __init__(self, folder: Path, terms: Terms) -> None:
        """`folder`: for its log and scratch."""
        self._folder, self._terms = folder, terms
        self._process: WorkerProcess | None = None
        self._checker: Checker | None = None
        self._turn = asyncio.Lock()
        self._checks: dict[int, list[Check]] = {}

    async def check(self, request: Check) -> None:
        """Raises ProtocolError with the fault of a payload; one that kills the checker is refused (FF-VERI-065)."""
        async with self._turn:
            try:
                checked = await (await self._ready()).check(request)
            except RunError as error:
                self.close()
                await self._replay(request.round)
                raise ProtocolError(error.code, error.message, cause=error.cause, hint=error.hint) from error
        if checked.code:
            raise ProtocolError(checked.code, checked.words)
        self._checks.setdefault(request.round, []).append(request)

    async def conclude(self, round: int, peers: tuple[PeerId, ...]) -> dict[PeerId, str]:
        """Who of the accepted peers is suspicious, and why. Every one of them was checked before."""
        async with self._turn:
            found = await (await self._ready()).conclude(round, peers)
        self._checks = {r: kept for r, kept in self._checks.items() if r > round}
        return found

    def close(self) -> None:
        """Ends the process."""
        if self._checker is not None:
            self._checker.close()
        if self._process is not None:
            self._process.terminate()
        self._process = self._checker = None

    async def _ready(self) -> Checker:
        if self._checker is None:
            bounds = Limits(data=GIB + FACTOR * self._terms.layout.size)
            command = (*PYTHON, "-m", MODULE)
            scratch, log = self._folder / "checker", self._folder / "checker.log"
            self._process = start_worker(scratch, log, bounds, command=command)
            self._checker = Checker(self._process.socket)
            spec = self._terms.spec
            await self._checker.setup(CheckerSetup(spec.sync, self._terms.layout, spec.round_tokens))
        return self._checker

    async def _replay(self, round: int) -> None:
        """A new process is shown again what was found good in the round."""
        for good in self._checks.get(round, []):
            await (await self._ready()).check(good)
