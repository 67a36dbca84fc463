"""Stores the newest voucher of each job that a node works on, and claims by it what the ledger does not say.

What a node has earned it holds under the requester's mark (ledger.earnings_tally). When the ledger does not say as
much a moment later, the node lets the ledger know by itself: who takes work and does not record it pays anyway.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.errors import FarflungError, ProtocolError, VersionError
from farflung.core.file_header import FileFormat, file_of, value_of
from farflung.core.ids import Hash, PeerId
from farflung.core.io.durable_files import write_atomic
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.ledger.earnings_tally import SettleMany, check_voucher
from farflung.ledger.table_rows import HOLDS_MONEY, LeaseRow, lease_key
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.process.channel import Channel
from farflung.peers.protocol import messages

_FORM: Final = FileFormat("voucher", remedy="delete the file: what it would claim is lost")
RECORD_SECONDS: Final = 2.0  # between two looks at the ledger, before a node claims: validators may lag


class VoucherStore:
    """One node's newest voucher of each job, on disk, and what becomes of it."""

    def __init__(self, folder: Path, key: PeerId, chain: Hash, channel: Channel) -> None:
        self._folder, self._key, self._chain, self._channel = folder, key, chain, channel
        self._ledger: LedgerClient | None = None
        self._tasks = OwnedTasks()

    def follow(self, ledger: LedgerClient) -> None:
        """Where claims are made, with this node's key."""
        self._ledger = ledger

    def take(self, requester: PeerId, said: messages.VoucherUpdate) -> None:
        """Keeps a voucher, unless the one that is held says more. Raises VerificationError FF-LEDG-240."""
        check_voucher(said.signed, said.voucher, (self._chain, said.job, requester, self._key))
        try:
            held = self._held(said.job)
        except VersionError:  # of a requester's vouchers the newest says the most
            held = None
        if held is None or held.voucher.credit.units < said.voucher.credit.units:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_atomic(self._file(said.job), file_of(_FORM, said), "provider.voucher")
        if self._ledger is not None:
            self._tasks.begin(self._watch(self._ledger, said.job))

    async def _watch(self, ledger: LedgerClient, job: Hash) -> None:
        """Claims what the ledger does not say, and goes on not saying."""
        try:
            if await self._missing(ledger, job) is not None:
                await asyncio.sleep(RECORD_SECONDS)
                await self._claim(ledger, job)
        except FarflungError as error:
            self._channel.report("warning", code=error.code, message=f"a voucher is not claimed: {error.message}"[:300])

    def _held_jobs(self) -> list[tuple[Hash, LedgerClient]]:
        """Of which a voucher is held, and where it is claimed; names with a suffix are of writes that were cut off."""
        held = (path for path in sorted(self._folder.glob("*")) if not path.suffix)
        return [(Hash(bytes.fromhex(path.name)), self._ledger) for path in held if self._ledger is not None]

    async def claim_all(self) -> None:
        """Before this node leaves: claims by every voucher that it holds. Raises what the ledger's client raises."""
        for job, ledger in self._held_jobs():
            await self._claim(ledger, job)

    async def claim(self, job: Hash) -> None:
        """Claims by the voucher of one job, if one is held. Raises what the ledger's client raises."""
        if self._ledger is not None:
            await self._claim(self._ledger, job)

    async def _claim(self, ledger: LedgerClient, job: Hash) -> None:
        missing = await self._missing(ledger, job)
        if missing is not None:
            await ledger.submit(SettleMany(missing.signed, (missing.voucher,)))

    async def _missing(self, ledger: LedgerClient, job: Hash) -> messages.VoucherUpdate | None:
        """What is held of a job whose lease says less. Of one that is proved to be over nothing is held any longer."""
        held, row = self._held(job), await ledger.job(job)
        if row is None:  # one validator's word, which nobody can prove: money is not thrown away for it
            return None
        if row.state not in HOLDS_MONEY:
            self._file(job).unlink(missing_ok=True)
            return None
        lease = await ledger.row(LeaseRow, lease_key(job, self._key))
        is_less = lease and held and lease.earned < held.voucher.credit.units
        return held if is_less else None

    def _held(self, job: Hash) -> messages.VoucherUpdate | None:
        """Raises VersionError FF-CORE-095: money is not passed over in silence."""
        try:
            return value_of(_FORM, self._file(job).read_bytes(), messages.VoucherUpdate, limits.CONTROL_BYTES)
        except (OSError, ProtocolError):  # none, or damaged: the next one is whole again
            return None

    def _file(self, job: Hash) -> Path:
        return self._folder / job.hex()

    async def close(self) -> None:
        """Watches no more."""
        await self._tasks.close()
