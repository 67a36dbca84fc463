"""Arranges tensors as square blocks for a 2-D cosine transform, and back.

Every tensor's cost is proportional to its size, whatever its shape.

A matrix whose sides are multiples of the block's is cut in tiles, as DeMo does (Peng et al. 2024, arXiv 2411.19870,
section 3.2). Of any other tensor (a prime size, a vector, a convolution) the flat elements fill whole blocks,
and what is left of all tensors together fills the last ones, padded with zeros once. No divisor is searched.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

Shape = tuple[int, ...]


class TensorBlocks:
    """The arrangement of tensors of these shapes in blocks of `side` x `side`; the same on every machine."""

    def __init__(self, shapes: Sequence[Shape], side: int) -> None:
        self.shapes, self.side = tuple(shapes), side
        self._area = side * side
        self._tiled = [_is_tiled(shape, side) for shape in self.shapes]
        self._sizes = [math.prod(shape) for shape in self.shapes]
        self._full = [size // self._area for size in self._sizes]
        rest = sum(size - full * self._area for size, full in zip(self._sizes, self._full, strict=True))
        self._rest = rest
        self.count = sum(self._full) + -(-rest // self._area)

    def gather(self, tensors: Sequence[Tensor]) -> Tensor:
        """Blocks of shape (count, side, side), float32, on the first tensor's device."""
        device = tensors[0].device
        whole, rest = [], []
        for tensor, is_tiled, full in zip(tensors, self._tiled, self._full, strict=True):
            values = tensor.to(device, torch.float32)
            if is_tiled:
                whole.append(self._tiles(values))
                continue
            flat = values.reshape(-1)
            whole.append(flat[: full * self._area].view(-1, self.side, self.side))
            rest.append(flat[full * self._area :])
        if self._rest:
            padding = torch.zeros(-self._rest % self._area, device=device)
            whole.append(torch.cat([*rest, padding]).view(-1, self.side, self.side))
        return torch.cat(whole)

    def scatter(self, blocks: Tensor) -> list[Tensor]:
        """The opposite of `gather`: tensors of `shapes`, float32."""
        found: list[Tensor] = []
        first, at = 0, 0
        flat = blocks[sum(self._full) :].reshape(-1)
        for shape, is_tiled, size, full in zip(self.shapes, self._tiled, self._sizes, self._full, strict=True):
            own = blocks[first : first + full]
            first += full
            if is_tiled:
                rows, columns = shape[0] // self.side, shape[1] // self.side
                found.append(own.view(rows, columns, self.side, self.side).transpose(1, 2).reshape(shape))
                continue
            left = size - full * self._area
            found.append(torch.cat([own.reshape(-1), flat[at : at + left]]).view(shape))
            at += left
        return found

    def _tiles(self, matrix: Tensor) -> Tensor:
        n, m = matrix.shape
        tiles = matrix.reshape(n // self.side, self.side, m // self.side, self.side).transpose(1, 2)
        return tiles.reshape(-1, self.side, self.side)


def forward(blocks: Tensor) -> Tensor:
    """C X Cᵀ of each block, with the orthonormal DCT-II matrix C."""
    basis = cosines(blocks.shape[-1], blocks.device)
    return basis @ blocks @ basis.T


def inverse(coefficients: Tensor) -> Tensor:
    """Cᵀ Z C of each block."""
    basis = cosines(coefficients.shape[-1], coefficients.device)
    return basis.T @ coefficients @ basis


@functools.cache
def cosines(side: int, device: torch.device) -> Tensor:
    """C[k, j] = a_k cos(pi k (2j + 1) / 2n), a_0 = √(1/n), else √(2/n) (Ahmed, Natarajan & Rao 1974); float32."""
    k = torch.arange(side, dtype=torch.float64)
    table = torch.cos(torch.pi / (2 * side) * k[:, None] * (2 * k + 1)) * math.sqrt(2 / side)
    table[0] /= math.sqrt(2)
    return table.to(device, torch.float32)


def _is_tiled(shape: Shape, side: int) -> bool:
    return len(shape) == 2 and all(n % side == 0 for n in shape)
