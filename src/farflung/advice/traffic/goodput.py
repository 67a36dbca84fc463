"""Computes what lost packets leave of a line, per congestion control (P1).

One connection with segments of s bytes and round trip T, where each packet is lost with chance p:

    Reno     s / T x sqrt(3 / (2 p))                            Mathis et al. 1997, equation 3
    cubic    s / T x (C (3 + b) / (4 (1 - b)))^(1/4) x (T / p)^(3/4)      RFC 9438, section 5.1; b = 0.7, C = 0.4;
             not below Reno's, where cubic follows it (section 4.3)
    BBR      the line x (1 - p): loss is not taken for congestion (Cardwell et al. 2016), up to some 20 %

each at most the line x (1 - p).
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

from farflung.advice.traffic import input_checks
from farflung.advice.traffic.packet_overhead import MTU, segment
from farflung.plan.link_syntax import FASTEST, SLOWEST

CUBIC_C: Final = 0.4
CUBIC_BETA: Final = 0.7
BBR_MOST: Final = 0.2  # loss beyond which BBR's own figures show collapse
_LONGEST: Final = 1e3


class LossResponse(StrEnum):
    """How a connection answers loss."""

    RENO = "reno"
    CUBIC = "cubic"
    BBR = "bbr"


def goodput(
    rate: float, trip: float, loss: float, congestion: LossResponse = LossResponse.CUBIC, mtu: int = MTU
) -> float:
    """Bit/s of payload of one connection over a line of `rate` bit/s. Raises UsageError FF-PLAN-021."""
    input_checks.amount("rate", rate, SLOWEST, FASTEST)
    input_checks.amount("trip", trip, most=_LONGEST)
    input_checks.amount("loss", loss, most=0.99)
    line = rate * (1.0 - loss)
    if not loss or not trip:
        return line
    if congestion is LossResponse.BBR and loss <= BBR_MOST:
        return line
    reno = math.sqrt(1.5 / loss)
    window = reno
    if congestion is not LossResponse.RENO:  # beyond its limit BBR is modelled like cubic
        factor = (CUBIC_C * (3 + CUBIC_BETA) / (4 * (1 - CUBIC_BETA))) ** 0.25
        window = max(reno, factor * (trip / loss) ** 0.75)
    return min(line, 8.0 * segment(mtu) * window / trip)
