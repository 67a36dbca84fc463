"""Computes the traffic of context and expert parallelism (P1).

Keys and values go around a ring, tokens to their experts and back.

Ring attention over c ranks (Liu et al. 2023, section 3): each layer passes every block of keys and values to all
others, (c - 1)/c x 2 b s h_kv e a rank forward; backward passes them again with their gradients, twice as much.

Experts over e ranks (Lepikhin et al. 2020, section 3.2): each layer with experts sends tokens away and takes them
back, two all-to-alls forward and two backward of (tokens of the rank) x k x h values, where each token goes to k
experts.

Full recomputation computes a layer's forward pass again, with all that it sends: keys and values go round four times
instead of three, tokens take six ways instead of four. Selective recomputation adds nothing to either. It drops
attention's s x s scores and computes them again from queries, keys and values; ring attention never keeps them, and
its backward pass computes them block by block as keys and values come by, which they do for their gradients anyway
(Liu et al. 2023, section 3). Whoever puts the whole ring into a checkpoint, as Megatron-core's `core_attn` does, sends
what full recomputation sends there.
"""

from __future__ import annotations

import msgspec

from farflung.advice.traffic import input_checks
from farflung.advice.traffic.collectives import RankSpan, all_gather, all_to_all
from farflung.advice.traffic.tensor_parallel import RECOMPUTED
from farflung.advice.traffic.traffic_terms import TrafficPhase, TrafficTerm
from farflung.advice.traffic.transformer_shapes import TransformerShape
from farflung.plan.step_trace import Recomputation

RING_ATTENTION = "Liu et al. 2023, section 3"
EXPERTS = "Lepikhin et al. 2020, section 3.2"
_PAIR = 2  # keys and values
_THERE_AND_BACK = 2


def ring_attention(
    shape: TransformerShape,
    group: RankSpan,
    *,
    batch: int = 1,
    micros: int = 1,
    layers: int | None = None,
    recompute: Recomputation = Recomputation.NONE,
    groups: float = 1.0,
) -> tuple[TrafficTerm, ...]:
    """A step of one rank of `group`, each of which holds a part of every sequence of `shape.sequence` tokens."""
    if group.ranks == 1:
        return ()
    input_checks.dividing("sequence", shape.sequence, "context", group.ranks)
    own = input_checks.count("layers", shape.layers if layers is None else layers, most=shape.layers)
    size = _PAIR * shape.share * shape.activation(batch)
    times = own * input_checks.count("micros", micros)
    moved = all_gather(group, size)
    forward = moved.term("keys and values", TrafficPhase.FORWARD, RING_ATTENTION, times, groups)
    back = moved.term("keys, values, their gradients", TrafficPhase.BACKWARD, RING_ATTENTION, 2 * times, groups)
    return (forward, *_again(forward, recompute), back)


def routed(
    shape: TransformerShape,
    group: RankSpan,
    *,
    tokens: float,
    micros: int = 1,
    layers: int | None = None,
    recompute: Recomputation = Recomputation.NONE,
    groups: float = 1.0,
) -> tuple[TrafficTerm, ...]:
    """A step of one rank with `tokens` tokens a micro-batch, which go evenly to `shape.chosen` experts each."""
    if group.ranks == 1 or not shape.routed:
        return ()
    input_checks.amount("tokens", tokens)
    own = input_checks.count("layers", shape.routed if layers is None else layers, least=0, most=shape.routed)
    moved = all_to_all(group, tokens * shape.chosen * shape.hidden * shape.element)
    times = _THERE_AND_BACK * own * input_checks.count("micros", micros)
    forward = moved.term("tokens to experts and back", TrafficPhase.FORWARD, EXPERTS, times, groups)
    back = moved.term("their gradients, the same way", TrafficPhase.BACKWARD, EXPERTS, times, groups)
    return (forward, *_again(forward, recompute), back)


def _again(forward: TrafficTerm, recompute: Recomputation) -> tuple[TrafficTerm, ...]:
    """What the backward pass sends once more of the forward pass."""
    if input_checks.word("recompute", recompute, Recomputation) is not Recomputation.FULL:
        return ()
    name, source = f"{forward.name}, recomputed", f"{RECOMPUTED}; {forward.source}"
    return (msgspec.structs.replace(forward, name=name, phase=TrafficPhase.BACKWARD, source=source),)
