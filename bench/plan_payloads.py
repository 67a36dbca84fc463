"""What the ranks of bench/plan.py that send payloads encode, and how: a small GPT's changes, by the top-k codec."""

from __future__ import annotations

from typing import Final

import links_worker
from torch import nn

from farflung.compress import registry
from farflung.compress.payload import About
from farflung.compress.registry import Codec
from farflung.core.crypto import digest
from farflung.core.ids import PeerId
from farflung.core.layout import Layout

ABOUT: Final = About(1, 0, digest("bench"), PeerId(bytes(32)))


def codec() -> Codec:
    """Top-k with error feedback, as SparseLoCo has it."""
    return registry.make(
        "topk", value_bits=2, topk=64, chunk=4096, transform="raw", rank=4, error_decay=0.95
    )


def layout(module: nn.Module | None = None) -> Layout:
    """The GPT's tensors."""
    module = links_worker.model() if module is None else module
    return Layout.of({name: tuple(parameter.shape) for name, parameter in module.named_parameters()})
