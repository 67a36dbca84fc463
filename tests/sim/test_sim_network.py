"""The simulated network itself: its lines are as slow, as lossy and as closed as they were asked to be."""

import asyncio
import errno
import socket

import pytest
from sim_net import PORT, PeerNode, RelayNode, World
from sim_net_clock import Hung
from sim_net_lines import Line, Nat

from farflung.core.errors import NetworkError
from farflung.net.io.connection import Connection
from farflung.net.messages import MessageKind


async def brief(connection: Connection, method: str, body: bytes) -> bytes:
    if method == "hang":
        await asyncio.sleep(1e6)
    return body[:10]


def two(seed: int = 1, nat: Nat = Nat.NONE, skew: float = 0.0, **line: float) -> tuple[World, PeerNode, PeerNode]:
    """A world with two peers; B is attached to a relay if it has a router."""
    world = World(seed)
    relay = RelayNode(world, world.host("relay", Line(delay=0.0)))
    a = PeerNode(world, world.host("a", Line(**line), skew=skew), brief)
    b = PeerNode(world, world.host("b", Line(**line), nat), brief, relays=() if nat is Nat.NONE else (relay,))
    return world, a, b


async def begun(a: PeerNode, b: PeerNode) -> Connection:
    """All of the world runs; the connection from A to B."""
    for node in a.world.nodes:
        await node.begin()
    await b.attached()
    return await a.dial(b)


def test_a_call_takes_the_round_trips_of_its_lines_and_nothing_else_takes_time() -> None:
    world, a, b = two(delay=0.025)

    async def main() -> tuple[float, float]:
        connection = await begun(a, b)
        dialled = world.now
        await connection.call("a", b"1")
        return dialled, world.now - dialled

    dialling, calling = world.run(main)
    assert 0.2 < dialling < 0.301  # TCP; hello and TLS; WELCOME
    assert calling == pytest.approx(0.1, abs=0.001)


def test_bulk_takes_the_time_of_the_slower_line_and_control_overtakes_it() -> None:
    world, a, b = two(up=1e6, down=2e6, delay=0.01)

    async def main() -> tuple[float, float]:
        connection = await begun(a, b)
        started = world.now
        bulk = asyncio.create_task(connection.call("a", bytes(1_000_000), kind=MessageKind.SYNC))
        await asyncio.sleep(0.1)
        asked = world.now
        await connection.call("a", b"1")
        overtook = world.now - asked
        await bulk
        return world.now - started, overtook

    took, overtook = world.run(main)
    assert took == pytest.approx(1.06, rel=0.03)
    assert overtook < 0.5


def test_loss_delays_and_changes_nothing() -> None:
    def time_of(loss: float) -> float:
        world, a, b = two(loss=loss)

        async def main() -> float:
            connection = await begun(a, b)
            for _ in range(20):
                assert await connection.call("a", b"12345") == b"12345"
            return world.now

        return world.run(main)

    assert time_of(0.1) > time_of(0.0) + 0.5


def test_a_home_is_closed_to_those_whom_it_has_not_called() -> None:
    world, a, b = two(nat=Nat.CONE)
    assert b.host.router is not None

    async def main() -> None:
        await begun(a, b)
        with pytest.raises(NetworkError, match="FF-NET-044"):  # silence: nobody says that it is closed
            await a.inside(lambda: a.endpoint.dial(world.nodes[0].id, b.host.router.ip, PORT))
        with pytest.raises(NetworkError, match="FF-NET-043"):
            await a.inside(lambda: a.endpoint.dial(world.nodes[0].id, a.world.nodes[0].host.ip, PORT + 1))

    world.run(main)


@pytest.mark.parametrize("nat", [Nat.CONE, Nat.SYMMETRIC])
def test_two_homes_open_to_each_other_if_their_routers_keep_ports(nat: Nat) -> None:
    world, _, b = two(nat=Nat.CONE)
    c = PeerNode(world, world.host("c", nat=nat), brief)
    assert b.host.router is not None
    assert c.host.router is not None

    async def open_to(ip: str) -> str:
        with socket.socket() as sock:
            sock.setblocking(False)
            sock.bind(("0.0.0.0", 4500))
            async with asyncio.timeout(5):
                await asyncio.get_running_loop().sock_connect(sock, (ip, 4500))
            return str(sock.getpeername()[0])

    async def main() -> None:
        for node in (b, c):
            await node.begin()
        places = (b.host.router.ip, c.host.router.ip)
        both = asyncio.gather(b.inside(lambda: open_to(places[1])), c.inside(lambda: open_to(places[0])))
        if nat is Nat.CONE:
            assert await both == [places[1], places[0]]
        else:
            with pytest.raises(TimeoutError):
                await both

    world.run(main)


