"""Computes how fast a host trains: its cards' bfloat16 rate, the part of it achieved, and its bus traffic (P3).

A card reaches a share of its dense rate, `utilisation`: 0.3 to 0.5 for transformers on data-centre cards (Narayanan et
al. 2021, table 1; Chowdhery et al. 2022, table 3). For a card of one's own a measured profile is better than either.
A step of a small model is as long as its kernels take to launch, however fast the card is (Fernandez et al. 2023, "The
Framework Tax"): 10 a layer forward and 20 backward, counted on the built-in model in eager PyTorch, the optimizer's not
among them.
Several cards of one host split the model (FSDP) and move 3 x 2 bytes a parameter over the bus, each step; what lies in
RAM or on disk is moved as advice/memory/offload says, behind nothing, and an optimizer there works at the pace of the
machine's memory. Muon's products go at the cards' rate, once a step: of a large model with small batches they are more
than all passes.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from farflung.advice.hardware.card import LANE_BYTES, ComputeUnits, FactorPrecision
from farflung.advice.job_work import WIRE, JobWork
from farflung.advice.layouts.memory_fit import MemoryFit
from farflung.advice.layouts.training_options import DerivedFact, precise
from farflung.advice.memory import offload
from farflung.advice.memory.breakdown import MemoryPlace
from farflung.advice.memory.offload import OffloadTraffic
from farflung.advice.offers.offer_file import OfferedHost
from farflung.core.units import Seconds, format_bytes, format_count
from farflung.plan.step_trace import Recomputation

UTILISATION: Final = 0.4
BUS: Final = 0.8  # of a bus, what transfers reach (assumed)
LAUNCH: Final = 5e-6  # seconds that eager PyTorch takes to launch a kernel, at least (assumed)
FORWARD: Final = 10  # kernels of one layer
BACKWARD: Final = 20
ENDS: Final = 16  # of embedding, head and loss, both ways
FRAMEWORK: Final = "counted on the built-in model; 5 us a kernel is assumed, after Fernandez et al. 2023"
MUON: Final = "5 iterations of 4 n^2 m + 2 n^3 a matrix: Jordan et al. 2024"
IN_RAM: Final = 32.0  # bytes a parameter: 4 of a gradient, 24 of weights, mean and square both ways, 4 of bfloat16
RAM_RATE: Final = 20e9  # bytes/s of a home computer's memory that an elementwise optimizer reaches (assumed)
RAM_SOURCE: Final = "bytes bound it: Ren et al. 2021 (ZeRO-Offload), section 4; 20 GB/s is assumed"
BUS_SOURCE: Final = "Zhao et al. 2023, section 3.2; Ren et al. 2021, section 4.1; 0.8 of the bus is assumed"
MFU: Final = "Narayanan et al. 2021, table 1: 44 to 52 % on A100; 0.4 is assumed"


def rate(host: OfferedHost, utilisation: float = UTILISATION) -> float:
    """FLOP/s of training, all cards of the host; `utilisation` where the host does not say its own."""
    return host.cards * host.card.rate(FactorPrecision.BF16).flops * share(host, utilisation)


def share(host: OfferedHost, utilisation: float) -> float:
    """Of its cards' rate, what training reaches, in the part of the time that its spare power lets them run."""
    return (host.utilisation or utilisation) * host.duty


def bus(host: OfferedHost) -> float:
    """Bytes/s between a card and the machine's memory; infinite where the memory is one and the same."""
    if host.card.is_unified:
        return float("inf")
    lanes = host.card.lanes if host.lanes is None else min(host.lanes, host.card.lanes)
    return BUS * lanes * LANE_BYTES[host.card.pcie]


def launching(layers: int, recompute: Recomputation) -> Seconds:
    """Of the kernels of one micro-batch, forward and backward: what no card goes below."""
    again = FORWARD if recompute is Recomputation.FULL else 0
    return Seconds(LAUNCH * (layers * (FORWARD + BACKWARD + again) + ENDS))


def crossing(work: JobWork, host: OfferedHost, fit: MemoryFit, tokens: float) -> float:
    """Bytes that cross the bus of one card in a step: shares of the model, and of what does not lie on the card."""
    moved = 3.0 * WIRE * work.parameters * (host.cards - 1) / host.cards
    return moved + _moved(work, fit, tokens).bus


def _moved(work: JobWork, fit: MemoryFit, tokens: float) -> OffloadTraffic:
    return offload.moved(fit.worst.footprint, math.ceil(tokens / (fit.micro * work.context)))


class StepTimes(NamedTuple):
    """Seconds of one step on a host: forward and backward, the optimizer, what crosses its bus, and its disk's."""

    passes: float
    optimizer: float
    moved: float
    disk: float
    floor: float  # of `passes`, what launching kernels takes at least

    @property
    def whole(self) -> Seconds:
        """All of it: each waits for the one before."""
        return Seconds(self.passes + self.optimizer + self.moved + self.disk)


