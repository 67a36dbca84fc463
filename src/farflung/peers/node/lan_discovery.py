"""Adds to a node's paths those to peers on its own LAN, which it discovers by multicast DNS (extra `lan`).

A node that stays at relays listens at its LAN's address as well, announces that, and tries first what others announce.
So two of one home meet there though their records name relays alone. Off where the owner says so (`lan = false` in
network.toml), where the extra is missing, where all relays are on this computer, and where this computer has no
address of a home's own: then nothing listens, and nobody is told.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from farflung.core.errors import NetworkError
from farflung.core.ids import PeerId
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.listen_errors import LOOPBACK
from farflung.net.io.mdns import MdnsDiscovery, is_candidate, why_not
from farflung.net.io.path_manager import PathManager
from farflung.net.io.request_handlers import Handler
from farflung.net.io.tcp_listener import ListenConfig
from farflung.net.paths import PathType
from farflung.peers.node.config import NodeConfig
from farflung.peers.process import bandwidth_limits
from farflung.peers.process.channel import Channel, report_path
from farflung.peers.process.config import ListenerConfig

ANYWHERE: Final = "0.0.0.0"  # noqa: S104 - the owner names a public address, which a router may forward here


def own_address(host: str, port: int) -> str:
    """The own address from which packets to `host` would leave; empty: there is no way. Nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect((host, port))
        return str(asked.getsockname()[0])
    return ""


def lan_address(relays: Iterable[ListenerConfig]) -> str:
    """Where a node at these relays also listens, on its LAN; empty: nowhere. Raises UsageError FF-APP-198."""
    if why_not() or not bandwidth_limits.read_bandwidth_limits().lan:
        return ""
    for relay in relays:
        found = "" if _is_here(relay.host) else own_address(relay.host, relay.port)
        if found and is_candidate(found):
            return found
    return ""


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class LanPaths(PathManager):
    """Roads on which the places of a peer on this LAN are tried before those that its record names."""

    def __init__(
        self, endpoint: Endpoint, host: str, *, on_way: Callable[[PeerId, PathType], None] = lambda _peer, _way: None
    ) -> None:
        """`host`: the own address on the LAN, where `endpoint` will listen; loopback or empty: there is no LAN."""
        super().__init__(endpoint, is_near=self._is_on_lan, on_way=on_way)
        self._at = host
        self._named: dict[PeerId, tuple[EndpointAddress, ...]] = {}
        self._lan: MdnsDiscovery | None = None

    async def settle(self) -> None:
        """Listens on the LAN and announces that; where it cannot be done, everything goes on without."""
        if self._at in ("", LOOPBACK):
            return
        with contextlib.suppress(NetworkError):
            _, port = await self._endpoint.start()
            lan = MdnsDiscovery(self._endpoint.credential.account, [self._at], port, [self._at], on_heard=self._heard)
            await lan.start()
            self._lan = lan

    def learn(self, peer: PeerId, places: Iterable[EndpointAddress]) -> None:
        """As Roads, and what the LAN says."""
        self._named[peer] = named = tuple(places)
        heard = self._lan.places(peer) if self._lan is not None else ()
        super().learn(peer, (*heard, *named))

    def forget(self, peers: Iterable[PeerId]) -> None:
        """As Roads."""
        gone = tuple(peers)
        for peer in gone:
            self._named.pop(peer, None)
        super().forget(gone)

    def _is_on_lan(self, peer: PeerId, place: EndpointAddress) -> bool:
        return self._lan is not None and place in self._lan.places(peer)

    def _heard(self, peer: PeerId) -> None:
        """Somebody came, moved or went on the LAN; who is of no interest here stays so."""
        if peer in self._named:
            self.learn(peer, self._named[peer])

    async def close(self) -> None:
        """As PathManager; says good-bye on the LAN."""
        if self._lan is not None:
            await self._lan.close()
        await super().close()


def open_endpoint(
    config: NodeConfig, handler: Handler, counter: ByteCounter, channel: Channel
) -> tuple[Endpoint, LanPaths]:
    """A node's endpoint, and its path manager. One whose owner names an address is on no LAN. Raises FF-APP-198."""
    host = lan_address(config.relays)
    if config.host:
        host = config.host if _is_here(config.host) else ANYWHERE
    endpoint = Endpoint(
        config.credential,
        handler,
        counter,
        listen=ListenConfig(host or LOOPBACK, config.port, allow_remote=bool(host)),
        pacer=bandwidth_limits.line_pacer(config.folder),
    )
    return endpoint, LanPaths(endpoint, "" if config.host else host, on_way=partial(report_path, channel))
