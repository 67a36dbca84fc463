"""Measures what 40 jobs of 6 requesters leave on four seats and three nodes in a day of virtual time.

The ledger is the product's: each seat's consensus, pool and state (ledger.ledger_node), with wires, clocks and disks of
tests/ledger/ledger_network.py; so are the nodes' stores of vouchers, with files. Every fifth job a seat dies and begins
again from its disk. Processes and connections are in open_day.py. Used by bench/open.py.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

from reporting import Row, at_most, told

sys.path.extend(str(Path(__file__).resolve().parents[1] / "tests" / room) for room in ("ledger", "core", "support"))
from core_asks import scheduled
from ledger_network import PAYERS, SEATS, Committee
from ledger_world import START

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import NS_SPEC, SigningKey, digest, local_key
from farflung.core.ids import ZERO_HASH, Hash
from farflung.ledger import transactions as ops
from farflung.ledger.earnings_tally import SignedEarningsTally, make_tally, sign_tally
from farflung.ledger.ledger_node import LedgerNode
from farflung.ledger.params import DAY_MS, HOUR_MS
from farflung.ledger.table_rows import AccountRow, JobRow, JobState
from farflung.peers.node.vouchers import VoucherStore
from farflung.peers.protocol.messages import VoucherUpdate

REQUESTERS: Final = (*PAYERS, *SEATS[4:])
NODES: Final = tuple(local_key(77, "node", index) for index in range(3))
ROUNDS: Final = 3
UNITS: Final = 100  # tokens of a node in one round
BLOCK_MS: Final = 6_000  # in which what was handed in is final
SETTLED: Final = 3  # jobs after which nothing is to grow
RESTARTS: Final = 5  # jobs between two deaths of a seat


class Reading(NamedTuple):
    """After a job: what seats hold for blocks and transactions to come, bytes of their vote logs, of their blocks, and
    files of vouchers at the nodes.
    """

    waiting: int
    votes: int
    blocks: int
    vouchers: int


class _LedgerStub:
    """What a voucher store asks of a ledger's client, answered by a seat; what it hands in is final on return."""

    def __init__(self, day: LedgerDay, key: SigningKey) -> None:
        self._day, self._key = day, key

    async def job(self, job: Hash) -> JobRow | None:
        return self._day.seat.chain.state.find(JobRow, job)

    async def row(self, kind: Any, key: bytes) -> Any:
        return self._day.seat.chain.state.find(kind, key)

    async def submit(self, *said: ops.Op) -> None:
        self._day.submit(self._key, *said)


