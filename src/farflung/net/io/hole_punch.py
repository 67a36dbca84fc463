"""Connects two peers behind routers by TCP simultaneous open, from ports that they agreed on through a relay.

    initiator                                       responder
    binds a port, asks the relay where it is seen
      | -- path.offer(own address, seen, round trip) -> | binds a port, asks the relay where it is seen
      | <- the same of the responder ------------------ |
    connects at once                                connects half a round trip later
      | <=== both SYNs cross; the smaller account key is the TLS dialer ===> |

Both travel over the two peers' encrypted connection. Seen at one address, the two are behind one router (or carrier):
then they try their own addresses on the network at home, where the larger key listens for as long as that takes.

A proved peer can name at most limits.CANDIDATES addresses of ports from 1024, once in OFFER_SECONDS: the one that it
says it is seen at or, where it names our own address as that, private ones. What remains: so many bare TCP connections
to such ports, with our hello behind one that is accepted. No loopback, multicast or broadcast address is ever tried,
but by peers that are on one machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import FarflungError, NetworkError, PolicyError
from farflung.core.ids import PeerId, short
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.net import relay_probe
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.paths import PathType

OFFER: Final = "path.offer"
OPEN_SECONDS: Final = 2.0  # for both to connect
OFFER_SECONDS: Final = 4.0  # between two offers of one peer that are followed; for the answer to one
_AGAIN_SECONDS: Final = 0.05  # after a refusal: the other end had not begun
_AT_ONCE: Final = 2  # openings of one endpoint: each has a connection of its own to the relay
_LEAST_PORT: Final = 1024
_MOST_TRIP: Final = 2_000_000  # microseconds

_PRIVATE: Final = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7", "fe80::/10")
)

Where = tuple[str, int]


class HolePunchOffer(Wire, frozen=True):
    """What one end brings: its own addresses, where the relay sees it, and (microseconds) the round trip it knows."""

    own: tuple[Where, ...]
    seen: Where
    trip: int


@dataclass(frozen=True, slots=True)
class _HolePunchPort:
    """A local port that is known to the world, as long as the connection to the relay stands."""

    own: Where
    seen: Where


def targets(offer: HolePunchOffer, own: Where, seen: Where) -> tuple[list[Where], bool]:
    """The addresses of an offer that may be tried from `own`, seen at `seen`; and whether they are at home here."""
    is_home = offer.seen[0] == seen[0]
    named = offer.own if is_home else (offer.seen,)
    may_loop = ipaddress.ip_address(own[0]).is_loopback
    found = [where for where in dict.fromkeys(named[: limits.CANDIDATES]) if _may_try(where, own, may_loop)]
    return [where for where in found if not is_home or _is_private(where[0])], is_home


def _may_try(where: Where, own: Where, may_loop: bool) -> bool:
    host, port = where
    try:
        address, mine = ipaddress.ip_address(host), ipaddress.ip_address(own[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped or address.sixtofour):
        return False
    if address.version != mine.version or where == own or not _LEAST_PORT <= port < 1 << 16:
        return False
    if address.is_loopback:
        return may_loop
    return not (address.is_multicast or address.is_unspecified or _is_broadcast(address))


def _is_private(host: str) -> bool:
    address = ipaddress.ip_address(host)
    return address.is_loopback or any(address in network for network in _PRIVATE if network.version == address.version)


def _is_broadcast(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """240.0.0.0/4 with 255.255.255.255, and 0.0.0.0/8, which is this machine."""
    return address.version == 4 and (int(address) >> 28 == 15 or int(address) >> 24 == 0)


class HolePuncher:
    """The openings of one endpoint. `may_open` says which proved peers may offer."""

    def __init__(
        self,
        endpoint: Endpoint,
        may_open: Callable[[PeerId], bool],
        on_opened: Callable[[Connection], None] = lambda _: None,
    ) -> None:
        """`on_opened` hears of connections that the other end had offered."""
        self._endpoint, self._may_open, self._on_opened = endpoint, may_open, on_opened
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._offered: dict[PeerId, asyncio.Task[Connection]] = {}  # by us, not answered yet
        self._heard: dict[PeerId, float] = {}  # when a peer's offer was last followed
        self._offering, self._following = OwnedTasks(), OwnedTasks()
        endpoint.services[OFFER] = self._answer

    async def close(self) -> None:
        """Gives up what is under way."""
        await self._following.close()
        await self._offering.close()

    async def open(self, connection: Connection) -> Connection:
        """A connection to the same peer without a relay. Raises NetworkError: FF-NET-114 where they cannot meet."""
        task = self._offered[connection.peer] = self._offering.begin(self._open(connection))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise cannot(connection.peer, "the other end offers it itself") from None
            task.cancel()
            raise
        finally:
            if self._offered.get(connection.peer) is task:
                del self._offered[connection.peer]

    async def _open(self, connection: Connection) -> Connection:
        async with self._turn, contextlib.AsyncExitStack() as stack:
            port = await self._port(connection.place, connection.peer, stack)
            trip = min(int((connection.round_trip or 0.0) * 1e6), _MOST_TRIP)
            said = encode(HolePunchOffer((port.own,), port.seen, trip))
            told = await connection.call(OFFER, said, timeout=OFFER_SECONDS)
            self._offered.pop(connection.peer, None)
            return await self._meet(connection.peer, port, decode(told, HolePunchOffer, limits.OFFER_BYTES))

    async def _answer(self, connection: Connection, method: str, body: bytes) -> bytes:
        """The responder's side; who offers while we do yields to the smaller key."""
        peer, now = connection.peer, asyncio.get_running_loop().time()
        offer = decode(body, HolePunchOffer, limits.OFFER_BYTES)
        mine = self._offered.get(peer)
        if not self._may_open(peer) or now - self._heard.get(peer, -OFFER_SECONDS) < OFFER_SECONDS:
            raise PolicyError("FF-NET-115", "no simultaneous open with this peer now")
        if connection.way is not PathType.RELAY or (mine is not None and self._endpoint.credential.account < peer):
            raise PolicyError("FF-NET-115", "no simultaneous open with this peer now")
        if mine is not None:
            mine.cancel()
        if len(self._following) >= limits.HALF_OPEN:
            raise PolicyError("FF-NET-115", "no simultaneous open with this peer now")
        self._heard = {p: at for p, at in self._heard.items() if now - at < OFFER_SECONDS} | {peer: now}
        port: asyncio.Future[_HolePunchPort] = asyncio.get_running_loop().create_future()
        self._following.begin(self._follow(connection, offer, port))
        found = await port
        return encode(HolePunchOffer((found.own,), found.seen, 0))

    async def _follow(
        self, connection: Connection, offer: HolePunchOffer, port: asyncio.Future[_HolePunchPort]
    ) -> None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                mine = await self._port(connection.place, connection.peer, stack)
                port.set_result(mine)
                await asyncio.sleep(min(max(offer.trip, 0), _MOST_TRIP) / 2e6)
                self._on_opened(await self._meet(connection.peer, mine, offer))
        except (FarflungError, OSError) as error:
            if not port.done():
                port.set_exception(error)
        finally:
            port.cancel()

    async def _port(self, place: EndpointAddress, peer: PeerId, stack: contextlib.AsyncExitStack) -> _HolePunchPort:
        """A fresh local port, and where the relay sees it. Raises NetworkError FF-NET-114, or what the relay says."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
            tcp = _bound(found[0][0])
            stack.callback(tcp.close)
            async with asyncio.timeout(OFFER_SECONDS):
                await loop.sock_connect(tcp, found[0][4])
        except (OSError, TimeoutError, ValueError) as error:
            raise cannot(peer, f"the relay is out of reach: {error}"[:200]) from None
        own = tcp.getsockname()[:2]
        relay = await over(self._endpoint, tcp, place.relay, PathType.DIRECT)
        stack.callback(relay.close)
        relay.doubt()  # whoever wants the relay for other things has a connection that stays
        seen = decode(
            await relay.call(relay_probe.WHERE, b"", timeout=OFFER_SECONDS), tuple[str, int], limits.OFFER_BYTES
        )
        return _HolePunchPort(own, seen)

    async def _meet(self, peer: PeerId, port: _HolePunchPort, offer: HolePunchOffer) -> Connection:
        """Connects, and lets TLS say who is there."""
        is_dialer = self._endpoint.credential.account < peer
        places, is_home = targets(offer, port.own, port.seen)
        way = PathType.LAN if is_home else PathType.OPENED
        if is_home and not is_dialer:
            tries = [self._listen(port.own)]
        else:
            tries = [self._connect(port.own, where) for where in places]
        tasks = [asyncio.create_task(each) for each in tries]
        waiting, used = set(tasks), set[asyncio.Task[socket.socket]]()
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                while waiting:
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for each in done:
                        with contextlib.suppress(OSError, NetworkError):
                            tcp = each.result()
                            used.add(each)
                            return await self._prove(tcp, peer, way, is_dialer=is_dialer)
        except TimeoutError:
            pass
        finally:
            for task in tasks:
                task.cancel()
            for made in await asyncio.gather(*(set(tasks) - used), return_exceptions=True):
                if isinstance(made, socket.socket):
                    made.close()
        raise cannot(peer, "nothing came through in time: a router gives each connection a port of its own")

    async def _prove(self, tcp: socket.socket, peer: PeerId, way: PathType, *, is_dialer: bool) -> Connection:
        connection = await over(self._endpoint, tcp, peer if is_dialer else None, way)
        if connection.peer != peer:  # a stranger on the same network was faster
            connection.close()
            raise cannot(peer, "somebody else came")
        return connection

    async def _connect(self, own: Where, where: Where) -> socket.socket:
        """Connects from the agreed port, again when it was too early; the caller bounds the time."""
        loop = asyncio.get_running_loop()
        while True:
            tcp = _bound(socket.AF_INET6 if ":" in where[0] else socket.AF_INET, own)
            try:
                await loop.sock_connect(tcp, where)
                return tcp
            except (ConnectionRefusedError, ConnectionResetError):
                tcp.close()
                await asyncio.sleep(_AGAIN_SECONDS)
            except BaseException:
                tcp.close()
                raise

    async def _listen(self, own: Where) -> socket.socket:
        with contextlib.closing(_bound(socket.AF_INET6 if ":" in own[0] else socket.AF_INET, own)) as tcp:
            tcp.listen(1)
            return (await asyncio.get_running_loop().sock_accept(tcp))[0]


async def over(endpoint: Endpoint, tcp: socket.socket, peer: PeerId | None, way: PathType) -> Connection:
    """An open connection over a socket that is connected; `peer`: who is dialled, None: the other end dials.

    Raises NetworkError FF-NET-044 too slow, 045, 046, 049, 050; ProtocolError FF-NET-001 .. 004.
    """
    loop = asyncio.get_running_loop()
    connection = endpoint.fresh(peer, way)
    try:
        async with asyncio.timeout(OFFER_SECONDS):
            if peer is None:
                await loop.connect_accepted_socket(lambda: connection, tcp)
            else:
                await loop.create_connection(lambda: connection, sock=tcp)
            await connection.opened()
    except TimeoutError:
        error = NetworkError("FF-NET-044", "the handshake was not finished", cause="its time is over")
        connection.drop(error)
        raise error from None
    except BaseException:
        connection.drop(NetworkError("FF-NET-046", "the dial was given up"))
        raise
    return connection


def _bound(family: int, own: Where | None = None) -> socket.socket:
    """A socket at a fresh local port, or at one that others of this process use too."""
    tcp = socket.socket(family, socket.SOCK_STREAM)
    try:
        tcp.setblocking(False)
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        tcp.bind(own or ("::" if family == socket.AF_INET6 else "0.0.0.0", 0))  # noqa: S104 - it does not listen
    except BaseException:
        tcp.close()
        raise
    return tcp


def cannot(peer: PeerId, cause: str) -> NetworkError:
    """FF-NET-114: two peers do not meet without a relay."""
    return NetworkError(
        "FF-NET-114",
        f"no simultaneous open with {short(peer)}",
        cause=cause,
        hint="nothing: the relay carries on, and it is tried again later",
    )
