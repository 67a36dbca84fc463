"""Describes what lies between devices: sites with delays and rates between them, and each device's own access
line.

Rates are not symmetric: what `i` sends to `j` is held up by i's uplink, j's downlink, or what lies between their
sites. Nothing of size N x N is kept: matrices are made for the few devices that a search looks at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from farflung.core import limits
from farflung.core.errors import UsageError

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
LONGEST: Final = 60.0  # seconds one way


class LinkMatrices(msgspec.Struct, frozen=True):
    """N devices at S sites. Seconds one way, and bit/s; the diagonals are for two devices of one site."""

    site: Indices  # [N]
    delay: Floats  # [S, S]
    rate: Floats  # [S, S]
    up: Floats  # [N], infinite where nobody says
    down: Floats  # [N]

    def __len__(self) -> int:
        return len(self.site)

    def seconds(self, size: float, devices: Sequence[int] | Indices | None = None) -> Floats:
        """[n, n] seconds to send `size` bytes from each of some devices to each other; 0 on the diagonal.

        alpha + 8 size / beta, beta the least of what lies between and both ends. Raises UsageError FF-PLAN-041 for
        more devices than a matrix is made for.
        """
        chosen = np.arange(len(self)) if devices is None else np.asarray(devices, np.int64)
        if len(chosen) > limits.PLACED_TOGETHER:
            raise UsageError(
                "FF-PLAN-041",
                f"{len(chosen)} devices are too many to place at once",
                cause=f"times between all pairs are kept for {limits.PLACED_TOGETHER} at most",
                hint="farflung.advice.placement.device_clusters places them block by block",
            )
        at = self.site[chosen]
        rate = np.minimum(self.rate[np.ix_(at, at)], self.up[chosen, None])
        rate = np.minimum(rate, self.down[chosen])
        times = self.delay[np.ix_(at, at)] + 8.0 * size / rate
        np.fill_diagonal(times, 0.0)
        return times


def mesh(
    site: Sequence[int] | Indices,
    delay: Sequence[Sequence[float]] | Floats,
    rate: Sequence[Sequence[float]] | Floats,
    up: Sequence[float] | Floats | None = None,
    down: Sequence[float] | Floats | None = None,
) -> LinkMatrices:
    """Checked arrays: `site` [N], `delay` and `rate` [S, S], access lines [N].

    Raises UsageError FF-PLAN-040: the field that is wrong is named. Two sites that nothing joins have a rate of 0, and
    are refused: no placement over them ever ends a step.
    """
    if not 0 < len(site) <= limits.PLACED_DEVICES:
        raise _wrong("site", f"{len(site)} devices; 1 to {limits.PLACED_DEVICES} can be placed")
    sites, delays, rates = np.asarray(site, np.int64), _floats("delay", delay), _floats("rate", rate)
    free = np.full(len(sites), np.inf)
    ups = free if up is None else _floats("up", up)
    downs = free if down is None else _floats("down", down)
    count = len(delays)
    if delays.shape != (count, count) or rates.shape != delays.shape:
        raise _wrong("rate" if delays.shape == (count, count) else "delay", "it must have a row and a column a site")
    if sites.min() < 0 or sites.max() >= count:
        raise _wrong("site", f"a device is at site {int(max(sites.max(), -sites.min()))}, there are {count}")
    if not ((delays >= 0) & (delays <= LONGEST)).all():
        raise _wrong("delay", f"a delay is 0 to {LONGEST:g} s")
    for name, values in (("rate", rates), ("up", ups), ("down", downs)):
        if name != "rate" and values.shape != sites.shape:
            raise _wrong(name, f"{len(values)} lines for {len(sites)} devices")
        if not (values > 0).all():
            raise _wrong(name, "a rate of 0 or less, or no number: nothing joins these devices")
    return LinkMatrices(sites, delays, rates, ups, downs)


def _floats(name: str, values: object) -> Floats:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise _wrong(name, str(error)) from error


def _wrong(name: str, cause: str) -> UsageError:
    return UsageError(
        "FF-PLAN-040",
        f"`{name}` of a mesh of devices is wrong",
        cause=cause,
        hint="delays in seconds, rates in bit/s, one site number for each device",
    )
