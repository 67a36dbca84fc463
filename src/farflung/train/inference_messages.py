"""Defines the requests to a handed-over model and its replies (train.inference): plain structs, without torch."""

from __future__ import annotations

from typing import Final

from farflung.core.codec import Wire

PACKED: Final = "<u4"  # tokens in bytes


class GenerateRequest(Wire, frozen=True, tag="sample"):
    """Write `count` tokens after the prompt. `data`: a model file (train.model_file); `source`: its module, or b""."""

    data: bytes
    source: bytes
    prompt: tuple[int, ...]
    count: int
    temperature: float
    top_k: int
    top_p: float
    seed: int


class ModelEvaluationRequest(Wire, frozen=True, tag="judge"):
    """Measure the model on the first `limit` of these tokens, as PACKED. `batch`: windows of its training's steps."""

    data: bytes
    source: bytes
    tokens: bytes
    limit: int
    batch: int


class GenerateReply(Wire, frozen=True, tag="told"):
    """The next token."""

    token: int


class ModelEvaluationReply(Wire, frozen=True, tag="judged"):
    """Loss in nats per token; `accuracy`: share of tokens that were the likeliest, None without logits."""

    loss: float
    accuracy: float | None
    tokens: int


Request = GenerateRequest | ModelEvaluationRequest
Answer = GenerateReply | ModelEvaluationReply
