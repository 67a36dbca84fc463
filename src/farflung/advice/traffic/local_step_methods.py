"""Computes the traffic of methods that exchange every H steps (T1 to T5).

Maximum and expected payload come from the codec.

A dense change of all parameters can be summed on the way (DiLoCo: Douillard et al. 2023, algorithm 1): a ring
all-reduce every H steps, 2 (n - 1)/n x bits/8 x P / H a step. A coded payload of k bytes is gathered: (n - 1) k
each way, or up once where a relay copies it (DeMo: Peng et al. 2024; SparseLoCo: Sarfi et al. 2025). `most` counts
a codec's `bound`, which its decoder enforces; `expected` its `expect`. Both are of payloads; what frames and
sockets add is plan.run_traffic's.

Two ratios must not be mixed: against a bf16 ring of as many ranks, and against what a naive exchange moves.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from farflung.advice.traffic import input_checks
from farflung.advice.traffic.collectives import AllReduceAlgorithm, RankSpan, all_reduce, payloads
from farflung.advice.traffic.traffic_terms import TrafficPhase, TrafficTerm
from farflung.core.tensor_layout import TensorLayout

DILOCO = "Douillard et al. 2023, algorithm 1"
GATHERED = "Peng et al. 2024 (DeMo), section 3"
BF16 = 2


class PayloadLengths(Protocol):
    """What is asked of a payload format: every codec of farflung.compress has it."""

    def bound(self, layout: TensorLayout) -> int:
        """The exact upper limit of a payload in bytes."""

    def expect(self, layout: TensorLayout) -> float:
        """The expected length of a payload in bytes."""


class ExchangeTraffic(msgspec.Struct, frozen=True):
    """A step's share of a round's exchange; `payload` of one round."""

    expected: TrafficTerm
    most: TrafficTerm
    payload: float

    def against_ring(self, parameters: float, ranks: int) -> float:
        """How many times fewer bytes, the busier way counted, than a bf16 ring all-reduce each step.

        Raises UsageError FF-PLAN-020 (one rank exchanges nothing), FF-PLAN-021 (nor does an empty payload).
        """
        return self._against(AllReduceAlgorithm.RING, parameters, ranks)

    def against_naive(self, parameters: float, ranks: int) -> float:
        """The same against everybody sending every gradient to all others: the ratio of some papers.

        Raises UsageError FF-PLAN-020, FF-PLAN-021.
        """
        return self._against(AllReduceAlgorithm.NAIVE, parameters, ranks)

    def _against(self, algorithm: AllReduceAlgorithm, parameters: float, ranks: int) -> float:
        group = RankSpan(input_checks.count("ranks", ranks, least=2))
        whole = all_reduce(group, BF16 * input_checks.amount("parameters", parameters), algorithm).sent
        input_checks.amount("payload", self.payload, above=True)
        busier = max(self.expected.sent, self.expected.received)
        return whole / input_checks.amount("expected.sent", busier, above=True)


def averaged(
    parameters: float,
    group: RankSpan,
    steps: int,
    bits: float = 32.0,
    algorithm: AllReduceAlgorithm = AllReduceAlgorithm.RING,
    groups: float = 1.0,
) -> ExchangeTraffic:
    """Changes of `bits` bits a parameter that are summed on the way, every `steps` steps."""
    input_checks.amount("parameters", parameters)
    input_checks.amount("bits", bits, most=64.0, above=True)
    size = parameters * bits / 8
    moved = all_reduce(group, size, algorithm)
    term = moved.term("changes, averaged", TrafficPhase.UPDATE, DILOCO, groups=groups)
    spread = _spread(term, steps)
    return ExchangeTraffic(spread, spread, size)


def coded(
    layout: TensorLayout, codec: PayloadLengths, group: RankSpan, steps: int, *, is_fanned: bool = False
) -> ExchangeTraffic:
    """Payloads of a codec from each to each, every `steps` steps."""
    expected, most = (
        _spread(payloads(group, size, is_fanned=is_fanned).term("payloads", TrafficPhase.UPDATE, GATHERED), steps)
        for size in (codec.expect(layout), float(codec.bound(layout)))
    )
    return ExchangeTraffic(expected, most, codec.expect(layout))


def sent(payload: float, group: RankSpan, steps: int = 1, *, is_fanned: bool = False) -> ExchangeTraffic:
    """Payloads of a known length: what other systems state."""
    term = payloads(group, payload, is_fanned=is_fanned).term("payloads", TrafficPhase.UPDATE, GATHERED)
    spread = _spread(term, steps)
    return ExchangeTraffic(spread, spread, payload)


def computing(compute: float, exchange: float, *, is_hidden: bool = False) -> float:
    """Share of a round's seconds that is compute; `is_hidden`: the exchange goes on beside the next round's."""
    input_checks.amount("compute", compute, above=True)
    input_checks.amount("exchange", exchange)
    return compute / (max(compute, exchange) if is_hidden else compute + exchange)


def _spread(term: TrafficTerm, steps: int) -> TrafficTerm:
    by = input_checks.count("steps", steps)
    spread = term.times(1.0 / by)
    return msgspec.structs.replace(spread, formula=term.formula if by == 1 else f"[{term.formula}] / H, H = {by}")
