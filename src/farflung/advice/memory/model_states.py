"""Computes bytes of weights, gradients and optimizer on one card, and what is offloaded to RAM or disk (P2, T6).

Mixed precision with Adam keeps 2 + 2 + K bytes a parameter, K = 12: a copy of the weights, mean and variance in
float32 (Rajbhandari et al. 2020, section 3.1). With n ways and stages of ZeRO (section 5):

    0  data parallel    (2 + 2 + K) P
    1  Pos              (2 + 2 + K/n) P
    2  Pos+g            (2 + (2 + K)/n) P
    3  Pos+g+p          (2 + 2 + K) P / n

Gradients that are summed in float32 over micro-batches add 4 P, split where gradients are. DiLoCo's outer step keeps
the weights of the last round and their momentum in float32, 8 P (Douillard et al. 2023, algorithm 1), which nobody
splits.

Where the optimizer is moved to RAM, its gradients go with it, in float32 beside float32 weights: 4 + K = 16 bytes a
parameter, 18 with the parameters themselves (ZeRO-Offload, Ren et al. 2021, section 4; DeepSpeed's documentation).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import msgspec

from farflung.advice.memory.breakdown import MemoryPart, MemoryPlace, chosen
from farflung.advice.traffic import input_checks
from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.units import format_count

ZERO: Final = "Rajbhandari et al. 2020 (ZeRO), section 3.1"
SPLIT: Final = "Rajbhandari et al. 2020 (ZeRO), section 5"
MOVED: Final = "Ren et al. 2021 (ZeRO-Offload), section 4"
INFINITY: Final = "Rajbhandari et al. 2021 (ZeRO-Infinity), sections 5 and 6"
DILOCO: Final = "Douillard et al. 2023 (DiLoCo), algorithm 1"
OUTER: Final = f"{DILOCO}; of other methods a residual or an offset: plan/state_vectors"
SUMMED: Final = "Tazi et al. 2025 (Ultra-scale playbook), memory usage"
STAGING: Final = 1.5  # DeepSpeed's additional_buffer_factor: RAM beyond what is moved there
MOVED_GRADIENTS: Final = 4.0  # bytes of a gradient outside the card
WINDOWS: Final = 4  # of the largest tensor, in RAM, while states stream from disk (DeepSpeed's buffer_count)
MOST_BYTES: Final = 64.0  # a parameter


class StateRecipe(msgspec.Struct, frozen=True):
    """Bytes a parameter. `optimizer` is K: all that one step reads and writes beside weights and gradients; `source` is
    its own, the others' are the same for all. Raises UsageError FF-PLAN-021.
    """

    weights: float = 2.0
    gradients: float = 2.0
    optimizer: float = 12.0
    summed: float = 0.0  # gradients of all micro-batches, beside those of one
    outer: float = 0.0  # of a method with rounds
    source: str = ZERO

    def __post_init__(self) -> None:
        for name in ("weights", "gradients", "optimizer", "summed", "outer"):
            input_checks.amount(name, getattr(self, name), most=MOST_BYTES)

    @property
    def whole(self) -> float:
        """Bytes a parameter where nothing is split."""
        return self.weights + self.gradients + self.optimizer + self.summed + self.outer


EIGHT_BIT: Final = "Dettmers et al. 2022 (8-bit optimizers), section 2"
MUON: Final = "Jordan et al. 2024 (Muon): one momentum"
SINGLE: Final = "Kingma & Ba 2015, algorithm 1, all in float32"

RECIPES: Final = MappingProxyType(
    {
        "adam-mixed": StateRecipe(),
        "adam-mixed-summed": StateRecipe(summed=4.0),
        "adam-single": StateRecipe(4.0, 4.0, 8.0, source=SINGLE),
        # mean and variance in one byte each, a float32 scale a block of 2048, and float32 weights
        "adam-8bit": StateRecipe(2.0, 2.0, 4.0 + 2 * (1.0 + 4 / 2048), source=EIGHT_BIT),
        "sgd-mixed": StateRecipe(2.0, 2.0, 8.0, source="Micikevicius et al. 2018, section 3.1; one momentum"),
        "sgd-single": StateRecipe(4.0, 4.0, 4.0, source="Sutskever et al. 2013, equation 1, all in float32"),
        "muon-mixed": StateRecipe(2.0, 2.0, 8.0, source=MUON),
        "diloco": StateRecipe(4.0, 4.0, 8.0, outer=8.0, source=SINGLE),
    }
)


class OffloadConfig(msgspec.Struct, frozen=True):
    """Where parameters (stage 3 only) and the optimizer with its gradients lie when no kernel reads them.

    Raises UsageError FF-PLAN-059.
    """

    optimizer: MemoryPlace = MemoryPlace.CARD
    parameters: MemoryPlace = MemoryPlace.CARD

    def __post_init__(self) -> None:
        chosen("optimizer", self.optimizer, MemoryPlace)
        chosen("parameters", self.parameters, MemoryPlace)


ON_CARD: Final = OffloadConfig()


class ZeroSplit(msgspec.Struct, frozen=True):
    """ZeRO `stage` over `ways` cards, and what of it lies outside them.

    Raises UsageError FF-PLAN-020, FF-PLAN-050.
    """

    stage: int = 0
    ways: int = 1
    offload: OffloadConfig = ON_CARD

    def __post_init__(self) -> None:
        input_checks.count("stage", self.stage, least=0, most=3)
        input_checks.count("ways", self.ways)
        if self.offload.parameters is not MemoryPlace.CARD and self.stage < 3:
            raise UsageError(
                "FF-PLAN-050",
                f"parameters cannot be moved to {self.offload.parameters} at ZeRO stage {self.stage}",
                cause="they are on the card, whole, all the time; stage 3 gathers them for each layer",
                hint="set stage = 3, or leave parameters on the card",
            )

    def share(self, from_stage: int) -> float:
        """Of what is split from that stage on, one card's share."""
        return 1.0 / self.ways if self.stage >= from_stage else 1.0


