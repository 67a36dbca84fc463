"""Counts what a user's line carries in a calendar month (UTC), and decides when bulk has to stop.

A book keeps the newest months it has seen, each with its own sum. So a clock that goes back finds the month's sum
again, and a clock that was ahead for a moment neither loses what was counted nor spends another month's volume.
Counted are bytes at sockets, both directions, and HEADERS of TCP and IP; what TCP sends again is not seen here.
"""

from __future__ import annotations

from typing import Final

from farflung.core import limits
from farflung.core.codec import Wire
from farflung.core.errors import NetworkError, ProtocolError
from farflung.core.file_header import FileFormat, value_of
from farflung.core.units import format_bytes

HEADERS: Final = 1500 / 1448  # of full packets
WARN_SHARE: Final = 0.8
GIGABYTE: Final = 1_000_000_000
_DAY: Final = 86_400
FORM: Final = FileFormat("quota", 2, "delete it to count from zero")


class MonthVolume(Wire, frozen=True):
    """Of one month, counted from January of year 0. Bytes."""

    month: int
    up: int
    down: int


class QuotaRecord(Wire, frozen=True):
    """What a file holds: at most limits.BOOK_MONTHS sums, the newest months, ascending."""

    sums: tuple[MonthVolume, ...]


EMPTY: Final = QuotaRecord(())


def month_of(now: float) -> int:
    """The calendar month of `now`, seconds since 1970: 12 * year + month - 1.

    Source: Hinnant, chrono-Compatible Low-Level Date Algorithms, civil_from_days.
    """
    days = int(now // _DAY) + 719_468  # from 1 March of year 0
    era, day = divmod(days, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    in_year = day - (365 * year + year // 4 - year // 100)
    march = (5 * in_year + 2) // 153  # 0: March
    return 12 * (400 * era + year) + march + 2


def begins(month: int) -> str:
    """The first day of a month, as ISO 8601 writes it."""
    return f"{month // 12:04d}-{month % 12 + 1:02d}-01"


def read_book(data: bytes) -> QuotaRecord | None:
    """The book in a file; None if it is damaged. Raises VersionError FF-CORE-095."""
    try:
        book = value_of(FORM, data, QuotaRecord, limits.BOOK_BYTES)
    except ProtocolError:
        return None
    months = [each.month for each in book.sums]
    is_sound = len(months) <= limits.BOOK_MONTHS and months == sorted(set(months))
    is_sound = is_sound and all(0 <= each.month < 12 * 10_000 and min(each.up, each.down) >= 0 for each in book.sums)
    return book if is_sound else None


def count(book: QuotaRecord, up: int, down: int, now: float) -> QuotaRecord:
    """The book with so many bytes more in the month of `now`."""
    month = month_of(now)
    before = _sum(book, month)
    others = [each for each in book.sums if each.month != month]
    kept = sorted(others, key=lambda each: each.month)[-(limits.BOOK_MONTHS - 1) :]
    new = MonthVolume(month, before.up + up, before.down + down)
    return QuotaRecord(tuple(sorted([*kept, new], key=lambda each: each.month)))


def used(book: QuotaRecord, now: float) -> int:
    """Bytes of this month so far, both directions, headers included."""
    found = _sum(book, month_of(now))
    return int((found.up + found.down) * HEADERS)


def spent(used_bytes: int, limit: int, now: float) -> NetworkError:
    """What bulk hears at 100 %: only control goes on, and when the next month begins."""
    month = month_of(now)
    return NetworkError(
        "FF-NET-150",
        "this month's volume is used up",
        cause=f"{format_bytes(used_bytes)} of {format_bytes(limit)} since {begins(month)} (UTC)",
        hint=f"it begins anew on {begins(month + 1)}; or allow more: month_gb, or --month of a relay",
    )


def _sum(book: QuotaRecord, month: int) -> MonthVolume:
    return next((each for each in book.sums if each.month == month), MonthVolume(month, 0, 0))
