"""Extends top-k with error feedback to Deep Gradient Compression (Lin et al. 2018, arXiv 1712.01887).

Momentum correction (section 3.1) is the velocity of the inner optimizer: what is accumulated and sent are velocities,
not gradients. The other three are here: warm-up of the density (3.3), factor masking (3.3), local clipping (3.2).
With decay 1 and values of 32 bits, a residual is exactly zero where all was sent, so that masking needs no state:
velocity goes on only where something is unsent.
"""

from __future__ import annotations

import math
from typing import Final

FIRST: Final = 4  # a warm-up begins at one element in four
STAGES: Final = 64  # into which a longer warm-up is cut: keeps the integers below small


def kept(round: int, warmup_rounds: int, topk: int, chunk: int) -> int:
    """Coefficients of a chunk that a round sends; 1 <= topk <= chunk. Integers alone: the same on every machine.

    The density falls exponentially from a quarter to topk / chunk, which it reaches at round `warmup_rounds`. With W =
    min(warmup_rounds, 64) stages and s = ⌊round W / warmup_rounds⌋ it is (1/4)^(1 - s/W) (topk / chunk)^(s/W), rounded
    up to whole coefficients. For 0.1 % in four stages: 25, 6.3, 1.6, 0.4, 0.1 % (paper: 25, 6.25, 1.5625, 0.4, 0.1).
    """
    if round >= warmup_rounds or FIRST * topk >= chunk:
        return topk
    stages = min(warmup_rounds, STAGES)
    done = round * stages // warmup_rounds
    # The least k with (k / chunk)^W >= (1/4)^(W - s) (topk / chunk)^s, free of fractions.
    wanted = topk**done * chunk ** (stages - done)
    scale = FIRST ** (stages - done)
    low, high = topk, -(-chunk // FIRST)
    while low < high:
        middle = (low + high) // 2
        if middle**stages * scale >= wanted:
            high = middle
        else:
            low = middle + 1
    return low


def local_limit(limit: float, peers: int) -> float:
    """The norm to which each of N peers clips its own gradient g_i when that of their mean is to be `limit`: limit √N.

    The paper's G_i = g_i / N, which are added, are clipped to limit / √N, since the variance of a sum of N independent
    ones is N times that of one (section 3.2): ‖g_i‖ ≤ N limit / √N. A limit of 0 means none, and stays 0.
    """
    return limit * math.sqrt(peers)
