"""Bounds what a node works for a requester that does not pay (L5): it keeps the count on disk, waits, then refuses.

What counts as pay is what the ledger says of the node's lease: what was recorded, and what the node has claimed by its
vouchers (node.vouchers). A node with too many unpaid rounds (node.unpaid_work) begins no other one. It claims what it
holds, waits for `WAIT_SECONDS`, then refuses work of that job (FF-APP-710) until the ledger says more. A job that is
over and has not paid counts against its requester's other jobs for a day (FF-APP-711).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.errors import FarflungError, PolicyError
from farflung.core.file_header import FileFormat, file_of, value_of
from farflung.core.ids import Hash, PeerId
from farflung.core.io.durable_files import write_atomic
from farflung.job.spec import JobTerms
from farflung.ledger.table_rows import HOLDS_MONEY, LeaseRow, lease_key
from farflung.ledger.transactions import LeaseRole
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.node.unpaid_work import ANY_ROUND, JUDGED_SHARE, PROVEN_SHARE, UnpaidWork
from farflung.peers.process.channel import Channel

_FORM: Final = FileFormat("unpaid-work", remedy="delete the file: a job's unpaid rounds are counted anew")
WAIT_SECONDS: Final = 20.0  # in which the ledger answers and says no more: a validator may lag, a voucher be on its way
AWAY_SECONDS: Final = 300.0  # for which a ledger that does not answer is waited for
LOOK_SECONDS: Final = 0.5
REMEMBER_SECONDS: Final = 24 * 3600  # for which what a job left unpaid counts against its requester

Claim = Callable[[Hash], Awaitable[None]]


class WorkAccount:
    """One job's unpaid work, on disk."""

    def __init__(self, bound: VoucherBound, job: Hash, path: Path, work: UnpaidWork) -> None:
        self._bound, self.job, self._path, self.work = bound, job, path, work
        self.is_refused = False  # and nothing was paid since

    async def check(self, on: int = ANY_ROUND) -> None:
        """Before new work. Raises PolicyError FF-APP-710 when too much is unpaid, and waiting did not help."""
        await self._bound.check_work(self, on)

    def trained(self, round: int, units: int) -> None:
        """A round was trained; durable on return."""
        self._keep(self.work.trained(round, units, int(time.time())))

    def closed(self, round: int, *, is_accepted: bool) -> None:
        """The requester says what became of a round. It is on disk with the next one."""
        self.work = self.work.closed(round, is_accepted=is_accepted)

    def audited(self, round: int, units: int) -> None:
        """A verifier has done so much; durable on return."""
        self._keep(self.work.audited(round, units, int(time.time())))

    def credit(self, earned: int) -> None:
        """The ledger counts so many units of the lease."""
        self.work = self.work.credited(earned)

    def _keep(self, work: UnpaidWork) -> None:
        self.work = work
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(self._path, file_of(_FORM, work), "provider.unpaid", private=True)

    def forget(self) -> None:
        """Nothing of the job counts any more."""
        self._path.unlink(missing_ok=True)


