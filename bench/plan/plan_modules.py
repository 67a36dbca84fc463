"""Six modules for bench/plan/plan_memory.py, small and with random weights, built as published, in plain PyTorch.

    gpt2    Radford et al. 2019       pre-norm, GELU, learned positions, dropout, tied head
    llama   Touvron et al. 2023       RMSNorm, rotary positions, grouped queries, SwiGLU, an untied head
    vit     Dosovitskiy et al. 2021   patches by a convolution, class token, pre-norm, GELU
    resnet  He et al. 2016            basic blocks, batch norm, 1 x 1 shortcuts
    t5      Raffel et al. 2020        encoder and decoder, relative position bias, cross attention, unscaled scores
    moe     Jiang et al. 2024         Llama's attention, two of eight SwiGLU experts a token, chosen by a router

Each is called with its batch and returns its loss. Shapes: B batch, T time, D width, H heads, K width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 1024


def split(x_BTD: Tensor, heads: int) -> Tensor:
    """(B, T, D) -> (B, H, T, K)."""
    B, T, D = x_BTD.shape
    return x_BTD.view(B, T, heads, D // heads).transpose(1, 2)


def joined(x_BHTK: Tensor) -> Tensor:
    """(B, H, T, K) -> (B, T, D)."""
    B, H, T, K = x_BHTK.shape
    return x_BHTK.transpose(1, 2).reshape(B, T, H * K)


class GPT2Block(nn.Module):
    """Attention with dropout on its scores, materialised, and a GELU network."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x_BTD: Tensor) -> Tensor:
        T = x_BTD.shape[1]
        q, k, v = (split(part, self.heads) for part in self.qkv(x_BTD).chunk(3, -1))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        mask = torch.ones(T, T, dtype=torch.bool, device=x_BTD.device).tril()
        weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
        return joined(functional.dropout(weights, self.dropout, self.training) @ v)

    def forward(self, x_BTD: Tensor) -> Tensor:
        drop = self.dropout
        x_BTD = x_BTD + functional.dropout(self.out(self.attend(self.norm1(x_BTD))), drop, self.training)
        inner = functional.gelu(self.up(self.norm2(x_BTD)), approximate="tanh")
        return x_BTD + functional.dropout(self.down(inner), drop, self.training)


class GPT2(nn.Module):
    def __init__(self, layers: int = 4, width: int = 256, heads: int = 8, context: int = 256) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(GPT2Block(width, heads, 0.1) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        x_BTD = self.tokens(x_BT) + self.positions.weight[: x_BT.shape[1]]
        x_BTD = functional.dropout(x_BTD, 0.1, self.training)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits = functional.linear(self.norm(x_BTD), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), y_BT.flatten())


class RMSNorm(nn.Module):
    """Zhang & Sennrich 2019, written out as Llama's authors do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotary(x_BHTK: Tensor) -> Tensor:
    """Su et al. 2021, halves rotated against each other."""
    T, K = x_BHTK.shape[2:]
    rates = 10_000 ** (-torch.arange(0, K, 2, device=x_BHTK.device) / K)
    angles = torch.arange(T, device=x_BHTK.device)[:, None] * rates
    cos, sin = angles.cos(), angles.sin()
    a, b = x_BHTK.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Grouped(nn.Module):
    """Causal attention, rotary positions; `keys` heads of keys and values serve all queries (Ainslie et al. 2023)."""

    def __init__(self, width: int, heads: int, keys: int) -> None:
        super().__init__()
        self.heads, self.keys = heads, keys
        narrow = width * keys // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(width, narrow, bias=False), nn.Linear(width, narrow, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        q, k = rotary(split(self.q(x_BTD), self.heads)), rotary(split(self.k(x_BTD), self.keys))
        v = split(self.v(x_BTD), self.keys)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(joined(mixed))


class SwiGLU(nn.Module):
    """Shazeer 2020."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Routed(nn.Module):
    """Two of `experts` networks a token, by the largest scores; weights are a softmax over the two."""

    def __init__(self, width: int, inner: int, experts: int = 8, chosen: int = 2) -> None:
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU(width, inner) for _ in range(experts))

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_ND = x_BTD.flatten(0, 1)
        scores, picked = self.router(x_ND).topk(self.chosen)
        weights = scores.softmax(-1)
        result = torch.zeros_like(x_ND)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(picked == number)
            result = result.index_add(0, token, expert(x_ND[token]) * weights[token, place, None])
        return result.view_as(x_BTD)


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, keys: int, feed: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.attention, self.feed = Grouped(width, heads, keys), feed

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.norm1(x_BTD))
        return x_BTD + self.feed(self.norm2(x_BTD))


