"""A world of peers and relays that run farflung's own network code in virtual time, from one seed."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from sim_net_clock import Clock, Loop, replaced
from sim_net_lines import HERE, Host, Line, Nat, Net, Process, Router
from sim_net_sockets import SimSocket

from farflung.core.crypto import SigningKey, local_key
from farflung.core.ids import PeerId
from farflung.net.counters import ByteCounter
from farflung.net.io.admission import Admission
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_circuits import RelayLimits
from farflung.net.io.relay_metering_gate import RelayMeteringGate
from farflung.net.io.tcp_listener import ListenConfig

T = TypeVar("T")
PORT = 4000
REST_SECONDS = 1000.0  # after which nothing of what was closed may be left


class World:
    """Hosts, the nodes that run on them, and the time that they share."""

    def __init__(self, seed: int) -> None:
        self.seed, self.clock = seed, Clock()
        self.net = Net(self.clock, seed)
        self.loop = Loop(self.clock, self.net)
        self.nodes: list[Node] = []
        self._sockets = type("WorldSocket", (SimSocket,), {"net": self.net})

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self.clock.now

    def host(self, name: str, line: Line | None = None, nat: Nat = Nat.NONE, skew: float = 0.0) -> Host:
        """A machine with a line of its own; behind a router of its own unless `nat` is NONE."""
        number = len(self.net.hosts) + 1
        router = None if nat is Nat.NONE else self.router(nat)
        ip = f"203.0.113.{number}" if router is None else f"10.0.{number}.2"
        made = self.net.hosts[name] = Host(name, ip, line or Line(), router, skew)
        return made

    def neighbour(self, name: str, of: Host, skew: float = 0.0) -> Host:
        """Another machine of the same home, on the same line."""
        assert of.router is not None
        ip = of.ip.rsplit(".", 1)[0] + f".{len(self.net.hosts) + 3}"
        made = self.net.hosts[name] = Host(name, ip, of.line, of.router, skew)
        return made

    def router(self, nat: Nat) -> Router:
        made = Router(f"198.51.100.{len(self.net.routers) + 1}", nat is Nat.SYMMETRIC)
        self.net.routers.append(made)
        return made

    def move(self, host: Host) -> None:
        """The provider gives the home another address: what stood leads nowhere, and nobody says so."""
        router = host.router
        home = [each for each in self.net.hosts.values() if each is host or (router and each.router is router)]
        fresh = f"198.51.100.{100 + len(self.net.trace) % 100}"
        if router is None:
            host.ip = fresh
        else:
            router.ip = fresh
            router.ports.clear()
            router.owners.clear()
            router.written.clear()
        for sock in list(self.net.sockets.values()):
            if sock.process.host in home:
                sock.move(home)

    def run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs `main`, then looks that nothing is left of what was closed."""

        async def whole() -> T:
            result = await main()
            await asyncio.gather(*(node.close() for node in self.nodes))
            assert self.loop.trouble == []
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert left == set(), f"tasks that nobody ended: {left}"
            await asyncio.sleep(REST_SECONDS)
            assert self.net.sockets == {}, "sockets that nobody closed"
            assert self.loop.trouble == []
            return result

        with replaced(self._sockets, self.net.wall, self.clock, self.seed):
            try:
                asyncio.set_event_loop(None)
                return self.loop.run_until_complete(whole())
            finally:
                self._end()

    def _end(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        for process in {sock.process for sock in self.net.sockets.values()}:
            process.end()
        self.loop.close()

    def trace(self) -> str:
        """What happened, as one word: equal for equal seeds. What happens in one instant has no order."""
        text = "\n".join(f"{at:.9f} {what}" for at, what in sorted(self.net.trace))
        return hashlib.sha256(text.encode()).hexdigest()


class Node:
    """One key's program on one host: it can die and live again. `counters`: of all its lives."""

    def __init__(self, world: World, host: Host) -> None:
        self.world, self.host = world, host
        self.key: SigningKey = local_key(world.seed, host.name)
        self.process = Process(host, is_alive=False)
        self.counter = ByteCounter()
        world.nodes.append(self)

    @property
    def id(self) -> PeerId:
        return self.key.public

    @property
    def is_alive(self) -> bool:
        return self.process.is_alive

    async def inside(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine as this node's program."""
        context = contextvars.copy_context()
        context.run(HERE.set, self.process)
        return await asyncio.get_running_loop().create_task(make(), context=context)

    async def begin(self) -> None:
        """A new life."""
        assert not self.is_alive
        self.process, self.counter = Process(self.host), ByteCounter()
        await self.inside(self._begin)

    async def kill(self, *, silently: bool = False) -> None:
        """The program is killed, or its machine loses its current: then nobody is told."""
        self.process.end(silently=silently)
        await self.inside(self._end)

    async def close(self) -> None:
        """An orderly end, and the count of its bytes."""
        if self.is_alive:
            await self.inside(self._end)
            self.check_bytes()

    def check_bytes(self) -> None:
        """What it counted is what its sockets took and gave, each byte once."""
        raise NotImplementedError

    async def _begin(self) -> None:
        raise NotImplementedError

    async def _end(self) -> None:
        raise NotImplementedError


class RelayNode(Node):
    """A relay on its host's address."""

    async def _begin(self) -> None:
        self.server = RelayServer(
            self.key,
            listen=ListenConfig(self.host.ip, PORT, allow_remote=True),
            admission=Admission(clock=self.world.net.wall),
            limits=RelayLimits(may_splice=False),
            gate=self.gate(),
            counter=self.counter,
        )
        await self.server.start()

    def gate(self) -> RelayMeteringGate | None:
        """What a new life asks for circuits."""
        return None

    async def _end(self) -> None:
        await self.server.close()

    def check_bytes(self) -> None:
        """A relay gives what it took, and says and hears the rest."""
        given = self.counter.total_sent + self.server.forwarded
        taken = self.counter.total_received + self.server.forwarded
        assert given <= self.process.sent if self.process.broken else given == self.process.sent
        assert taken <= self.process.received


Handler = Callable[[Connection, str, bytes], Awaitable[bytes]]


class PeerNode(Node):
    """An endpoint: listens where the world can reach it, or is attached to relays."""

    def __init__(
        self,
        world: World,
        host: Host,
        handler: Handler,
        *,
        relays: tuple[RelayNode, ...] = (),
        admit: Callable[[PeerId], bool] | None = None,
    ) -> None:
        super().__init__(world, host)
        self.handler, self.relays, self.admit = handler, relays, admit

    async def _begin(self) -> None:
        self.endpoint = Endpoint(
            self.key,
            self.handler,
            self.counter,
            listen=ListenConfig(self.host.ip, PORT, allow_remote=True),
            admission=Admission(self.admit, clock=self.world.net.wall),
        )
        self.endpoint.on_error = lambda error: self.world.loop.trouble.append(repr(error))
        if not self.relays:
            await self.endpoint.start()
        for relay in self.relays:
            self.endpoint.attach(relay.id, relay.host.ip, PORT)

    async def _end(self) -> None:
        await self.endpoint.close()

    async def attached(self) -> None:
        """Returns when all its relays know it."""
        await self.inside(self.endpoint.attached)
        while not all(a.is_there for a in self.endpoint._attachments.values()):  # noqa: ASYNC110 - no event of its own
            await asyncio.sleep(0.01)

    async def dial(self, peer: Node) -> Connection:
        """To where the peer listens, or through the first of its relays that works."""
        if isinstance(peer, PeerNode) and peer.relays:
            relay = peer.relays[0]
            make = lambda: self.endpoint.dial(peer.id, relay.host.ip, PORT, relay=relay.id)  # noqa: E731
        else:
            make = lambda: self.endpoint.dial(peer.id, peer.host.ip, PORT)  # noqa: E731
        return await self.inside(make)

    def check_bytes(self) -> None:
        assert self.counter.total_received == self.process.received
        if self.process.broken:  # what the kernel took of a last frame before it failed is known to nobody
            assert self.counter.total_sent <= self.process.sent
        else:
            assert self.counter.total_sent == self.process.sent
