"""Computes the states of a frozen model with small trained matrices: LoRA, and QLoRA's 4-bit weights (P2).

An adapter of rank r beside an n x m matrix has r (n + m) parameters (Hu et al. 2022, section 4.1). The frozen weights
have no gradient and no optimizer: what is left of them is `frozen` bytes each, and what flows through. QLoRA keeps
4 bits a weight and, for each block of 64, an absmax that is itself in 8 bits with a float32 for 256 of them:
0.127 bits (Dettmers et al. 2023, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from farflung.advice.memory.breakdown import MemoryPart
from farflung.advice.memory.model_states import ADAM, WHOLE, StateRecipe, ZeroSplit, states
from farflung.advice.traffic import input_checks
from farflung.core.units import format_count

LORA: Final = "Hu et al. 2022 (LoRA), section 4"
QLORA: Final = "Dettmers et al. 2023 (QLoRA), section 3"
BLOCK: Final = 64
SECOND: Final = 256  # blocks whose absmax share one float32
NF4: Final = (4 + 8 / BLOCK + 32 / (BLOCK * SECOND)) / 8  # bytes a weight
NF4_PLAIN: Final = (4 + 32 / BLOCK) / 8  # with a float32 absmax a block


def adapter_size(sides: Sequence[tuple[int, int]], rank: int) -> int:
    """Trained parameters for matrices of these two sides each; raises UsageError FF-PLAN-020."""
    input_checks.count("rank", rank, most=1 << 20)
    for n, m in sides:
        input_checks.count("side", n, most=1 << 32)
        input_checks.count("side", m, most=1 << 32)
    return rank * sum(n + m for n, m in sides)


def adapted(
    size: float, trained: float, frozen: float = 2.0, recipe: StateRecipe = ADAM, split: ZeroSplit = WHOLE
) -> tuple[MemoryPart, ...]:
    """One card's states: `size` frozen parameters of `frozen` bytes each, and `trained` ones by the recipe."""
    input_checks.amount("frozen", frozen, most=8.0)
    share = split.share(3)
    over = f" / {split.ways}" if share < 1 else ""
    formula = f"{frozen:.4g} B x {format_count(input_checks.amount('parameters', size))}{over}"
    base = MemoryPart("frozen weights", size * frozen * share, formula, QLORA if frozen < 1 else LORA)
    return (base, *states(trained, recipe, split))
