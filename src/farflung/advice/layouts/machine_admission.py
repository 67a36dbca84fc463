"""Checks whether an option's machines suit this job: their class, and the rules that they miss (J9, N4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from farflung.advice.hardware.admission import (
    CardDemand,
    CardSlot,
    ComputerSite,
    MachineAdmission,
    MachineGrade,
    SiteComputer,
    core_need,
    judge,
    met,
)
from farflung.advice.job_work import JobWork
from farflung.advice.layouts.host_subsets import fair
from farflung.advice.layouts.training_options import Found, HostLoad, InfeasibleOption, TrainingOption
from farflung.advice.offers.offer_file import OfferedHost
from farflung.core.errors import PolicyError
from farflung.core.units import Seconds

CLASS: Final = "class"  # the constraint


class HostAdmission(msgspec.Struct, frozen=True):
    """One host of a way, and what its machine comes to."""

    host: OfferedHost
    admission: MachineAdmission


class SharedLineLoad(NamedTuple):
    """What hosts of the same site do over the same line: cards, and bytes a step up and down."""

    cards: int = 0
    up: float = 0.0
    down: float = 0.0


NOBODY = SharedLineLoad()


def admitted(option: TrainingOption) -> tuple[HostAdmission, ...]:
    """Each host's class for this way. What crosses a bus is what `speed.crossing` calculates."""
    computes = option.step - option.exchange
    pairs = list(zip(option.hosts, option.shares, strict=True))
    cards, up, down = Counter[str](), Counter[str](), Counter[str]()
    for host, share in pairs:
        cards[host.site] += host.cards
        up[host.site] += round(share.up)
        down[host.site] += round(share.down)

    def beside(host: OfferedHost, share: HostLoad) -> SharedLineLoad:
        if host.line is None:
            return NOBODY
        rest = up[host.site] - share.up, down[host.site] - share.down
        return SharedLineLoad(cards[host.site] - host.cards, *(max(0.0, each) for each in rest))

    return tuple(HostAdmission(host, judged(host, share, computes, beside(host, share))) for host, share in pairs)


def judged(host: OfferedHost, share: HostLoad, computes: float, beside: SharedLineLoad = NOBODY) -> MachineAdmission:
    """One host's. Its site's line is judged by what carries a step's bytes of all its hosts while the subset
    computes it, `computes` seconds: a slower one is what all wait for. (By the whole step it would be judged by
    its own waiting.)
    """
    seconds = Seconds(max(computes, 1e-9))  # a round of H steps sends as much a second as one of them
    cards = host.cards + beside.cards
    demand = CardDemand(
        cores=share.cores, memory_bytes=share.ram, bus_bytes=share.bus, step_seconds=seconds, round_seconds=seconds,
        sent=(share.up + beside.up) / cards, received=(share.down + beside.down) / cards,
    )  # fmt: skip
    return judge(_place(host, beside.cards), demand)


def feeding(work: JobWork, peers: int, cards: int, received: float, steps: int, computes: float) -> float:
    """Cores that each card keeps busy in a method with rounds of `steps` steps; `received`: bytes a step."""
    seconds = max(steps * computes, 1e-9)
    whole = core_need(work.parameters, peers, received * steps, seconds)
    return 1.0 + (whole - 1.0) / cards  # each card has a process that launches; the host agrees once


def fitting(
    work: JobWork,
    hosts: Sequence[OfferedHost],
    least: int,
    lay: Callable[[Sequence[OfferedHost]], Found],
    *,
    is_own: bool,
) -> Found:
    """The way of a subset, `lay`, without machines below the class that the job asks for, as long as `least` are
    left.
    """
    found = lay(hosts)
    if work.least is None or not isinstance(found, TrainingOption):
        return found
    low = below(work.least, found)
    if not low:
        return found
    names = {one.host.name for one in low}
    fewer = [host for host in hosts if host.name not in names]
    fewer = fewer if is_own else fair(fewer)
    again = fitting(work, fewer, least, lay, is_own=is_own) if len(fewer) >= least else None
    return again if isinstance(again, TrainingOption) else _refused(work.least, found, low)


def refusal(binding: InfeasibleOption) -> PolicyError:
    """Where no way is left: what a class of machine keeps out, and what would lift it."""
    return PolicyError(
        "FF-PLAN-034",
        "no way to train this has machines of the class that the job asks for",
        cause=f"{binding.kind}: {binding.cause}",
        hint=f"what would make it fit: {binding.help}; --set network.machines=any shows what there is",
    )


def below(least: MachineGrade, option: TrainingOption) -> list[HostAdmission]:
    """Who in a way does not reach a class."""
    return [one for one in admitted(option) if not met(one.admission, least)]


def _refused(least: MachineGrade, option: TrainingOption, low: Sequence[HostAdmission]) -> InfeasibleOption:
    first = low[0].admission
    why = (first.missed or first.warnings)[0]
    return InfeasibleOption(
        option.kind, CLASS, 5, 1 - len(low) / len(option.hosts),
        f"{len(low)} of {len(option.hosts)} machines are not of class {least}, as network.machines asks: {why.at}:"
        f" {why.rule}: {why.why}",
        "other machines, or a lower class",
    )  # fmt: skip


def _place(host: OfferedHost, beside: int) -> ComputerSite:
    computer = SiteComputer(
        host.name, (CardSlot.of(host.card, host.lanes),) * host.cards, host.cores, host.memory_bytes
    )
    line = host.line or host.link
    return ComputerSite((computer,), line.up, line.down, beside)
