"""Admits a proposal only where the ledger says that it is paid for, and bounds what offers without a lease may hold.

Keys are free. A slot is worth something, so whoever asks for it must have put up money: the job's row is open, it is
the requester's, and what is left of its escrow pays for this offer. An open lease of this node in the job admits, too.
Whoever has offers signed and makes no lease of them holds a slot for `FOLLOW_SECONDS` each time, and only so often.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.errors import NetworkError, PolicyError, RunError
from farflung.core.ids import Hash, PeerId
from farflung.core.money import format_credits
from farflung.ledger.table_rows import HOLDS_MONEY, JobRow, JobState, KeyRow, LeaseRow, lease_key
from farflung.ledger.transactions import JobCoordinate, coordinator_of, notice_of
from farflung.net.io.connection import Connection
from farflung.peers.node.job_claims import JobClaims
from farflung.peers.protocol import messages

FOLLOW_SECONDS: Final = 60.0  # within which an offer that was signed becomes a lease on the ledger
OFFERS: Final = 3  # of one requester that no lease followed
BARRED_SECONDS: Final = 3600.0  # for which such an offer counts
CHECKS: Final = 16  # proposals under way: each asks the ledger
LAG_SECONDS: Final = 3.0  # for which a validator may be behind the one that the requester asked
WAITS: Final = CHECKS // 2  # of them that may wait for such a job: more unknown ones are refused as the ledger says now
LOOK_SECONDS: Final = 0.2
ANSWER_SECONDS: Final = 20.0  # the proposer gives up after 30
REQUESTERS: Final = 1024  # whose offers are remembered


RowT = TypeVar("RowT", LeaseRow, KeyRow)


class LedgerRows(Protocol):
    """Two rows of the ledger, as a node reads them."""

    async def job(self, job: Hash) -> JobRow | None:
        """A job; None where there is none."""

    async def row(self, kind: type[RowT], key: bytes) -> RowT | None:
        """A lease, or a job's term; None where there is none."""


