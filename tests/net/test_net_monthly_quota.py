import asyncio
import datetime
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.errors import NetworkError, UsageError, VersionError
from farflung.core.file_header import file_of
from farflung.net import monthly_quota
from farflung.net.io.line_rate_cache import LineRateCache
from farflung.net.io.monthly_quota import WRITE_BYTES, MonthlyQuota
from farflung.net.monthly_quota import EMPTY, FORM, MonthVolume, QuotaRecord
from farflung.net.token_bucket import TokenBucket

NOVEMBER = 1_795_000_000.0  # 2026-11-18
DAY = 86_400
GB = monthly_quota.GIGABYTE


# The first draw of a session looks through all modules that are loaded, which takes a busy machine seconds.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)))
def test_months_are_those_of_the_calendar(when: datetime.datetime) -> None:
    month = monthly_quota.month_of((when - datetime.datetime(1970, 1, 1)).total_seconds())
    assert month == 12 * when.year + when.month - 1
    assert monthly_quota.begins(month) == f"{when.year:04d}-{when.month:02d}-01"


times = st.floats(NOVEMBER - 300 * DAY, NOVEMBER)  # ten months


@given(st.lists(st.tuples(st.integers(0, GB), st.integers(0, GB), times), max_size=40), times)
def test_whatever_the_clock_does_a_months_sum_is_what_was_counted_in_it(
    events: list[tuple[int, int, float]], now: float
) -> None:
    book = EMPTY
    for up, down, when in events:
        book = monthly_quota.count(book, up, down, when)
        assert monthly_quota.read_book(file_of(FORM, book)) == book
    month = monthly_quota.month_of(now)
    wanted = sum(up + down for up, down, when in events if monthly_quota.month_of(when) == month)
    assert monthly_quota.used(book, now) == int(wanted * monthly_quota.HEADERS)


def test_a_new_month_begins_anew_and_a_clock_that_goes_back_finds_the_old_sum() -> None:
    book = monthly_quota.count(EMPTY, 5 * GB, 5 * GB, NOVEMBER)
    later = NOVEMBER + 20 * DAY
    assert monthly_quota.used(book, later) == 0
    book = monthly_quota.count(book, 1, 1, later)
    assert monthly_quota.used(book, NOVEMBER) == int(10 * GB * monthly_quota.HEADERS)


def test_a_book_remembers_a_bounded_number_of_months() -> None:
    book = EMPTY
    for year in range(100):
        book = monthly_quota.count(book, 1, 1, NOVEMBER + year * 366 * DAY)
    assert len(book.sums) == limits.BOOK_MONTHS
    assert monthly_quota.used(book, NOVEMBER + 99 * 366 * DAY) == 2
    huge = QuotaRecord(tuple(MonthVolume(24_000 + n, 1 << 62, 1 << 62) for n in range(limits.BOOK_MONTHS)))
    assert len(encode(huge)) <= limits.BOOK_BYTES


@pytest.mark.parametrize(
    "book",
    [
        QuotaRecord((MonthVolume(5, 0, 0), MonthVolume(5, 0, 0))),
        QuotaRecord((MonthVolume(6, 0, 0), MonthVolume(5, 0, 0))),
        QuotaRecord((MonthVolume(5, -1, 0),)),
        QuotaRecord((MonthVolume(-5, 1, 0),)),
        QuotaRecord(tuple(MonthVolume(n, 0, 0) for n in range(limits.BOOK_MONTHS + 1))),
    ],
)
def test_a_book_that_nobody_wrote_is_none(book: QuotaRecord) -> None:
    assert monthly_quota.read_book(file_of(FORM, book)) is None


@given(st.binary(max_size=200))
def test_a_damaged_book_is_none_and_raises_nothing(data: bytes) -> None:
    found = None
    with suppress(VersionError):  # an array of something: what an earlier farflung wrote
        found = monthly_quota.read_book(data)
    assert found is None or encode(found) == data


def test_who_has_used_up_the_month_hears_when_the_next_one_begins() -> None:
    error = monthly_quota.spent(101 * GB, 100 * GB, NOVEMBER)
    assert (error.code, "2026-11-01" in error.cause, "2026-12-01" in error.hint) == ("FF-NET-150", True, True)
    assert "2027-01-01" in monthly_quota.spent(1, 1, NOVEMBER + 20 * DAY).hint


def test_a_month_survives_a_restart_and_warns_once_at_80_percent(tmp_path: Path) -> None:
    told: list[int] = []

    async def test() -> None:
        book = tmp_path / "state" / "month.book"
        one = MonthlyQuota(book, 1_000_000, clock=lambda: NOVEMBER, on_warning=told.append)
        one.add(300_000, 200_000)
        await one.close()
        assert told == []
        two = MonthlyQuota(book, 1_000_000, clock=lambda: NOVEMBER, on_warning=told.append)
        assert two.used == int(500_000 * monthly_quota.HEADERS)
        two.add(300_000, 0)
        two.check()
        await two.close()
        assert told == [two.used]
        two.add(300_000, 0)
        with pytest.raises(NetworkError, match="used up") as caught:
            two.check()
        assert caught.value.code == "FF-NET-150"
        await two.close()
        assert len(told) == 1
        with pytest.raises(NetworkError):
            MonthlyQuota(book, 1_000_000, clock=lambda: NOVEMBER).check()
        MonthlyQuota(book, 1_000_000, clock=lambda: NOVEMBER + 20 * DAY).check()

    asyncio.run(test())


