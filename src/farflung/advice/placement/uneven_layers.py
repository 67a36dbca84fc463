"""Assigns layers to the stages of a pipeline so that its slowest stage is as fast as possible, under memory
caps.

Equal layers make a pipeline of different cards as slow as its slowest card. For a given order of stages the best cut
is found by bisection on seconds; for up to 12 single cards also which of them to use, and in which order, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from farflung.advice.placement.layer_chain import LayerChain
from farflung.advice.placement.link_matrices import Floats, Indices
from farflung.advice.placement.loop_loader import loop
from farflung.core.errors import PolicyError, UsageError
from farflung.core.units import format_bytes

CARDS: Final = 12  # of which all subsets and orders are looked at


class StageCard(msgspec.Struct, frozen=True):
    """What a stage has: FLOP/s that it reaches (not its peak), and bytes for state and kept activations.

    Of a stage of several devices: those of its worst.
    """

    rate: float
    memory: float


class LayerSplit(msgspec.Struct, frozen=True):
    """Stages in order: which card, and its units [first, first + units); seconds of the slowest for a micro-batch."""

    cards: tuple[int, ...]
    units: tuple[int, ...]
    seconds: float


def divide(chain: LayerChain, cards: Sequence[StageCard], micro_batches: int) -> LayerSplit:
    """The best cut for stages in this order; a stage may get nothing.

    Raises PolicyError FF-PLAN-047 where the cards hold too little, UsageError FF-PLAN-048 for cards that cannot be.
    """
    rates, memories = _columns(cards, micro_batches)
    starts = np.zeros(len(cards), np.int64)
    work, state, kept, _ = chain.sums
    seconds = float(loop("pipeline_loops", "divide")(work, state, kept, rates, memories, micro_batches, starts))
    if seconds == np.inf:
        left = int(starts[0])
        raise _too_small(chain, cards, left)
    units = np.diff([*starts, len(chain)])
    return LayerSplit(tuple(range(len(cards))), tuple(int(n) for n in units), _slowest(chain, starts, rates))


def equal(chain: LayerChain, cards: Sequence[StageCard]) -> LayerSplit:
    """The same number of layers for every card, whether it holds them or not, as homogeneous pipelines have it.

    The first unit (embedding) goes with the first stage, the last (head) with the last.
    """
    rates, _ = _columns(cards, 1)
    inner = len(chain) - 2
    starts = np.array([0, *(1 + inner * at // len(cards) for at in range(1, len(cards)))])
    units = np.diff([*starts, len(chain)])
    return LayerSplit(tuple(range(len(cards))), tuple(int(n) for n in units), _slowest(chain, starts, rates))


def arrange(chain: LayerChain, cards: Sequence[StageCard], micro_batches: int) -> LayerSplit:
    """The best pipeline that can be made of single cards: which, in which order, with how many units.

    Exact, up to 12 cards (UsageError FF-PLAN-048 above). Of those that are as fast, the one with the fewest cards.
    """
    rates, memories = _columns(cards, micro_batches)
    if len(cards) > CARDS:
        raise _impossible(f"{len(cards)} cards; all orders of at most {CARDS} are looked at")
    work, state, kept, _ = chain.sums
    first, last = np.zeros(1 << len(cards), np.int64), np.zeros(1 << len(cards), np.int64)
    reach = loop("pipeline_loops", "reach")

    def within(seconds: float) -> int:
        return int(reach(work, state, kept, rates, memories, micro_batches, seconds, first, last))

    if within(np.inf) < 0:
        raise _too_small(chain, cards, int(first.min()))
    low, high = 0.0, 2.0 * float(work[-1] / rates.min())
    while low < 0.5 * (low + high) < high and high - low > 1e-12 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if within(middle) >= 0 else (middle, high)
    chosen = within(high)
    order: list[int] = []
    starts: list[int] = []
    while chosen:
        order.append(int(last[chosen]))
        starts.append(int(first[chosen]))
        chosen &= ~(1 << order[-1])
    units = np.diff([*starts, len(chain)])
    return LayerSplit(
        tuple(order), tuple(int(n) for n in units), _slowest(chain, np.array(starts), rates[np.array(order)])
    )


def ideal(chain: LayerChain, cards: Sequence[StageCard]) -> float:
    """Seconds of a micro-batch if work could be cut anywhere, and memory were no matter."""
    return float(chain.flop.sum()) / sum(card.rate for card in cards)


def _slowest(chain: LayerChain, starts: Indices, rates: Floats) -> float:
    flop = chain.sums[0]
    return float((np.diff(flop[[*starts, len(chain)]]) / rates).max())


def _columns(cards: Sequence[StageCard], micro_batches: int) -> tuple[Floats, Floats]:
    if not cards or micro_batches < 1:
        raise _impossible("no card" if not cards else f"{micro_batches} micro-batches")
    rates, memories = np.array([[card.rate, card.memory] for card in cards], np.float64).T
    if not ((rates > 0) & np.isfinite(rates) & (memories >= 0)).all():
        raise _impossible("a rate that is not above 0, or a memory below 0")
    return np.ascontiguousarray(rates), np.ascontiguousarray(memories)


def _impossible(cause: str) -> UsageError:
    return UsageError(
        "FF-PLAN-048", "layers cannot be dealt to these cards", cause=cause, hint="`rate` in FLOP/s, `memory` in bytes"
    )


def _too_small(chain: LayerChain, cards: Sequence[StageCard], left: int) -> PolicyError:
    state = float(chain.state.sum())
    memory = sum(card.memory for card in cards)
    return PolicyError(
        "FF-PLAN-047",
        f"memory binds: these cards hold {len(chain) - left} of {len(chain)} units",
        cause=f"{format_bytes(state)} of parameters, gradients and optimizer states, {format_bytes(memory)} on"
        f" {len(cards)} cards, of which no card's rest holds another unit",
        hint="fewer bytes a parameter (8-bit moments, LoRA), smaller units, or more cards",
    )
