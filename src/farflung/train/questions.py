"""What a handed-over model is asked, and what it answers (train.telling): plain structs, without torch."""

from __future__ import annotations

from typing import Final

from farflung.core.codec import Wire

PACKED: Final = "<u4"  # tokens in bytes


class Sample(Wire, frozen=True, tag="sample"):
    """Write `count` tokens after the prompt. `data`: a model file (train.card); `source`: of its module, or b""."""

    data: bytes
    source: bytes
    prompt: tuple[int, ...]
    count: int
    temperature: float
    top_k: int
    top_p: float
    seed: int


class Judge(Wire, frozen=True, tag="judge"):
    """Measure the model on the first `limit` of these tokens, as PACKED."""

    data: bytes
    source: bytes
    tokens: bytes
    limit: int


class Told(Wire, frozen=True, tag="told"):
    """The next token."""

    token: int


class Judged(Wire, frozen=True, tag="judged"):
    """Loss in nats per token; `accuracy`: share of tokens that were the likeliest, None without logits."""

    loss: float
    accuracy: float | None
    tokens: int


Request = Sample | Judge
Answer = Told | Judged
