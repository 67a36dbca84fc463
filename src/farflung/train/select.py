"""What of top-k runs where the tensor lies: the choice. So k of every chunk's values travel to the host, never all.

The choice is that of compress.chunks.largest, to the index: the largest |v| of each chunk, of equal ones the lower
index. `torch.topk` promises nothing about ties, so it is given keys that are all different: the 31 bits of |v| as a
float32 (they order like |v|), and below them the column, counted backward. half and bfloat16 become float32 exactly.

Every operation here exists for CPU and CUDA tensors. Run and compared with the NumPy choice on CPU only: no CUDA
device took part in its tests, and no time on one is claimed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from farflung.compress.bits import Int64
from farflung.compress.codecs import not_finite
from farflung.core.layout import Float32

SLAB: Final = 1 << 24  # elements whose keys (8 bytes each) exist at a time
_MAGNITUDE: Final = 0x7FFFFFFF
_INFINITY: Final = 0x7F800000


class Chosen(NamedTuple):
    """Indices (ascending) and their values, on the host; shape (count,) both."""

    indices: Int64
    values: Float32


def largest(vector: Tensor, chunk: int, topk: int) -> Chosen:
    """The `topk` largest |v| of each `chunk` elements of a flat vector, of fewer in a short last chunk.

    `vector`: shape (size,), size ≥ 1, float16, bfloat16 or float32, on any device; it is left as it is.
    Raises RunError FF-COMP-039 for NaN and infinities.
    """
    flat = vector.detach()
    step = max(1, SLAB // chunk) * chunk
    parts = [
        _places(flat[start : start + step], chunk, topk) + start for start in range(0, flat.numel(), step)
    ]
    places = torch.cat(parts)
    values = flat[places].to(torch.float32)
    return Chosen(places.cpu().numpy().astype(np.int64), values.cpu().numpy())


def subtract(residual: Tensor, indices: Int64, sent: Float32) -> None:
    """residual[indices] -= sent, in place on its own device: the error feedback of what a payload says."""
    places = torch.from_numpy(indices).to(residual.device)
    known = residual[places].to(torch.float32) - torch.from_numpy(sent).to(residual.device)
    residual[places] = known.to(residual.dtype)


def _places(flat: Tensor, chunk: int, topk: int) -> Tensor:
    """Indices in `flat` of its chunks' largest, ascending, on its device."""
    bits = flat.to(torch.float32).view(torch.int32) & _MAGNITUDE
    if bool((bits >= _INFINITY).any()):
        raise not_finite(int((bits >= _INFINITY).sum()), bits.numel())
    full = flat.numel() // chunk * chunk
    places = [_columns(bits[:full].view(-1, chunk), topk)] if full else []
    if full < flat.numel():
        places.append(_columns(bits[full:].view(1, -1), min(topk, flat.numel() - full)) + full)
    return torch.cat(places)


def _columns(bits: Tensor, count: int) -> Tensor:
    """Flat places of the `count` largest of each row of |v|'s bits, shape (rows, width); ascending."""
    rows, width = bits.shape
    backward = torch.arange(width - 1, -1, -1, device=bits.device, dtype=torch.int64)
    keys = (bits.to(torch.int64) << 32) | backward
    top = torch.topk(keys, count, dim=1, sorted=False).values
    columns = width - 1 - (top & 0xFFFFFFFF)
    starts = torch.arange(rows, device=bits.device, dtype=torch.int64)[:, None] * width
    return (columns.sort(dim=1).values + starts).view(-1)
