"""Computes the traffic of tensor parallelism: sums of activations inside each layer, forward and backward (P1).

A layer of a micro-batch sums b s h e bytes over its t ranks twice forward and twice backward (Shoeybi et al. 2019,
section 3). Backward sums gradients of activations, never of weights. With sequence parallelism each sum is a
reduce-scatter and an all-gather, as many bytes (Korthikanti et al. 2022, section 4.2.2); inputs of which a rank
keeps its share only are gathered once more backward for the two column-wise products, beside the computation (the
same). Full recomputation repeats the forward sums; selective recomputation repeats attention, which sums nothing
(section 5).
"""

from __future__ import annotations

from farflung.advice.traffic import input_checks
from farflung.advice.traffic.collectives import (
    CollectiveBackend,
    CollectiveVolume,
    RankSpan,
    all_gather,
    all_reduce,
    reduce_scatter,
)
from farflung.advice.traffic.traffic_terms import TrafficPhase, TrafficTerm
from farflung.advice.traffic.transformer_shapes import TransformerShape
from farflung.plan.step_trace import Recomputation

MEGATRON = "Shoeybi et al. 2019, section 3"
SEQUENCE = "Korthikanti et al. 2022, section 4.2.2"
RECOMPUTED = "Korthikanti et al. 2022, section 5"
SUMS = 2  # a layer, each way: attention and the block behind it


def tensor_parallel(
    shape: TransformerShape,
    group: RankSpan,
    *,
    batch: int = 1,
    micros: int = 1,
    layers: int | None = None,
    recompute: Recomputation = Recomputation.NONE,
    is_sequence_parallel: bool = False,
    backend: CollectiveBackend = CollectiveBackend.IDEAL,
    groups: float = 1.0,
) -> tuple[TrafficTerm, ...]:
    """A step of one rank with `layers` layers (all, unless told) and `micros` micro-batches of `batch` sequences.

    Raises UsageError FF-PLAN-020, FF-PLAN-021, FF-PLAN-026 (no such recomputation or backend).
    """
    recompute = input_checks.word("recompute", recompute, Recomputation)
    if group.ranks == 1:
        return ()
    own = input_checks.count("layers", shape.layers if layers is None else layers, most=shape.layers)
    sums = SUMS * own * input_checks.count("micros", micros)
    size = shape.activation(batch)
    if not is_sequence_parallel:
        whole, source = {"sums of activations": all_reduce(group, size)}, MEGATRON
    else:
        parts = {"gathered": all_gather(group, size), "summed": reduce_scatter(group, size, backend)}
        whole, source = {f"activations, {name}": moved for name, moved in parts.items()}, SEQUENCE
    terms = [*_terms(whole, TrafficPhase.FORWARD, source, sums, groups)]
    if recompute is Recomputation.FULL:
        again = {f"{name}, recomputed": moved for name, moved in whole.items()}
        terms += _terms(again, TrafficPhase.BACKWARD, RECOMPUTED, sums, groups)
    back = {name.replace("activations", "their gradients"): moved for name, moved in whole.items()}
    terms += _terms(back, TrafficPhase.BACKWARD, source, sums, groups)
    if is_sequence_parallel:
        inputs = {"activations, gathered again for weights": all_gather(group, size)}
        terms += _terms(inputs, TrafficPhase.BACKWARD, SEQUENCE, sums, groups)
    return tuple(terms)


def embedding(
    shape: TransformerShape, group: RankSpan, *, batch: int = 1, micros: int = 1, groups: float = 1.0
) -> tuple[TrafficTerm, ...]:
    """What a vocabulary cut over the ranks adds: rows looked up are summed, and so is the gradient of the last layer's
    output (Shoeybi et al. 2019, section 3). The loss itself adds b s numbers, left out.

    Raises UsageError FF-PLAN-020, FF-PLAN-021.
    """
    input_checks.count("micros", micros)
    if group.ranks == 1 or not shape.vocabulary:
        return ()
    moved = all_reduce(group, shape.activation(batch))
    return (
        moved.term("rows of the vocabulary", TrafficPhase.FORWARD, MEGATRON, micros, groups),
        moved.term("gradient of the last output", TrafficPhase.BACKWARD, MEGATRON, micros, groups),
    )


def _terms(
    moved: dict[str, CollectiveVolume], phase: TrafficPhase, source: str, times: int, groups: float
) -> tuple[TrafficTerm, ...]:
    return tuple(one.term(name, phase, source, times, groups) for name, one in moved.items())
