"""Computes what replicas of a model, whole or sharded, send in a step for gradients, parameters and shards (P1,
T6).

M bytes of parameters, as many of gradients, n ranks, a micro-batches a step; each figure times (n - 1)/n:

    data parallel    2 M          one all-reduce at the end of the backward pass
    ZeRO 1 (Pos)     2 M          reduce-scatter of gradients, all-gather of parameters
    ZeRO 2 (Pos+g)   (a + 1) M    gradients are not kept whole, so each micro-batch reduces
    ZeRO 3, FSDP     3 a M        gathered forward, gathered backward, reduced
                     2 a M        parameters kept from forward to backward (reshard_after_forward = False)
                     (2 a + 1) M, (a + 1) M    gradients summed up whole on each rank first (no_sync)
    ZeRO++           0.5 + 0 + 0.25 M leave a node: gathered in 8 bits (qwZ), a second copy in each node (hpZ), of
                     which a rank keeps M over the ranks of that node, gradients in 4 bits, summed within nodes
                     first (qgZ)

Sources: Li et al. 2020, section 3 (DDP); Rajbhandari et al. 2020, section 7 (ZeRO); Zhao et al. 2023, section 3.2
(FSDP); Wang et al. 2023, sections 3 and 4 (ZeRO++).

So full sharding is 1.5 times data parallel for every n: the "+50 %" holds, and "1/G" compares a ring with a naive
exchange. torch's gloo doubles each reduce-scatter, so FSDP over it is 4 M.
"""

from __future__ import annotations

from typing import Final

import msgspec

from farflung.advice.traffic import input_checks
from farflung.advice.traffic.collectives import (
    AllReduceAlgorithm,
    CollectiveBackend,
    RankSpan,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
)
from farflung.advice.traffic.traffic_terms import RetainedBytes, RetentionPlace, TrafficPhase, TrafficTerm, told
from farflung.core.errors import UsageError

DDP = "Li et al. 2020, section 3"
ZERO = "Rajbhandari et al. 2020, section 7"
FSDP = "Zhao et al. 2023, section 3.2"
PLUS = "Wang et al. 2023 (ZeRO++), sections 3 and 4"
SCALE_BYTES = 4.0  # of one block of quantised values


class ZeroPlusPlus(msgspec.Struct, frozen=True):
    """ZeRO++: bits of gathered weights (qwZ) and of gradients (qgZ), 0: as they are; a copy in each node (hpZ).

    `block`: values that share a scale, 0: scales are left out, as in the paper's figures; `element`: bytes of a plain
    value. Raises UsageError FF-PLAN-020.
    """

    weight_bits: int = 8
    gradient_bits: int = 4
    is_copied: bool = True
    block: int = 0
    element: int = 2

    def __post_init__(self) -> None:
        input_checks.count("weight_bits", self.weight_bits, least=0, most=32)
        input_checks.count("gradient_bits", self.gradient_bits, least=0, most=32)
        input_checks.count("block", self.block, least=0)
        input_checks.count("element", self.element, most=8)

    def packed(self, size: float, bits: int) -> float:
        """Bytes of what are `size` plain ones, in `bits` bits a value with their scales. Raises FF-PLAN-020, -021."""
        input_checks.amount("size", size)
        if not input_checks.count("bits", bits, least=0, most=32):
            return size
        scale = SCALE_BYTES / self.block if self.block else 0.0
        return size / self.element * (bits / 8 + scale)


_PLAIN: Final = ZeroPlusPlus(weight_bits=0, gradient_bits=0, is_copied=False)


class ReplicaSharding(msgspec.Struct, frozen=True):
    """How replicas share. `stage`: of ZeRO, 0: not at all. `units`: modules that are gathered one after another.

    Raises UsageError FF-PLAN-020 (`plus` at another stage than 3 as well), FF-PLAN-026.
    """

    stage: int = 0
    accumulation: int = 1
    reshard_after_forward: bool = True
    reduce_each: bool = True  # of stage 3: gradients of each micro-batch at once, not whole sums at the end
    units: int = 1
    algorithm: AllReduceAlgorithm = AllReduceAlgorithm.RING
    backend: CollectiveBackend = CollectiveBackend.IDEAL
    plus: ZeroPlusPlus | None = None  # of stage 3

    def __post_init__(self) -> None:
        input_checks.count("stage", self.stage, least=3 if self.plus else 0, most=3)
        input_checks.count("accumulation", self.accumulation)
        input_checks.count("units", self.units)
        input_checks.word("algorithm", self.algorithm, AllReduceAlgorithm)
        input_checks.word("backend", self.backend, CollectiveBackend)


