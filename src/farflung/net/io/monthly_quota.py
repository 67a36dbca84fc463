"""Keeps the traffic volume of a month in a file that all processes of a user share.

Counted bytes are written every WRITE_SECONDS, or when WRITE_BYTES have come together, under a lock and durably. A crash
loses what was counted since: less than both. For as long a process does not know what others have used meanwhile.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.errors import FarflungError, NetworkError, UsageError
from farflung.core.file_header import HEAD_BYTES, file_of
from farflung.core.io.durable_files import write_atomic
from farflung.net import monthly_quota

WRITE_SECONDS: Final = 2.0
WRITE_BYTES: Final = 16 * limits.MIB


class MonthlyQuota:
    """At most `limit` bytes a month, up and down together. Used by one asyncio loop."""

    def __init__(
        self,
        path: Path,
        limit: int,
        *,
        clock: Callable[[], float] = time.time,
        on_warning: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_warning(bytes used)` is called once in a month, at 80 %. Raises UsageError FF-NET-151 (damaged book),
        VersionError FF-CORE-095.
        """
        self.path, self.limit = path, limit
        self._clock, self._on_warning = clock, on_warning
        self._up = self._down = 0  # counted and not written
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._warned = 0  # the month in which it was
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path):
            self._book = _read(path)

    @property
    def used(self) -> int:
        """Bytes of this month, as far as this process knows."""
        now = self._clock()
        return monthly_quota.used(monthly_quota.count(self._book, self._up, self._down, now), now)

    def check(self) -> None:
        """Raises NetworkError FF-NET-150 when the month's volume is used up: no bulk then."""
        if error := self.spent():
            raise error

    def spent(self) -> NetworkError | None:
        """What `check` raises."""
        used = self.used
        return monthly_quota.spent(used, self.limit, self._clock()) if used >= self.limit else None

    def add(self, up: int, down: int) -> None:
        """So many bytes went over the line."""
        self._up += up
        self._down += down
        if self._writing is not None:
            return
        if self._up + self._down >= WRITE_BYTES:
            self._begin()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WRITE_SECONDS, self._begin)

    async def close(self) -> None:
        """Writes what was counted."""
        if self._writing is not None:
            await self._writing
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._write()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._writing = asyncio.create_task(self._write())
        self._writing.add_done_callback(self._written)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        if not task.cancelled() and task.exception() is not None:  # a full disk: it is tried again
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(WRITE_SECONDS, self._begin)

    async def _write(self) -> None:
        up, down, now = self._up, self._down, self._clock()
        if up or down:
            self._book = await asyncio.to_thread(_added, self.path, self._book, up, down, now)
            self._up -= up
            self._down -= down
        month = monthly_quota.month_of(now)
        if self._warned != month and self.used >= monthly_quota.WARN_SHARE * self.limit:
            self._warned = month
            self._on_warning(self.used)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    handle = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _read(path: Path) -> monthly_quota.QuotaRecord:
    try:
        with open(path, "rb") as file:
            data = file.read(limits.BOOK_BYTES + HEAD_BYTES + 1)
    except FileNotFoundError:
        return monthly_quota.EMPTY
    book = monthly_quota.read_book(data)
    if book is None:
        raise UsageError(
            "FF-NET-151",
            f"the book of this month's volume is damaged: {path}",
            cause="it is not what farflung wrote",
            hint="delete it to count from zero; until then nothing that has a month's volume starts",
        )
    return book


def _added(path: Path, known: monthly_quota.QuotaRecord, up: int, down: int, now: float) -> monthly_quota.QuotaRecord:
    """Writes the book with these bytes more; what others wrote meanwhile counts. A damaged one is replaced by ours."""
    with _locked(path):
        try:
            book = _read(path)
        except FarflungError:
            book = known
        if monthly_quota.used(book, now) < monthly_quota.used(known, now):
            book = known  # somebody deleted it
        book = monthly_quota.count(book, up, down, now)
        write_atomic(path, file_of(monthly_quota.FORM, book), "net.book", private=True)
        return book