def test_a_call_waits_for_a_line_that_comes_back_and_not_for_one_that_does_not() -> None:
    world, a, b = two()

    async def main() -> None:
        connection = await begun(a, b)
        b.host.is_cut = True
        call = asyncio.create_task(connection.call("a", b"1", timeout=30))
        await asyncio.sleep(5)
        b.host.is_cut = False
        assert await call == b"1"
        b.host.is_cut = True
        with pytest.raises(NetworkError, match="FF-NET-047"):
            await connection.call("a", b"1", timeout=30)
        cut = world.now
        await connection.closed()
        assert 60 < world.now - cut < 150

    world.run(main)


def test_after_a_call_into_a_silence_the_next_dial_is_a_new_connection() -> None:
    world, a, b = two()

    async def main() -> None:
        old = await begun(a, b)
        await old.call("a", b"")
        world.move(b.host)
        with pytest.raises(NetworkError, match="FF-NET-047"):
            await old.call("a", b"1", timeout=10)
        new = await a.dial(b)
        assert new is not old
        assert await new.call("a", b"1", timeout=10) == b"1"

    world.run(main)


def test_a_peer_that_only_takes_its_time_keeps_its_connection() -> None:
    world, a, b = two()

    async def main() -> None:
        connection = await begun(a, b)
        await connection.call("a", b"")
        with pytest.raises(NetworkError, match="FF-NET-047"):
            await connection.call("hang", b"", timeout=10)
        await asyncio.sleep(1)  # a round trip: the ping was answered
        assert await a.dial(b) is connection

    world.run(main)


@pytest.mark.parametrize("silently", [False, True])
def test_a_killed_program_is_missed_at_once_and_a_dead_machine_when_it_is_silent_too_long(silently: bool) -> None:
    world, a, b = two()

    async def main() -> float:
        connection = await begun(a, b)
        call = asyncio.create_task(connection.call("hang", b"1", timeout=None))
        await asyncio.sleep(1)
        killed, b.host.is_on = world.now, not silently
        await b.kill(silently=silently)
        with pytest.raises(NetworkError, match="FF-NET-048" if silently else "FF-NET-046"):
            await call
        return world.now - killed

    assert (world.run(main) > 60) is silently


@pytest.mark.parametrize(("skew", "is_taken"), [(0.0, True), (50.0, True), (3600.0, False), (-3600.0, False)])
def test_a_clock_that_is_off_by_an_hour_is_named(skew: float, is_taken: bool) -> None:
    world, a, b = two(nat=Nat.CONE, skew=skew)

    async def main() -> None:
        if is_taken:
            assert (await begun(a, b)).is_open
            return
        with pytest.raises(NetworkError, match="FF-NET-072") as refused:
            await begun(a, b)
        assert "clock" in refused.value.hint

    world.run(main)


def test_what_the_kernel_refuses_is_not_counted_as_sent() -> None:
    world, a, b = two()

    async def main() -> None:
        connection = await begun(a, b)
        await connection.call("a", b"")
        (sock,) = (each for each in a.process.sockets.values() if each.out is not None)
        sock.fail(errno.ECONNRESET)
        with pytest.raises(NetworkError, match="FF-NET-046"):
            await connection.call("a", bytes(1000))
        assert a.counter.total_sent == a.process.sent

    world.run(main)


def test_what_will_never_end_is_told_at_once() -> None:
    world, _, _ = two()

    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Hung):
        world.run(main)


def test_a_world_gives_back_sockets_and_clocks() -> None:
    import time

    before = (socket.socket, time.time, time.monotonic)
    world, a, b = two()

    async def main() -> None:
        await begun(a, b)
        assert time.time() == pytest.approx(1_800_000_000 + world.now)

    world.run(main)
    assert (socket.socket, time.time, time.monotonic) == before
