"""Builds the five networks on which DT-FM was tried (Yuan et al. 2022, section 4.1), from their documented
numbers.

Numbers are of the configuration published with the paper (scheduler/heuristic_evolutionary_solver/config.py of
DS3Lab/DT-FM, which disagrees with its README on the delay inside a region): delays in ms, rates in Gbit/s, measured
between regions of one cloud provider, the rest assumed there.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from farflung.advice.placement.link_matrices import Floats, LinkMatrices, mesh

BEST: Final = (3.4398, 31.6342, 16.0868, 34.8020, 49.2184)  # seconds: the least cost known of each case, 8 stages

# Lower triangles, a line a region, to the regions above it.
_COUNTRY: Final = ("Virginia", "Oregon", "California", "Ohio")
_COUNTRY_MS: Final = "67 / 59 12 / 11 49 52"
_COUNTRY_RATE: Final = "1.15 / 1.05 1.25 / 1.12 1.10 1.02"
_WORLD: Final = ("Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "London", "Frankfurt", "Ireland")
_WORLD_MS: Final = (
    "67 / 49 11 / 96 143 130 / 124 172 159 34 / 136 76 86 210 238 / 143 90 99 223 235 14 / 124 67 77 199 228 12 24"
)
_WORLD_RATE: Final = (
    "0.79 / 1.1 1.12 / 0.523 0.524 0.694 / 0.46 0.5 0.529 1.1 / 0.42 1.16 1.05 0.366 0.342 / "
    "0.404 1.02 0.799 0.36 0.358 1.14 / 0.482 1.05 1.14 0.465 0.335 1.09 1.08"
)


def case(number: int) -> LinkMatrices:
    """64 devices: 0 a data centre, 1 spot machines beside single cards, 2 two universities, 3 four regions of a
    country, 4 eight regions of the world.
    """
    if number == 0:
        return _even([8] * 8, 0.0, 3.125, 0.0, 100.0)
    if number == 1:
        return _even([4] * 8 + [1] * 32, 0.0, 1.25, 0.0, 100.0)
    if number == 2:
        return _even([32, 32], 11.0, 1.12, 1.0, 5.0)
    if number == 3:
        return _measured([16] * len(_COUNTRY), _COUNTRY_MS, _COUNTRY_RATE)
    return _measured([8] * len(_WORLD), _WORLD_MS, _WORLD_RATE)


def _even(sizes: list[int], apart_ms: float, apart: float, inside_ms: float, inside: float) -> LinkMatrices:
    count = len(sizes)
    return _mesh(sizes, _filled(count, apart_ms, inside_ms), _filled(count, apart, inside))


def _measured(sizes: list[int], delays: str, rates: str) -> LinkMatrices:
    """Regions by their triangles; 5 ms and 2 Gbit/s inside each."""
    return _mesh(sizes, _mirrored(delays, 5.0), _mirrored(rates, 2.0))


def _mesh(sizes: list[int], delay_ms: Floats, rate: Floats) -> LinkMatrices:
    return mesh(np.repeat(np.arange(len(sizes)), sizes), delay_ms / 1e3, rate * 1e9)


def _filled(count: int, apart: float, inside: float) -> Floats:
    out = np.full((count, count), apart)
    np.fill_diagonal(out, inside)
    return out


def _mirrored(triangle: str, inside: float) -> Floats:
    lines = [[float(word) for word in line.split()] for line in triangle.split("/")]
    out = np.zeros((len(lines) + 1, len(lines) + 1))
    for row, line in enumerate(lines, 1):
        out[row, :row] = line
    out += out.T
    np.fill_diagonal(out, inside)
    return out
