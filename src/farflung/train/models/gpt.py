"""Defines a small, readable GPT over tokens: pre-norm blocks, learned positions, head tied to the embedding.

After Radford et al. 2019 (GPT-2), with Press & Wolf 2017 for the tied head. Shapes are in the names:

    B batch   T time (context)   D width   H heads   K width of one head   V vocabulary
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from farflung.core.errors import SpecError
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.spec import ModelSpec
from farflung.train.vector_store import blocks

INIT_STD = 0.02


class TransformerBlock(nn.Module):
    """Attention, then a feed-forward network four times as wide; each adds to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attend(self, x_BTD: Tensor) -> Tensor:
        """Causal self-attention of (B, T, D) over T."""
        B, T, D = x_BTD.shape
        qkv_BTHK = self.qkv(x_BTD).view(B, T, 3, self.heads, D // self.heads)
        q_BHTK, k_BHTK, v_BHTK = qkv_BTHK.permute(2, 0, 3, 1, 4).unbind(0)
        mixed_BHTK = functional.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        joined: Tensor = self.out(mixed_BHTK.transpose(1, 2).reshape(B, T, D))
        return joined

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        x_BTD = x_BTD + self.attend(self.norm1(x_BTD))
        hidden = functional.gelu(self.up(self.norm2(x_BTD)), approximate="tanh")
        result: Tensor = x_BTD + self.down(hidden)
        return result


class GPT(nn.Module):
    """Called as `module(x_BT, y_BT)` with int64 tokens; returns the mean cross-entropy in nats per token."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.embed = nn.Embedding(spec.vocabulary, spec.width)
        self.position = nn.Embedding(spec.context, spec.width)
        self.blocks = nn.ModuleList(TransformerBlock(spec.width, spec.heads) for _ in range(spec.layers))
        self.norm = nn.LayerNorm(spec.width)

    def logits(self, x_BT: Tensor) -> Tensor:
        """(B, T) tokens → (B, T, V): how likely each token is to come next; T is at most the context."""
        x_BTD = self.embed(x_BT) + self.position.weight[: x_BT.shape[1]]
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return functional.linear(self.norm(x_BTD), self.embed.weight)

    def forward(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        """Mean loss of predicting `y_BT` from `x_BT`; T is at most the context."""
        return functional.cross_entropy(self.logits(x_BT).flatten(0, 1), y_BT.flatten())


def build(spec: ModelSpec) -> GPT:
    """An uninitialised GPT; raises SpecError FF-TRAIN-050 when the sizes do not fit together."""
    sizes = (spec.layers, spec.width, spec.heads, spec.context, spec.vocabulary)
    if min(sizes) < 1 or spec.width % spec.heads:
        raise SpecError(
            "FF-TRAIN-050",
            "no GPT has these sizes",
            cause=f"width {spec.width} must be a multiple of heads {spec.heads}, and every size at least 1",
            hint="set model.width to a multiple of model.heads",
        )
    return GPT(spec)


def initial(spec: ModelSpec, seed: int, layout: TensorLayout) -> Float32:
    """First weights, flat (size,): normal with std 0.02, residual projections / sqrt(2 * layers), norms at 1.

    Runs once, at the requester; every other peer gets the file. Not torch.randn: it differs between CPUs.
    """
    generator = np.random.Generator(np.random.Philox(key=seed))
    flat = np.zeros(layout.size, np.float32)
    for tensor, place in layout.slices():
        if tensor.name.endswith("bias"):
            continue
        if len(tensor.shape) < 2:
            flat[place] = 1.0
            continue
        is_residual = tensor.name.endswith(("out.weight", "down.weight"))
        std = INIT_STD / math.sqrt(2 * spec.layers) if is_residual else INIT_STD
        for piece in blocks(place):
            flat[piece] = generator.standard_normal(piece.stop - piece.start) * std
    return flat
