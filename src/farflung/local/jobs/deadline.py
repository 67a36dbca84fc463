"""Reads when a job must be over: a span from now, or a moment in UTC."""

from __future__ import annotations

import datetime
import re
from typing import Final

from farflung.core.errors import UsageError
from farflung.core.units import Millis
from farflung.market.bids import LONGEST_MS

_SPAN: Final = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) ?(m|min|h|d)")
_MS: Final = {"m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_HINT: Final = 'deadline = "36h" in the job file, or --deadline 36h'


def deadline_of(text: str, now: Millis, origin: str = "") -> Millis:
    """`90m`, `36h`, `3d`, or a time in UTC, as ms since 1970. `origin`: where the text came from, for people.

    Raises UsageError FF-APP-435 (cannot be read), FF-APP-436 (it is not later than now, or too far away).
    """
    where = f"; {origin}" if origin else ""
    span = _SPAN.fullmatch(text.strip())
    at = _moment(text, where) if span is None else now + round(float(span[1]) * _MS[span[2]])
    if not now < at <= now + LONGEST_MS:
        when = datetime.datetime.fromtimestamp(now / 1000, datetime.UTC).strftime("%Y-%m-%dT%H:%M")
        raise UsageError(
            "FF-APP-436",
            f"the deadline {text[:40]} {'must be later than now' if at <= now else 'is too far away'}",
            cause=f"it is {when} UTC now, and a job may take {LONGEST_MS // 86_400_000:,} days at most{where}",
            hint=_HINT,
        )
    return Millis(at)


def _moment(text: str, where: str) -> int:
    try:
        read = datetime.datetime.fromisoformat(text.strip())
        aware = read.replace(tzinfo=datetime.UTC) if read.tzinfo is None else read
        return round(1000 * aware.timestamp())
    except (ValueError, OverflowError):
        raise UsageError(
            "FF-APP-435",
            f"{text[:40]!r} is no deadline",
            cause=f"it is a span such as 90m, 36h or 3d, or a time such as 2026-12-01T18:00, in UTC{where}",
            hint=_HINT,
        ) from None