def test_what_a_crash_loses_is_bounded(tmp_path: Path) -> None:
    async def test() -> None:
        book = tmp_path / "month.book"
        one = MonthlyQuota(book, GB, clock=lambda: NOVEMBER)
        sent = 0
        for _ in range(40):
            one.add(WRITE_BYTES // 4, 0)
            sent += WRITE_BYTES // 4
            if one._writing is not None:  # the file is written while the line goes on
                await asyncio.wait([one._writing])
            await asyncio.sleep(0)
            found = monthly_quota.read_book(book.read_bytes()) if book.exists() else EMPTY
            assert found is not None
            assert sent - monthly_quota.used(found, NOVEMBER) / monthly_quota.HEADERS <= WRITE_BYTES + 1
        await one.close()  # only so that nothing of the test stays

    asyncio.run(test())


def test_a_damaged_book_stops_what_would_count_in_it(tmp_path: Path) -> None:
    book = tmp_path / "month.book"
    book.write_bytes(b"no book")
    with pytest.raises(UsageError) as caught:
        MonthlyQuota(book, GB)
    assert caught.value.code == "FF-NET-151"
    assert book.read_bytes() == b"no book"


def test_a_book_that_is_damaged_or_removed_meanwhile_is_written_anew(tmp_path: Path) -> None:
    async def test() -> None:
        book = tmp_path / "month.book"
        one = MonthlyQuota(book, GB, clock=lambda: NOVEMBER)
        one.add(1000, 0)
        await one.close()
        for damage in (lambda: book.write_bytes(b"x"), book.unlink):
            before = one.used
            damage()
            one.add(1000, 0)
            await one.close()
            assert MonthlyQuota(book, GB, clock=lambda: NOVEMBER).used > before

    asyncio.run(test())


COUNTING = """
import asyncio, sys
from pathlib import Path
from farflung.net.io.monthly_quota import MonthlyQuota

async def main():
    one = MonthlyQuota(Path(sys.argv[1]), int(sys.argv[2]), clock=lambda: float(sys.argv[3]))
    for _ in range(20):
        one.add(1448, 0)
        await one.close()

asyncio.run(main())
"""


def test_processes_of_one_user_share_a_book(tmp_path: Path) -> None:
    path = tmp_path / "month.book"
    command = [sys.executable, "-c", COUNTING, str(path), str(GB), str(NOVEMBER)]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [one.wait(60) for one in both] == [0, 0]
    assert MonthlyQuota(path, GB, clock=lambda: NOVEMBER).used == 40 * 1500


def test_a_bucket_lets_through_its_rate_and_no_more() -> None:
    bucket, now, passed = TokenBucket(1000, at=5.0), 5.0, 0
    while now < 15.0:
        passed += 64
        now += bucket.take(64, now)
    assert passed == pytest.approx(10_000, abs=64 + 100)
    assert bucket.take(0, 100.0) == 0.0
    assert bucket.take(101, 100.0) > 0.0  # what was not used for long is gone, but for a tenth of a second


@given(st.floats(1e3, 1e9), st.lists(st.integers(0, 1 << 17), min_size=1, max_size=50))
def test_a_bucket_lets_no_more_through_than_its_rate(rate: float, pieces: list[int]) -> None:
    bucket, now, sent = TokenBucket(rate), 0.0, 0
    for size in pieces:
        wait = bucket.take(size, now)
        sent += size
        assert sent <= rate * (now + wait) + 0.1 * rate + 1e-6 * sent + 1
        now += wait
    assert bucket.take(int(rate), now + 1e6) >= 0.85  # what was not used is not saved up
    now += 1e6 + 2
    assert bucket.take(0, now) == pytest.approx(0.0, abs=1e-6)
    assert bucket.take(0, now - 5.0) == pytest.approx(0.0, abs=1e-6)


def test_a_lines_rate_is_remembered_by_its_network_for_a_month(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lines.book"
    now = [NOVEMBER]
    memory = LineRateCache(path, clock=lambda: now[0])
    assert memory.rate("192.0.2.0/24") is None
    for n in range(limits.LINES_KNOWN + 5):
        memory.keep(f"192.0.{n}.0/24", 1000 + n)
    assert memory.rate("192.0.0.0/24") is None
    assert memory.rate("192.0.20.0/24") == 1020
    now[0] += 31 * DAY
    assert memory.rate("192.0.20.0/24") is None
    now[0] = NOVEMBER
    path.write_bytes(b"damaged")
    assert memory.rate("192.0.20.0/24") is None
    memory.keep("192.0.2.0/24", 7)
    assert memory.rate("192.0.2.0/24") == 7
