"""Reproduces DeepSpeed's own estimators of model states, so that people who know those figures find them here.

They differ from ZeRO's tables: gradients count as float32 too (docs of DeepSpeed, "Memory Requirements"). P parameters,
N cards, of which G share one machine, M the largest layer's parameters:

    stage 2              card 4 P + 16 P/N           RAM 1.5 x 4 P G
    stage 2, optimizer   card 2 P                    RAM 1.5 x P max(4 G, 16)
    stage 3              card 4 M + 18 P/N           RAM 1.5 x 4 P G, or x 4 M G (zero_init)
    stage 3, optimizer   card 4 M + 2 P/N            RAM 1.5 x P max(4 G, 16 G/N), or x 16 P G/N (zero_init)
    stage 3, both        card 4 M                    the same with 18

`zero_init`: the model is split while it is built.
"""

from __future__ import annotations

from typing import Final

import msgspec

from farflung.advice.memory.breakdown import Footprint, MemoryPart, MemoryPlace
from farflung.advice.memory.model_states import ON_CARD, STAGING, OffloadConfig
from farflung.advice.traffic import input_checks
from farflung.core.units import format_count

DOCS: Final = "DeepSpeed documentation, memory requirements"


class DeepSpeedSetup(msgspec.Struct, frozen=True):
    """Machines with equal cards. Raises UsageError FF-PLAN-020."""

    local: int = 1  # cards of one machine
    machines: int = 1
    zero_init: bool = True

    def __post_init__(self) -> None:
        input_checks.count("local", self.local)
        input_checks.count("machines", self.machines)

    @property
    def cards(self) -> int:
        """All cards."""
        return self.local * self.machines


def stage2(size: float, setup: DeepSpeedSetup, optimizer: MemoryPlace = MemoryPlace.CARD) -> Footprint:
    """A card of ZeRO-2 by the estimator; RAM is that of the whole machine."""
    input_checks.amount("parameters", size)
    n, local = setup.cards, setup.local
    if optimizer is MemoryPlace.CARD:
        card, formula = 4 * size + 16 * size / n, f"4 P + 16 P/{n}, P = {format_count(size)}"
        ram, why = 4.0 * local * size, f"4 P x {local}"
    else:
        card, formula = 2.0 * size, f"2 P, P = {format_count(size)}"
        ram, why = size * max(4.0 * local, 16.0), f"P max(4 x {local}, 16)"
    return _made("ZeRO-2", (card, formula), (ram, why))


def stage3(size: float, largest: float, setup: DeepSpeedSetup, offload: OffloadConfig = ON_CARD) -> Footprint:
    """A card of ZeRO-3 by the estimator; RAM is that of the whole machine. Parameters move with the optimizer only."""
    input_checks.amount("parameters", size)
    input_checks.amount("largest", largest, most=size)
    n, local, share = setup.cards, setup.local, 1 / setup.machines
    layer = 4 * largest
    if offload.optimizer is MemoryPlace.CARD:
        card, formula = layer + 18 * size / n, f"4 x {format_count(largest)} + 18 P/{n}"
        held = largest if setup.zero_init else size
        return _made("ZeRO-3", (card, formula), (4.0 * held * local, f"4 x {format_count(held)} x {local}"))
    each = 16.0 if offload.parameters is MemoryPlace.CARD else 18.0
    rest = 2 * size / n if offload.parameters is MemoryPlace.CARD else 0.0
    moved = each * share if setup.zero_init else max(4.0 * local, each * share)
    formula = f"4 x {format_count(largest)}" + (f" + 2 P/{n}" if rest else "")
    return _made("ZeRO-3", (layer + rest, formula), (size * moved, f"{moved:.4g} P"))


def _made(label: str, card: tuple[float, str], ram: tuple[float, str]) -> Footprint:
    parts = (
        MemoryPart("model states", *card, DOCS),
        MemoryPart("model states, RAM", STAGING * ram[0], f"{STAGING} x {ram[1]}", DOCS, MemoryPlace.RAM),
    )
    return Footprint(label, parts)
