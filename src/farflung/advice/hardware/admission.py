"""Decides whether machines fit a job, by rules of thumb and by what this job needs (J9, N4).

    rule          thumb                                   computed for the job
    software      its maker lists the card                the same: nothing trains without
    cores         4 a card                                what feeding a card and agreeing take (`core_need`)
    memory        twice the card's                        bytes that the job keeps outside the card
    lanes         8 a card                                bytes over the bus a step / (0.8 x step's seconds)
    up, down      above 10 cards 500 Mbit/s, above        8 x cards x bytes / (0.8 x seconds of compute that they
                  100 cards 1 Gbit/s, each way, a site    may go beside)

What is computed decides where it can be computed, and the thumb is shown; else the thumb decides. What is not known is
neither met nor missed: it is warned of, and the machine's class is no better than if it were missed, so nobody gains by
saying nothing. The thumbs are the source article's (research: plan, section 2).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from farflung.advice.hardware.card import LANE_BYTES, Card, MakerSupport
from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.units import Bytes, Seconds, format_bytes, format_rate
from farflung.plan.run_duration import DECODE_BYTE, MERGE_ELEMENT, PART_ELEMENT

CORES: Final = 4  # a card
MEMORIES: Final = 2  # of a card, in the machine
LANES: Final = 8
THUMBS: Final = ((100, 1e9), (10, 500e6))  # above so many cards, bit/s each way
USABLE: Final = 0.8  # of a link or a bus: the rest is headers, acknowledgements and others
MOST_BYTES: Final = 1 << 60
MOST_RATE: Final = 1e15


class CardSlot(msgspec.Struct, frozen=True):
    """One card as it sits in a machine; None: not known. `lanes` as they are connected, under load.

    `is_unified`: the card computes in the machine's own memory, and there is no bus.
    """

    memory_bytes: Bytes | None = None
    pcie: int | None = None
    lanes: int | None = None
    is_unified: bool = False
    card: str = ""
    support: MakerSupport | None = None  # None: nobody asks for it

    @classmethod
    def of(cls, card: Card, lanes: int | None = None) -> CardSlot:
        """A card of the table where a machine gives it `lanes`: its own connector only says how many it could use."""
        found = None if lanes is None else min(lanes, card.lanes)
        lanes = None if card.is_unified else found
        return cls(card.memory[0], card.pcie or None, lanes, card.is_unified, card.name, card.support)


class SiteComputer(msgspec.Struct, frozen=True):
    """One computer of a site."""

    name: str
    slots: tuple[CardSlot, ...]
    cores: int | None = None
    memory_bytes: Bytes | None = None


class ComputerSite(msgspec.Struct, frozen=True):
    """Computers behind one line, in bit/s; None: not known. `beside`: cards of the job elsewhere behind that line."""

    computers: tuple[SiteComputer, ...]
    up: float | None = None
    down: float | None = None
    beside: int = 0


class CardDemand(msgspec.Struct, frozen=True):
    """What a job takes of each card; None: nobody computed it, and only the thumb is left.

    `memory_bytes` outside the card; `bus_bytes` of a step, in the direction that carries more; `sent` and `received`
    bytes of a round. Raises UsageError FF-PLAN-036 that names the field.
    """

    cores: float | None = None
    memory_bytes: float | None = None
    bus_bytes: float | None = None
    step_seconds: Seconds | None = None
    sent: float | None = None
    received: float | None = None
    round_seconds: Seconds | None = None

    def __post_init__(self) -> None:
        for field, most in _MOST.items():
            _bounded(field, getattr(self, field), most)
        for field, moved in _WITHIN.items():
            seconds = getattr(self, field)
            if seconds == 0 or (seconds is None and any(getattr(self, one) is not None for one in moved)):
                raise _wrong(field, seconds, f"above 0 where {' or '.join(moved)} is given")


_MOST: Final = {
    "cores": 1e6,
    "memory_bytes": float(MOST_BYTES),
    "bus_bytes": float(MOST_BYTES),
    "step_seconds": 1e9,
    "sent": float(MOST_BYTES),
    "received": float(MOST_BYTES),
    "round_seconds": 1e9,
}
_WITHIN: Final = {"step_seconds": ("bus_bytes",), "round_seconds": ("sent", "received")}


class RuleState(StrEnum):
    """How a rule ended."""

    OK = "ok"
    UNKNOWN = "unknown"
    FAILED = "failed"


class MachineGrade(StrEnum):
    """The class of a machine for a job: what a market may ask for, and pay for."""

    A = "A"  # all that the job needs, and all thumbs
    B = "B"  # all that the job needs as computed; a thumb is missed
    C = "C"  # something that decides is missed, or not known


class RuleFinding(msgspec.Struct, frozen=True):
    """One rule at one machine or line. `thumb` and `computed` in the unit of `have`; None: not known, not computed."""

    rule: str
    at: str
    have: float | None
    thumb: float | None
    computed: float | None
    state: RuleState
    why: str

    @property
    def need(self) -> float | None:
        """What decides."""
        return self.thumb if self.computed is None else self.computed

    @property
    def is_below_thumb(self) -> bool:
        """Whether the rule of thumb is missed, or unknown, whatever decides."""
        return self.thumb is not None and (self.have is None or self.have < self.thumb)


class MachineAdmission(msgspec.Struct, frozen=True):
    """All findings, and the class that follows from them."""

    findings: tuple[RuleFinding, ...]

    @property
    def grade(self) -> MachineGrade:
        """A, B or C."""
        if any(finding.state is not RuleState.OK for finding in self.findings):
            return MachineGrade.C
        return MachineGrade.B if any(finding.is_below_thumb for finding in self.findings) else MachineGrade.A

    @property
    def missed(self) -> tuple[RuleFinding, ...]:
        """What decides and is not met."""
        return tuple(one for one in self.findings if one.state is RuleState.FAILED)

    @property
    def warnings(self) -> tuple[RuleFinding, ...]:
        """What is missed, below its thumb or not known."""
        return tuple(one for one in self.findings if one.state is not RuleState.OK or one.is_below_thumb)


def judge(site: ComputerSite, demand: CardDemand | None = None) -> MachineAdmission:
    """Every rule at every machine, then the line's; raises UsageError FF-PLAN-036 that names the field."""
    demand = demand or CardDemand()
    _check(site)
    findings = [one for computer in site.computers if computer.slots for one in _of_computer(computer, demand)]
    cards = site.beside + sum(len(computer.slots) for computer in site.computers)
    ways = (("up", site.up, demand.sent), ("down", site.down, demand.received))
    findings += [one for way in ways if (one := _of_line(*way, cards, demand)) is not None]
    return MachineAdmission(tuple(findings))


