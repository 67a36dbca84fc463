"""Computes the built-in GPT's parameters in closed form, so that plans need no torch (names as in
train/models/gpt.py).
"""

from __future__ import annotations

import math

from farflung.job.spec import ModelSpec

Shapes = dict[str, tuple[int, ...]]


def gpt_shapes(model: ModelSpec) -> Shapes:
    """Name → shape of every parameter. The head is tied to `embed` and has none of its own."""
    width = model.width
    shapes: Shapes = {"embed.weight": (model.vocabulary, width), "position.weight": (model.context, width)}
    for index in range(model.layers):
        shapes |= _block(f"blocks.{index}", width)
    return shapes | _norm("norm", width)


def gpt_size(model: ModelSpec) -> int:
    """Number of parameters: (V + T) D + L (12 D² + 13 D) + 2 D."""
    return sum(math.prod(shape) for shape in gpt_shapes(model).values())


def gpt_products(model: ModelSpec) -> int:
    """Weights that each token is multiplied with: V D + 12 L D². The table of positions is only looked up."""
    shapes = gpt_shapes(model).items()
    return sum(math.prod(shape) for name, shape in shapes if len(shape) == 2 and name != "position.weight")


def _block(name: str, width: int) -> Shapes:
    return {
        **_norm(f"{name}.norm1", width),
        **_linear(f"{name}.qkv", width, 3 * width),
        **_linear(f"{name}.out", width, width),
        **_norm(f"{name}.norm2", width),
        **_linear(f"{name}.up", width, 4 * width),
        **_linear(f"{name}.down", 4 * width, width),
    }


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _linear(name: str, before: int, after: int) -> Shapes:
    return {f"{name}.weight": (after, before), f"{name}.bias": (after,)}
