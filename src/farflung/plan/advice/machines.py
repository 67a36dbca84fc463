"""Whether the machines around a way's cards suit it: their class and what is missed, for this job (J9, N4)."""

from __future__ import annotations

import msgspec

from farflung.core.units import Seconds
from farflung.plan.advice.offers import Host
from farflung.plan.advice.options import Option, Share, memory_of
from farflung.plan.cards.admission import Admission, Computer, Demand, Place, Slot, judge


class Admitted(msgspec.Struct, frozen=True):
    """One host of a way, and what its machine comes to."""

    host: Host
    admission: Admission


def admitted(option: Option) -> tuple[Admitted, ...]:
    """Each host's class for this way. What crosses a bus is what `speed.crossing` reckons."""
    computes = option.step - option.exchange
    return tuple(
        Admitted(host, judged(host, share, computes))
        for host, share in zip(option.hosts, option.shares, strict=True)
    )


def judged(host: Host, share: Share, computes: float) -> Admission:
    """One host's. Its line is judged by what carries a step's bytes while the crew computes it, `computes` seconds: a
    slower one is what all wait for. (By the whole step it would be judged by its own waiting.)
    """
    seconds = Seconds(max(computes, 1e-9))  # a round of H steps sends as much a second as one of them
    demand = Demand(
        memory_bytes=share.ram, bus_bytes=share.bus, step_seconds=seconds, round_seconds=seconds,
        sent=share.up / host.cards, received=share.down / host.cards,
    )  # fmt: skip
    return judge(_place(host), demand)


def _place(host: Host) -> Place:
    card = host.card
    lanes = None if host.lanes is None else min(host.lanes, card.lanes)
    slot = Slot(memory_of(host), card.pcie or None, lanes, is_unified=card.is_unified)
    computer = Computer(host.name, (slot,) * host.cards, host.cores, host.memory_bytes)
    return Place((computer,), host.link.up, host.link.down)
