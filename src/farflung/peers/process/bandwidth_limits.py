"""Reads the bandwidth limits that a line's owner sets for all processes of one user: rates, monthly volume.

Read from `[network]` of network.toml in the user's configuration folder, and from FARFLUNG_UP_MBIT, FARFLUNG_DOWN_MBIT,
FARFLUNG_MONTH_GB and FARFLUNG_LAN, which win. It belongs to a line and not to a job, so no job file can change it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from farflung.core import bounded_toml, limits
from farflung.core.errors import UsageError
from farflung.core.io.ordinary_files import read_bounded
from farflung.core.similar_name import similar_name
from farflung.core.units import format_bytes
from farflung.net.io.line_rate_cache import LineRateCache
from farflung.net.io.monthly_quota import MonthlyQuota
from farflung.net.io.rate_limiter import LinePacer, RateCaps
from farflung.net.monthly_quota import GIGABYTE
from farflung.peers.process.user_dirs import config_folder, state_folder

KEYS: Final = {"up_mbit": 10_000.0, "down_mbit": 10_000.0, "month_gb": 1_000_000.0}  # and the most of each
LAN: Final = "lan"
SWITCHES: Final = {"true": True, "false": False, "1": True, "0": False}
LINES: Final = "lines.book"
_LAN_VARIABLE: Final = "FARFLUNG_LAN"
_MBIT: Final = 125_000  # bytes a second


@dataclass(frozen=True, slots=True)
class BandwidthLimits:
    """What is allowed: Mbit/s up and down on the line, GB a month both ways together (0: no bound), and the LAN."""

    up_mbit: float = 0.0
    down_mbit: float = 0.0
    month_gb: float = 0.0
    lan: bool = True  # whether nodes look for peers on the LAN, and say there that they are here


def config_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the owner writes it."""
    return config_folder(environment) / "network.toml"


def book_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the month is counted."""
    return state_folder(environment) / "month.book"


def read_bandwidth_limits(environment: Mapping[str, str] = os.environ) -> BandwidthLimits:
    """What the owner says. Raises UsageError FF-APP-198 for what is no such value."""
    path = config_file(environment)
    said: dict[str, float] = {}
    try:
        table = bounded_toml.parse(read_bounded(path, limits.SPEC_BYTES).decode(), limits.SPEC_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        table = {}
    except (OSError, ValueError) as error:
        raise _wrong(str(path), str(error)) from error
    network = table.pop("network", {})
    if table or not isinstance(network, dict):
        raise _wrong(str(path), "it has one table, [network]")
    lan = _switch(network.pop(LAN, True), f"{path}: {LAN}")
    for key, value in network.items():
        said[key] = _checked(key, value, f"{path}: {key}")
    for key in KEYS:
        variable = f"FARFLUNG_{key.upper()}"
        if variable in environment:
            said[key] = _checked(key, environment[variable], variable)
    if _LAN_VARIABLE in environment:
        lan = _switch(environment[_LAN_VARIABLE], _LAN_VARIABLE)
    return BandwidthLimits(**said, lan=lan)


def _switch(value: Any, origin: str) -> bool:
    said = str(value).lower() if isinstance(value, bool | str) else ""
    if said not in SWITCHES:
        raise _wrong(origin, f"{value!r} is neither true nor false")
    return SWITCHES[said]


def _checked(key: str, value: Any, origin: str) -> float:
    if key not in KEYS:
        near = similar_name(key, [*KEYS, LAN])
        raise _wrong(origin, f"there is no such key{f'; did you mean {near}?' if near else ''}")
    try:
        number = float(value) if not isinstance(value, bool) else -1.0
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number <= KEYS[key]:
        raise _wrong(origin, f"{value!r} is not a number from 0 to {KEYS[key]:g}")
    return number


def _wrong(origin: str, cause: str) -> UsageError:
    return UsageError(
        "FF-APP-198",
        f"no bound for the line: {origin}",
        cause=cause,
        hint="[network] has up_mbit, down_mbit and month_gb, each a number, 0: no bound; and lan = true or false",
    )


def allowance(month_gb: float) -> MonthlyQuota | None:
    """The month's volume that all processes of this user share; None: no bound. Raises UsageError FF-NET-151."""
    if not month_gb:
        return None
    return MonthlyQuota(book_file(), max(1, int(month_gb * GIGABYTE)), on_warning=_warn)


def line_pacer(folder: Path | None = None) -> LinePacer:
    """Of this process, as its owner allows. `folder` remembers how fast the line was (None: nothing does).

    Raises UsageError FF-NET-151, FF-APP-198.
    """
    said = read_bandwidth_limits()
    caps = RateCaps(int(said.up_mbit * _MBIT), int(said.down_mbit * _MBIT))
    memory = None if folder is None else LineRateCache(folder / LINES)
    return LinePacer(caps, allowance=allowance(said.month_gb), memory=memory)


def known_upload(folder: Path) -> Callable[[], float]:
    """Says how many bytes a second this line carries at most, as its owner bounds it or as it was measured, which
    `folder` remembers; 0: unknown. Raises UsageError FF-APP-198.
    """
    bound, remembered = read_bandwidth_limits().up_mbit * _MBIT, LineRateCache(folder / LINES)

    def known() -> float:
        rates = [rate for rate in (bound, float(remembered.newest() or 0)) if rate]
        return min(rates, default=0.0)

    return known


def _warn(used: int) -> None:
    sys.stderr.write(f"network: {format_bytes(used)} of this month's volume are used: 80 % or more\n")
