"""How many unpaid rounds a node works, and that an honest requester never comes so far."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from farflung.core import limits
from farflung.core.crypto import digest, local_key
from farflung.core.errors import NetworkError, PolicyError
from farflung.core.ids import Hash
from farflung.job.spec import JobTerms
from farflung.ledger.table_rows import LeaseRow
from farflung.ledger.transactions import LeaseRole
from farflung.peers.node import voucher_bound
from farflung.peers.node.unpaid_work import JUDGED_SHARE, PROVEN_SHARE, UnpaidWork
from farflung.peers.node.voucher_bound import VoucherBound, WorkAccount
from farflung.peers.process.channel import LogChannel

ME, REQUESTER = local_key(5, "provider"), local_key(5, "requester")
JOB = digest("test/job")
ROUNDS, LAG, UNITS = limits.UNPAID_ROUNDS, limits.UNRECORDED_ROUNDS, 640
NEW = UnpaidWork(REQUESTER.public, PROVEN_SHARE)


def closed(work: UnpaidWork, *rounds: int, units: int = UNITS, is_accepted: bool = True) -> UnpaidWork:
    for round in rounds:
        work = work.trained(round, units, 0).closed(round, is_accepted=is_accepted)
    return work


def test_five_rounds_are_worked_without_pay_whatever_is_said_of_them() -> None:
    for is_accepted in (True, False):
        work = closed(NEW, *range(ROUNDS - 1), is_accepted=is_accepted)
        assert work.may_work()
        assert not closed(work, ROUNDS, is_accepted=is_accepted).may_work()
    silent = NEW
    for _ in range(ROUNDS):
        assert silent.may_work()
        silent = silent.trained(0, UNITS, 0)
    assert not silent.may_work()


@pytest.mark.parametrize("seed", range(20))
def test_a_requester_whose_ledger_lags_as_far_as_it_may_is_never_refused(seed: int) -> None:
    """Rounds are missed, closed without the node, short; pay comes in one piece, or round by round."""
    drawn, work, due = random.Random(seed), NEW, dict[int, int]()
    for round in range(200):
        recorded = round - 1 - drawn.randint(0, LAG)
        work = (
            work.credited(sum(units for at, units in due.items() if at <= recorded)) if drawn.random() < 0.7 else work
        )
        if not work.may_work():  # then the ledger is read
            work = work.credited(sum(units for at, units in due.items() if at <= round - 1 - LAG))
        assert work.may_work(), f"round {round} of seed {seed}"
        if drawn.random() < 0.2:
            continue  # it is away
        units = drawn.choice((1, UNITS // 2, UNITS))
        work = work.trained(round, units, 0)
        is_accepted = drawn.random() > 0.1
        work = work.closed(round, is_accepted=is_accepted)
        due[round] = units if is_accepted else 0


def test_what_is_paid_in_part_is_owed_in_part() -> None:
    work = closed(NEW, *range(ROUNDS))
    for units in range(1, 9):
        work = work.credited(units)
    assert not work.may_work()
    assert sum(each.units for each in work.owed) == ROUNDS * UNITS - 8
    assert work.credited(UNITS).may_work()
    assert work.credited(8) == work.credited(3) == work  # vouchers that say as much, or less


def test_a_round_that_a_crash_kept_open_is_paid_when_the_ledger_has_it() -> None:
    work = closed(NEW, 0).trained(1, UNITS, 0)
    assert work.credited(UNITS).open  # the first is paid
    assert not work.credited(2 * UNITS).rounds


def test_pay_beyond_what_is_owed_is_no_credit_for_later_rounds() -> None:
    work = closed(NEW, 0).credited(1000 * UNITS)
    assert not work.rounds
    assert not closed(work, *range(1, ROUNDS + 1)).may_work()


def test_at_most_nine_rounds_are_worked_of_both_kinds() -> None:
    work, done = NEW, 0
    while work.may_work():
        work, done = closed(work, done, is_accepted=bool(done % 2)), done + 1
    assert done == 2 * ROUNDS - 1


def test_half_of_the_rounds_may_be_closed_without_the_node_and_no_more() -> None:
    def worked(missed: int) -> int:
        """Rounds until it refuses, where of each 100 accepted and paid ones so many others are left out."""
        work, earned = NEW, 0
        for round in range(500):
            if not work.may_work():
                return round
            is_accepted = round % (100 + missed) < 100
            work = closed(work, round, is_accepted=is_accepted)
            earned += UNITS * is_accepted
            work = work.credited(earned)
        return 500

    assert worked(ROUNDS - 1) == 500
    assert worked(200) == 100 + ROUNDS


def test_what_scores_decide_is_forgiven_for_as_much_as_is_paid() -> None:
    for share, expected in ((JUDGED_SHARE, 2), (PROVEN_SHARE, 1)):
        work = closed(UnpaidWork(REQUESTER.public, share), *range(ROUNDS)).credited(UNITS)
        assert work.rounds == ROUNDS - expected


def test_all_that_a_verifier_does_for_a_round_is_one_round() -> None:
    work = UnpaidWork(REQUESTER.public, JUDGED_SHARE)
    for round in range(ROUNDS):
        for _ in range(8):
            assert work.may_work(on=round)
            work = work.audited(round, 10, 0)
    assert work.may_work(on=ROUNDS - 1)  # the round that it is in goes on
    assert not work.may_work(on=ROUNDS)
    assert work.credited(40).may_work(on=ROUNDS)


class Row:
    """In the place of a ledger that counts `earned`; while it is away it raises."""

    def __init__(self) -> None:
        self.earned, self.is_away, self.reads = 0, False, 0

    async def row(self, _kind: Any, _key: bytes) -> LeaseRow:
        self.reads += 1
        if self.is_away:
            raise NetworkError("FF-NET-010", "nobody answers")
        return LeaseRow(JOB, ME.public, 1, 1, 10**6, ME.public, units=self.earned)


class Node:
    """A node's accounts on a disk, and the calls for its vouchers."""

    def __init__(self, folder: Path) -> None:
        self.ledger, self.claims = Row(), list[Hash]()
        self.bound = VoucherBound(folder / "unpaid", ME.public, self.claim, LogChannel())
        self.bound.follow(cast(Any, self.ledger))
        terms = cast(JobTerms, type("T", (), {"id": JOB, "requester": REQUESTER.public, "is_proven": True}))
        self.account: WorkAccount = self.bound.account(terms, LeaseRole.TRAIN)

    async def claim(self, job: Hash) -> None:
        self.claims.append(job)

    async def works(self, round: int) -> None:
        await self.account.check()
        self.account.trained(round, UNITS)
        self.account.closed(round, is_accepted=True)


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[float], None]], None]:
    """Time passes when somebody sleeps; what happens meanwhile is given."""

    def with_events(happens: Callable[[float], None]) -> None:
        now, real = [0.0], asyncio.sleep

        async def sleep(seconds: float) -> None:
            now[0] += seconds
            happens(now[0])
            await real(0)

        clock = type("Clock", (), {"monotonic": staticmethod(lambda: now[0]), "time": staticmethod(lambda: 1e9)})
        monkeypatch.setattr(voucher_bound, "time", clock)
        monkeypatch.setattr(voucher_bound.asyncio, "sleep", sleep)

    return with_events


