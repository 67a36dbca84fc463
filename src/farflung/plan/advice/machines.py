"""Whether the machines around a way's cards suit it: their class and what is missed, for this job (J9, N4)."""

from __future__ import annotations

import math

import msgspec

from farflung.core.units import Seconds
from farflung.plan.advice import speed
from farflung.plan.advice.offers import Host
from farflung.plan.advice.options import Option, memory_of
from farflung.plan.advice.work import Work
from farflung.plan.cards.admission import Admission, Computer, Demand, Place, Slot, judge
from farflung.plan.footprint.parts import Footprint


class Admitted(msgspec.Struct, frozen=True):
    """One host of a way, and what its machine comes to."""

    host: Host
    admission: Admission


def admitted(work: Work, option: Option) -> tuple[Admitted, ...]:
    """Each host's class for this way. What crosses a bus is what `speed.computing` reckons."""
    need = option.worst.footprint
    rows = work.tokens / (option.steps * len(option.hosts) * work.context)
    passes = math.ceil(rows / option.micro)
    return tuple(
        Admitted(host, judged(work, host, need, passes, option.step, option.up, option.down))
        for host in option.hosts
    )


def judged(
    work: Work, host: Host, need: Footprint, passes: int, step: float, up: float, down: float
) -> Admission:
    """One host's. A step: micro-batches, seconds with its part of an exchange, and bytes that the host sends and gets
    in it.
    """
    bus = speed.crossing(work, host, need, passes)
    seconds = Seconds(max(step, 1e-9))  # a round of H steps sends as much a second as one of them
    demand = Demand(
        memory_bytes=need.ram or None, bus_bytes=bus or None, step_seconds=seconds, round_seconds=seconds,
        sent=up / host.cards, received=down / host.cards,
    )  # fmt: skip
    return judge(_place(host), demand)


def _place(host: Host) -> Place:
    card = host.card
    lanes = None if host.lanes is None else min(host.lanes, card.lanes)
    slot = Slot(memory_of(host), card.pcie or None, lanes, is_unified=card.is_unified)
    computer = Computer(host.name, (slot,) * host.cards, host.cores, host.memory_bytes)
    return Place((computer,), host.link.up, host.link.down)
