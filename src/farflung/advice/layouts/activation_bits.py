"""Chooses in how many bits a pipeline sends activations forward and their gradients back (T3, P1).

    plain       bfloat16
    8-bit       each value by itself, a scale for every BLOCK: what SWARM sends (Ryabinin et al. 2023)
    AQ-SGD      the change of an example's activation since the last epoch in 4 bits, gradients in 8; the first epoch
                plain (Wang et al. 2022, algorithm 1). Both ends of a cut keep what was last said of each example, in
                RAM or on disk

Fewer bits are never slower, so time alone would always take the fewest: a code is taken where it saves more than
methods.ENOUGH of a step of the one before. What it costs in quality is not estimated: their authors report none that
matters, and direct quantisation biases gradients where AQ-SGD's does not (section 3); nothing of it was measured here.

AQ-SGD needs the same examples in every epoch. It is tried where the number of windows is known and the job has more
tokens than they have.
"""

from __future__ import annotations

from typing import Final

import msgspec

from farflung.advice.job_work import WIRE, JobWork
from farflung.advice.traffic.pipeline_traffic import CHANGES, PIPELINE, AqSgdConfig

BLOCK: Final = 128  # values that share a scale
SWARM: Final = "Ryabinin et al. 2023 (SWARM): 8 bits, a scale a block; its loss was not measured here"
AQ: Final = f"{CHANGES}: no loss, say its authors; not measured here"


class ActivationCode(msgspec.Struct, frozen=True):
    """Shares of plain bytes forward and backward; `first`: the share of steps that are plain anyway; `kept`:
    bytes at either end of a cut.
    """

    words: str = ""
    forward: float = 1.0
    backward: float = 1.0
    first: float = 0.0
    kept: float = 0.0
    source: str = PIPELINE

    @property
    def sent(self) -> tuple[float, float]:
        """Shares of plain bytes forward and backward, in the mean of all steps."""
        coded = 1.0 - self.first
        return self.first + coded * self.forward, self.first + coded * self.backward


PLAIN: Final = ActivationCode()


def codes(work: JobWork) -> tuple[ActivationCode, ...]:
    """Those that this job can use, the fewest bytes last."""
    direct = AqSgdConfig(1, 8, 8, BLOCK).share(8, WIRE)
    found = (PLAIN, ActivationCode("8-bit cuts", direct, direct, source=SWARM))
    epoch = work.examples * work.context
    if not 0 < epoch < work.tokens:
        return found
    changes = AqSgdConfig(work.examples, 4, 8, BLOCK)
    shares = changes.share(changes.forward, WIRE), changes.share(changes.backward, WIRE)
    kept = work.examples * work.model.handed(1)
    coded = ActivationCode("AQ-SGD cuts of 4 and 8 bits", *shares, epoch / work.tokens, kept, AQ)
    return (*found, coded) if sum(coded.sent) < sum(found[-1].sent) else found


def least(work: JobWork) -> float:
    """The smallest share of plain bytes that any of them sends in either direction, in the mean of all steps."""
    return min(share for code in codes(work) for share in code.sent)
