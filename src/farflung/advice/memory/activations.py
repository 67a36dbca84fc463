"""Computes in closed form the activations that a layer stores for its backward pass (P2, T6).

This is the quick way, where nothing can be traced.

Korthikanti et al. 2022, sections 4 and 5, for b sequences of s tokens, width h, a heads, t-way tensor parallelism;
16-bit values, masks of dropout in a byte each:

    no parallelism            s b h (34 + 5 a s/h)             equation 1
    tensor parallel           s b h (10 + 24/t + 5 a s/(h t))  equation 2
    and sequence parallel     s b h / t (34 + 5 a s/h)         equation 4
    selective recomputation   34 s b h / t                     section 5: attention's own is computed again
    full recomputation        2 s b h                          a layer's input
    embedding, norm, logits   s b h/t + s b h/t (2 + 2 + 4 V/h)  section 4.3: dropout's mask; norm, head, float32 logits

They count the products that were materialised in 2022. A module of today keeps other tensors: with fused attention no
s x s matrix, without dropout no masks, with float32 four bytes, gated inner networks four inner vectors for two.
`kept` counts those: of one token in one layer, values

    norms 2 h, input of the projections 2 h, queries h, keys and values 2 h k/a, attention's result h,
    inner 2 f, gated 4 f, and a float32 logsumexp a head

Recomputed selectively, `kept` counts what train.gauge keeps, which is another rule than the paper's: a layer's input
and what products with weights and fused attention gave. Norms, steps inside the inner network and scores are made
again:

    input h, queries h, keys and values 2 h k/a, attention's result h where it is fused, its projection h,
    inner f, gated 2 f, its projection h

`passing` and `passing_head` are what lies beside that at most while a layer, or the head, is gone through backward. A
trace of the module itself is exact (train.gauge): it is what a plan should use.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from farflung.advice.memory.breakdown import MemoryPart, chosen
from farflung.advice.memory.transformer import Transformer
from farflung.advice.traffic import input_checks
from farflung.plan.step_trace import Recomputation
from farflung.plan.worker_memory import LOGIT_COPIES

KORTHIKANTI: Final = "Korthikanti et al. 2022"
COUNTED: Final = "Korthikanti et al. 2022, section 4.1, counted for this layer"
TENSOR: Final = 2  # bytes of a value there
SINGLE: Final = 4.0  # bytes of a value of the loss, whatever the layers' are


class AttentionMemory(StrEnum):
    """Whether the s x s scores are ever in memory."""

    EAGER = "eager"
    FUSED = "fused"


class MicroBatch(msgspec.Struct, frozen=True):
    """One micro-batch on one card. Raises UsageError FF-PLAN-020, FF-PLAN-021, FF-PLAN-059."""

    batch: int
    sequence: int
    tensor: int = 1
    is_sequence_parallel: bool = False
    recompute: Recomputation = Recomputation.NONE
    element: float = TENSOR  # bytes of a value
    attention: AttentionMemory = AttentionMemory.FUSED
    has_dropout: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "sequence", "tensor"):
            input_checks.count(name, getattr(self, name))
        input_checks.amount("element", self.element, most=16.0, above=True)
        chosen("recompute", self.recompute, Recomputation)
        chosen("attention", self.attention, AttentionMemory)

    @property
    def tokens(self) -> int:
        """Of the micro-batch."""
        return self.batch * self.sequence

    @property
    def spread(self) -> int:
        """Ways over which what tensor parallelism copies is split."""
        return self.tensor if self.is_sequence_parallel else 1


def edges(micro_batch: MicroBatch, width: int, vocabulary: int) -> tuple[MemoryPart, MemoryPart]:
    """What the first and the last stage keep beside their layers (section 4.3). Raises UsageError FF-PLAN-020."""
    input_checks.count("width", width, most=1 << 24)
    input_checks.count("vocabulary", vocabulary, most=1 << 24)
    sbh, t = float(micro_batch.tokens) * width, micro_batch.tensor
    first = MemoryPart(
        "activations of the embedding",
        sbh / micro_batch.spread,
        f"s b h / {micro_batch.spread}, a mask",
        f"{KORTHIKANTI}, section 4.3",
    )
    last = MemoryPart(
        "activations of the head",
        sbh * (4 / micro_batch.spread + 4 * vocabulary / width / t),
        f"s b h (4/{micro_batch.spread} + 4 V/(h {t})), V/h = {vocabulary / width:.4g}",
        f"{KORTHIKANTI}, section 4.3",
    )
    return first, last


def kept(micro_batch: MicroBatch, model: Transformer) -> MemoryPart:
    """One layer of `model` as it is written today: fused or eager attention, gated or not, masks where it drops out."""
    h, t, spread = model.width, micro_batch.tensor, micro_batch.spread
    masks, extra = 0.0, 0.0  # bytes a token
    queries = h + 2 * model.narrow
    if micro_batch.recompute is Recomputation.FULL:
        values = h / spread
    elif micro_batch.recompute is Recomputation.SELECTIVE:
        is_fused = micro_batch.attention is AttentionMemory.FUSED
        values = 3 * h / spread + (queries + h * is_fused + _inner(model)) / t
        extra = _scores(micro_batch, model) / t if is_fused else 0.0
    else:
        values = 4 * h / spread + (queries + h + 2 * _inner(model)) / t
        masks = 2.0 * h / spread if micro_batch.has_dropout else 0.0
        extra = _scores(micro_batch, model) / t
    each = micro_batch.element * values + masks + extra
    formula = f"{each:.4g} B a token x {micro_batch.tokens}"
    return MemoryPart("activations of a layer", each * micro_batch.tokens, formula, COUNTED)


def passing(micro_batch: MicroBatch, model: Transformer) -> float:
    """Bytes beside what one layer keeps, at most, while its backward pass goes through it.

    What is made again; gradients of what the layer gave and of inner values, in whose place nothing is freed yet; where
    scores are in memory, those of them and of their softmax, when what the inner network kept is gone. And the gradient
    of one weight, before it is added to the others'.
    """
    whole = kept(replace(micro_batch, recompute=Recomputation.NONE), model).bytes - kept(micro_batch, model).bytes
    stream, inner = model.width / micro_batch.spread, _inner(model) / micro_batch.tensor
    if micro_batch.recompute is Recomputation.SELECTIVE:  # a projection's result, which nothing else keeps
        whole += micro_batch.element * micro_batch.tokens * stream
    scores = 0.0
    if micro_batch.attention is AttentionMemory.EAGER:
        scores = 2.0 * model.heads * micro_batch.sequence / micro_batch.tensor - 2 * inner - 2 * stream
    weight = model.width * max(model.wide, 3 * model.width) / micro_batch.tensor
    return whole + micro_batch.element * (micro_batch.tokens * (stream + max(inner, scores)) + weight)


def _inner(model: Transformer) -> float:
    """Values that a token's way into its inner networks gives, as wide as these are."""
    return float((2 if model.is_gated else 1) * model.wide * max(1, model.chosen))