def test_a_voucher_that_comes_late_is_waited_for_and_the_round_is_worked(tmp_path: Path, asleep: Any) -> None:
    async def test() -> None:
        node = Node(tmp_path)
        asleep(lambda now: setattr(node.ledger, "earned", 2 * UNITS) if now >= 15 else None)
        for round in range(ROUNDS + 1):
            await node.works(round)
        assert node.claims == [JOB]  # what it held was claimed first

    asyncio.run(test())


def test_a_ledger_that_is_away_is_waited_for(tmp_path: Path, asleep: Any) -> None:
    async def test() -> None:
        node = Node(tmp_path)
        node.ledger.is_away, node.ledger.earned = True, UNITS
        asleep(lambda now: setattr(node.ledger, "is_away", now < 200))
        for round in range(ROUNDS + 1):
            await node.works(round)
        node.ledger.is_away = True
        asleep(lambda now: None)
        with pytest.raises(PolicyError, match="FF-APP-710"):
            await node.works(ROUNDS + 1)

    asyncio.run(test())


def test_what_is_refused_once_is_refused_at_once_until_pay_comes(
    tmp_path: Path, asleep: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    async def test() -> None:
        node, slept = Node(tmp_path), list[float]()
        asleep(slept.append)
        for round in range(ROUNDS):
            await node.works(round)
        for _ in range(3):
            with pytest.raises(PolicyError, match="FF-APP-710"):
                await node.works(ROUNDS)
        assert max(slept) == pytest.approx(voucher_bound.WAIT_SECONDS, abs=1)
        with pytest.raises(PolicyError, match="FF-APP-710"):
            await node.bound.check_start(JOB)
        node.ledger.earned = UNITS
        await node.bound.check_start(JOB)
        await node.works(ROUNDS)

    asyncio.run(test())
    assert capsys.readouterr().err.count("FF-APP-710") == 1  # its owner hears of it once


def test_a_node_that_lost_its_disk_owes_nothing_to_what_was_paid_before(tmp_path: Path, asleep: Any) -> None:
    async def test() -> None:
        asleep(lambda now: None)
        node = Node(tmp_path / "new")
        node.ledger.earned = 1000 * UNITS  # of the rounds before
        for round in range(1000, 1000 + 3 * ROUNDS):
            await node.works(round)
            node.ledger.earned = (round - LAG) * UNITS
        refused = 0
        for round in range(1100, 1100 + 2 * ROUNDS):
            try:
                await node.works(round)
            except PolicyError:
                refused += 1
        assert refused

    asyncio.run(test())


def test_what_is_unpaid_is_on_disk_and_a_damaged_file_is_counted_anew(tmp_path: Path, asleep: Any) -> None:
    async def test() -> None:
        asleep(lambda now: None)
        for round in range(ROUNDS):
            await Node(tmp_path).works(round)
        with pytest.raises(PolicyError, match="FF-APP-710"):
            await Node(tmp_path).works(ROUNDS)
        (tmp_path / "unpaid" / JOB.hex()).write_bytes(b"damaged")
        await Node(tmp_path).works(ROUNDS)

    asyncio.run(test())
