"""States a plan's traffic as terms with bytes, synchronisations, formula and source, and as loads that add them
up (P1).

A term tells the busiest rank's bytes each way, because a link must carry them, and those of all ranks together,
because somebody pays for them; of the latter, what leaves a node. Forward and backward are kept apart. An epoch is
a step's load times its steps. Ways to send less that keep something for it say how much, beside what they send.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from farflung.advice.traffic import input_checks
from farflung.core.units import format_bytes, format_count


class TrafficPhase(StrEnum):
    """When it is sent."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"  # after the last gradient: the optimizer's, or a round's exchange


class TrafficClass(StrEnum):
    """The two classes of traffic."""

    CARDS = "card to card"
    STORAGE = "card to storage"


class TrafficTerm(msgspec.Struct, frozen=True):
    """One reason to send, of one step. Bytes; fractions are those of rarer steps, spread."""

    name: str
    phase: TrafficPhase
    sent: float  # by the busiest rank
    received: float
    total: float  # sent by all ranks
    between: float  # of `total`, what leaves a node
    messages: float  # that the busiest rank sends, one after another
    syncs: float  # collectives, or hand-overs, that it takes part in
    formula: str  # with its numbers
    source: str
    road: TrafficClass = TrafficClass.CARDS

    def times(self, factor: float) -> TrafficTerm:
        """The same, so many times. Raises UsageError FF-PLAN-021."""
        input_checks.amount("factor", factor)
        return msgspec.structs.replace(
            self,
            sent=self.sent * factor,
            received=self.received * factor,
            total=self.total * factor,
            between=self.between * factor,
            messages=self.messages * factor,
            syncs=self.syncs * factor,
        )


class RetentionPlace(StrEnum):
    """Where something is kept."""

    CARD = "memory of the card"
    HOST = "memory or disk of the host"


class RetainedBytes(msgspec.Struct, frozen=True):
    """What sending less takes instead: bytes that the fullest rank keeps from step to step."""

    name: str
    bytes: float
    place: RetentionPlace
    formula: str  # with its numbers
    source: str


class TrafficLoad(msgspec.Struct, frozen=True):
    """All terms of a step (or of an epoch) on so many ranks, and what is `kept` so that they are not more.

    Each term's busiest rank may be another one: where stages differ, sums over terms are upper bounds.
    """

    ranks: int
    terms: tuple[TrafficTerm, ...]
    kept: tuple[RetainedBytes, ...] = ()

    def of(self, *, phase: TrafficPhase | None = None, road: TrafficClass | None = None) -> TrafficLoad:
        """The terms of one phase, or of one class of traffic."""
        kept = (
            term
            for term in self.terms
            if (phase is None or term.phase is phase) and (road is None or term.road is road)
        )
        return TrafficLoad(self.ranks, tuple(kept), self.kept)

    def times(self, factor: float) -> TrafficLoad:
        """So many steps: an epoch's load is a step's times its steps. Raises UsageError FF-PLAN-021."""
        input_checks.amount("factor", factor)
        return TrafficLoad(self.ranks, tuple(term.times(factor) for term in self.terms), self.kept)

    @property
    def sent(self) -> float:
        """Bytes up the busiest rank's link."""
        return sum(term.sent for term in self.terms)

    @property
    def received(self) -> float:
        """Bytes down the busiest rank's link."""
        return sum(term.received for term in self.terms)

    @property
    def total(self) -> float:
        """Bytes that all ranks send."""
        return sum(term.total for term in self.terms)

    @property
    def between(self) -> float:
        """Bytes of all ranks that leave a node."""
        return sum(term.between for term in self.terms)

    @property
    def messages(self) -> float:
        """Messages of the busiest rank."""
        return sum(term.messages for term in self.terms)

    @property
    def syncs(self) -> float:
        """How often the busiest rank waits for others."""
        return sum(term.syncs for term in self.terms)


def explained(terms: Iterable[TrafficTerm]) -> tuple[str, ...]:
    """Each term as a line with its formula, numbers and source: what `--explain` shows."""
    return tuple(
        f"{term.name} ({term.phase}): {told(term.sent)} a rank, {told(term.total)} in all,"
        f" {format_count(term.syncs)} synchronisations; {term.formula} [{term.source}]"
        for term in terms
    )


def told(size: float) -> str:
    """Bytes in four digits, up to exabytes: `348.9 PB`."""
    return format_bytes(size, digits=4)
