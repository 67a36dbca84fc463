"""Counts a transformer's parameters, tensor by tensor: those of a layer, of the embedding and of the head (P2).

Of width h, inner width f, a heads of which k have keys and values of their own, so that these are h k/a wide:

    attention    2 h^2 + 2 h^2 k/a                       queries and output, keys and values
    inner        2 h f, gated 3 h f                      Shazeer 2020, equation 6; of E experts E times, router h E
    norms        2 h a layer, with biases 4 h            and one at the end
    biases       of each matrix its output

A GPT (f = 4 h, k = a, biases, learned positions) has 12 L h^2 (1 + 13/(12 h) + (V + s)/(12 L h)) parameters with that
(Narayanan et al. 2021, equation 2), which leaves out the last norm.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import msgspec

from farflung.advice.traffic import input_checks


class Transformer(msgspec.Struct, frozen=True):
    """Sizes of a decoder. `inner` 0: four times the width; `key_heads` 0: as many as heads; `positions`: learned.

    Raises UsageError FF-PLAN-020.
    """

    layers: int
    width: int
    heads: int
    vocabulary: int
    key_heads: int = 0
    inner: int = 0
    positions: int = 0
    is_gated: bool = False
    has_biases: bool = True
    is_tied: bool = True
    experts: int = 0
    chosen: int = 0

    def __post_init__(self) -> None:
        for name, least in (("layers", 1), ("width", 1), ("heads", 1), ("vocabulary", 1), ("key_heads", 0)):
            input_checks.count(name, getattr(self, name), least=least, most=1 << 24)
        for name in ("inner", "positions", "experts"):
            input_checks.count(name, getattr(self, name), least=0, most=1 << 24)
        input_checks.count("chosen", self.chosen, least=0, most=self.experts)

    @property
    def wide(self) -> int:
        """The inner width."""
        return self.inner or 4 * self.width

    @property
    def narrow(self) -> float:
        """Width of all keys, and of all values."""
        return self.width * (self.key_heads or self.heads) / self.heads

    @property
    def layer(self) -> float:
        """Parameters of one layer."""
        return self.attention + self.feed_forward + self.norms

    @property
    def attention(self) -> float:
        """Parameters of one layer's attention."""
        weights = 2 * self.width**2 + 2 * self.width * self.narrow
        return weights + (2 * self.width + 2 * self.narrow if self.has_biases else 0)

    @property
    def feed_forward(self) -> float:
        """Parameters of one layer's inner network, or of all its experts and their router."""
        return self.expert * max(1, self.experts) + float(self.width) * self.experts

    @property
    def expert(self) -> float:
        """Parameters of one inner network."""
        matrices = 3 if self.is_gated else 2
        biases = (matrices - 1) * self.wide + self.width if self.has_biases else 0
        return float(matrices * self.width * self.wide + biases)

    @property
    def norms(self) -> float:
        """Parameters of one layer's two norms."""
        return 2.0 * self.width * (2 if self.has_biases else 1)

    @property
    def embedding(self) -> float:
        """Parameters before the first layer."""
        return float(self.vocabulary + self.positions) * self.width

    @property
    def head(self) -> float:
        """Parameters after the last layer: the last norm, and the head where it is not the embedding."""
        return self.norms / 2 + (0.0 if self.is_tied else float(self.vocabulary) * self.width)

    @property
    def size(self) -> float:
        """All parameters."""
        return self.embedding + self.layers * self.layer + self.head

    @property
    def active(self) -> float:
        """Parameters that one token meets."""
        return self.size - self.layers * self.expert * (self.experts - self.chosen)


def _llama(layers: int, width: int, heads: int, inner: int, keys: int, vocabulary: int = 32_000) -> Transformer:
    return Transformer(
        layers, width, heads, vocabulary, key_heads=keys, inner=inner, is_gated=True, has_biases=False, is_tied=False
    )


# Radford et al. 2019; Brown et al. 2020, table 2.1; Touvron et al. 2023; Dubey et al. 2024, table 3; Jiang et al. 2024.
MODELS: Final = MappingProxyType(
    {
        "gpt2": Transformer(12, 768, 12, 50_257, positions=1024),
        "gpt2-medium": Transformer(24, 1024, 16, 50_257, positions=1024),
        "gpt2-large": Transformer(36, 1280, 20, 50_257, positions=1024),
        "gpt2-xl": Transformer(48, 1600, 25, 50_257, positions=1024),
        "gpt3": Transformer(96, 12_288, 96, 50_257, positions=2048),
        "llama2-7b": _llama(32, 4096, 32, 11_008, 32),
        "llama2-13b": _llama(40, 5120, 40, 13_824, 40),
        "llama2-70b": _llama(80, 8192, 64, 28_672, 8),
        "llama3-8b": _llama(32, 4096, 32, 14_336, 8, 128_256),
        "llama3-70b": _llama(80, 8192, 64, 28_672, 8, 128_256),
        "llama3-405b": _llama(126, 16_384, 128, 53_248, 8, 128_256),
        "mistral-7b": _llama(32, 4096, 32, 14_336, 8),
        "mixtral-8x7b": msgspec.structs.replace(_llama(32, 4096, 32, 14_336, 8), experts=8, chosen=2),
    }
)
