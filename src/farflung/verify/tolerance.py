"""Computes how far honest work may lie apart: a job's own limits, from its own profile run.

    tau = max(32 x largest honest distance, 4 x 10^-4), up to the next power of two (4 x where products are narrow)

Distances are relative, tensor by tensor: of weights to the segment's own change, of the optimizer's vectors to
themselves (train.segments.distances). In the plain norm of all parameters, those with
mathematically no gradient (a key's bias under softmax) drown the rest, because AdamW scales their rounding noise to
full steps. Such tensors are marked as noise, and no verdict looks at them. Measured in float32 between classes of
processors: honest work lies within 10^-5, the smallest cheat that saves anything beyond 3 x 10^-3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from farflung.core.errors import PolicyError
from farflung.job.spec import Tolerance

MARGIN: Final = 32.0  # between the largest honest distance that was measured and the limit
# The same where products are in 16 bits: honest work lies some thousandths apart there, and 8-bit weights 20 to 30
# times as far. With 32 no audit would see them, and every such job were refused.
NARROW_MARGIN: Final = 4.0
FLOOR: Final = 4e-4
NOISE: Final = 1e-2  # a tensor whose honest distance is larger tells nothing
UNIT_BITS: Final = 30


def margin_of(bits: int) -> float:
    """The margin of a job whose products have so many bits (spec.numerics)."""
    return MARGIN if bits == 32 else NARROW_MARGIN


def limit_of(noise: float, margin: float = MARGIN) -> int:
    """The limit of a tensor with this honest distance, in units of 2^-30; 0 for a noise tensor."""
    if not noise <= NOISE:
        return 0
    fraction, exponent = math.frexp(max(margin * noise, FLOOR))
    return 1 << (UNIT_BITS + exponent - (fraction == 0.5))


def tolerance_of(noise: Iterable[tuple[str, Sequence[float]]], bits: int = 32) -> Tolerance:
    """Limits from `ProfileResult.noise`: of each vector, the largest honest distance of each tensor. `bits`: those of
    products.

    Raises PolicyError FF-VERI-050 when one vector is nothing but noise: work in it cannot be told from no work.
    """
    measured = [(name, tuple(values)) for name, values in noise]
    limits = tuple((name, tuple(limit_of(value, margin_of(bits)) for value in values)) for name, values in measured)
    for (name, values), (_, found) in zip(measured, limits, strict=True):
        if not any(found):
            least = min(values, default=math.inf)
            raise PolicyError(
                "FF-VERI-050",
                f"the work on this model cannot be audited: honest {name} differ too much",
                cause=f"the steadiest tensor differs by {least:.2g} of its change, {NOISE:g} is the limit",
                hint="lower optimizer.lr, use shorter segments (more audit.segments), or remove what is random",
            )
    return Tolerance(limits)
