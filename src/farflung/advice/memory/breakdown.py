"""Breaks a footprint down into parts: what memory is used for, where, and by which formula (P2).

A part is so many bytes of one place. A footprint is one card's parts; its sums are what the card, the machine's RAM
and its disk must have.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from farflung.advice.traffic import input_checks
from farflung.advice.traffic.traffic_terms import told
from farflung.core.errors import UsageError


class MemoryPlace(StrEnum):
    """Where it lies."""

    CARD = "card"
    RAM = "ram"
    DISK = "disk"


class MemoryPart(msgspec.Struct, frozen=True):
    """One reason to need memory. Bytes; never negative (UsageError FF-PLAN-021), in a Place (FF-PLAN-059)."""

    name: str
    bytes: float
    formula: str  # with its numbers
    source: str
    place: MemoryPlace = MemoryPlace.CARD

    def __post_init__(self) -> None:
        input_checks.amount(self.name, self.bytes)
        chosen("place", self.place, MemoryPlace)


def chosen(name: str, value: object, kind: type[StrEnum]) -> None:
    """Raises UsageError FF-PLAN-059 unless it is one of these, and not only spelt like it: `is` is asked of them."""
    if not isinstance(value, kind):
        raise UsageError(
            "FF-PLAN-059",
            f"{name} cannot be {repr(value)[:40]}",
            cause=f"it is one of {kind.__name__}: {', '.join(kind)}",
            hint=f"correct {name}",
        )


class Footprint(msgspec.Struct, frozen=True):
    """One card's need. `label` says which card it is, by what it holds."""

    label: str
    parts: tuple[MemoryPart, ...]

    def at(self, place: MemoryPlace) -> float:
        """Bytes of one place."""
        return sum(part.bytes for part in self.parts if part.place is place)

    @property
    def card(self) -> float:
        """Bytes of the card's memory."""
        return self.at(MemoryPlace.CARD)

    @property
    def ram(self) -> float:
        """Bytes of the machine's RAM, for this card."""
        return self.at(MemoryPlace.RAM)

    @property
    def disk(self) -> float:
        """Bytes on the machine's disk, for this card."""
        return self.at(MemoryPlace.DISK)

    def of(self, name: str) -> float:
        """Bytes of all parts with this name."""
        return sum(part.bytes for part in self.parts if part.name == name)


def explained(parts: Iterable[MemoryPart]) -> tuple[str, ...]:
    """Each part as a line with its formula, numbers and source, largest first: what `--explain` shows."""
    ordered = sorted(parts, key=lambda part: -part.bytes)
    return tuple(f"{part.name} ({part.place}): {told(part.bytes)}; {part.formula} [{part.source}]" for part in ordered)