def met(admission: MachineAdmission, least: MachineGrade) -> bool:
    """Whether a job that asks for this class takes the machine: it refuses a missed rule, and whatever is below it.

    What is not known is refused by the class alone: C is the class of whoever does not say.
    """
    return not admission.missed and admission.grade <= least


def _of_computer(computer: SiteComputer, demand: CardDemand) -> Iterable[RuleFinding]:
    yield from (_of_software(computer.name, slot) for slot in computer.slots if slot.support is not None)
    cards = len(computer.slots)
    computed = None if demand.cores is None else demand.cores * cards
    yield _finding("cores", computer.name, computer.cores, CORES * cards, computed)
    yield _of_memory(computer, demand)
    yield from (_of_bus(computer.name, at, slot, demand) for at, slot in enumerate(computer.slots))


_TOLD: Final = {
    MakerSupport.YES: "its maker's libraries run on it",
    MakerSupport.UNOFFICIAL: "its maker does not list it: it works where somebody builds or overrides",
    MakerSupport.NO: "no CUDA, ROCm, MPS or XPU runs on it",
}
_RUNS: Final = {
    MakerSupport.YES: RuleState.OK,
    MakerSupport.UNOFFICIAL: RuleState.UNKNOWN,
    MakerSupport.NO: RuleState.FAILED,
}


def _of_software(name: str, slot: CardSlot) -> RuleFinding:
    support = slot.support or MakerSupport.NO
    have = None if support is MakerSupport.UNOFFICIAL else float(support is MakerSupport.YES)
    return RuleFinding("software", name, have, 1.0, 1.0, _RUNS[support], f"for a {slot.card}: {_TOLD[support]}")


def _of_memory(computer: SiteComputer, demand: CardDemand) -> RuleFinding:
    """Cards that share the machine's memory have no thumb of their own: they hold what the others offload beside."""
    cards = [slot for slot in computer.slots if not slot.is_unified]
    sizes = [slot.memory_bytes for slot in cards]
    thumb = None if any(size is None for size in sizes) else MEMORIES * sum(size or 0 for size in sizes)
    computed = None if demand.memory_bytes is None else demand.memory_bytes * len(computer.slots)
    if not cards and computed is None:
        why = "cards and processor share one memory"
        return RuleFinding("memory", computer.name, computer.memory_bytes, None, None, RuleState.OK, why)
    thumb = thumb if cards else None
    return _finding("memory", computer.name, computer.memory_bytes, thumb, computed)


