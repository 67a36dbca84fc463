"""Listens for the ledger's HTTP readers: one request a connection, everything bounded, read-only.

It listens on 127.0.0.1 unless it is told otherwise. A client that is slow, loud or wrong loses its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from collections import Counter
from collections.abc import Callable

from farflung.core import limits
from farflung.core.errors import FarflungError, PolicyError
from farflung.peers.ledger_http import openapi, routes
from farflung.peers.ledger_http.handlers import Ask
from farflung.peers.ledger_http.http1 import TEXT, HttpResponse, is_bodiless, read_target, refused, replied, unreadable
from farflung.peers.ledger_http.metrics import LedgerMetrics
from farflung.peers.ledger_http.rate_limit import AddressRateLimiter, block_of

LOCAL_NAMES = frozenset({"localhost"})
_END = b"\r\n\r\n"


class LedgerHttpServer:
    """Answers readers from `ask`; its metrics are `gauges`, which whoever knows fills in."""

    def __init__(
        self,
        ask: Ask,
        gauges: LedgerMetrics,
        *,
        names: frozenset[str] = LOCAL_NAMES,
        rates: AddressRateLimiter | None = None,
        refresh: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`names`: what a request's Host may be beside an address. `refresh` brings the gauges up to date."""
        self._refresh = refresh
        self._ask, self._gauges, self._names, self._clock = ask, gauges, names, clock
        self._rates = AddressRateLimiter() if rates is None else rates
        self._open = Counter[str]()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0, *, allow_remote: bool = False) -> int:
        """Listens; the port. Raises PolicyError FF-APP-275 for another host than loopback without `allow_remote`."""
        if not allow_remote and not ipaddress.ip_address(host).is_loopback:
            raise PolicyError(
                "FF-APP-275",
                f"readers are not served on {host}",
                cause="whoever reaches that address could ask",
                hint="say so, or serve 127.0.0.1 and put a proxy of yours before it",
            )
        self._server = await asyncio.start_server(self._arrived, host, port, limit=limits.API_HEAD_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stops listening; whoever waits for an answer is cut off."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    async def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        peer = block_of((writer.get_extra_info("peername") or ("",))[0])
        self._open[peer] += 1
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._serve(reader, writer, peer)
        finally:
            self._tasks.discard(task)
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        """One request and its answer; whoever holds too many connections is refused before it is heard."""
        asked = b""
        if self._is_full(peer):
            reply = refused(_busy(), again=1)
        else:
            async with asyncio.timeout(limits.API_HEAD_SECONDS):
                try:
                    asked = await reader.readuntil(_END)
                except asyncio.LimitOverrunError:
                    asked = await reader.read(len(b"HEAD "))
                    reply = refused(unreadable("its head is too long"))
                else:
                    reply = self.reply(asked, peer)
        self._gauges.requests += 1
        self._gauges.refusals += reply.status != 200
        writer.write(reply.head if is_bodiless(asked) else reply.wire)
        async with asyncio.timeout(limits.API_SEND_SECONDS):
            await writer.drain()
            writer.write_eof()
            rest = limits.API_DRAIN_BYTES
            while rest > 0 and (more := await reader.read(rest)):  # unread, it could cost the answer
                rest -= len(more)

    def _is_full(self, peer: str) -> bool:
        return len(self._tasks) > limits.API_CONNECTIONS or self._open[peer] > limits.API_CONNECTIONS_PER_ADDRESS

    def reply(self, asked: bytes, peer: str) -> HttpResponse:
        """The answer to one request."""
        try:
            target = read_target(asked, self._names)
            route = None if target in _PAGES else routes.found(target)
            wait = self._rates.take(peer, route[0].cost if route else 1, self._clock())
            if wait:
                return refused(_too_many(wait), again=wait)
            if route is None:
                self._refresh()
                return _PAGES[target](self._gauges)
            return replied(route[0].answer(self._ask, route[1]))
        except FarflungError as error:
            wait = self._rates.take(peer, 1, self._clock())
            return refused(_too_many(wait), again=wait) if wait else refused(error)


_PAGES: dict[str, Callable[[LedgerMetrics], HttpResponse]] = {
    "/metrics": lambda gauges: HttpResponse(200, gauges.page().encode(), TEXT),
    "/v1/openapi.json": lambda _: replied(openapi.description()),
}


def _too_many(wait: int) -> PolicyError:
    return PolicyError(
        "FF-APP-269",
        "too many requests from this address",
        cause=f"it may ask again in {wait} s",
        hint="wait as long as Retry-After says, and ask for pages instead of single rows",
    )


def _busy() -> PolicyError:
    return PolicyError(
        "FF-APP-274",
        "too many connections",
        cause="each address may hold a few, and all together not many more",
        hint="wait for the answers that are under way",
    )
