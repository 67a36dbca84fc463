"""Limits the requests of each address: a token bucket for each, in a table of bounded size."""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from dataclasses import dataclass, field

from farflung.core import limits


@dataclass(slots=True)
class AddressRateLimiter:
    """`rate` tokens a second for each address, up to `burst` of them saved; `most` addresses are remembered."""

    rate: float = limits.API_RATE
    burst: float = limits.API_BURST
    most: int = limits.API_ADDRESSES
    _levels: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def take(self, address: str, cost: int, now: float) -> int:
        """Spends `cost` tokens of an address; 0, or the whole seconds until it has them (then nothing is spent).

        A clock that goes back stops here.
        """
        key = block_of(address)
        level, at = self._levels.get(key, (self.burst, now))
        level = min(self.burst, level + self.rate * max(0.0, now - at))
        is_paid = level >= cost
        self._levels[key] = (level - cost if is_paid else level, max(now, at))
        self._levels.move_to_end(key)
        if len(self._levels) > self.most:
            self._levels.popitem(last=False)
        return 0 if is_paid else max(1, math.ceil((cost - level) / self.rate))

    def __len__(self) -> int:
        return len(self._levels)


def block_of(address: str) -> str:
    """Whom an address counts for: itself, or the /64 of IPv6 that one customer has."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(found, ipaddress.IPv6Address):
        mapped = found.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