def _of_bus(name: str, at: int, slot: CardSlot, demand: CardDemand) -> RuleFinding:
    where = f"{name}, card {at + 1}"
    if slot.is_unified:
        return RuleFinding("lanes", where, None, None, None, RuleState.OK, "cards and processor share one memory")
    if not demand.bus_bytes or demand.step_seconds is None:
        return _finding("lanes", where, slot.lanes, LANES, demand.bus_bytes)
    if slot.pcie is None:
        why = "the bus's generation is not known, so neither is what its lanes carry"
        return RuleFinding("lanes", where, slot.lanes, LANES, None, RuleState.UNKNOWN, why)
    rate = demand.bus_bytes / demand.step_seconds
    found = _finding("lanes", where, slot.lanes, LANES, rate / (USABLE * LANE_BYTES[slot.pcie]))
    return msgspec.structs.replace(found, why=f"{found.why}: {rate / 1e9:.3g} GB/s")


def _of_line(rule: str, have: float | None, moved: float | None, cards: int, demand: CardDemand) -> RuleFinding | None:
    """None: few cards, and nothing that they send was computed."""
    thumb = next((rate for above, rate in THUMBS if cards > above), None)
    computed = None
    if moved is not None and demand.round_seconds is not None:
        computed = line_need(cards, moved, demand.round_seconds)
    if thumb is None and computed is None:
        return None
    return _finding(rule, "the line", have, thumb, computed)


def amount(rule: str, number: float) -> str:
    """A rule's number with its unit."""
    if rule == "memory":
        return format_bytes(number)
    return format_rate(number) if rule in ("up", "down") else f"{number:.3g} {rule}"


def _finding(rule: str, at: str, have: float | None, thumb: float | None, computed: float | None) -> RuleFinding:
    """Judges one number against what decides; equal is enough."""
    need = thumb if computed is None else computed
    basis = "by the rule of thumb" if computed is None else "for this job"
    if need is None:
        return RuleFinding(rule, at, have, thumb, computed, RuleState.UNKNOWN, "what is needed is not known")
    if computed == 0:
        told = "not known" if have is None else amount(rule, have)
        return RuleFinding(rule, at, have, thumb, computed, RuleState.OK, f"{told}, none is needed for this job")
    if have is None:
        why = f"not known; needed are {amount(rule, need)} {basis}"
        return RuleFinding(rule, at, have, thumb, computed, RuleState.UNKNOWN, why)
    state = RuleState.OK if have >= need else RuleState.FAILED
    why = f"{amount(rule, have)}, needed are {amount(rule, need)} {basis}"
    if computed is not None and thumb is not None and have < thumb:
        why += f" (the rule of thumb: {amount(rule, thumb)})"
    return RuleFinding(rule, at, have, thumb, computed, state, why)


def core_need(elements: float, peers: int, received: float, seconds: float) -> float:
    """Cores that one replica keeps busy: one that launches its kernels, and what agreeing takes of others, a round.

    1 + (15 ns x elements + 5 ns x peers x elements + 20 ns x bytes received) / seconds of a round: applying and hashing
    the public state, decoding each payload, opening what comes (measured: plan/run_duration).
    """
    return 1.0 + ((MERGE_ELEMENT + peers * PART_ELEMENT) * elements + DECODE_BYTE * received) / seconds


def line_need(cards: int, moved: float, seconds: float) -> float:
    """bit/s of a site's line in one direction: 8 x cards x bytes / (0.8 x seconds)."""
    return 8 * cards * moved / (USABLE * seconds)


def _check(site: ComputerSite) -> None:
    if sum(len(computer.slots) for computer in site.computers) > limits.CARDS_OF_SITE:
        raise _wrong("slots", float(limits.CARDS_OF_SITE + 1), f"at most {limits.CARDS_OF_SITE} of a site")
    _bounded("up", site.up, MOST_RATE)
    _bounded("down", site.down, MOST_RATE)
    for computer in site.computers:
        _bounded("cores", computer.cores, 1e6)
        _bounded("memory_bytes", computer.memory_bytes, float(MOST_BYTES))
        for slot in computer.slots:
            _bounded("memory_bytes", slot.memory_bytes, float(MOST_BYTES))
            _bounded("lanes", slot.lanes, 64.0)
            if slot.pcie is not None and slot.pcie not in LANE_BYTES:
                raise _wrong("pcie", float(slot.pcie), f"a generation from 1 to {max(LANE_BYTES)}")


def _bounded(field: str, number: float | None, most: float) -> None:
    if number is not None and not 0 <= number <= most:  # false for nan too
        raise _wrong(field, number, f"from 0 to {most:g}; what is not known is left out")


def _wrong(field: str, number: float | None, wanted: str) -> UsageError:
    return UsageError(
        "FF-PLAN-036",
        f"{field} of a machine or a job is {'not given' if number is None else f'{number:g}'}",
        cause=f"it is {wanted}",
        hint=f"give {field} as it was measured",
    )
