"""Finds peers on the LAN by multicast DNS, and is found: `_farflung._tcp`, by the optional library zeroconf.

What is heard is a hint and nothing more: a place to try, where the handshake proves the key or fails. A service's name
is random; its record holds the account's key, which every dialled peer shows to strangers anyway, and nothing else.
"""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import secrets
import socket
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

from farflung.core import limits
from farflung.core.errors import NetworkError
from farflung.core.ids import ID_BYTES, PeerId
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.net.endpoint_records import EndpointAddress

SERVICE: Final = "_farflung._tcp.local."
_KEY: Final = b"k"
_ASK_MILLIS: Final = 1000  # for the answer about one service
_ASKED_AT_ONCE: Final = 16


def why_not() -> str:
    """Why nothing can be found here; empty if it can."""
    if importlib.util.find_spec("zeroconf") is None:
        return "the library zeroconf is not installed: pip install zeroconf"
    return ""


class MdnsDiscovery:
    """What is known of the LAN. `own` is announced at `port` and these addresses, if any are given."""

    def __init__(
        self,
        own: PeerId,
        interfaces: Sequence[str],
        port: int = 0,
        hosts: Sequence[str] = (),
        *,
        on_heard: Callable[[PeerId], None] = lambda _: None,
    ) -> None:
        """`interfaces`: this machine's addresses to speak from, none of them loopback.

        `hosts`: IPv4 addresses at which `own` listens, by the user's leave; none: it only listens for others.
        `on_heard`: the places of this key have changed.
        """
        self._own, self._port, self._on_heard = own, port, on_heard
        self._interfaces = [each for each in interfaces if not ipaddress.ip_address(each).is_loopback]
        self._hosts = [each for each in hosts if not ipaddress.ip_address(each).is_loopback]
        self._places: OrderedDict[str, tuple[PeerId, tuple[EndpointAddress, ...]]] = OrderedDict()  # by service
        self._asking, self._tasks = set[str](), OwnedTasks()
        self._zeroconf: Any = None
        self._info: Any = None

    async def start(self) -> None:
        """Begins to listen and, with `hosts`, to announce. Raises NetworkError FF-NET-153 where it cannot."""
        reason = why_not() or ("" if self._interfaces else "this machine has no address but loopback")
        if reason:
            raise _impossible(reason)
        from zeroconf import Error, IPVersion, ServiceInfo
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf

        try:
            self._zeroconf = AsyncZeroconf(interfaces=self._interfaces, ip_version=IPVersion.V4Only)
            AsyncServiceBrowser(self._zeroconf.zeroconf, SERVICE, handlers=[self._heard])
            await self._announce(ServiceInfo)
        except BaseException as error:
            await self.close()
            # Any host of the LAN can answer for our name, random as it is.
            if isinstance(error, OSError | Error):
                cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
                raise _impossible(cause) from error
            raise

    async def _announce(self, service_info: Any) -> None:
        if self._hosts:
            name = f"{secrets.token_hex(8)}.{SERVICE}"
            self._info = service_info(
                SERVICE,
                name,
                port=self._port,
                addresses=[socket.inet_aton(each) for each in self._hosts],
                properties={_KEY: self._own},
                server=f"{secrets.token_hex(8)}.local.",
            )
            await self._zeroconf.async_register_service(self._info)

    def places(self, peer: PeerId) -> tuple[EndpointAddress, ...]:
        """Where `peer` may be on this LAN: hints, the newest first, at most limits.LAN_PLACES."""
        found = [place for key, places in reversed(self._places.values()) if key == peer for place in places]
        return tuple(dict.fromkeys(found))[: limits.LAN_PLACES]

    async def close(self) -> None:
        """Says good-bye and stops."""
        await self._tasks.close()
        if self._zeroconf is not None:
            from zeroconf import Error

            with contextlib.suppress(OSError, Error):
                await self._zeroconf.async_close()
            self._zeroconf = None

    def _heard(self, zeroconf: Any, service_type: str, name: str, state_change: Any) -> None:
        """zeroconf, in our loop: a service came, changed or went."""
        if state_change.name == "Removed":
            gone = self._places.pop(name, None)
            if gone is not None:
                self._on_heard(gone[0])
        elif name not in self._asking and len(self._asking) < _ASKED_AT_ONCE and len(name) <= limits.HOST_BYTES:
            self._asking.add(name)
            self._tasks.begin(self._ask(name)).add_done_callback(lambda _: self._asking.discard(name))

    async def _ask(self, name: str) -> None:
        from zeroconf.asyncio import AsyncServiceInfo

        info = AsyncServiceInfo(SERVICE, name)
        if not await info.async_request(self._zeroconf.zeroconf, _ASK_MILLIS):
            return
        key = (info.properties or {}).get(_KEY)
        if not isinstance(key, bytes) or len(key) != ID_BYTES or key == self._own or not info.port:
            return
        hosts = [str(each) for each in info.parsed_addresses()][: limits.LAN_PLACES]
        self._places.pop(name, None)
        self._places[name] = (
            PeerId(key),
            tuple(EndpointAddress(host, info.port) for host in hosts if is_candidate(host)),
        )
        while len(self._places) > limits.LAN_SERVICES:
            self._places.popitem(last=False)
        self._on_heard(PeerId(key))


def is_candidate(host: str) -> bool:
    """Whether a heard address may be tried: one of a home's or office's own, so that nobody is sent elsewhere."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    is_odd = address.is_loopback or address.is_multicast or address.is_unspecified or address.is_reserved
    return address.version == 4 and address.is_private and not is_odd


def _impossible(cause: str) -> NetworkError:
    return NetworkError(
        "FF-NET-153",
        "peers on this LAN cannot be found",
        cause=cause,
        hint="they are reached through the registry and relays anyway",
    )
