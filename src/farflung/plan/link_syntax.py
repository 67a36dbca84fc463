"""Parses a link as a person writes it: `20/100/30ms` is 20 Mbit/s up, 100 Mbit/s down, 30 ms there and back."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from farflung.core.errors import UsageError
from farflung.core.units import Seconds, format_rate

ROUND_TRIP: Final = Seconds(0.030)  # of a link of which nobody says: two homes on one continent
SLOWEST: Final = 1e3  # bit/s
FASTEST: Final = 1e13
LONGEST: Final = Seconds(60.0)
LAN_RATE: Final = 200e6  # bit/s that a local network has at least
LAN_TRIP: Final = Seconds(0.002)  # and its longest round trip

_RATE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?(?:([kMGT]?)(?:bit|bps|b)?)?(?:/s)?", re.IGNORECASE)
_TRIP: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|us|s)?", re.IGNORECASE)
_SCALES: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_TRIPS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_HINT: Final = "write UP/DOWN in Mbit/s and a round trip in ms: --link 20/100/30ms"


class Link(msgspec.Struct, frozen=True):
    """One peer's line: bit/s to and from the others, and seconds for a message and its answer."""

    up: float
    down: float
    round_trip: Seconds = ROUND_TRIP

    @property
    def is_lan(self) -> bool:
        """Whether peers stand side by side: fast both ways, and near."""
        return min(self.up, self.down) >= LAN_RATE and self.round_trip <= LAN_TRIP

    def __str__(self) -> str:
        trip = f"{1e3 * self.round_trip:g} ms"
        return f"{format_rate(self.up)} up, {format_rate(self.down)} down, {trip} there and back"


def parse(text: str) -> Link:
    """The link that `text` means: numbers alone are Mbit/s and ms; bit, kbit, Mbit, Gbit, us, ms and s are understood.

    Raises UsageError FF-PLAN-010 (cannot be read), FF-PLAN-011 (there is no such link).
    """
    words = [word.strip() for word in re.sub(r"/s(?=$|/|\s)", "", text.strip(), flags=re.IGNORECASE).split("/")]
    if not 2 <= len(words) <= 3:
        raise _unreadable(text, "it has two or three parts: up, down, and a round trip")
    trip = _trip(text, words[2]) if len(words) == 3 else ROUND_TRIP
    link = Link(_rate(text, words[0]), _rate(text, words[1]), trip)
    if not all(SLOWEST <= rate <= FASTEST for rate in (link.up, link.down)) or link.round_trip > LONGEST:
        raise UsageError(
            "FF-PLAN-011",
            f"there is no link like {_quoted(text)}",
            cause=f"each rate is {format_rate(SLOWEST)} to {format_rate(FASTEST)}, a round trip at most {LONGEST:g} s",
            hint=_HINT,
        )
    return link


def _rate(whole: str, word: str) -> float:
    found = _RATE.fullmatch(word)
    if not found:
        raise _unreadable(whole, f"{_quoted(word)} is no rate")
    unit = word[found.end(1) :].strip()
    scale = _SCALES[found[2].lower()] if unit else 1e6
    return float(found[1]) * scale


def _trip(whole: str, word: str) -> Seconds:
    found = _TRIP.fullmatch(word)
    if not found:
        raise _unreadable(whole, f"{_quoted(word)} is no round trip")
    return Seconds(float(found[1]) * _TRIPS[(found[2] or "ms").lower()])


def _quoted(text: str) -> str:
    return repr(text[:40])


def _unreadable(text: str, cause: str) -> UsageError:
    return UsageError("FF-PLAN-010", f"{_quoted(text)} is no link", cause=cause, hint=_HINT)