class LedgerDay:
    """Four seats whose time is virtual, nodes with stores of vouchers in `folder`, and requesters."""

    def __init__(self, folder: Path) -> None:
        self.committee = Committee(4, wall=START, delta_ms=1_000, idle_ms=5_000)
        self._folder, self.readings = folder, list[Reading]()
        self.committee.run(HOUR_MS)
        channel: Any = mock.Mock()
        self._stores = [VoucherStore(self._vouchers(key), key.public, self.committee.chain, channel) for key in NODES]
        for key in NODES:
            self.submit(key, ops.NodeRegister(ZERO_HASH, 1, 0, self.seat.chain.state.time + 30 * DAY_MS))

    def _vouchers(self, key: SigningKey) -> Path:
        return self._folder / key.public.hex()[:8]

    @property
    def seat(self) -> LedgerNode:
        """A seat that runs."""
        return next(node for node in self.committee.nodes if node is not None)

    def submit(self, key: SigningKey, *said: ops.Op) -> None:
        """One transaction, final on return."""
        row = self.seat.chain.state.find(AccountRow, key.public)
        made = ops.make_tx(self.committee.chain, key.public, row.nonce if row else 0, *said)
        place = self.committee.nodes.index(self.seat)
        before = self.seat.chain.head.height
        self.committee.submit(place, ops.sign_tx(key, made))
        self.committee.run(BLOCK_MS)
        assert self.seat.chain.head.height > before

    def job(self, number: int) -> None:
        """One job from its escrow to its settlement. Of its last round one node is paid by its voucher alone."""
        requester, name = REQUESTERS[number % len(REQUESTERS)], digest(NS_SPEC, b"day", number.to_bytes(4, "big"))
        chain, end = self.committee.chain, self.seat.chain.state.time + DAY_MS
        self.submit(requester, ops.JobCreate(name, 3 * ROUNDS * UNITS, 1, ROUNDS, end))
        roles = (ops.LeaseRole.TRAIN, ops.LeaseRole.TRAIN, ops.LeaseRole.AUDIT)
        offers = [
            ops.sign_offer(key, ops.LeaseOffer(chain, name, key.public, 1, 0, ROUNDS * UNITS, end, role))
            for key, role in zip(NODES, roles, strict=True)
        ]
        self.submit(requester, scheduled(name, offers))
        for round_ in range(ROUNDS):
            self._vouch(requester, name, (round_ + 1) * UNITS)
            recorded = NODES[1:] if round_ == ROUNDS - 1 else NODES
            units = tuple(sorted((key.public, UNITS) for key in recorded))
            self.submit(requester, ops.Progress(name, round_, name, ZERO_HASH, units))
        self.submit(requester, ops.JobFinish(name, name, ZERO_HASH))
        asyncio.run(self._claim())
        self.submit(requester, ops.JobSettle(name))
        asyncio.run(self._claim())
        row = self.seat.chain.state.find(JobRow, name)
        assert row is not None
        assert (row.state, row.paid) == (JobState.SETTLED, 3 * ROUNDS * UNITS)

    def _vouch(self, requester: SigningKey, job: Hash, units: int) -> None:
        """The requester's word for what each has earned so far; each store keeps its own."""
        tally, vouchers = make_tally(self.committee.chain, job, 1, [(key.public, units) for key in NODES])
        signed = SignedEarningsTally(tally, (sign_tally(requester, tally),))
        for store, voucher in zip(self._stores, vouchers, strict=True):
            store.take(requester.public, VoucherUpdate(job, signed, voucher))

    async def _claim(self) -> None:
        """What a node does before it leaves: claims by all vouchers, and deletes those of jobs that are over."""
        for store, key in zip(self._stores, NODES, strict=True):
            ledger: Any = _LedgerStub(self, key)
            store.follow(ledger)
            await store.claim_all()
        self._stores = [
            VoucherStore(self._vouchers(key), key.public, self.committee.chain, mock.Mock()) for key in NODES
        ]

    def read(self) -> None:
        """Adds a reading."""
        nodes = [node for node in self.committee.nodes if node is not None]
        waiting = sum(len(node._executed) + len(node._begun) + len(node._waiting) + len(node.pool) for node in nodes)
        disks = self.committee.disks
        blocks = max(sum(len(encode(block)) for block in disk.blocks) for disk in disks)
        vouchers = sum(path.is_file() for path in self._folder.rglob("*"))
        self.readings.append(Reading(waiting, max(disk.size for disk in disks), blocks, vouchers))


def rows(jobs: int) -> Iterator[Row]:
    """A day of virtual time with so many jobs."""
    with tempfile.TemporaryDirectory() as folder:
        day = LedgerDay(Path(folder))
        pause = (DAY_MS - HOUR_MS) // jobs
        with mock.patch.object(day.committee, "check"):  # of all chains, at the end
            for number in range(jobs):
                began, dead = day.committee.now, number // RESTARTS % 4
                if number % RESTARTS == RESTARTS - 1:
                    day.committee.kill(dead)
                day.job(number)
                if day.committee.nodes[dead] is None:
                    day.committee.begin(dead)
                day.committee.run(max(0, pause - (day.committee.now - began)))
                day.read()
        day.committee.check()
        assert min(day.committee.heights()) == max(day.committee.heights())
    yield from grown(day.readings, jobs, day.committee.now)


def grown(readings: Sequence[Reading], jobs: int, now: int) -> Iterator[Row]:
    """What is more after the last job than after the third."""
    early, late = readings[SETTLED - 1], readings[-1]
    what = f"{jobs} jobs of {len(REQUESTERS)} requesters in {now / HOUR_MS:.1f} h of virtual time, a seat of four dies"
    what += f" every {RESTARTS} jobs; real ledger and voucher stores; against after {SETTLED}"
    more = late.waiting - early.waiting
    yield at_most("what seats hold for blocks to come, in a virtual day", more, "more", 0, what)
    bound = f"largest of four; it is begun anew at {limits.VOTE_LOG_BYTES / 2e6:.0f} MB, and with each epoch"
    yield told("a seat's vote log after a virtual day", late.votes / 1e6, "MB", bound)
    yield at_most("nodes' vouchers in a virtual day", late.vouchers - early.vouchers, "more files", 0, what)
    grows = (late.blocks - early.blocks) / max(1, jobs - SETTLED)
    yield told(
        "the chain, a job in a virtual day", grows / 1e3, "kB", "blocks with votes, idle half hours too; for ever"
    )
