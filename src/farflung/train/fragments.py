"""Splits the tensors into F parts, one sent per round: Streaming (Douillard et al. 2025, arXiv 2501.18512).

A fragment is a run of whole tensors in layout order, hence a slice of the flat vector. Cuts lie where the tensors'
sizes add up to nearly 1/F each; no fragment is empty, so there are at most as many as tensors.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from farflung.core.tensor_layout import TensorLayout


class Fragment(NamedTuple):
    """Some tensors of a layout, as a layout of their own, and their place in the whole flat vector."""

    layout: TensorLayout
    place: slice


def split(layout: TensorLayout, count: int) -> tuple[Fragment, ...]:
    """min(count, tensors) fragments, count ≥ 1; the same on every machine."""
    count = min(count, len(layout.tensors))
    if count == 1:
        return (Fragment(layout, slice(0, layout.size)),)
    ends = [place.stop for _, place in layout.slices()]
    cuts, last = [0], 0
    for index in range(1, count):
        room = len(ends) - (count - index)  # tensors that must be left for the others
        target = layout.size * index
        nearest = min(range(last + 1, room + 1), key=lambda n: (abs(count * ends[n - 1] - target), n))
        cuts.append(nearest)
        last = nearest
    cuts.append(len(ends))
    starts = [0, *ends]
    return tuple(Fragment(TensorLayout(layout.tensors[a:b]), slice(starts[a], starts[b])) for a, b in pairwise(cuts))


def of_round(layout: TensorLayout, count: int, round: int) -> Fragment:
    """The fragment that a round sends: they take turns."""
    parts = split(layout, count)
    return parts[round % len(parts)]
