"""Defines quantities with their units in the type, and one way to print each."""

from __future__ import annotations

from typing import NewType, SupportsFloat

Bytes = NewType("Bytes", int)
Seconds = NewType("Seconds", float)
Flop = NewType("Flop", float)
Tokens = NewType("Tokens", int)
Millis = NewType("Millis", int)  # ledger time, milliseconds since the epoch or since genesis (logical)

_SIZES = (("EB", 10**18), ("PB", 10**15), ("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_COUNTS = (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3))


def _scaled(value: float, steps: tuple[tuple[str, int], ...], rest: str, digits: int = 3) -> str:
    for name, step in steps:
        if abs(value) >= step:
            return f"{value / step:.{digits}g} {name}" if abs(value) < 1000 * step else f"{value / step:.0f} {name}"
    return f"{value:.0f} {rest}".rstrip()


def format_bytes(value: float, digits: int = 3) -> str:
    """Decimal units up to exabytes: `18.3 MB`."""
    return _scaled(value, _SIZES, "B", digits)


def format_count(value: float) -> str:
    """Three digits and a magnitude: `0.87 M` is written `868 k`."""
    return _scaled(value, _COUNTS, "")


def format_multiple(value: float) -> str:
    """How many times as much, three digits: `1,110`, `53.6`, `0.0303`."""
    return f"{float(f'{value:.3g}'):,.15g}"


def format_rate(value: float) -> str:
    """Bits per second: `14.2 Mbit/s`."""
    return _scaled(value, (("Gbit/s", 10**9), ("Mbit/s", 10**6), ("kbit/s", 10**3)), "bit/s")


def format_short(value: float) -> str:
    """As `format_seconds`, but three digits of what is below a tenth of a second: `4.11 ms`, `0.05 ms`."""
    return f"{1e3 * value:.3g} ms" if 0 < value < 0.1 else format_seconds(value)


def format_share(value: SupportsFloat) -> str:
    """A share of 1 in per cent, three digits: `12.5 %`."""
    return f"{float(f'{100 * float(value):.3g}'):g} %"


def format_seconds(value: float) -> str:
    """`0.31 s`, `52.0 s`, `2 min 10 s`, `3 h 05 min`."""
    if value < 10:
        return f"{value:.2f} s"
    if value < 120:
        return f"{value:.0f} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
