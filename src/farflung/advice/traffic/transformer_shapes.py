"""Describes what of a transformer decides its traffic: parameters, activations at cuts, and FLOP (P1).

    P     = 12 L h^2 (1 + 13/(12 h) + (V + s)/(12 L h))                     Narayanan et al. 2021, equation 2
    FLOP  = 96 B s L h^2 (1 + s/(6 h) + V/(16 L h))   a step, all recomputed  the same, equation 3
            72 B s L h^2 (1 + s/(6 h) + V/(12 L h))   nothing recomputed      Korthikanti et al. 2022, appendix A
            with s/(3 h) in place of s/(6 h): attention recomputed            the same
    6 P + 12 L h s a token                                                    Chowdhery et al. 2022, appendix B

These hold for GPTs whose inner width is 4 h. Other modules are counted by tracing, and give `parameters` and
`share`.
"""

from __future__ import annotations

import msgspec

from farflung.advice.traffic import input_checks
from farflung.core.units import Flop
from farflung.plan.step_trace import Recomputation

_MOST_PARAMETERS = 1e18


class TransformerShape(msgspec.Struct, frozen=True):
    """A stack of equal layers. `parameters` 0: a GPT's. Raises UsageError FF-PLAN-020, FF-PLAN-021."""

    layers: int
    hidden: int
    sequence: int = 1
    vocabulary: int = 0
    parameters: float = 0.0
    element: int = 2  # bytes of a parameter, a gradient and an activation on the wire
    share: float = 1.0  # of heads that have keys and values of their own (grouped queries)
    experts: float = 0.0  # of the parameters, those that are experts'
    chosen: int = 1  # experts that a token goes to
    routed: int = 0  # layers that have experts
    is_tied: bool = True  # the head reads the embedding's table: a GPT has one of V h parameters

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "sequence", "element", "chosen"):
            input_checks.count(name, getattr(self, name), most=1 << 24)
        input_checks.count("vocabulary", self.vocabulary, least=0, most=1 << 24)
        input_checks.amount("parameters", self.parameters, most=_MOST_PARAMETERS)
        input_checks.amount("share", self.share, most=1.0)
        input_checks.amount("experts", self.experts, most=self.size)
        input_checks.count("routed", self.routed, least=1 if self.experts else 0, most=self.layers)

    @property
    def size(self) -> float:
        """Parameters."""
        return self.parameters or gpt_parameters(self.layers, self.hidden, self.vocabulary, self.sequence)

    @property
    def table(self) -> float:
        """Bytes of the vocabulary's embedding: V h e."""
        return float(self.vocabulary) * self.hidden * self.element

    def activation(self, batch: int) -> float:
        """Bytes of one layer's output for `batch` sequences: b s h e."""
        return float(input_checks.count("batch", batch)) * self.sequence * self.hidden * self.element


def gpt_parameters(layers: int, hidden: int, vocabulary: int, sequence: int) -> float:
    """Parameters of a GPT. Raises UsageError FF-PLAN-020."""
    for name, value in {"layers": layers, "hidden": hidden}.items():
        input_checks.count(name, value, most=1 << 24)
    for name, value in {"vocabulary": vocabulary, "sequence": sequence}.items():
        input_checks.count(name, value, least=0, most=1 << 24)
    return 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (vocabulary + sequence) / (12 * layers * hidden))


def gpt_flop(shape: TransformerShape, batch: int, recompute: Recomputation = Recomputation.NONE) -> Flop:
    """FLOP of a step with `batch` sequences, forward and backward. Raises UsageError FF-PLAN-020, FF-PLAN-026."""
    recompute = input_checks.word("recompute", recompute, Recomputation)
    h, s, layers = shape.hidden, shape.sequence, shape.layers
    base = input_checks.count("batch", batch) * s * layers * h**2
    if recompute is Recomputation.FULL:
        return Flop(96.0 * base * (1 + s / (6 * h) + shape.vocabulary / (16 * layers * h)))
    attention = s / (3 * h) if recompute is Recomputation.SELECTIVE else s / (6 * h)
    return Flop(72.0 * base * (1 + attention + shape.vocabulary / (12 * layers * h)))


def token_flop(shape: TransformerShape, *, with_attention: bool = True) -> Flop:
    """FLOP a token: 6 P, and attention's."""
    attention = 12 * shape.layers * shape.hidden * shape.sequence if with_attention else 0
    return Flop(6 * shape.size + attention)


def utilisation(flop: float, seconds: float, cards: int, peak: float) -> float:
    """`flop` in so many seconds, as a share of the cards' `peak` FLOP/s: MFU without what is recomputed, else HFU."""
    input_checks.amount("seconds", seconds, above=True)
    input_checks.amount("peak", peak, above=True)
    return input_checks.amount("flop", flop) / seconds / input_checks.count("cards", cards) / peak
