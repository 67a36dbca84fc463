"""Payloads that the ranks of bench/plan.py gather: of changes recorded in training, and of noise, made at once."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from farflung.compress import registry
from farflung.compress.payload import ContributionKey
from farflung.compress.registry import Codec
from farflung.core.crypto import digest
from farflung.core.ids import PeerId
from farflung.core.tensor_layout import TensorLayout

ABOUT: Final = ContributionKey(1, 0, digest("bench"), PeerId(bytes(32)))
NOISE: Final = TensorLayout.of({f"{at}.weight": (1024, 1024) for at in range(8)})
SETTLED: Final = range(8, 12)  # rounds after which the residual has settled (docs/protocol/payload.md)


def codec() -> Codec:
    """Top-k with error feedback, as SparseLoCo has it."""
    return registry.make("topk", value_bits=2, topk=64, chunk=4096, transform="raw", rank=4, error_decay=0.95)


def noise() -> tuple[list[bytes], float]:
    """Payloads of 8 M normal numbers, and their mean length."""
    generator, found = np.random.default_rng(0), list[bytes]()
    for _ in range(4):
        change = generator.standard_normal(NOISE.size).astype(np.float32)
        found.append(codec().encode(None, change, NOISE, ABOUT)[1])
    return found, float(np.mean([len(one) for one in found]))


def real() -> tuple[list[bytes], float]:
    """Payloads of the default job's peers (bench/recorded.py; minutes), and the length that the codec expects."""
    import recorded

    found, expected = list[bytes](), 0.0
    for _, layout, change in recorded.record(recorded.job(max(SETTLED) + 1, "AdamW"), SETTLED):
        found.append(codec().encode(None, change, layout, ABOUT)[1])
        expected = codec().expect(layout)
    return found, expected


def store(payloads: list[bytes], folder: Path) -> None:
    """Where ranks read them."""
    for at, payload in enumerate(payloads):
        (folder / f"{at}.payload").write_bytes(payload)
