"""Runs the selection of top-k, and the subtraction of what was sent, on the device of the tensor.

So only the k chosen values of every chunk travel to the host.

The choice is that of compress.chunks.select, to the index: the largest |v| of each chunk, of equal ones the lower
index. `torch.topk` promises nothing about ties, so it is given keys that are all different: the 31 bits of |v| as a
float32 (they order like |v|), and below them the column, counted backward.

Every operation here exists for CPU and CUDA tensors. Run and compared with the NumPy choice on CPU only: no CUDA
device took part in its tests, and no time on one is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from farflung.compress.bits import Int64
from farflung.compress.chunks import Slab
from farflung.compress.codecs import not_finite
from farflung.core.tensor_layout import Float32

STRETCH: Final = 1 << 24  # elements whose keys (8 bytes each) exist at a time, where chunks are no longer
_MAGNITUDE: Final = 0x7FFFFFFF


class TopKSelection(NamedTuple):
    """Indices (ascending) and their values, on the host; the indices on the vector's device. Shape (count,) each."""

    indices: Int64
    values: Float32
    places: Tensor


def choose(vector: Tensor, slabs: Iterable[Slab]) -> TopKSelection:
    """The `topk` largest |v| of each chunk of `slabs`, which fill the vector; of fewer in a short last chunk.

    `vector`: shape (size,), float32, in the order of the codec's plan, on any device; it is left as it is. One round
    trip to the host, whatever the number of tensors. Raises RunError FF-COMP-039 for NaN and infinities.
    """
    flat = vector.detach()
    bad = int((~torch.isfinite(flat)).sum())
    if bad:
        raise not_finite(bad, flat.numel())
    none = torch.empty(0, dtype=torch.int64, device=flat.device)
    places = torch.cat([none, *(_places(flat, run) for run in _runs(slabs))])
    return TopKSelection(places.cpu().numpy(), flat[places].cpu().numpy(), places)


def subtract(vector: Tensor, places: Tensor, sent: Float32) -> None:
    """vector[places] -= sent, in place on its own device: the error feedback of what a payload says."""
    vector[places] -= torch.from_numpy(sent).to(vector.device)


def gather(flat: Tensor, order: Sequence[slice]) -> Tensor:
    """`Plan.gather` on the tensor's device: the flat vector in the order of the format."""
    return torch.cat([flat[:0], *(flat[place] for place in order)])


def scatter(vector: Tensor, order: Sequence[slice], flat: Tensor) -> None:
    """`Plan.scatter`, the inverse of `gather`, into `flat`."""
    start = 0
    for place in order:
        stop = start + place.stop - place.start
        flat[place] = vector[start:stop]
        start = stop


class _SlabRun(NamedTuple):
    """Neighbouring slabs of one tensor: chunks that are cut alike."""

    start: int
    stop: int
    chunk: int
    topk: int
    tensor: int


def _runs(slabs: Iterable[Slab]) -> Iterator[_SlabRun]:
    """Slabs joined while they are no longer than STRETCH together."""
    run: _SlabRun | None = None
    for slab in slabs:
        stop = slab.start + slab.size
        if run is not None and run.tensor == slab.tensor and stop - run.start <= STRETCH:
            run = run._replace(stop=stop)
            continue
        if run is not None:
            yield run
        run = _SlabRun(slab.start, stop, slab.chunk, slab.topk, slab.tensor)
    if run is not None:
        yield run


def _places(flat: Tensor, run: _SlabRun) -> Tensor:
    """Indices in `flat` of the largest of a run's chunks, ascending, on its device."""
    bits = flat[run.start : run.stop].view(torch.int32) & _MAGNITUDE
    size = bits.numel()
    full = size // run.chunk * run.chunk
    places = [_columns(bits[:full].view(-1, run.chunk), run.topk)] if full else []
    if full < size:
        places.append(_columns(bits[full:].view(1, -1), min(run.topk, size - full)) + full)
    return torch.cat(places) + run.start


def _columns(bits: Tensor, count: int) -> Tensor:
    """Flat places of the `count` largest of each row of |v|'s bits, shape (rows, width); ascending."""
    rows, width = bits.shape
    backward = torch.arange(width - 1, -1, -1, device=bits.device, dtype=torch.int64)
    keys = (bits.to(torch.int64) << 32) | backward
    top = torch.topk(keys, count, dim=1, sorted=False).values
    columns = width - 1 - (top & 0xFFFFFFFF)
    starts = torch.arange(rows, device=bits.device, dtype=torch.int64)[:, None] * width
    return (columns.sort(dim=1).values + starts).view(-1)
