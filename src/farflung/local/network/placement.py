"""Places the processes of a run: all on this computer's loopback, or each in its namespace of local.netlab.

    supervisor, requester: s3    relay: s2    relay-2: s4    ledger: s1
                            |          |             |           |
                            +----------+- backbone --+-----------+
                               |        |     |
                              line     line  line ...
                               |        |     |
                            router   router router   of a home of its own for each provider and each verifier

Only the servers can be reached, so everybody in a home is reached through a relay alone. Pipes do not know of
namespaces: the supervisor talks with its processes as ever. The job does not know of all this, so its result is the
same.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from farflung.core.errors import PolicyError
from farflung.core.events import SimulatedHomeEvent
from farflung.core.units import Seconds
from farflung.job.spec import JobSpec
from farflung.local.netlab import EmulatedHome, NatType, NetworkLab, why_not
from farflung.net.io.listen_errors import LOOPBACK
from farflung.peers.process import bandwidth_limits
from farflung.peers.process.channel import LEDGER, RELAY, REQUESTER, relay_names
from farflung.plan.exchange_paths import HERE, RunLinks
from farflung.plan.link_syntax import Link

MOST_VALIDATORS: Final = 16  # processes on one computer
SERVERS: Final[Mapping[str, str]] = MappingProxyType({LEDGER: "s1", RELAY: "s2", REQUESTER: "s3"})
LINE: Final = EmulatedHome(up=20, down=100, rtt=40)  # what many homes have: Mbit/s, ms to the backbone and back
BUILD: Final = Seconds(0.15)  # a home's namespaces, routers and line
MBIT: Final = 1e6
SYMMETRIC: Final = 2  # providers whose router gives each connection a port of its own


def homes_of(spec: JobSpec) -> dict[str, EmulatedHome]:
    """The home of each provider and each verifier, by its name: the first providers behind symmetric NAT."""
    kinds = {f"provider-{i}": i < SYMMETRIC for i in range(spec.network.providers)}
    kinds |= {f"verifier-{i}": False for i in range(spec.verifiers)}
    nats = (NatType.PORT_RESTRICTED, NatType.SYMMETRIC)
    return {name: replace(LINE, nat=nats[is_symmetric]) for name, is_symmetric in kinds.items()}


class LoopbackPlacement:
    """All processes are on this computer's loopback."""

    homes: Mapping[str, EmulatedHome] = MappingProxyType({})  # by the name of who lives there
    is_dialled = True  # whether others reach the requester where it listens

    def host(self, name: str) -> str:
        """The address that a process listens on."""
        return LOOPBACK

    def way(self, name: str) -> tuple[str, ...]:
        """What a process's command begins with, so that it is started where it belongs."""
        return ()

    @property
    def network(self) -> RunLinks:
        """What is known of the lines before anything is measured."""
        return HERE

    def line(self, name: str) -> str:
        """The line of one process, as plan.link_syntax reads it."""
        known = self.network
        link = {REQUESTER: known.requester, RELAY: known.relay}.get(name, known.member)
        return f"{link.up / MBIT:.6f}/{link.down / MBIT:.6f}/{1e3 * link.round_trip:.6f}ms"

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """While this is open all places are there, and the calling thread is where the supervisor belongs."""
        yield


class NetlabPlacement(LoopbackPlacement):
    """Providers and verifiers are in homes of the laboratory, all others are servers."""

    def __init__(self, homes: Mapping[str, EmulatedHome], relays: int = 1) -> None:
        """`homes`: by the name of who lives there. Nothing is made before `open`."""
        self.homes = homes
        more = {name: f"s{number}" for number, name in enumerate(relay_names(relays)[1:], len(SERVERS) + 1)}
        self._servers = {**SERVERS, **more}
        self._laboratory = NetworkLab(list(homes.values()), len(self._servers))
        self._places = {**self._servers, **{name: f"h{number}" for number, name in enumerate(homes, 1)}}

    @property
    def network(self) -> RunLinks:
        """The laboratory's lines, or what the owner allows on them; servers are on its backbone."""
        caps = bandwidth_limits.read_bandwidth_limits()
        up, down = (min(cap or math.inf, rate) for cap, rate in ((caps.up_mbit, LINE.up), (caps.down_mbit, LINE.down)))
        is_less = (up, down) != (LINE.up, LINE.down)
        link = Link(up * MBIT, down * MBIT, Seconds(LINE.rtt / 1e3))
        told = f"{link}: the laboratory's homes{', and the caps in network.toml' if is_less else ''}"
        return RunLinks(link, is_apart=True, told=told, building=Seconds(BUILD * len(self.homes)))

    def host(self, name: str) -> str:
        """A server's own address; nobody in a home can be reached."""
        place = self._servers.get(name)
        return LOOPBACK if place is None else self._laboratory.address(place)

    def way(self, name: str) -> tuple[str, ...]:
        """Through the door of its place, also when it is started again."""
        return self._laboratory.way(self._places[name])

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Builds all, and removes all with whoever is still in it.

        Raises RunError FF-LAB-004 where permission is denied.
        """
        with self._laboratory, self._laboratory.inside(self._servers[REQUESTER]):
            yield


def placement_of(spec: JobSpec, relays: int, *, in_homes: bool) -> LoopbackPlacement:
    """Where the processes of a job's network are. Raises PolicyError FF-APP-135 where homes cannot be made."""
    if in_homes and (why := why_not()):
        raise PolicyError(
            "FF-APP-135",
            "simulated homes cannot be made on this computer",
            cause=why,
            hint="as root on Linux with iproute2 and nftables; a run without --lab has the same result",
        )
    return NetlabPlacement(homes_of(spec), relays) if in_homes else LoopbackPlacement()


def homes_event(homes: Mapping[str, EmulatedHome]) -> SimulatedHomeEvent | None:
    """What a run says of its homes, which all have the same line; None where there are none."""
    if not homes:
        return None
    one = next(iter(homes.values()))
    return SimulatedHomeEvent(
        names=tuple(homes),
        routers=tuple(home.nat.value for home in homes.values()),
        up=one.up,
        down=one.down,
        rtt=one.rtt,
    )
