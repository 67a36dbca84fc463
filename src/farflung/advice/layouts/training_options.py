"""Describes one way to train a job with its time and price, or the constraint that makes it infeasible (P1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from farflung.advice.memory.breakdown import MemoryPlace
from farflung.advice.memory.worst_stage import WorstStage
from farflung.advice.offers.offer_file import HOUR, OfferedHost
from farflung.core.money import CREDIT, Credits
from farflung.core.units import Bytes, Seconds, format_bytes
from farflung.job.spec import SyncSpec
from farflung.plan.step_trace import Recomputation

PLACES: Final = {MemoryPlace.RAM: "RAM", MemoryPlace.DISK: "a disk"}


class LayoutKind(StrEnum):
    """The layouts that are looked at."""

    ALONE = "one host alone"
    ROUNDS = "rounds"  # whole replicas that agree now and then: what `farflung run` does
    DATA = "data parallel"
    SHARDED = "sharded"
    PIPELINE = "pipeline"
    PIPELINES = "pipelines"  # several, that agree now and then


class DerivedFact(msgspec.Struct, frozen=True):
    """One number of a derivation: what it is, the value as it is shown, the formula with its numbers, its source."""

    name: str
    value: str
    formula: str
    source: str


class HostLoad(NamedTuple):
    """What one host has to do with a way, a step: bytes in its memory and over its bus for each card; bytes that it
    sends and gets; `cores` that each card keeps busy, None: not computed.
    """

    ram: float
    bus: float
    up: float
    down: float
    cores: float | None = None


class StoredCheckpoint(NamedTuple):
    """A checkpoint: bytes that one host sends over its line, the one whose line takes longest, and seconds of work
    between two of them.
    """

    bytes: float
    every: Seconds


class TrainingOption(msgspec.Struct, frozen=True, kw_only=True):
    """One way to train the whole job. `up` and `down` are bytes of the busiest host's line, a step.

    `efficiency`: the share of time that is work which counts, after failures and leaving. `facts` derive it all.
    """

    kind: LayoutKind
    how: str
    hosts: tuple[OfferedHost, ...]
    recompute: Recomputation
    micro: int  # sequences of a micro-batch
    step: Seconds
    exchange: Seconds  # of `step`, what compute does not hide
    steps: int
    up: float
    down: float
    efficiency: float
    worst: WorstStage
    tokens: int
    facts: tuple[DerivedFact, ...]
    shares: tuple[HostLoad, ...]  # of each host, as they are in `hosts`
    sequences: int  # of a step of all hosts together
    tail: Seconds = Seconds(0.0)  # behind the last step: an exchange that has no next round to hide behind
    ways: int = 1  # pipelines, each of as many hosts, one after another in `hosts`
    sync: SyncSpec | None = None  # of layouts that agree now and then
    stored: StoredCheckpoint | None = None  # beside `up`, where states are written down: nobody else holds them

    @property
    def seconds(self) -> Seconds:
        """Of the whole job."""
        return Seconds((self.step * self.steps + self.tail) / self.efficiency)

    @property
    def ram(self) -> Bytes:
        """Of the machine that keeps most there instead of on its cards, for each card."""
        return Bytes(math.ceil(max(share.ram for share in self.shares)))

    @property
    def price(self) -> Credits:
        """Of all hosts for that time, pico-credits; verification is not in it."""
        hourly = sum(host.price for host in self.hosts)
        return Credits(round(hourly * self.seconds / HOUR))

    @property
    def derived(self) -> tuple[DerivedFact, ...]:
        """`facts`, and what they come to."""
        hourly = sum(host.price for host in self.hosts) / CREDIT
        behind = f" + {self.tail:.4g} s" if self.tail else ""
        time = f"({self.steps} x {self.step:.5g} s{behind}) / {self.efficiency:.5g}; steps, over what counts"
        price = f"{hourly:.5g} x {self.seconds:.5g} s / 3600 s; credits an hour of all hosts"
        return (
            *self.facts,
            DerivedFact("all steps", f"{self.seconds:.5g} s", time, "the lines above"),
            DerivedFact("price", f"{self.price / CREDIT:.5g} credits", price, "the offers"),
        )

    @property
    def price_of_million(self) -> Credits:
        """Of a million tokens."""
        return Credits(round(self.price * 1e6 / self.tokens))

    @property
    def is_run_today(self) -> bool:
        """Whether its method is one that `farflung run` trains by, in float32 and on processors; the others are planned
        for what comes.
        """
        return self.kind is LayoutKind.ROUNDS

    @property
    def only_planned(self) -> tuple[str, ...]:
        """Of a way whose method is run today, what `farflung run` does not do."""
        if not self.is_run_today:
            return ()
        asked = {
            "bfloat16 on cards": True,
            "recomputation": self.recompute is not Recomputation.NONE,
            "the optimizer in RAM": bool(self.worst.footprint.at(MemoryPlace.RAM)),
            "several cards of a host": any(host.cards > 1 for host in self.hosts),
        }
        return tuple(what for what, is_asked in asked.items() if is_asked)


class InfeasibleOption(msgspec.Struct, frozen=True):
    """Why a way is none: the constraint that binds, and what would lift it.

    `passed`: how many constraints it meets before that one; `short`: have over need, below 1. The more, the nearer.
    """

    kind: LayoutKind
    constraint: str
    passed: int
    short: float
    cause: str
    help: str

    @property
    def nearness(self) -> tuple[int, float]:
        """How near it comes to being a way."""
        return self.passed, self.short


Found = TrainingOption | InfeasibleOption


def precise(seconds: float) -> str:
    """Four digits, which can be added up and multiplied out again."""
    return f"{seconds:.4g} s"


def mean_churn(hosts: Sequence[OfferedHost], otherwise: float) -> Seconds:
    """Mean seconds until one of them leaves, per host; `otherwise` where a host does not say."""
    rates = [1.0 / (host.churn if host.churn is not None else otherwise) for host in hosts]
    return Seconds(len(rates) / sum(rates))


def memory_of(host: OfferedHost) -> Bytes:
    """Bytes of one of its cards."""
    return host.card.memory[0]


def held(tight: WorstStage) -> tuple[DerivedFact, ...]:
    """What lies on the tightest card, and beside it."""
    return tuple(
        DerivedFact(_placed(part.name, part.place), format_bytes(part.bytes), part.formula, part.source)
        for part in tight.footprint.parts
    )


def _placed(name: str, place: MemoryPlace) -> str:
    return name if place is MemoryPlace.CARD else f"{name}, in {PLACES[place]}"
