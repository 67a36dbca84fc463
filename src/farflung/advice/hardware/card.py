"""Describes a card by its maker's figures, the rate of each precision, and the source of each figure (P3).

Rates are dense, never those of structured sparsity, and products are summed in float32, as training does: GeForce
cards run half as fast so as their data sheets' boldest figure. Tensor (matrix) and shader (vector) rates stand apart,
because a card without matrix units has only the second. What is not known is None; zero says that there is none.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from farflung.advice.hardware.card_profile import CardProfile
from farflung.core.units import Bytes

TERA: Final = 1e12
GIGA: Final = 10**9
SAME_RATE: Final = 0.03  # by which a stated FP32 rate may differ from shaders x clock: makers round both
SAME_BANDWIDTH: Final = 0.02
# Bytes/s that one lane carries each way: 2.5, 5, 8, 16, 32 and 64 GT/s; 8b/10b, from the third generation 128b/130b, in
# the sixth 242 of 256 bytes of a flit (PCI Express Base Specification, 1.0 to 6.0).
LANE_BYTES: Final = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}


class FactorPrecision(StrEnum):
    """Of a product's factors; sums are float32."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"


class ComputeUnits(StrEnum):
    """What computes at a rate."""

    MATRIX = "matrix"
    VECTOR = "vector"
    WHOLE = "whole"  # measured: what the card does with the product that it is given


class FigureOrigin(StrEnum):
    """Where a figure is from."""

    TABLE = "table"  # the source that the card's row names
    DERIVED = "derived"  # computed: units x clock x operations a clock, or from another rate of the same source
    MEASURED = "measured"  # on the user's own machine


class MakerSupport(StrEnum):
    """Whether the maker's own libraries run on a card."""

    YES = "yes"
    UNOFFICIAL = "unofficial"  # works where somebody builds or overrides; the maker does not list the card
    NO = "no"


class CardRate(NamedTuple):
    """FLOP/s, the units that reach it, and where that is from."""

    flops: float
    units: ComputeUnits
    origin: FigureOrigin


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table, in FLOP/s, bytes, bytes/s, W, Hz and bits; None: not known, 0: there is none.

    Makers' GB of memory, which are 2^30, count as 10^9: the 7 % between are about what driver and context take.
    `watts` is the whole board's limit, of an Apple chip the whole computer's at the wall. `per_clock`: float32
    operations of one shader in a clock. `capability`: CUDA's. `derived` names fields, `also` other names.
    """

    name: str
    also: tuple[str, ...]
    maker: str
    family: str
    kind: str
    year: int
    memory_bytes: Bytes
    bandwidth: float
    bus_bits: int
    data_rate: float  # bit/s of one pin
    shaders: int
    boost: float
    per_clock: int
    vector_fp32: float
    vector_fp16: float
    matrix_fp16: float | None
    matrix_bf16: float | None
    matrix_fp32: float | None
    watts: float | None
    pcie: int  # generation; 0: the memory is the processor's own
    lanes: int
    capability: tuple[int, int] | None
    rocm: MakerSupport | None
    has_mps: bool
    has_xpu: bool
    has_bf16: bool | None
    derived: frozenset[str]
    source: str
    measured: CardProfile | None = None

    @property
    def is_unified(self) -> bool:
        """Whether the card computes in the processor's memory, so that nothing passes a bus."""
        return self.lanes == 0

    @property
    def link(self) -> float:
        """Bytes/s each way between the card and the machine's memory, by the card's own connector; 0: none."""
        return self.lanes * LANE_BYTES[self.pcie] if self.lanes else 0.0

    @property
    def support(self) -> MakerSupport:
        """Whether its maker's own libraries run on it; what was measured on one shows that something does."""
        if self.capability or self.rocm is MakerSupport.YES or self.has_mps or self.has_xpu or self.measured:
            return MakerSupport.YES
        return self.rocm or MakerSupport.NO

    def recomputed(self) -> tuple[float, float]:
        """FP32 FLOP/s = per_clock x shaders x boost, and bytes/s = bus x data rate / 8."""
        return self.per_clock * self.shaders * self.boost, self.bus_bits * self.data_rate / 8

    def origin(self, field: str) -> FigureOrigin:
        """Where a field of the table is from."""
        return FigureOrigin.DERIVED if field in self.derived else FigureOrigin.TABLE

    def rate(self, precision: FactorPrecision) -> CardRate:
        """The best dense rate: what was measured, else the matrix units', else the shaders'.

        Matrix units that are not known are not counted, so the answer may be too low and is never too high.
        Without bfloat16 in hardware it is computed as float32: at that rate.
        """
        own = self.measured.rate(precision.value) if self.measured else None
        if own is not None:
            return CardRate(own, ComputeUnits.WHOLE, FigureOrigin.MEASURED)
        found: list[CardRate] = []
        for field, units in _FIELDS[precision]:
            flops = getattr(self, field)
            if flops:
                found.append(CardRate(flops, units, self.origin(field)))
        return max(found)

    @property
    def memory(self) -> tuple[Bytes, FigureOrigin]:
        """Bytes of its own memory."""
        own = self.measured.memory_bytes if self.measured else None
        return (self.memory_bytes, self.origin("memory_gb")) if own is None else (own, FigureOrigin.MEASURED)

    @property
    def speed(self) -> tuple[float, FigureOrigin]:
        """Bytes/s between the card and its own memory."""
        own = self.measured.bandwidth if self.measured else None
        return (self.bandwidth, self.origin("bandwidth")) if own is None else (own, FigureOrigin.MEASURED)

    @property
    def power(self) -> tuple[float | None, FigureOrigin]:
        """W at full work; None: not known."""
        own = self.measured.watts if self.measured else None
        return (self.watts, self.origin("watts")) if own is None else (own, FigureOrigin.MEASURED)


_FIELDS: Final = {
    FactorPrecision.FP32: (("matrix_fp32", ComputeUnits.MATRIX), ("vector_fp32", ComputeUnits.VECTOR)),
    FactorPrecision.FP16: (
        ("matrix_fp16", ComputeUnits.MATRIX),
        ("vector_fp16", ComputeUnits.VECTOR),
        ("vector_fp32", ComputeUnits.VECTOR),
    ),
    FactorPrecision.BF16: (("matrix_bf16", ComputeUnits.MATRIX), ("vector_fp32", ComputeUnits.VECTOR)),
}


def with_profile(card: Card, profile: CardProfile) -> Card:
    """The same card with what its user measured: each figure of the profile stands before the table's."""
    return msgspec.structs.replace(card, measured=profile)


def software(card: Card) -> str:
    """What may run on the card: `CUDA 8.6`, `ROCm unofficial`, `MPS`, `XPU`, or `none`.

    CUDA 13 begins at capability 7.5, and PyTorch's own builds leave older cards behind with it (2.15).
    """
    if card.capability:
        late = "" if card.capability >= (7, 5) else ", PyTorch before 2.15"
        return f"CUDA {card.capability[0]}.{card.capability[1]}{late}"
    if card.rocm in (MakerSupport.YES, MakerSupport.UNOFFICIAL):
        return "ROCm" if card.rocm is MakerSupport.YES else "ROCm unofficial"
    return "MPS" if card.has_mps else "XPU" if card.has_xpu else "none"
