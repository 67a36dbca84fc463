"""How fast a host trains: its cards' rate for bfloat16, what of it is reached, and what passes its bus (P3).

A card reaches a share of its dense rate, `utilisation`: 0.3 to 0.5 for transformers on data-centre cards (Narayanan et
al. 2021, table 1; Chowdhery et al. 2022, table 3). For a card of one's own a measured profile is better than either.
A step of a small model is as long as its kernels take to launch, however fast the card is (Fernandez et al. 2023, "The
Framework Tax"): 10 a layer forward and 20 backward, counted on the built-in model in eager PyTorch, the optimizer's not
among them.
Several cards of one host split the model (FSDP) and move 3 x 2 bytes a parameter over the bus, each step; what lies in
RAM or on disk is moved as plan/cards/offload says, and hides behind nothing.
"""

from __future__ import annotations

import math
from typing import Final

from farflung.core.units import Seconds, format_bytes, format_count, format_short
from farflung.plan.advice.offers import Host
from farflung.plan.advice.options import Fact
from farflung.plan.advice.room import Room
from farflung.plan.advice.work import WIRE, Work
from farflung.plan.cards import offload
from farflung.plan.cards.card import LANE_BYTES, Precision, Units
from farflung.plan.footprint.parts import Footprint
from farflung.plan.parallel.shapes import Recompute

UTILISATION: Final = 0.4
BUS: Final = 0.8  # of a bus, what transfers reach (assumed)
LAUNCH: Final = 5e-6  # seconds that eager PyTorch takes to launch a kernel, at least (assumed)
FORWARD: Final = 10  # kernels of one layer
BACKWARD: Final = 20
ENDS: Final = 16  # of embedding, head and loss, both ways
FRAMEWORK: Final = "counted on the built-in model; 5 us a kernel is assumed, after Fernandez et al. 2023"
MFU: Final = "Narayanan et al. 2021, table 1: 44 to 52 % on A100; 0.4 is assumed"


def rate(host: Host, utilisation: float = UTILISATION) -> float:
    """FLOP/s of training, all cards of the host; `utilisation` where the host does not say its own."""
    return host.cards * host.card.rate(Precision.BF16).flops * share(host, utilisation)


def share(host: Host, utilisation: float) -> float:
    """Of its cards' rate, what training reaches."""
    return host.utilisation or utilisation


def bus(host: Host) -> float:
    """Bytes/s between a card and the machine's memory; infinite where the memory is one and the same."""
    if host.card.is_unified:
        return float("inf")
    lanes = host.card.lanes if host.lanes is None else min(host.lanes, host.card.lanes)
    return BUS * lanes * LANE_BYTES[host.card.pcie]


def launching(layers: int, recompute: Recompute) -> Seconds:
    """Of the kernels of one micro-batch, forward and backward: what no card goes below."""
    again = FORWARD if recompute is Recompute.FULL else 0
    return Seconds(LAUNCH * (layers * (FORWARD + BACKWARD + again) + ENDS))


def computing(work: Work, host: Host, room: Room, tokens: float, utilisation: float) -> Seconds:
    """Of one step of `tokens` tokens on this host, with what crosses its bus."""
    passes = math.ceil(tokens / (room.micro * work.context))
    floor = passes * launching(work.model.layers, room.recompute)
    spent = max(floor, work.flop(tokens, room.recompute) / rate(host, utilisation))
    disk = host.cards * offload.moved(room.worst.footprint, passes).disk / offload.DISK
    return Seconds(spent + crossing(work, host, room.worst.footprint, passes) / bus(host) + disk)


def crossing(work: Work, host: Host, need: Footprint, passes: int) -> float:
    """Bytes over the bus of one card that needs so much, in a step of so many micro-batches."""
    return 3.0 * WIRE * work.parameters * (host.cards - 1) / host.cards + offload.moved(need, passes).bus


def fact(work: Work, host: Host, room: Room, tokens: float, utilisation: float) -> Fact:
    """The same, explained."""
    flop, found = work.flop(tokens, room.recompute), host.card.rate(Precision.BF16)
    cards = f"{host.cards} x " if host.cards > 1 else ""
    kind = "measured" if found.units is Units.WHOLE else f"{found.units} units"
    formula = (
        f"{format_count(flop)}FLOP / ({cards}{found.flops / 1e12:.4g} TFLOP/s x {share(host, utilisation):g})"
        f" on {host.card.name}, {kind}, with what crosses its bus"
    )
    spent = computing(work, host, room, tokens, utilisation)
    passes = math.ceil(tokens / (room.micro * work.context))
    moved = offload.moved(room.worst.footprint, passes)
    source = MFU
    if moved.bus:
        formula += (
            f": {format_bytes(moved.bus)} of what lies in its machine, {format_bytes(moved.disk)} of its disk"
        )
        source += f"; {offload.SOURCE}"
    floor = passes * launching(work.model.layers, room.recompute)
    if floor > flop / rate(host, utilisation):
        formula = (
            f"{passes} x {floor / passes / LAUNCH:.0f} kernels x {1e6 * LAUNCH:g} us; the card needs"
            f" {1e3 * flop / rate(host, utilisation):.2g} ms"
        )
        return Fact("compute of a step", format_short(spent), formula, FRAMEWORK)
    return Fact("compute of a step", format_short(spent), formula, source)
