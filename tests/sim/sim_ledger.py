"""The real ledger's law in memory, behind the questions that a recorder asks of its client."""

from __future__ import annotations

from core_asks import scheduled

from farflung.core.crypto import NS_SPEC, SigningKey, digest, local_key
from farflung.core.errors import RunError
from farflung.core.ids import Hash, PeerId
from farflung.ledger.block import Genesis
from farflung.ledger.chain import Chain
from farflung.ledger.ledger_state import R
from farflung.ledger.params import LedgerParams
from farflung.ledger.queries import HeadReply
from farflung.ledger.state_transition import total_money
from farflung.ledger.table_rows import AccountRow, JobRow, KeyRow, LeaseRow, NodeRow, lease_key
from farflung.ledger.transactions import (
    JobCreate,
    LeaseOffer,
    LeaseRole,
    NodeRegister,
    Op,
    SignedLeaseOffer,
    make_tx,
    notice_of,
    sign_offer,
    sign_tx,
)
from farflung.ledger.tx_results import AppliedResult, FailedResult

RICH, STAKE, PRICE, ESCROW = 1_000_000, 1000, 5, 100_000
FREE = LedgerParams(fee_min=0)
VALIDATOR = local_key(9, "validator")
LATER = 50_000  # within the ledger's horizon


class Died(Exception):
    """The process ended here."""


class MemoryLedger:
    """A chain with a funded job, its leases, and a client of the requester that may die around a submission."""

    def __init__(
        self,
        requester: SigningKey,
        job: Hash,
        rounds: int,
        nodes: list[SigningKey],
        verifiers: list[SigningKey],
        units: int,
        law: LedgerParams = FREE,
    ) -> None:
        self._requester, self._job = requester, job
        self._chain = Chain(genesis_of(requester, *nodes, *verifiers, law=law), VALIDATOR)
        self.submitted: list[Op] = []
        self.now = 0  # of a ledger whose time is the calendar's, it is moved by whoever waits
        self.counts_blocks = True
        self.die_before: int | None = None  # this many submissions succeed; the next one never arrives
        self.die_after: int | None = None  # this one arrives, and nobody hears of it
        for key in (*nodes, *verifiers):
            self.apply(key, NodeRegister(digest(NS_SPEC, b"caps"), PRICE, STAKE, LATER))
        self.apply(requester, JobCreate(job, ESCROW, PRICE, rounds, LATER))
        roles = [(key, LeaseRole.TRAIN) for key in nodes] + [(key, LeaseRole.AUDIT) for key in verifiers]
        offers = tuple(self._offer(key, units, role) for key, role in roles)
        self.apply(requester, scheduled(job, offers))

    def _offer(self, key: SigningKey, units: int, role: LeaseRole) -> SignedLeaseOffer:
        return sign_offer(key, LeaseOffer(self.chain, self._job, key.public, PRICE, STAKE, units, LATER, role))

    @property
    def chain(self) -> Hash:
        return self._chain.id

    def apply(self, key: SigningKey, *ops: Op) -> None:
        """One block with one transaction."""
        account = self._chain.state.find(AccountRow, key.public)
        assert account is not None
        signed = sign_tx(key, make_tx(self.chain, key.public, account.nonce, *ops))
        self.now = max(self.now, self._chain.head.time) + 1
        block, (result,) = self._chain.propose([signed], self.now)
        self._chain.adopt(block)
        assert total_money(self._chain.state) == self._chain.state.law.minted
        if not isinstance(result, AppliedResult):
            code = result.code if isinstance(result, FailedResult) else getattr(result, "code", "")
            raise RunError("FF-APP-070", "the ledger refused it", cause=f"{code} {result}"[:300])

    async def submit(self, *ops: Op) -> None:
        if len(self.submitted) == self.die_before:
            raise Died
        self.apply(self._requester, *ops)
        self.submitted.extend(ops)
        if len(self.submitted) == self.die_after:
            raise Died

    async def head(self) -> HeadReply:
        return HeadReply(self._chain.head, self._chain.certificate)

    async def time(self) -> int:
        return max(self.now, self._chain.head.time)

    async def row(self, kind: type[R], key: bytes) -> R | None:
        return self._chain.state.find(kind, key)

    async def notice(self, job: Hash, node: PeerId) -> int:
        row = await self.row(KeyRow, notice_of(job, node))
        return row.epoch if row is not None else 0

    async def job(self, job: Hash) -> JobRow | None:
        return await self.row(JobRow, job)

    async def leases(self, job: Hash) -> tuple[LeaseRow, ...]:
        return tuple(row for row in self._chain.state.rows(LeaseRow) if row.job == job)

    def lease(self, node: PeerId) -> LeaseRow:
        row = self._chain.state.find(LeaseRow, lease_key(self._job, node))
        assert row is not None
        return row

    def balance(self, owner: PeerId) -> int:
        row = self._chain.state.find(AccountRow, owner)
        assert row is not None
        return row.balance

    def node(self, node: PeerId) -> NodeRow:
        row = self._chain.state.find(NodeRow, node)
        assert row is not None
        return row


def genesis_of(*owners: SigningKey, law: LedgerParams = FREE) -> Genesis:
    """Everybody rich, one validator."""
    accounts = tuple((key.public, RICH) for key in owners)
    return Genesis("recording", 1000, accounts, (VALIDATOR.public,), law)