class Llama(nn.Module):
    def __init__(
        self, feed: Callable[[int], nn.Module], layers: int = 4, width: int = 256, heads: int = 8, keys: int = 2
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, keys, feed(width)) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        x_BTD = self.tokens(x_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return functional.cross_entropy(self.head(self.norm(x_BTD)).flatten(0, 1), y_BT.flatten())


class ViTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        q, k, v = (split(part, self.heads) for part in self.qkv(self.norm1(x_BTD)).chunk(3, -1))
        x_BTD = x_BTD + self.out(joined(functional.scaled_dot_product_attention(q, k, v)))
        return x_BTD + self.down(functional.gelu(self.up(self.norm2(x_BTD))))


class ViT(nn.Module):
    def __init__(self, layers: int = 4, width: int = 192, heads: int = 3, side: int = 64, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (side // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(ViTBlock(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, image_BCYX: Tensor, label_B: Tensor) -> Tensor:
        x_BTD = self.patches(image_BCYX).flatten(2).transpose(1, 2)
        x_BTD = torch.cat((self.token.expand(len(x_BTD), -1, -1), x_BTD), 1) + self.positions
        return functional.cross_entropy(self.head(self.norm(self.blocks(x_BTD))[:, 0]), label_B)


class Basic(nn.Module):
    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(narrow, wide, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(wide), nn.BatchNorm2d(wide)
        self.short: nn.Module = nn.Identity()
        if stride > 1 or narrow != wide:
            self.short = nn.Sequential(nn.Conv2d(narrow, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norm1(self.conv1(x)), inplace=True)
        return functional.relu(self.norm2(self.conv2(inner)) + self.short(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (32, 64, 128), depth: int = 2) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 7, 2, 3, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        before = (widths[0], *widths)
        self.stages = nn.Sequential(
            *(
                nn.Sequential(*(Basic(a if not n else b, b, 2 if at and not n else 1) for n in range(depth)))
                for at, (a, b) in enumerate(zip(before, widths, strict=False))
            )
        )
        self.head = nn.Linear(widths[-1], 100)

    def forward(self, image_BCYX: Tensor, label_B: Tensor) -> Tensor:
        x = self.stages(self.stem(image_BCYX))
        return functional.cross_entropy(self.head(x.mean((2, 3))), label_B)


class T5Attention(nn.Module):
    """Scores are not scaled; a bias for each head and distance is added (a table of its own, shared by all layers)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x_BTD: Tensor, from_BSD: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v = (
            split(part(of), self.heads) for part, of in ((self.q, x_BTD), (self.k, from_BSD), (self.v, from_BSD))
        )
        scores = q @ k.transpose(2, 3)
        weights = (scores if bias is None else scores + bias).softmax(-1)
        return self.out(joined(functional.dropout(weights, 0.1, self.training) @ v))


class T5Block(nn.Module):
    def __init__(self, width: int, heads: int, *, is_decoder: bool) -> None:
        super().__init__()
        self.attention, self.norm1 = T5Attention(width, heads), RMSNorm(width)
        self.cross = T5Attention(width, heads) if is_decoder else None
        self.norm2 = RMSNorm(width) if is_decoder else None
        self.norm3 = RMSNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x_BTD: Tensor, bias: Tensor, memory_BSD: Tensor | None = None) -> Tensor:
        normed = self.norm1(x_BTD)
        x_BTD = x_BTD + functional.dropout(self.attention(normed, normed, bias), 0.1, self.training)
        if self.cross is not None and self.norm2 is not None and memory_BSD is not None:
            read = self.cross(self.norm2(x_BTD), memory_BSD, None)
            x_BTD = x_BTD + functional.dropout(read, 0.1, self.training)
        inner = functional.dropout(functional.relu(self.up(self.norm3(x_BTD))), 0.1, self.training)
        return x_BTD + functional.dropout(self.down(inner), 0.1, self.training)


class T5(nn.Module):
    def __init__(self, layers: int = 3, width: int = 192, heads: int = 6, buckets: int = 32) -> None:
        super().__init__()
        self.buckets = buckets
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.bias = nn.ModuleDict({part: nn.Embedding(buckets, heads) for part in ("encoder", "decoder")})
        self.encoder = nn.ModuleList(T5Block(width, heads, is_decoder=False) for _ in range(layers))
        self.decoder = nn.ModuleList(T5Block(width, heads, is_decoder=True) for _ in range(layers))
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)

    def distances(self, part: str, length: int) -> Tensor:
        """(1, H, T, T): exact for near tokens, by logarithms for far ones; the decoder sees nothing ahead."""
        at = torch.arange(length)
        far = at[None, :] - at[:, None]
        is_decoder = part == "decoder"
        count = self.buckets if is_decoder else self.buckets // 2
        behind = (-far).clamp(min=0) if is_decoder else far.abs()
        exact = count // 2
        scale = (count - exact) / math.log(128 / exact)
        logarithmic = exact + (torch.log(behind.clamp(min=1) / exact) * scale).long()
        bucket = torch.where(behind < exact, behind, logarithmic.clamp(max=count - 1))
        if not is_decoder:
            bucket = bucket + (far > 0) * count
        bias = self.bias[part](bucket).permute(2, 0, 1)[None]
        return bias.masked_fill(far > 0, -math.inf) if is_decoder else bias

    def forward(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        memory, bias = self.tokens(x_BT), self.distances("encoder", x_BT.shape[1])
        for block in self.encoder:
            memory = block(memory, bias)
        memory = self.norm1(memory)
        shifted = functional.pad(y_BT[:, :-1], (1, 0))
        out, bias = self.tokens(shifted), self.distances("decoder", y_BT.shape[1])
        for block in self.decoder:
            out = block(out, bias, memory)
        logits = functional.linear(self.norm2(out) * out.shape[-1] ** -0.5, self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), y_BT.flatten())


class Kind(NamedTuple):
    """A module, and what one batch of so many rows is for it."""

    build: Callable[[], nn.Module]
    batch: Callable[[int], tuple[Tensor, Tensor]]


def tokens(context: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    def batch(rows: int) -> tuple[Tensor, Tensor]:
        return torch.randint(0, VOCABULARY, (rows, context)), torch.randint(0, VOCABULARY, (rows, context))

    return batch


def images(side: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda rows: (torch.randn(rows, 3, side, side), torch.randint(0, 100, (rows,)))


KINDS = {
    "gpt2": Kind(GPT2, tokens(256)),
    "llama": Kind(lambda: Llama(lambda width: SwiGLU(width, 688)), tokens(256)),
    "vit": Kind(ViT, images(64)),
    "resnet": Kind(ResNet, images(64)),
    "t5": Kind(T5, tokens(128)),
    "moe": Kind(lambda: Llama(lambda width: Routed(width, 344)), tokens(256)),
}