class LeaseAdmission:
    """One node's. `clock`: seconds that only go forward."""

    def __init__(self, own: PeerId, clock: Callable[[], float] = time.monotonic, claims: Path | None = None) -> None:
        """`claims`: the folder in which all nodes of this owner say which job each is in."""
        self._own, self._clock = own, clock
        self._claims = JobClaims(claims, own)
        self._ledger: LedgerRows | None = None
        self._checks = 0
        self._waits = 0
        self._terms: dict[Hash, JobCoordinate] = {}  # the newest of each job, as the ledger has it
        self._shown: WeakKeyDictionary[Connection, JobCoordinate] = WeakKeyDictionary()
        self._unfollowed: dict[PeerId, deque[float]] = {}

    def follow(self, ledger: LedgerRows) -> None:
        """Where rows are read; before that nobody is admitted."""
        self._ledger = ledger

    async def introduce(self, connection: Connection, body: bytes) -> bytes:
        """A requester's process shows its term of a job, which from now on its orders are of. Strangers are ignored.

        Raises PolicyError FF-APP-604 where the ledger has another one, 571 where it does not answer or has no such job.
        """
        said = decode(body, JobCoordinate, limits.TX_BYTES)
        if self._checks >= CHECKS:
            raise PolicyError("FF-APP-046", "this node is leased already", hint="propose to another provider")
        self._checks += 1
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                row = await self._rows.job(said.job)
                if row is not None and row.requester != connection.peer:
                    return b""  # nobody but the requester makes this node wait for a validator
                held = await self._term_of(said) if row is not None else None
        except (NetworkError, RunError, TimeoutError) as error:
            raise _unread(str(error)[:200] or f"no answer for {ANSWER_SECONDS:.0f} s") from error
        finally:
            self._checks -= 1
        if row is None:
            raise _unread("it has no such job")
        self._shown[connection] = said
        if held is not None:
            if said.job not in self._terms and len(self._terms) >= REQUESTERS:
                del self._terms[next(iter(self._terms))]
            self._terms[said.job] = JobCoordinate(said.job, held.epoch, Hash(held.node))
        self.check_term(connection, said.job)
        return b""

    async def _term_of(self, said: JobCoordinate) -> KeyRow | None:
        """What the ledger says; a validator may be a moment behind."""
        until = self._clock() + LAG_SECONDS
        while True:
            held = await self._rows.row(KeyRow, coordinator_of(said.job))
            if (held is not None and held.epoch >= said.term) or self._clock() >= until:
                return held
            await asyncio.sleep(LOOK_SECONDS)

    def check_term(self, connection: Connection, job: Hash) -> None:
        """Raises PolicyError FF-APP-604: another process of the requester coordinates the job."""
        newest = self._terms.get(job)
        if newest is not None and self._shown.get(connection) != newest:
            raise PolicyError(
                "FF-APP-604",
                "another process of the requester coordinates the job",
                cause=f"the ledger has term {newest.term} of it",
                hint="go on where that process runs",
            )

    async def admit(self, requester: PeerId, proposal: messages.LeaseOfferRequest) -> None:
        """Raises PolicyError FF-APP-570 not paid for, 571 the ledger does not answer, 573 too many offers before, 624
        another node of this owner is in the job.
        """
        self._check_offers(requester)
        if self._checks >= CHECKS:
            raise PolicyError("FF-APP-046", "this node is leased already", hint="propose to another provider")
        self._checks += 1
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                fault = await self._fault(requester, proposal)
        except (NetworkError, RunError, TimeoutError) as error:
            raise _unread(str(error)[:200] or f"no answer for {ANSWER_SECONDS:.0f} s") from error
        finally:
            self._checks -= 1
        if fault:
            raise PolicyError(
                "FF-APP-570",
                "the ledger has no job that pays for this offer",
                cause=fault,
                hint="fund the job first, with enough escrow for all that are hired; then propose",
            )
        self._claims.take(proposal.terms.id)

    async def _fault(self, requester: PeerId, proposal: messages.LeaseOfferRequest) -> str:
        """Why the ledger does not pay for a proposal; empty: it does."""
        job = proposal.terms.id
        if (row := await self._rows.job(job) or await self._late_job(job)) is None:
            return "the ledger has no such job"
        if row.requester != requester:
            return "the job belongs to another key"
        lease = await self._rows.row(LeaseRow, lease_key(job, self._own))
        if lease is not None and lease.is_open and row.state in HOLDS_MONEY:
            is_noticed = await self._rows.row(KeyRow, notice_of(job, self._own)) is not None
            return "this node gave notice that it leaves the job" if is_noticed else ""
        if lease is not None:
            return "the lease of this node in the job is over"
        if row.state not in (JobState.CREATED, JobState.RUNNING):
            return f"the job is {row.state.name.lower()}"
        needed, left = proposal.units_max * proposal.unit_price, row.escrow - row.reserved
        if needed > left:
            return (
                f"the offer may cost {format_credits(needed)} credits, and the escrow has {format_credits(left)} left"
            )
        return ""

    async def _late_job(self, job: Hash) -> JobRow | None:
        """A job that this node's validator does not know yet. Strangers who name none cannot take every place."""
        if self._waits >= WAITS:
            return None
        until, row = self._clock() + LAG_SECONDS, None
        self._waits += 1
        try:
            while row is None and self._clock() < until:
                await asyncio.sleep(LOOK_SECONDS)
                row = await self._rows.job(job)
        finally:
            self._waits -= 1
        return row

    @property
    def _rows(self) -> LedgerRows:
        if self._ledger is None:
            raise _unread("it has not been reached yet")
        return self._ledger

    async def clear(self) -> None:
        """Forgets which node of this owner worked on jobs that are over. Raises as the client."""

        async def is_over(job: Hash) -> bool:
            row = await self._rows.job(job)
            return row is None or row.state not in HOLDS_MONEY

        await self._claims.clear(is_over)

    async def job_of(self, requester: PeerId, job: Hash) -> JobRow | None:
        """A job of this requester as the ledger has it; None: it has no such job.

        Raises PolicyError FF-APP-046 where many strangers ask, 571 before the ledger was reached, and as the client.
        """
        if self._checks >= CHECKS:
            raise PolicyError("FF-APP-046", "this node is leased already", hint="propose to another provider")
        self._checks += 1
        try:
            row = await self._rows.job(job)
        finally:
            self._checks -= 1
        return row if row is not None and row.requester == requester else None

    async def is_leased(self, job: Hash) -> bool:
        """Whether this node has an open lease in the job; a validator may be a moment behind. Raises as the client."""
        until = self._clock() + LAG_SECONDS
        while True:
            lease = await self._rows.row(LeaseRow, lease_key(job, self._own))
            if lease is not None or self._clock() >= until:
                return lease is not None and lease.is_open
            await asyncio.sleep(LOOK_SECONDS)

    async def check_leased(self, job: Hash) -> None:
        """Raises PolicyError FF-APP-572: nobody would pay."""
        if not await self.is_leased(job):
            raise PolicyError(
                "FF-APP-572",
                "a start comes before its lease",
                cause="the ledger holds no open lease of this node in the job",
                hint="put the signed offer on the ledger (JobSchedule), then start",
            )

    def note_unfollowed(self, requester: PeerId) -> None:
        """An offer was signed for it, and no lease followed."""
        if requester not in self._unfollowed and len(self._unfollowed) >= REQUESTERS:
            del self._unfollowed[next(iter(self._unfollowed))]
        self._unfollowed.setdefault(requester, deque(maxlen=OFFERS)).append(self._clock())

    def _check_offers(self, requester: PeerId) -> None:
        """Raises PolicyError FF-APP-573."""
        past = self._unfollowed.get(requester)
        if past is not None and len(past) == OFFERS and self._clock() - past[0] < BARRED_SECONDS:
            raise PolicyError(
                "FF-APP-573",
                f"{OFFERS} offers of this node were signed for this requester, and no lease followed",
                cause=f"the first of them {int(self._clock() - past[0])} s ago",
                hint="wait an hour, or propose to another provider",
            )


def _unread(cause: str) -> PolicyError:
    return PolicyError(
        "FF-APP-571",
        "this node cannot read the ledger now, and takes no lease unread",
        cause=cause,
        hint="propose again a little later",
    )
