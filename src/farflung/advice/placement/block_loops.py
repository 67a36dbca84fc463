"""Runs the loops over layouts of so many devices that no matrix of all pairs is kept: times are computed pair by
pair.

Without numba they run as they stand.
"""

from __future__ import annotations

from farflung.advice.placement import numba_optional
from farflung.advice.placement.numba_optional import loop


@loop
def there(site, delay, rate, up, down, size, i, j):
    """Seconds from device i to device j."""
    a, b = site[i], site[j]
    return delay[a, b] + 8.0 * size / min(rate[a, b], up[i], down[j])


@loop
def exchange(grid, site, delay, rate, up, down, share):
    """The worst device's exchange with its group, there and back: DT-FM's first term, of a grid [W, P]."""
    worst = 0.0
    for group in grid:
        for i in group:
            total = 0.0
            for j in group:
                if i != j:
                    total += there(site, delay, rate, up, down, share, i, j)
                    total += there(site, delay, rate, up, down, share, j, i)
            worst = max(worst, total)
    return worst


@loop
def pipeline(grid, site, delay, rate, up, down, size):
    """The sum over hops of the slowest pair of each, there and back."""
    total = 0.0
    for w in range(1, grid.shape[0]):
        worst = 0.0
        for p in range(grid.shape[1]):
            i, j = grid[w - 1, p], grid[w, p]
            hop = there(site, delay, rate, up, down, size, i, j)
            worst = max(worst, hop + there(site, delay, rate, up, down, size, j, i))
        total += worst
    return total


LOOPS = ("exchange", "pipeline")


def load(cache):
    """The loops by name, compiled, with a folder that keeps their compiled code."""
    return numba_optional.load(globals(), LOOPS, cache)
