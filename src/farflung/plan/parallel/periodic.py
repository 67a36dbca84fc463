"""Methods that exchange every H steps, by what their codec says of its payload: the most, and the expected (T1 to
T5).

A dense change of all parameters can be summed on the way (DiLoCo: Douillard et al. 2023, algorithm 1): a ring
all-reduce every H steps, 2 (n - 1)/n x bits/8 x P / H a step. A coded payload of k bytes is gathered: (n - 1) k
each way, or up once where a relay copies it (DeMo: Peng et al. 2024; SparseLoCo: Sarfi et al. 2025). `most` counts
a codec's `bound`, which its decoder enforces; `expected` its `expect`. Both are of payloads; what frames and
sockets add is plan.traffic's.

Two ratios must not be mixed: against a bf16 ring of as many ranks, and against what a naive exchange moves.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from farflung.core.layout import Layout
from farflung.plan.parallel import bounds
from farflung.plan.parallel.collectives import Algorithm, Span, all_reduce, payloads
from farflung.plan.parallel.terms import Phase, Term

DILOCO = "Douillard et al. 2023, algorithm 1"
GATHERED = "Peng et al. 2024 (DeMo), section 3"
BF16 = 2


class Coded(Protocol):
    """What is asked of a payload format: every codec of farflung.compress has it."""

    def bound(self, layout: Layout) -> int:
        """The exact upper limit of a payload in bytes."""

    def expect(self, layout: Layout) -> float:
        """The expected length of a payload in bytes."""


class Exchange(msgspec.Struct, frozen=True):
    """A step's share of a round's exchange; `payload` of one round."""

    expected: Term
    most: Term
    payload: float

    def against_ring(self, parameters: float, ranks: int) -> float:
        """How many times fewer bytes, the busier way counted, than a bf16 ring all-reduce each step.

        Raises UsageError FF-PLAN-020 (one rank exchanges nothing), FF-PLAN-021 (nor does an empty payload).
        """
        return self._against(Algorithm.RING, parameters, ranks)

    def against_naive(self, parameters: float, ranks: int) -> float:
        """The same against everybody sending every gradient to all others: the ratio of some papers.

        Raises UsageError FF-PLAN-020, FF-PLAN-021.
        """
        return self._against(Algorithm.NAIVE, parameters, ranks)

    def _against(self, algorithm: Algorithm, parameters: float, ranks: int) -> float:
        group = Span(bounds.count("ranks", ranks, least=2))
        whole = all_reduce(group, BF16 * bounds.amount("parameters", parameters), algorithm).sent
        bounds.amount("payload", self.payload, above=True)
        busier = max(self.expected.sent, self.expected.received)
        return whole / bounds.amount("expected.sent", busier, above=True)


def averaged(
    parameters: float,
    group: Span,
    steps: int,
    bits: float = 32.0,
    algorithm: Algorithm = Algorithm.RING,
) -> Exchange:
    """Changes of `bits` bits a parameter that are summed on the way, every `steps` steps."""
    bounds.amount("parameters", parameters)
    bounds.amount("bits", bits, most=64.0, above=True)
    size = parameters * bits / 8
    term = all_reduce(group, size, algorithm).term("changes, averaged", Phase.UPDATE, DILOCO)
    spread = _spread(term, steps)
    return Exchange(spread, spread, size)


def coded(layout: Layout, codec: Coded, group: Span, steps: int, *, is_fanned: bool = False) -> Exchange:
    """Payloads of a codec from each to each, every `steps` steps."""
    expected, most = (
        _spread(payloads(group, size, is_fanned=is_fanned).term("payloads", Phase.UPDATE, GATHERED), steps)
        for size in (codec.expect(layout), float(codec.bound(layout)))
    )
    return Exchange(expected, most, codec.expect(layout))


def sent(payload: float, group: Span, steps: int = 1, *, is_fanned: bool = False) -> Exchange:
    """Payloads of a known length: what other systems state."""
    term = payloads(group, payload, is_fanned=is_fanned).term("payloads", Phase.UPDATE, GATHERED)
    spread = _spread(term, steps)
    return Exchange(spread, spread, payload)


def computing(compute: float, exchange: float, *, is_hidden: bool = False) -> float:
    """Share of a round's seconds that is compute; `is_hidden`: the exchange goes on beside the next round's."""
    bounds.amount("compute", compute, above=True)
    bounds.amount("exchange", exchange)
    return compute / (max(compute, exchange) if is_hidden else compute + exchange)


def _spread(term: Term, steps: int) -> Term:
    by = bounds.count("steps", steps)
    spread = term.times(1.0 / by)
    return msgspec.structs.replace(
        spread, formula=term.formula if by == 1 else f"[{term.formula}] / H, H = {by}"
    )
