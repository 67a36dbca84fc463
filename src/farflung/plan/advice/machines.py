"""Whether the machines around a way's cards suit it: their class and what is missed, for this job (J9, N4)."""

from __future__ import annotations

import msgspec

from farflung.core.units import Seconds
from farflung.plan.advice.offers import Host
from farflung.plan.advice.options import Option, memory_of
from farflung.plan.advice.work import WIRE, Work
from farflung.plan.cards.admission import Admission, Computer, Demand, Place, Slot, judge
from farflung.plan.footprint import parts


class Admitted(msgspec.Struct, frozen=True):
    """One host of a way, and what its machine comes to."""

    host: Host
    admission: Admission


def admitted(work: Work, option: Option) -> tuple[Admitted, ...]:
    """Each host's class for this way. What crosses a bus is what `speed.computing` reckons."""
    ram = option.worst.footprint.at(parts.Place.RAM)
    return tuple(
        Admitted(host, judged(work, host, ram, option.step, option.up, option.down)) for host in option.hosts
    )


def judged(work: Work, host: Host, ram: float, step: float, up: float, down: float) -> Admission:
    """One host's. A step: seconds, with its part of an exchange, and bytes that the host sends and gets in it."""
    bus = 3.0 * WIRE * work.parameters * (host.cards - 1) / host.cards
    if ram:
        bus += 2.0 * WIRE * work.parameters
    seconds = Seconds(max(step, 1e-9))  # a round of H steps sends as much a second as one of them
    demand = Demand(
        memory_bytes=ram or None, bus_bytes=bus or None, step_seconds=seconds, round_seconds=seconds,
        sent=up / host.cards, received=down / host.cards,
    )  # fmt: skip
    return judge(_place(host), demand)


def _place(host: Host) -> Place:
    card = host.card
    lanes = None if host.lanes is None else min(host.lanes, card.lanes)
    slot = Slot(memory_of(host), card.pcie or None, lanes, is_unified=card.is_unified)
    computer = Computer(host.name, (slot,) * host.cards, host.cores, host.memory_bytes)
    return Place((computer,), host.link.up, host.link.down)
