"""A node leaves jobs: one whose requester has vanished, one that goes on, one that it had given notice in."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import sim_ledger
from msgspec.structs import replace
from sim_ledger import FREE, MemoryLedger
from test_sim_vouching import JOB, REQUESTER, ROOT, A, B, Story

from farflung.core.errors import FarflungError
from farflung.core.ids import Hash, PeerId
from farflung.ledger.params import DAY_MS, HOUR_MS
from farflung.ledger.transactions import JobDraw, JobFinish, JobLeave, Progress
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.node import job_departure
from farflung.peers.node.job_departure import JobDeparture, PendingLeave

WINDOW_MS = 600_000


@pytest.fixture(autouse=True)
def _long_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim_ledger, "LATER", 10 * DAY_MS)
    monkeypatch.setattr(job_departure, "LOOK_SECONDS", 1800.0)

    async def time(client: LedgerClient) -> int:
        return (await client.head()).header.time

    monkeypatch.setattr(LedgerClient, "time", time)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Leaving:
    """Node A's way out of the one job, and what was told of it."""

    def __init__(self, folder: Path) -> None:
        self.story, self.clock = Story(folder), Clock()
        self.ledger = self.story.ledger
        self.told = list[PendingLeave]()
        self.faults = list[FarflungError]()
        self.departure = self.agent()

    def agent(self) -> JobDeparture:
        """As after a start."""
        made = JobDeparture(A.public, self.clock)
        made.follow(self.story.client(A))
        return made

    def sweep(self, busy: Hash | None = None, *, is_closed: bool = False) -> None:
        asyncio.run(self.departure.sweep(busy, is_closed=is_closed))

    def record(self, *rounds: int) -> None:
        for number in rounds:
            self.ledger.apply(REQUESTER, Progress(JOB, number, ROOT, ROOT, ((B.public, 1),)))

    def passes(self, time: int) -> None:
        """Blocks in which nothing happens."""
        chain = self.ledger._chain
        end = chain.head.time + time
        while chain.head.time < end:
            block, _ = chain.propose([], min(end, chain.head.time + HOUR_MS))
            chain.adopt(block)

    @property
    def is_open(self) -> bool:
        return self.ledger.lease(A.public).is_open

    @property
    def said(self) -> list[PeerId]:
        signed = [signed.tx for block in self.ledger._chain.blocks for signed in block.txs]
        return [tx.sender for tx in signed if isinstance(tx.ops[0], JobLeave)]


@pytest.mark.parametrize(("away", "is_left"), [(DAY_MS - 2000, False), (DAY_MS + HOUR_MS, True)])
def test_a_node_leaves_a_job_that_is_silent_for_a_day_and_is_paid_by_its_voucher(
    tmp_path: Path, away: int, is_left: bool
) -> None:
    world = Leaving(tmp_path)
    story, node = world.story, world.story.nodes[A.public]
    story.record(0, a=5, b=7)
    node.follow(None)  # type: ignore[arg-type]
    node.take(REQUESTER.public, story.voucher(9))
    node.follow(story.client(A))
    world.passes(away)
    asyncio.run(node.claim_all())
    world.sweep()
    lease = story.ledger.lease(A.public)
    assert (world.said, lease.is_open) == ([A.public] if is_left else [], not is_left)
    assert story.claims == [A.public]
    if is_left:
        assert lease.paid == 9 * lease.unit_price
        assert story.ledger.node(A.public).locked == 0
        assert story.ledger.lease(B.public).is_open


@pytest.mark.parametrize(("begun", "busy", "is_left"), [(False, None, True), (False, JOB, False), (True, None, False)])
def test_a_node_leaves_a_job_that_never_began_unless_it_works_on_it(
    tmp_path: Path, begun: bool, busy: Hash | None, is_left: bool
) -> None:
    world = Leaving(tmp_path)
    if begun:
        world.ledger.apply(REQUESTER, JobDraw(JOB, 0, ROOT))
    world.sweep(busy)
    assert world.said == ([A.public] if is_left else [])


def test_a_node_that_leaves_a_job_that_goes_on_says_what_it_waits_for_and_goes_when_it_may(tmp_path: Path) -> None:
    world, slept = Leaving(tmp_path), list[float]()
    world.record(0)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) <= 2:
            world.record(len(slept))  # rounds 1 and 2: the node's last one is 2, the job's last
        else:
            world.passes(round(1000 * seconds) + 1)

    asyncio.run(world.departure.finish(world.told.append, world.faults.append, sleep))
    assert not world.is_open
    assert (world.faults, world.said) == ([], [A.public] * 2)
    assert [(each.last, each.recorded, each.is_recorded) for each in world.told[:3]] == [
        (2, 1, False),
        (2, 2, False),
        (2, 3, True),
    ]
    assert sum(slept[2:]) <= HOUR_MS / 1000 + 1801
    assert world.ledger.node(A.public).locked == 0


def test_a_node_that_was_stopped_after_its_notice_leaves_when_it_is_started_again(tmp_path: Path) -> None:
    world = Leaving(tmp_path)
    world.record(0)
    asyncio.run(world.departure.give_notice())
    asyncio.run(world.departure.give_notice())  # once is enough
    assert (world.is_open, world.said) == (True, [A.public])
    world.departure = world.agent()
    world.sweep()
    world.record(1, 2)
    world.sweep()
    assert world.is_open
    world.passes(HOUR_MS)
    world.sweep()
    assert (world.is_open, world.said) == (False, [A.public] * 2)


@pytest.mark.parametrize(
    ("closed", "is_noticed"),
    [
        ([(0, True), (DAY_MS, True)], True),
        ([(0, True), (DAY_MS - 1000, True)], False),
        ([(0, True), (5, False), (DAY_MS, True)], False),
    ],
)
def test_a_node_that_its_owner_has_closed_for_a_day_gives_notice(
    tmp_path: Path, closed: list[tuple[int, bool]], is_noticed: bool
) -> None:
    world = Leaving(tmp_path)
    world.record(0)
    for at, is_closed in closed:
        world.clock.now = at / 1000
        world.sweep(is_closed=is_closed)
    assert world.said == ([A.public] if is_noticed else [])
    assert world.is_open


def test_in_a_job_that_has_ended_a_node_waits_for_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "test_sim_vouching.MemoryLedger", lambda *given: MemoryLedger(*given, law=replace(FREE, window_ms=WINDOW_MS))
    )
    world = Leaving(tmp_path)
    world.record(0, 1, 2)
    world.ledger.apply(REQUESTER, JobFinish(JOB, ROOT, ROOT))

    async def sleep(seconds: float) -> None:
        world.passes(round(1000 * seconds) + 1)

    asyncio.run(world.departure.finish(world.told.append, world.faults.append, sleep))
    assert not world.is_open
    assert (world.said, world.faults) == ([A.public], [])
