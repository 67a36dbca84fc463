"""Whether the machines around a way's cards suit it: their class and what is missed, for this job (J9, N4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from farflung.core.errors import PolicyError
from farflung.core.units import Seconds
from farflung.plan.advice.crews import fair
from farflung.plan.advice.offers import Host
from farflung.plan.advice.options import Blocked, Found, Option, Share
from farflung.plan.advice.work import Work
from farflung.plan.cards.admission import (
    Admission,
    Computer,
    Demand,
    Grade,
    Place,
    Slot,
    core_need,
    judge,
    met,
)

CLASS: Final = "class"  # the constraint


class Admitted(msgspec.Struct, frozen=True):
    """One host of a way, and what its machine comes to."""

    host: Host
    admission: Admission


class Beside(NamedTuple):
    """What hosts of the same site do over the same line: cards, and bytes a step up and down."""

    cards: int = 0
    up: float = 0.0
    down: float = 0.0


NOBODY = Beside()


def admitted(option: Option) -> tuple[Admitted, ...]:
    """Each host's class for this way. What crosses a bus is what `speed.crossing` reckons."""
    computes = option.step - option.exchange
    pairs = list(zip(option.hosts, option.shares, strict=True))
    cards, up, down = Counter[str](), Counter[str](), Counter[str]()
    for host, share in pairs:
        cards[host.site] += host.cards
        up[host.site] += round(share.up)
        down[host.site] += round(share.down)

    def beside(host: Host, share: Share) -> Beside:
        if host.line is None:
            return NOBODY
        rest = up[host.site] - share.up, down[host.site] - share.down
        return Beside(cards[host.site] - host.cards, *(max(0.0, each) for each in rest))

    return tuple(Admitted(host, judged(host, share, computes, beside(host, share))) for host, share in pairs)


def judged(host: Host, share: Share, computes: float, beside: Beside = NOBODY) -> Admission:
    """One host's. Its site's line is judged by what carries a step's bytes of all its hosts while the crew computes it,
    `computes` seconds: a slower one is what all wait for. (By the whole step it would be judged by its own waiting.)
    """
    seconds = Seconds(max(computes, 1e-9))  # a round of H steps sends as much a second as one of them
    cards = host.cards + beside.cards
    demand = Demand(
        cores=share.cores, memory_bytes=share.ram, bus_bytes=share.bus, step_seconds=seconds, round_seconds=seconds,
        sent=(share.up + beside.up) / cards, received=(share.down + beside.down) / cards,
    )  # fmt: skip
    return judge(_place(host, beside.cards), demand)


def feeding(work: Work, peers: int, cards: int, received: float, steps: int, computes: float) -> float:
    """Cores that each card keeps busy in a method with rounds of `steps` steps; `received`: bytes a step."""
    seconds = max(steps * computes, 1e-9)
    whole = core_need(work.parameters, peers, received * steps, seconds)
    return 1.0 + (whole - 1.0) / cards  # each card has a process that launches; the host agrees once


def fitting(
    work: Work, crew: Sequence[Host], least: int, lay: Callable[[Sequence[Host]], Found], *, is_own: bool
) -> Found:
    """The way of a crew, `lay`, without machines below the class that the job asks for, as long as `least` are left."""
    found = lay(crew)
    if work.least is None or not isinstance(found, Option):
        return found
    low = below(work.least, found)
    if not low:
        return found
    names = {one.host.name for one in low}
    fewer = [host for host in crew if host.name not in names]
    fewer = fewer if is_own else fair(fewer)
    again = fitting(work, fewer, least, lay, is_own=is_own) if len(fewer) >= least else None
    return again if isinstance(again, Option) else _refused(work.least, found, low)


def refusal(binding: Blocked) -> PolicyError:
    """Where no way is left: what a class of machine keeps out, and what would lift it."""
    return PolicyError(
        "FF-PLAN-034",
        "no way to train this has machines of the class that the job asks for",
        cause=f"{binding.kind}: {binding.cause}",
        hint=f"what would make it fit: {binding.help}; --set network.machines=any shows what there is",
    )


def below(least: Grade, option: Option) -> list[Admitted]:
    """Who of a way does not reach a class."""
    return [one for one in admitted(option) if not met(one.admission, least)]


def _refused(least: Grade, option: Option, low: Sequence[Admitted]) -> Blocked:
    first = low[0].admission
    why = (first.missed or first.warnings)[0]
    return Blocked(
        option.kind, CLASS, 5, 1 - len(low) / len(option.hosts),
        f"{len(low)} of {len(option.hosts)} machines are not of class {least}, as network.machines asks: {why.at}:"
        f" {why.rule} {why.why}",
        "other machines, or a lower class",
    )  # fmt: skip


def _place(host: Host, beside: int) -> Place:
    computer = Computer(
        host.name, (Slot.of(host.card, host.lanes),) * host.cards, host.cores, host.memory_bytes
    )
    line = host.line or host.link
    return Place((computer,), line.up, line.down, beside)