def spent(
    work: JobWork, host: OfferedHost, fit: MemoryFit, tokens: float, utilisation: float, ways: int = 1
) -> StepTimes:
    """Of one step of `tokens` tokens; `ways`: hosts that share out the optimizer's work."""
    passes = math.ceil(tokens / (fit.micro * work.context))
    floor = passes * launching(work.model.layers, fit.recompute)
    reached = rate(host, utilisation)
    optimizer = work.optimizer_flop / ways / reached
    if fit.away.states.optimizer is not MemoryPlace.CARD:
        optimizer = IN_RAM * work.parameters / ways / RAM_RATE
    passed = max(floor, work.flop(tokens, fit.recompute) / reached)
    disk = host.cards * _moved(work, fit, tokens).disk / offload.DISK
    return StepTimes(passed, optimizer, crossing(work, host, fit, tokens) / bus(host), disk, floor)


def computing(
    work: JobWork, host: OfferedHost, fit: MemoryFit, tokens: float, utilisation: float, ways: int = 1
) -> Seconds:
    """Of one step of `tokens` tokens on this host, all in all."""
    return spent(work, host, fit, tokens, utilisation, ways).whole


def facts(
    work: JobWork, host: OfferedHost, fit: MemoryFit, tokens: float, utilisation: float, ways: int = 1
) -> tuple[DerivedFact, ...]:
    """The same, explained: the whole, and each part that there is."""
    found = spent(work, host, fit, tokens, utilisation, ways)
    parts = [part for part in (found.passes, found.optimizer, found.moved, found.disk) if part]
    whole = " + ".join(precise(part) for part in parts)
    said = [DerivedFact("compute of a step", precise(found.whole), f"{whole}; on {host.name}", "the lines below")]
    said.append(_passes(work, host, fit, tokens, utilisation, found))
    reached = told(host, utilisation)
    split = f" / {ways}" if ways > 1 else ""
    told_of = "; shared out among all hosts" if ways > 1 else ""
    if found.optimizer and fit.away.states.optimizer is not MemoryPlace.CARD:
        text = f"{IN_RAM:g} B x {format_count(work.parameters)}{split} / {RAM_RATE / 1e9:g} GB/s; its RAM{told_of}"
        said.append(DerivedFact("optimizer", precise(found.optimizer), text, RAM_SOURCE))
    elif found.optimizer:
        text = f"{format_count(work.optimizer_flop)}FLOP{split} / {reached}{told_of}"
        said.append(DerivedFact("optimizer", precise(found.optimizer), text, MUON))
    if found.moved:
        each = f"{crossing(work, host, fit, tokens) / work.parameters:.3g} B x {format_count(work.parameters)}"
        text = f"{each} / {bus(host) / 1e9:.3g} GB/s; its bus"
        said.append(DerivedFact("bus", precise(found.moved), text, BUS_SOURCE))
    if found.disk:
        each = format_bytes(found.disk * offload.DISK)
        text = f"{each} / {offload.DISK / 1e6:g} MB/s; its disk, read and written"
        said.append(DerivedFact("disk", precise(found.disk), text, offload.DISK_SOURCE))
    return tuple(said)


def _passes(
    work: JobWork, host: OfferedHost, fit: MemoryFit, tokens: float, utilisation: float, found: StepTimes
) -> DerivedFact:
    flop = work.flop(tokens, fit.recompute)
    if found.floor >= found.passes:
        passes = math.ceil(tokens / (fit.micro * work.context))
        formula = (
            f"{passes} x {found.floor / passes / LAUNCH:.0f} x {1e6 * LAUNCH:g} us; kernels of a pass; the card needs"
            f" {1e3 * flop / rate(host, utilisation):.2g} ms"
        )
        return DerivedFact("forward and backward", precise(found.passes), formula, FRAMEWORK)
    formula = f"{format_count(flop)}FLOP / {told(host, utilisation)}; on {host.card.name}, {_kind(host)}"
    source = f"{host.utilisation:g} is what its offer says" if host.utilisation else MFU
    return DerivedFact("forward and backward", precise(found.passes), formula, source)


def told(host: OfferedHost, utilisation: float) -> str:
    """A host's rate as a product: `(2 x 71.16 TFLOP/s x 0.4)`."""
    return f"({_cards(host)} x {share(host, utilisation):.3g})"


def _cards(host: OfferedHost) -> str:
    found = host.card.rate(FactorPrecision.BF16)
    return f"{f'{host.cards} x ' if host.cards > 1 else ''}{found.flops / 1e12:.4g} TFLOP/s"


def _kind(host: OfferedHost) -> str:
    found = host.card.rate(FactorPrecision.BF16)
    return "measured" if found.units is ComputeUnits.WHOLE else f"{found.units} units"
