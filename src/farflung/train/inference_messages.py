"""Defines the requests to a handed-over model and its replies (train.inference): plain structs, without torch.

Model file and tokens travel beside a request (train.blobs).
"""

from __future__ import annotations

from typing import Final

from farflung.core.codec import Wire
from farflung.train.blobs import Blob

PACKED: Final = "<u4"  # tokens in bytes


class GenerateRequest(Wire, frozen=True, tag="sample"):
    """Write `count` tokens after the prompt. `data`: a model file (train.model_file); `source`: its module, or b""."""

    data: Blob
    source: bytes
    prompt: tuple[int, ...]
    count: int
    temperature: float
    top_k: int
    top_p: float
    seed: int


class ModelEvaluationRequest(Wire, frozen=True, tag="judge"):
    """Measure the model on the first `limit` of these tokens, as PACKED. `batch`: windows of its training's steps."""

    data: Blob
    source: bytes
    tokens: Blob
    limit: int
    batch: int


class ParameterNamesRequest(Wire, frozen=True, tag="names"):
    """Build the model, and tell which tensors of its state are not in its file."""

    data: Blob
    source: bytes


class GenerateReply(Wire, frozen=True, tag="told"):
    """The next token."""

    token: int


class ModelEvaluationReply(Wire, frozen=True, tag="judged"):
    """Loss in nats per token; `accuracy`: share of tokens that were the likeliest, None without logits."""

    loss: float
    accuracy: float | None
    tokens: int


class ParameterNamesReply(Wire, frozen=True, tag="named"):
    """What a model's `state_dict` holds beside the file's tensors: second names of a tied one, each with the name that
    is in the file; and what the module makes itself, as buffers.
    """

    tied: tuple[tuple[str, str], ...] = ()
    made: tuple[str, ...] = ()


Request = GenerateRequest | ModelEvaluationRequest | ParameterNamesRequest
Answer = GenerateReply | ModelEvaluationReply | ParameterNamesReply
