"""Replicas of a model, whole or sharded: what a step moves for gradients, parameters and their shares (P1, T6).

M bytes of parameters, as many of gradients, n ranks, a micro-batches a step; each figure times (n - 1)/n:

    data parallel    2 M          one all-reduce at the end of the backward pass
    ZeRO 1 (Pos)     2 M          reduce-scatter of gradients, all-gather of parameters
    ZeRO 2 (Pos+g)   (a + 1) M    gradients are not kept whole, so each micro-batch reduces
    ZeRO 3, FSDP     3 a M        gathered forward, gathered backward, reduced
                     2 a M        parameters kept from forward to backward (reshard_after_forward = False)
                     (2 a + 1) M, (a + 1) M    gradients summed up whole on each rank first (no_sync)
    ZeRO++           0.5 + 0 + 0.25 M leave a node: gathered in 8 bits, a second copy in each node, gradients
                     in 4 bits, summed within nodes first

Sources: Li et al. 2020, section 3 (DDP); Rajbhandari et al. 2020, section 7 (ZeRO); Zhao et al. 2023, section 3.2
(FSDP); Wang et al. 2023, sections 3 and 4 (ZeRO++).

So full sharding is 1.5 times data parallel for every n: the "+50 %" holds, and "1/G" compares a ring with a naive
exchange. torch's gloo doubles each reduce-scatter, so FSDP over it is 4 M.
"""

from __future__ import annotations

import msgspec

from farflung.plan.parallel import bounds
from farflung.plan.parallel.collectives import (
    Algorithm,
    Backend,
    Span,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
    span,
)
from farflung.plan.parallel.terms import Phase, Term

DDP = "Li et al. 2020, section 3"
ZERO = "Rajbhandari et al. 2020, section 7"
FSDP = "Zhao et al. 2023, section 3.2"
PLUS = "Wang et al. 2023 (ZeRO++), sections 3 and 4"
SCALE_BYTES = 4.0  # of one block of quantised values


class Sharding(msgspec.Struct, frozen=True):
    """How replicas share. `stage`: of ZeRO, 0: not at all. `units`: modules that are gathered one after another."""

    stage: int = 0
    accumulation: int = 1
    reshard_after_forward: bool = True
    reduce_each: bool = True  # of stage 3: gradients of each micro-batch at once, not whole sums at the end
    units: int = 1
    algorithm: Algorithm = Algorithm.RING
    backend: Backend = Backend.IDEAL

    def __post_init__(self) -> None:
        bounds.count("stage", self.stage, least=0, most=3)
        bounds.count("accumulation", self.accumulation)
        bounds.count("units", self.units)
        bounds.word("algorithm", self.algorithm, Algorithm)
        bounds.word("backend", self.backend, Backend)


def replicated(size: float, group: Span, sharding: Sharding, groups: float = 1.0) -> tuple[Term, ...]:
    """A step of replicas of `size` bytes of parameters each, and as many of gradients. Raises FF-PLAN-020, -021."""
    if group.ranks == 1:
        return ()
    if sharding.stage == 0:
        moved = all_reduce(group, size, sharding.algorithm)
        return (moved.term("gradients", Phase.BACKWARD, DDP, groups=groups),)
    if sharding.stage == 3:
        return _gathered(size, group, sharding, groups)
    times = sharding.accumulation if sharding.stage == 2 else 1
    reduced = reduce_scatter(group, size, sharding.backend)
    return (
        reduced.term("gradients, to their owners", Phase.BACKWARD, ZERO, times, groups),
        all_gather(group, size).term("parameters, updated", Phase.UPDATE, ZERO, groups=groups),
    )


def _gathered(size: float, group: Span, sharding: Sharding, groups: float) -> tuple[Term, ...]:
    """ZeRO 3: units one after another, each with collectives of its own."""
    units, times = sharding.units, sharding.accumulation
    gathered = all_gather(group, size / units)
    reduced = reduce_scatter(group, size / units, sharding.backend)
    terms = [gathered.term("parameters, forward", Phase.FORWARD, FSDP, times * units, groups)]
    if sharding.reshard_after_forward:
        terms.append(gathered.term("parameters, again", Phase.BACKWARD, FSDP, times * units, groups))
    sums = times * units if sharding.reduce_each else units
    terms.append(reduced.term("gradients, to their owners", Phase.BACKWARD, FSDP, sums, groups))
    return tuple(terms)


class PlusPlus(msgspec.Struct, frozen=True):
    """ZeRO++: bits of gathered weights (qwZ) and of gradients (qgZ), values of one block, bytes of a plain value."""

    weight_bits: int = 8
    gradient_bits: int = 4
    block: int = 0  # 0: scales are left out, as in the paper's figures
    element: int = 2

    def __post_init__(self) -> None:
        bounds.count("weight_bits", self.weight_bits, most=32)
        bounds.count("gradient_bits", self.gradient_bits, most=32)
        bounds.count("block", self.block, least=0)
        bounds.count("element", self.element, most=8)

    def packed(self, parameters: float, bits: int) -> float:
        """Bytes of so many values in `bits` each, with their scales."""
        scales = SCALE_BYTES * parameters / self.block if self.block else 0.0
        return parameters * bits / 8 + scales


def plus_plus(
    parameters: float, nodes: int, node: int, method: PlusPlus | None = None, accumulation: int = 1
) -> tuple[Term, ...]:
    """A step of ZeRO++ on `nodes` nodes of `node` cards. `between` over nodes: what one node's line carries."""
    method = method or PlusPlus()
    bounds.amount("parameters", parameters)
    bounds.count("accumulation", accumulation)
    everybody, inside = span(nodes * node, 1, node), span(node, 1, node)
    across = Span(nodes)
    coded = method.packed(parameters, method.gradient_bits)
    weights = all_gather(everybody, method.packed(parameters, method.weight_bits))
    again = all_gather(inside, parameters * method.element)
    local, far = all_to_all(inside, coded), all_to_all(across, coded / node)
    return (
        weights.term("parameters, forward (qwZ)", Phase.FORWARD, PLUS, accumulation),
        again.term("parameters, from the node's copy (hpZ)", Phase.BACKWARD, PLUS, accumulation, nodes),
        local.term("gradients, within nodes (qgZ)", Phase.BACKWARD, PLUS, accumulation, nodes),
        far.term("gradients, between nodes (qgZ)", Phase.BACKWARD, PLUS, accumulation, node),
    )