ADAM: Final = RECIPES["adam-mixed"]
WHOLE: Final = ZeroSplit()


def named(recipe: str) -> StateRecipe:
    """A recipe of RECIPES by its name; raises UsageError FF-PLAN-051."""
    if recipe not in RECIPES:
        raise UsageError(
            "FF-PLAN-051",
            f"no recipe is called {recipe[:40]!r}",
            cause="it says how many bytes a parameter takes",
            hint=f"one of {', '.join(RECIPES)}",
        )
    return RECIPES[recipe]


def states(
    size: float, recipe: StateRecipe = ADAM, split: ZeroSplit = WHOLE, largest: float = 0.0
) -> tuple[MemoryPart, ...]:
    """One card's model states for `size` parameters. `largest`: elements of the largest tensor, for windows.

    Raises UsageError FF-PLAN-021.
    """
    input_checks.amount("parameters", size, most=limits.ELEMENTS * 1e6)
    input_checks.amount("largest", largest, most=max(size, 0.0))
    at = split.offload.optimizer
    is_here = at is MemoryPlace.CARD
    gradients = (recipe.gradients, ZERO) if is_here else (MOVED_GRADIENTS, MOVED)
    rows = (
        ("weights", recipe.weights, ZERO, 3, split.offload.parameters),
        ("gradients", *gradients, 2, at),
        ("summed gradients", recipe.summed if is_here else 0.0, SUMMED, 2, at),
        ("optimizer", recipe.optimizer, recipe.source, 1, at),
        ("outer state", recipe.outer, OUTER, 4, at),
    )
    found: list[MemoryPart] = []
    for name, each, source, stage, place in rows:
        if each:
            found += _placed(_part(name, size, each, split, stage, source), place, largest * each)
    return tuple(found)


def _part(name: str, size: float, each: float, split: ZeroSplit, stage: int, source: str) -> MemoryPart:
    share = split.share(stage)
    over, also = (f" / {split.ways}", f"; {SPLIT}") if share < 1 else ("", "")
    return MemoryPart(name, size * each * share, f"{each:.4g} B x {format_count(size)}{over}", source + also)


def _placed(part: MemoryPart, place: MemoryPlace, window: float) -> tuple[MemoryPart, ...]:
    """The part where it lies, and what RAM needs beside it."""
    if place is MemoryPlace.CARD or not part.bytes:
        return (part,)
    lies = "in RAM" if place is MemoryPlace.RAM else "on disk"
    part = msgspec.structs.replace(part, place=place, formula=f"{part.formula}; {lies}")
    if place is MemoryPlace.RAM:
        staged = MemoryPart(
            f"{part.name}, staging",
            (STAGING - 1) * part.bytes,
            f"{STAGING - 1:.2g} x {part.formula}",
            "DeepSpeed 0.17, memory requirements: additional_buffer_factor 1.5",
            MemoryPlace.RAM,
        )
        return (part, staged)
    size = min(part.bytes, WINDOWS * window) if window else part.bytes
    formula = f"{WINDOWS} windows of the largest tensor" if window else "as much as is on disk"
    windows = MemoryPart(f"{part.name}, windows", size, formula, INFINITY, MemoryPlace.RAM)
    return (part, windows)