class VoucherBound:
    """One node's accounts of all jobs."""

    def __init__(self, folder: Path, own: PeerId, claim: Claim, channel: Channel) -> None:
        """`claim` puts on the ledger what the node holds a voucher for. Raises what it raises."""
        self._folder, self._own, self._claim, self._channel = folder, own, claim, channel
        self._ledger: LedgerClient | None = None
        names = (path for path in sorted(folder.glob("*")) if not path.suffix)  # others are of writes cut off
        kept = ((path, _read(path)) for path in names)
        self._accounts = {
            job: WorkAccount(self, job, path, work)
            for path, work in kept
            if work is not None and (job := Hash(bytes.fromhex(path.name)))
        }

    def follow(self, ledger: LedgerClient) -> None:
        """Where leases are read."""
        self._ledger = ledger

    def account(self, terms: JobTerms, role: LeaseRole) -> WorkAccount:
        """A job's, as it was left; or a new one."""
        if terms.id not in self._accounts:
            is_sure = terms.is_proven and role is LeaseRole.TRAIN
            work = UnpaidWork(terms.requester, PROVEN_SHARE if is_sure else JUDGED_SHARE)
            self._accounts[terms.id] = WorkAccount(self, terms.id, self._folder / terms.id.hex(), work)
        return self._accounts[terms.id]

    def credit(self, job: Hash, earned: int) -> None:
        """What somebody has read of a lease."""
        if (account := self._accounts.get(job)) is not None:
            account.credit(earned)

    async def check_work(self, account: WorkAccount, on: int) -> None:
        """Raises PolicyError FF-APP-710: too much is unpaid, and nothing came while this waited."""
        began, answered = time.monotonic(), 0.0
        if not account.work.may_work(on) and not account.is_refused:
            await self._claim_held(account.job)
        while not account.work.may_work(on):
            looked = time.monotonic()
            is_answered = await self._look(account)
            if account.work.may_work(on):
                break
            if account.is_refused or answered >= WAIT_SECONDS or looked - began >= AWAY_SECONDS:
                self._refuse(account)
            await asyncio.sleep(LOOK_SECONDS)
            answered += (time.monotonic() - looked) * is_answered
        account.is_refused = False

    async def check_start(self, job: Hash) -> None:
        """Raises PolicyError FF-APP-710: work of this job was refused, and nothing was paid since."""
        account = self._accounts.get(job)
        if account is None or not account.is_refused:
            return
        await self._look(account)
        if not account.work.may_work():
            self._refuse(account)

    async def check_requester(self, requester: PeerId, job: Hash) -> None:
        """Raises PolicyError FF-APP-711: other jobs of this requester have not paid."""
        others = [a for a in self._accounts.values() if a.job != job and a.work.requester == requester]
        if sum(a.work.rounds for a in others) < limits.UNPAID_ROUNDS:
            return
        for account in others:
            await self._look(account)
        unpaid = sum(a.work.rounds for a in others)
        if unpaid >= limits.UNPAID_ROUNDS:
            raise PolicyError(
                "FF-APP-711",
                f"earlier jobs of this requester left {unpaid} rounds of this node unpaid",
                cause="what is left unpaid counts for a day",
                hint="record what was worked (`farflung resume` does), or propose to another provider",
            )

    async def _claim_held(self, job: Hash) -> None:
        try:
            await self._claim(job)
        except FarflungError as error:
            text = f"a voucher is not claimed: {error.message}"[:300]
            self._channel.report("warning", code=error.code, message=text)

    async def _look(self, account: WorkAccount) -> bool:
        """Reads what the ledger counts. Whether it answered."""
        if self._ledger is None:
            return False
        with contextlib.suppress(FarflungError):
            lease = await self._ledger.row(LeaseRow, lease_key(account.job, self._own))
            account.credit(lease.earned if lease is not None else 0)
            return True
        return False

    def _refuse(self, account: WorkAccount) -> None:
        unpaid = account.work.rounds
        if not account.is_refused:
            account.is_refused = True
            text = (
                f"{unpaid} rounds of job {account.job.hex()[:8]} are not paid: no more is worked for it until they are"
            )
            self._channel.report("warning", code="FF-APP-710", message=text)
        raise PolicyError(
            "FF-APP-710",
            f"{unpaid} rounds of this node are not paid: it works on when the ledger counts them",
            cause=f"a node works at most {limits.UNPAID_ROUNDS} rounds ahead of its pay",
            hint="nothing: an honest requester's rounds are recorded in their order; look whether its ledger answers",
        )

    async def sweep(self) -> None:
        """Forgets jobs that are over and have paid, or were over for long. Raises what the ledger's client raises."""
        for job, account in list(self._accounts.items()):
            row = await self._ledger.job(job) if self._ledger is not None else None
            if row is None or row.state in HOLDS_MONEY:
                continue
            await self._look(account)
            if not account.work.rounds or time.time() - account.work.time >= REMEMBER_SECONDS:
                account.forget()
                del self._accounts[job]


def _read(path: Path) -> UnpaidWork | None:
    """What a file says; None where it is damaged, or of another version: that job is counted anew."""
    try:
        return value_of(_FORM, path.read_bytes(), UnpaidWork, limits.CONTROL_BYTES)
    except (OSError, FarflungError):
        return None
