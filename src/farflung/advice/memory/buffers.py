"""Computes memory beside states and activations: buffers, gathered units, runtime, fragmentation (P2, T6).

    data parallel   a copy of the gradients, unless they are views of the buckets      Li et al. 2020, section 4.2
    Pos, Pos+g      two buffers of constant size, so that small sends travel together   ZeRO, section 6.2
    Pos+g+p, FSDP   the unit at work and the next one, whole, and one unit's gradients  Zhao et al. 2023, section 3.2
    runtime         the context of a driver and its libraries, 1 to 2 GB                Tazi et al. 2025
    idle            a share of what is allocated and freed out of order                 ZeRO, section 6.3

A resident region holds what lives long (states, inputs of recomputed layers) from the first step on, so that nothing
short-lived lies between: only the rest leaves gaps. ZeRO's authors saw allocation fail with over 30 % of the memory
free; the default share is an assumption for PyTorch's caching allocator, and `fragmentation` is there to be set to
what a machine shows (reserved less allocated bytes). Neither it nor `runtime` was measured here, where there is no
accelerator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from farflung.advice.memory.breakdown import MemoryPart, MemoryPlace
from farflung.advice.memory.model_states import StateRecipe, ZeroSplit
from farflung.advice.traffic import input_checks
from farflung.core.units import format_count

BUCKET: Final = 5e8  # elements, DeepSpeed's reduce_bucket_size and allgather_bucket_size
DDP: Final = "Li et al. 2020 (DDP), section 4.2; PyTorch: gradient_as_bucket_view"
CONSTANT: Final = "Rajbhandari et al. 2020 (ZeRO), section 6.2"
REGION: Final = "Rajbhandari et al. 2020 (ZeRO), section 6.3; the share is assumed"
FSDP: Final = "Zhao et al. 2023 (FSDP), section 3.2"
RUNTIME: Final = "Tazi et al. 2025 (Ultra-scale playbook): 1 to 2 GB"


class MemoryMargins(msgspec.Struct, frozen=True):
    """What is kept free or filled beside the model. Raises UsageError FF-PLAN-021.

    `bucket` is in elements. `ahead`: units that are gathered before they are needed.
    """

    runtime: float = 1e9
    fragmentation: float = 0.05
    is_resident: bool = False
    bucket: float = BUCKET
    is_view: bool = True  # DDP's gradients are views of its buckets
    ahead: int = 1

    def __post_init__(self) -> None:
        input_checks.amount("runtime", self.runtime)
        input_checks.amount("fragmentation", self.fragmentation, most=1.0)
        input_checks.amount("bucket", self.bucket)
        input_checks.count("ahead", self.ahead, least=0, most=1 << 16)


DEFAULTS: Final = MemoryMargins()


def sending(
    size: float, unit: float, recipe: StateRecipe, split: ZeroSplit, margins: MemoryMargins
) -> tuple[MemoryPart, ...]:
    """Buffers of one card that holds `size` parameters, the largest gathered unit of which has `unit`."""
    if split.ways == 1 and split.stage < 3:
        return ()
    if split.stage == 0:
        if margins.is_view:
            return ()
        copy = size * recipe.gradients
        return (MemoryPart("buckets", copy, f"{recipe.gradients:.4g} B x {format_count(size)}", DDP),)
    if split.stage < 3:
        held = min(margins.bucket, size)
        text = f"2 x min({format_count(margins.bucket)}, {format_count(size)}) x {recipe.weights:.4g} B"
        return (MemoryPart("fused buffers", 2 * held * recipe.weights, text, CONSTANT),)
    gathered = (1 + margins.ahead) * unit * recipe.weights
    text = f"{1 + margins.ahead} x {recipe.weights:.4g} B x {format_count(unit)}"
    grads = f"{recipe.gradients:.4g} B x {format_count(unit)}"
    return (
        MemoryPart("gathered units", gathered, text, FSDP),
        MemoryPart("gradients of a unit", unit * recipe.gradients, grads, FSDP),
    )


def beside(
    lasting: Sequence[MemoryPart], passing: Sequence[MemoryPart], margins: MemoryMargins
) -> tuple[MemoryPart, ...]:
    """The runtime, and what lies idle on the card; `lasting` parts leave no gaps where there is a resident region."""
    counted = [*passing] if margins.is_resident else [*lasting, *passing]
    live = sum(part.bytes for part in counted if part.place is MemoryPlace.CARD)
    share = margins.fragmentation
    what = "outside the resident region" if margins.is_resident else "of all that is allocated"
    idle = MemoryPart("fragments", share * live, f"{share:.2g} {what}", REGION)
    return (MemoryPart("runtime", margins.runtime, "a constant", RUNTIME), idle)
