"""Describes a home of the emulated network (line, router, hosts), and parses its command-line form."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum

from farflung.core.errors import UsageError
from farflung.core.similar_name import similar_name

MAX_HOMES = 199  # a home's number is a byte of its addresses; carriers have the numbers from 200 on
MAX_CARRIERS = 50
MAX_SERVERS = 50
MAX_HOSTS = 99


class NatType(StrEnum):
    """What a router does to UDP, in the words of RFC 3489; TCP goes the same way, but `udp_blocked` lets it out."""

    NONE = "none"  # hosts have public addresses, and nothing is filtered
    FULL_CONE = "full_cone"  # who sent once from a port is reached there by everybody
    ADDRESS_RESTRICTED = "address_restricted"  # ... by the addresses that it sent to
    PORT_RESTRICTED = "port_restricted"  # ... by the addresses and ports that it sent to
    SYMMETRIC = "symmetric"  # the same, and another public port for every destination
    UDP_BLOCKED = "udp_blocked"


@dataclass(frozen=True)
class EmulatedHome:
    """One home. Rates in Mbit/s as a provider sells them (Ethernet frames counted; 0: not limited), times in ms.

    `rtt` is the round trip between home and backbone, half of it each way. `loss` is a probability, in each direction;
    `burst` is the mean number of packets that are lost in a row (1: each by its own chance). `jitter` adds up to so
    much each way, never reordering. `queue` is how long a packet may wait for the line before it is dropped.
    `carrier` is the number of the carrier-grade NAT that the home shares with others, from 1; 0: none.
    `train` is the number of packets that network cards are given at once (segmentation offload): with more than one
    the machine has less to do and the line's steps are larger, so it is for fast lines, and for those without loss.
    `hosts` are on the home's LAN. `seed` 0: the home's number. Raises UsageError FF-LAB-002.
    """

    up: float = 20.0
    down: float = 100.0
    rtt: float = 40.0
    loss: float = 0.0
    burst: float = 1.0
    jitter: float = 0.0
    queue: float = 100.0
    nat: NatType = NatType.PORT_RESTRICTED
    hosts: int = 1
    carrier: int = 0
    mtu: int = 1500  # of the line, in bytes
    seed: int = 0
    train: int = 1

    def __post_init__(self) -> None:
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if not math.isfinite(value) or not least <= value <= most:
                raise UsageError("FF-LAB-002", f"a home cannot have {name} = {value}", hint=f"{least:g} to {most:g}")
        if self.train > 1 and self.loss:
            raise UsageError(
                "FF-LAB-002",
                f"a home cannot have train = {self.train} with loss = {self.loss}",
                cause="packets are lost one by one",
                hint="train=1",
            )
        # With a shorter mean a burst would begin with a chance above one.
        least_burst = self.loss / (1 - self.loss)
        if 1 < self.burst < least_burst - 1e-9:
            raise UsageError(
                "FF-LAB-002",
                f"a home cannot have loss = {self.loss} in bursts of {self.burst}",
                hint=f"burst={math.ceil(least_burst)} or more",
            )


BOUNDS: dict[str, tuple[float, float]] = {
    "up": (0, 10_000),
    "down": (0, 10_000),
    "rtt": (0, 4_000),
    "loss": (0, 0.9),
    "burst": (1, 1_000),
    "jitter": (0, 1_000),
    "queue": (1, 4_000),
    "hosts": (1, MAX_HOSTS),
    "carrier": (0, MAX_CARRIERS),
    "mtu": (576, 1_500),
    "seed": (0, 2**32 - 1),
    "train": (1, 44),
}
_KINDS: dict[str, type] = {field.name: type(field.default) for field in fields(EmulatedHome)}


def parse_home(text: str) -> EmulatedHome:
    """A home of "up=20,down=100,rtt=40,loss=0.005,nat=symmetric"; what is left out keeps its default.

    Raises UsageError FF-LAB-001 for what is no `key=value`, FF-LAB-002 for a value out of bounds.
    """
    given: dict[str, object] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        key, sign, value = (piece.strip() for piece in part.partition("="))
        if not sign or key not in _KINDS or key in given:
            near = similar_name(key, _KINDS)
            why = "twice" if key in given else "key=value, with one of the known keys"
            raise UsageError(
                "FF-LAB-001", f'"{part}" says nothing about a home', cause=why, hint=near or ", ".join(_KINDS)
            )
        try:
            given[key] = _KINDS[key](value)
        except ValueError as error:
            kinds = ", ".join(NatType) if key == "nat" else "a whole number" if _KINDS[key] is int else "a number"
            raise UsageError(
                "FF-LAB-001", f'"{part}" says nothing about a home', cause=f"{key} is not {value}", hint=kinds
            ) from error
    return EmulatedHome(**given)  # type: ignore[arg-type]  # each value was made by the type of its field