def _scores(micro_batch: MicroBatch, model: Transformer) -> float:
    """Bytes a token that attention itself keeps: a logsumexp a head; or softmax, its mask and what is left of it."""
    if micro_batch.attention is AttentionMemory.FUSED:
        return SINGLE * model.heads
    each = micro_batch.element if not micro_batch.has_dropout else 2 * micro_batch.element + 1
    return each * model.heads * micro_batch.sequence


def logits(micro_batch: MicroBatch, model: Transformer) -> MemoryPart:
    """The head's input and the float32 log-probabilities of each token; one copy, as cross-entropy keeps it."""
    each = micro_batch.element * 2 * model.width / micro_batch.spread + SINGLE * model.vocabulary / micro_batch.tensor
    formula = f"{each:.4g} B a token x {micro_batch.tokens}"
    return MemoryPart("activations of the head", each * micro_batch.tokens, formula, COUNTED)


def passing_head(micro_batch: MicroBatch, model: Transformer) -> float:
    """Bytes beside what the head keeps, at most: first the other copies of its logits, then a gradient of its weight
    and of its input.
    """
    copies = (LOGIT_COPIES - 1) * SINGLE * micro_batch.tokens * model.vocabulary / micro_batch.tensor
    table = float(model.width) * model.vocabulary / micro_batch.tensor
    return max(copies, micro_batch.element * (micro_batch.tokens * model.width / micro_batch.spread + table))
