"""Defines the events for network paths: simulated homes, path types of node pairs, and relay payments."""

from __future__ import annotations

from farflung.core.events.base import Event


class SimulatedHomeEvent(Event, frozen=True, tag="housed"):
    """Who is in a simulated home of the laboratory, and what kind of NAT each one's router does, in the same order.

    `up` and `down` of every line in Mbit/s; `rtt`: round trip to the backbone in ms.
    """

    names: tuple[str, ...]
    routers: tuple[str, ...]
    up: float
    down: float
    rtt: float


class PathCountsEvent(Event, frozen=True, tag="ways"):
    """Over which way each pair of nodes talked in the end: so many pairs over each. Who never talked is not counted."""

    lan: int = 0
    direct: int = 0
    opened: int = 0
    relay: int = 0


class RelayPaymentEvent(Event, frozen=True, tag="relay-paid"):
    """What a relay got for `bytes` that both ends signed for, in pico-credits, at `price` a GiB; `held`: not yet."""

    peer: str
    bytes: int
    price: int
    paid: int
    held: int = 0
