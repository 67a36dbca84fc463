"""Attests a node's environment when it takes a lease, and watches it for tampering (requirement S2).

At a sign of tampering the node reports itself: the report is kept in its folder, its hash goes on the ledger, and
no further lease is made with it (ledger.rules.exclusions). It loses no stake, so reporting is cheaper than being found.
"""

from __future__ import annotations

import contextlib
import platform
import time
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.attestations import Attestation
from farflung.core.errors import FarflungError, ProtocolError
from farflung.core.file_header import FileFormat, file_of, value_of
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.io.durable_files import write_atomic
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.host.io.code_digest import image_digest
from farflung.host.io.worker_process import WorkerProcess
from farflung.host.tamper_signs import CHANGED, TamperReport, tampering_hash
from farflung.ledger.exclusions import HostTampered
from farflung.ledger.table_rows import HOLDS_MONEY
from farflung.market.provider_offer import Capabilities
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.process.channel import Channel

FORM: Final = FileFormat("tampering")
IMAGE_SECONDS: Final = 60.0  # between two looks at the code on the disk


class TamperWatch:
    """One node's, over one lease at a time."""

    def __init__(self, folder: Path, chain: Hash, node: PeerId, channel: Channel) -> None:
        self._folder, self._chain, self._node, self._channel = folder, chain, node, channel
        self._ledger: LedgerClient | None = None
        self._tasks = OwnedTasks()
        self._job, self._began, self._next = ZERO_HASH, ZERO_HASH, 0.0
        self._told: set[str] = set()  # signs of this lease that the ledger has heard of

    def follow(self, ledger: LedgerClient) -> None:
        """Where reports go, with this node's key."""
        self._ledger = ledger

    def attest(self, job: Hash, facts: Capabilities, process: WorkerProcess | None) -> Attestation:
        """What this node says it runs; from its first word for a job on, the code is watched."""
        if job != self._job:
            self._job, self._began, self._told = job, image_digest(), set()
            self._next = time.monotonic() + IMAGE_SECONDS
        tier = process.tier.name if process is not None else ""
        runs = (platform.python_version(), facts.torch, facts.system, facts.machine, facts.threads, tier)
        return Attestation(self._chain, job, self._node, self._began, *runs)

    def look(self, name: str, job: Hash, process: WorkerProcess) -> bool:
        """Tells of each sign once. Whether the lease must end: not for code on the disk, the worker has its own."""
        found = self._signs(process)
        if set(found) - self._told:
            self._told |= set(found)
            self._tell(name, job, tuple(sorted(self._told)))
        return any(sign != CHANGED for sign in found)

    def _signs(self, process: WorkerProcess) -> tuple[str, ...]:
        """What speaks for tampering with a worker that works; empty for nothing. Some 0.2 ms, once a minute 20."""
        found = process.tampering()
        if time.monotonic() < self._next:
            return found
        self._next = time.monotonic() + IMAGE_SECONDS
        return found if image_digest() == self._began else (*found, CHANGED)

    def _tell(self, name: str, job: Hash, signs: tuple[str, ...]) -> None:
        """Says so here and on the ledger; the report is kept."""
        said = TamperReport(self._chain, job, self._node, self._began, image_digest(), signs)
        write_atomic(self._folder / f"tampering-{job.hex()[:16]}.bin", file_of(FORM, said), "provider.tampering")
        self._channel.report("warning", code="FF-APP-372", message=f"{name}: {'; '.join(signs)}"[:300])
        if self._ledger is not None:
            self._tasks.begin(self._record(self._ledger, HostTampered(job, tampering_hash(said))))

    async def _record(self, ledger: LedgerClient, said: HostTampered) -> None:
        try:
            await ledger.submit(said)
        except FarflungError as error:
            self._channel.report(
                "warning", code=error.code, message=f"tampering is not recorded: {error.message}"[:300]
            )

    async def sweep(self) -> None:
        """Removes reports of jobs that the ledger proves to be over. Raises what the ledger's client raises."""
        for path in sorted(self._folder.glob("tampering-*.bin")):
            with contextlib.suppress(OSError, ProtocolError):
                said = value_of(FORM, path.read_bytes(), TamperReport, limits.CONTROL_BYTES)
                row = None if self._ledger is None else await self._ledger.job(said.job)
                if row is not None and row.state not in HOLDS_MONEY:
                    path.unlink(missing_ok=True)

    async def close(self) -> None:
        """Waits for nothing more."""
        await self._tasks.close()