def replicated(size: float, group: RankSpan, sharding: ReplicaSharding, groups: float = 1.0) -> tuple[TrafficTerm, ...]:
    """A step of replicas of `size` bytes of parameters each, and as many of gradients.

    Raises UsageError FF-PLAN-020, FF-PLAN-021, FF-PLAN-028 (ZeRO++ on nodes that are not filled alike).
    """
    if group.ranks == 1:
        return ()
    if sharding.stage == 0:
        moved = all_reduce(group, size, sharding.algorithm)
        return (moved.term("gradients", TrafficPhase.BACKWARD, DDP, groups=groups),)
    if sharding.stage == 3:
        return _gathered(size, group, sharding, groups)
    times = sharding.accumulation if sharding.stage == 2 else 1
    reduced = reduce_scatter(group, size, sharding.backend)
    return (
        reduced.term("gradients, to their owners", TrafficPhase.BACKWARD, ZERO, times, groups),
        all_gather(group, size).term("parameters, updated", TrafficPhase.UPDATE, ZERO, groups=groups),
    )


def _gathered(size: float, group: RankSpan, sharding: ReplicaSharding, groups: float) -> tuple[TrafficTerm, ...]:
    """ZeRO 3: units one after another, each with collectives of its own; what ZeRO++ leaves as it is goes alike."""
    times = sharding.accumulation * sharding.units
    unit, plus = size / sharding.units, sharding.plus or _PLAIN
    weights, source = (all_gather(group, plus.packed(unit, plus.weight_bits)), PLUS if plus.weight_bits else FSDP)
    how = " (qwZ)" if plus.weight_bits else ""
    terms = [weights.term(f"parameters, forward{how}", TrafficPhase.FORWARD, source, times, groups)]
    if sharding.reshard_after_forward and plus.is_copied:
        inside, nodes = _inside(group)
        again, name = all_gather(inside, unit), "parameters, from the node's copy (hpZ)"
        terms.append(again.term(name, TrafficPhase.BACKWARD, PLUS, times, groups * nodes))
    elif sharding.reshard_after_forward:
        terms.append(weights.term(f"parameters, again{how}", TrafficPhase.BACKWARD, source, times, groups))
    sums = times if sharding.reduce_each else sharding.units
    if plus.gradient_bits:
        terms += _summed(plus.packed(unit, plus.gradient_bits), group, sums, groups)
    else:
        reduced = reduce_scatter(group, unit, sharding.backend)
        terms.append(reduced.term("gradients, to their owners", TrafficPhase.BACKWARD, FSDP, sums, groups))
    return tuple(terms)


def _summed(coded: float, group: RankSpan, sums: int, groups: float) -> tuple[TrafficTerm, ...]:
    """qgZ: all to all within nodes, and what came of it between them."""
    inside, nodes = _inside(group)
    near, far = all_to_all(inside, coded), all_to_all(RankSpan(nodes), coded / inside.ranks)
    return (
        near.term("gradients, within nodes (qgZ)", TrafficPhase.BACKWARD, PLUS, sums, groups * nodes),
        far.term("gradients, between nodes (qgZ)", TrafficPhase.BACKWARD, PLUS, sums, groups * inside.ranks),
    )


def copied(size: float, group: RankSpan, sharding: ReplicaSharding) -> tuple[RetainedBytes, ...]:
    """The second copy of `size` bytes of parameters that hpZ keeps in each node. Raises FF-PLAN-021, FF-PLAN-028."""
    input_checks.amount("size", size)
    plus = sharding.plus
    if group.ranks == 1 or plus is None or not (plus.is_copied and sharding.reshard_after_forward):
        return ()
    local = _inside(group)[0].ranks
    text = f"M / {local} ranks of a node: M = {told(size)}"
    return (RetainedBytes("parameters, the node's copy (hpZ)", size / local, RetentionPlace.CARD, text, PLUS),)


def _inside(group: RankSpan) -> tuple[RankSpan, int]:
    """The group's ranks in one node, and how many nodes it lies over."""
    if group.local:
        return RankSpan(group.local, 0.0, 0.0, group.local), group.ranks // group.local
    raise UsageError(
        "FF-PLAN-028",
        f"ZeRO++ cannot share {group.ranks} ranks out among nodes",
        cause="some nodes have more of them than others, and each keeps a copy and sums of its own",
        hint="choose data x context so that it fills nodes alike, or take plus without is_copied and gradient_bits",
    )
