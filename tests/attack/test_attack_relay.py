"""Hostile clients against a relay's port: each loses its own connection, and everybody else is served."""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import msgspec
import pytest

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import NS_TICKET, SigningKey, local_key
from farflung.core.errors import NetworkError
from farflung.core.ids import PeerId
from farflung.net import relay_tickets, tls
from farflung.net.certificates import credential_of
from farflung.net.counters import ByteCounter
from farflung.net.io import relay_dialer
from farflung.net.io.admission import Admission
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_circuits import RelayLimits
from farflung.net.io.relay_registration import ATTACH
from farflung.net.io.relay_splice import MemorySplice
from farflung.net.messages import MessageKind
from farflung.net.relay_tickets import SignedTicket, Ticket, TicketPurpose, TicketStatus
from farflung.net.tls_identity import certificate

HONEST, HIDDEN, HOSTILE, R = (local_key(7, name) for name in ("honest", "hidden", "hostile", "relay"))
NOW = 1_800_000_000
HOSTILE_CERTIFICATE = certificate(credential_of(HOSTILE))


async def echo(connection: Connection, method: str, body: bytes) -> bytes:
    return body


class World:
    """A relay with a hidden peer attached."""

    def __init__(self, server: RelayServer, peer: Endpoint) -> None:
        self.server, self.peer = server, peer

    async def is_served(self) -> None:
        """Two honest peers still reach each other."""
        client = Endpoint(HONEST, echo, ByteCounter())
        try:
            connection = await client.dial(HIDDEN.public, *self.server.address, relay=R.public)
            assert await connection.call("a", b"1") == b"1"
        finally:
            await client.close()

    async def show(self, data: bytes, *, then_close: bool = False) -> tuple[TicketStatus | None, "Stream"]:
        """Sends bytes; the relay's answer, None when it closes without one."""
        stream = await asyncio.open_connection(*self.server.address)
        stream[1].write(data)
        if then_close:
            stream[1].close()
            return None, stream
        try:
            said = await stream[0].readexactly(relay_tickets.ANSWER_BYTES)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None, stream
        return relay_tickets.read_answer(said), stream


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(autouse=True)
def _standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_dialer, "time", SimpleNamespace(time=lambda: NOW))


@asynccontextmanager
async def world(
    *, spare: bool = False, admit: Callable[[PeerId], bool] | None = None, may_splice: bool = True
) -> AsyncIterator[World]:
    admission = Admission(admit, clock=lambda: NOW)
    server = RelayServer(R, admission=admission, limits=RelayLimits(may_splice=may_splice))
    await server.start()
    peer = Endpoint(HIDDEN, echo, ByteCounter())
    peer.attach(R.public, *server.address, spare=spare)
    await peer.attached()
    try:
        yield World(server, peer)
    finally:
        await peer.close()
        await server.close()


def run(test: Callable[[World], Awaitable[None]], **options: object) -> None:
    """The attack, then an honest call, then nothing of the attack is left."""

    async def bounded() -> None:
        async with asyncio.timeout(60), world(**options) as made:
            await test(made)
            await made.is_served()
            server = made.server
            await until(lambda: not (server._listener._strangers or server._waiting or server._circuits.circuits))
            assert not server._owned

    asyncio.run(bounded())


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0)


def ticket(**fields: object) -> Ticket:
    plain = Ticket(TicketPurpose.DIAL, R.public, HOSTILE.public, HIDDEN.public, 0, secrets.token_bytes(16), NOW + 60)
    return msgspec.structs.replace(plain, **fields)


def shown(**fields: object) -> bytes:
    return relay_tickets.sign_ticket(HOSTILE, ticket(**fields))


BOTH = pytest.mark.parametrize("may_splice", [True, False], ids=["splice", "buffer"])


@BOTH
@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        os.urandom(70_000),
        b"FFR2" + bytes(100),
        tls.MAGIC + b"\xff\xff" + bytes(70_000),
        tls.hello(b"x" * 200),
    ],
    ids=["http", "noise", "another version", "giant hello", "no certificate"],
)
def test_garbage_is_cut_off_without_a_word(data: bytes, may_splice: bool) -> None:
    async def attack(world: World) -> None:
        status, (_, writer) = await world.show(data)
        assert status is None
        writer.close()

    run(attack, may_splice=may_splice)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (relay_tickets.MAGIC + b"\xff\xff", TicketStatus.MALFORMED),
        (relay_tickets.MAGIC + b"\x00\x00", TicketStatus.MALFORMED),
        (relay_tickets.MAGIC + (limits.TICKET_BYTES + 1).to_bytes(2, "big"), TicketStatus.MALFORMED),
        (relay_tickets.MAGIC + b"\x00\x40" + bytes(64), TicketStatus.MALFORMED),
        (shown(relay=local_key(7, "other").public), TicketStatus.ELSEWHERE),
        (shown(expires=NOW), TicketStatus.STALE),
        (shown(expires=NOW + limits.TICKET_SECONDS + 1), TicketStatus.STALE),
        (shown(presenter=HONEST.public), TicketStatus.FORGED),
        (shown(peer=local_key(7, "nobody").public), TicketStatus.ABSENT),
        (shown(purpose=TicketPurpose.ACCEPT, circuit=1), TicketStatus.UNKNOWN),
    ],
    ids=[
        "giant length",
        "no length",
        "over the limit",
        "zeros",
        "another relay",
        "expired",
        "from the future",
        "another presenter",
        "absent peer",
        "no such circuit",
    ],
)
def test_a_ticket_that_breaks_a_rule_is_refused_with_a_code(data: bytes, status: TicketStatus) -> None:
    async def attack(world: World) -> None:
        found, (reader, writer) = await world.show(data)
        assert found is status
        assert await reader.read() == b""
        writer.close()

    run(attack)


def test_a_forged_signature_is_refused() -> None:
    async def attack(world: World) -> None:
        wanted = ticket(presenter=HONEST.public)
        body = encode(SignedTicket(wanted, HOSTILE.sign(NS_TICKET, encode(wanted))))
        found, (_, writer) = await world.show(relay_tickets.MAGIC + len(body).to_bytes(2, "big") + body)
        assert found is TicketStatus.FORGED
        writer.close()

    run(attack)


@BOTH
def test_a_ticket_is_good_once(may_splice: bool) -> None:
    async def attack(world: World) -> None:
        data = shown()
        first, (_, writer) = await world.show(data)
        assert first is TicketStatus.JOINED
        for _ in range(3):
            again, (_, other) = await world.show(data)
            assert again is TicketStatus.REPLAYED
            other.close()
        writer.close()

    run(attack, may_splice=may_splice)


def test_a_ticket_that_was_refused_is_spent_too() -> None:
    async def attack(world: World) -> None:
        data = shown(peer=HONEST.public)
        for status in (TicketStatus.ABSENT, TicketStatus.REPLAYED):
            found, (_, writer) = await world.show(data)
            assert found is status
            writer.close()

    run(attack)


def test_a_ticket_cut_anywhere_leaves_nothing_behind() -> None:
    async def attack(world: World) -> None:
        data = shown()
        for size in range(len(data)):
            await world.show(data[:size], then_close=True)
        await until(lambda: not world.server._listener._strangers)
        assert len(world.server._spent) == 0

    run(attack)


@pytest.mark.parametrize("size", [0, 3, 5, 100], ids=["nothing", "half a magic", "half a head", "half a ticket"])
def test_a_slow_stranger_is_dropped(size: int) -> None:
    async def attack(world: World) -> None:
        patience = world.server._listener._handshake_seconds
        world.server._listener._handshake_seconds = 0.01
        status, (_, writer) = await world.show(shown()[:size])
        assert status is None
        writer.close()
        world.server._listener._handshake_seconds = patience

    run(attack)


def test_silent_strangers_are_displaced_and_lock_nobody_out() -> None:
    async def attack(world: World) -> None:
        streams = [await asyncio.open_connection(*world.server.address) for _ in range(limits.HALF_OPEN + 9)]
        await world.is_served()  # who came before it has entered
        assert len(world.server._listener._strangers) <= limits.HALF_OPEN
        assert await streams[0][0].read() == b""  # the oldest made room
        for _, writer in streams:
            writer.close()

    run(attack)


def test_somebody_elses_circuit_is_not_to_be_had() -> None:
    """Even with its number: only the dialled key may come, and only to the one who dialled."""

    async def attack(world: World) -> None:
        async with waiting_circuit(world) as number:
            for stolen in (
                shown(purpose=TicketPurpose.ACCEPT, circuit=number, peer=HONEST.public),
                shown(purpose=TicketPurpose.ACCEPT, circuit=number, peer=HIDDEN.public),
                signed_by(HIDDEN, presenter=HIDDEN.public, peer=HOSTILE.public, circuit=number),
                signed_by(HIDDEN, presenter=HIDDEN.public, peer=HONEST.public, circuit=number + 1),
            ):
                found, (_, writer) = await world.show(stolen)
                assert found is TicketStatus.UNKNOWN
                writer.close()
            assert number in world.server._waiting
            right = signed_by(HIDDEN, presenter=HIDDEN.public, peer=HONEST.public, circuit=number)
            found, (_, writer) = await world.show(right)
            assert found is TicketStatus.JOINED
            writer.close()

    run(attack)


def signed_by(key: SigningKey, **fields: object) -> bytes:
    return relay_tickets.sign_ticket(key, ticket(purpose=TicketPurpose.ACCEPT, **fields))


@asynccontextmanager
async def waiting_circuit(world: World) -> AsyncIterator[int]:
    """An honest dialer waits, and the hidden peer takes its time."""
    gate, come = asyncio.Event(), world.peer._callback.come

    async def later(attachment: object, summons: object) -> None:
        await gate.wait()

    world.peer._callback.come = later  # type: ignore[assignment]
    stream = await asyncio.open_connection(*world.server.address)
    wanted = relay_tickets.sign_ticket(HONEST, ticket(presenter=HONEST.public))
    stream[1].write(wanted)
    await until(lambda: bool(world.server._waiting))
    try:
        yield next(iter(world.server._waiting))
    finally:
        gate.set()
        world.peer._callback.come = come  # type: ignore[method-assign]
        stream[1].close()


def test_one_key_dials_no_more_circuits_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CIRCUITS_PER_KEY", 3)

    async def attack(world: World) -> None:
        found = [await world.show(shown()) for _ in range(5)]
        assert [status for status, _ in found] == [TicketStatus.JOINED] * 3 + [TicketStatus.FULL] * 2
        await world.is_served()
        for _, (_, writer) in found:
            writer.close()
        await until(lambda: not world.server._owned)
        again, (_, writer) = await world.show(shown())
        assert again is TicketStatus.JOINED
        writer.close()

    run(attack)


def test_a_full_relay_refuses_and_serves_when_a_place_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CIRCUITS", 2)

    async def attack(world: World) -> None:
        keys = [local_key(7, "many", i) for i in range(3)]
        found = [await world.show(relay_tickets.sign_ticket(k, ticket(presenter=k.public))) for k in keys]
        assert [status for status, _ in found] == [TicketStatus.JOINED, TicketStatus.JOINED, TicketStatus.FULL]
        with pytest.raises(NetworkError, match="FF-NET-072"):
            await world.is_served()
        for _, (_, writer) in found:
            writer.close()
        await until(lambda: not world.server._circuits.circuits)

    run(attack)


def test_circuits_that_wait_count_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CIRCUITS", 1)

    async def attack(world: World) -> None:
        async with waiting_circuit(world):
            found, (_, writer) = await world.show(shown())
            assert found is TicketStatus.FULL
            writer.close()
        await until(lambda: not world.server._waiting)

    run(attack)


def test_a_flood_of_tickets_of_one_key_ends_at_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TICKETS_PER_KEY", 20)

    async def attack(world: World) -> None:
        nobody = local_key(7, "nobody").public
        found = [(await world.show(shown(peer=nobody))) for _ in range(30)]
        assert [status for status, _ in found] == [TicketStatus.ABSENT] * 20 + [TicketStatus.FULL] * 10
        assert len(world.server._spent) == 20
        for _, (_, writer) in found:
            writer.close()

    run(attack)


def test_a_key_that_is_not_admitted_neither_dials_nor_attaches() -> None:
    async def attack(world: World) -> None:
        found, (_, writer) = await world.show(shown())
        assert found is TicketStatus.BARRED
        assert len(world.server._spent) == 0
        writer.close()
        stranger = Endpoint(HOSTILE, echo, ByteCounter())
        connection = await stranger.dial(R.public, *world.server.address)
        with pytest.raises(NetworkError, match="FF-NET-045"):
            await connection.call(ATTACH, b"")
        await stranger.close()

    run(attack, admit=lambda peer: peer in (HONEST.public, HIDDEN.public))


@BOTH
def test_a_joined_stranger_without_the_dialers_key_is_cut_off_by_the_peer(may_splice: bool) -> None:
    """A stolen, unused ticket buys a circuit; behind it stands a handshake that only the key's holder finishes."""

    async def attack(world: World) -> None:
        for noise in (b"plain text", tls.hello(b"x" * 50), os.urandom(40_000)):
            found, (reader, writer) = await world.show(shown())
            assert found is TicketStatus.JOINED
            writer.write(noise)
            assert await all_of(reader) == b""
            writer.close()
        assert world.peer.connection(HOSTILE.public) is None

    run(attack, may_splice=may_splice)


async def all_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def test_bytes_sent_before_the_answer_wait_in_the_socket_and_are_not_lost() -> None:
    async def attack(world: World) -> None:
        found, (reader, writer) = await world.show(shown() + b"early noise")
        assert found is TicketStatus.JOINED
        assert await all_of(reader) == b""  # the peer heard it, and ends it
        assert world.server.forwarded >= len(b"early noise")
        writer.close()

    run(attack)


def test_a_relay_that_runs_out_of_pipes_forwards_through_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    async def attack(world: World) -> None:
        monkeypatch.setattr(os, "pipe2", none_left)
        found, (_, writer) = await world.show(shown())
        assert found is TicketStatus.JOINED
        (circuit,) = world.server._circuits.circuits
        assert {type(way.splice) for way in circuit._ways} == {MemorySplice}
        await world.is_served()
        writer.close()

    run(attack)


def test_a_malicious_relay_that_summons_without_end_costs_the_peer_a_bounded_number_of_ways() -> None:
    async def test() -> None:
        async with asyncio.timeout(60), world() as made:
            connection = made.server._attached[HIDDEN.public]
            with socket.create_server(("127.0.0.1", 0), backlog=128) as mute:
                made.peer._attachments[R.public].place = mute.getsockname()
                summons = [
                    encode(relay_tickets.CallbackRequest(1 + i, HONEST.public)) for i in range(limits.HALF_OPEN + 19)
                ]
                calls = [asyncio.ensure_future(connection.call("relay.circuit", each)) for each in summons]
                await until(lambda: sum(call.done() for call in calls) == 19)
                for call in calls:
                    if call.done():
                        assert str(call.exception()).startswith("FF-NET-076")
                assert made.peer._callback.coming == limits.HALF_OPEN
                await made.peer.close()
                await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(test())


async def pour(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(bytes(4096))
        await writer.drain()


def spare_of(key: SigningKey, **fields: object) -> bytes:
    return relay_tickets.sign_ticket(key, ticket(purpose=TicketPurpose.SPARE, peer=relay_tickets.NOBODY, **fields))


def test_a_strangers_spare_displaces_nobodys() -> None:
    async def attack(world: World) -> None:
        kept = world.server._spares._kept
        await until(lambda: HIDDEN.public in kept)
        mine = kept[HIDDEN.public]
        in_its_name = spare_of(HOSTILE, presenter=HIDDEN.public)
        for data, status in (
            (in_its_name, TicketStatus.FORGED),
            (spare_of(HOSTILE, presenter=HOSTILE.public), TicketStatus.ABSENT),  # it is not attached
        ):
            found, (_, writer) = await world.show(data)
            assert found is status
            writer.close()
        assert kept == {HIDDEN.public: mine}

    run(attack, spare=True)


def test_a_replayed_spare_is_not_taken() -> None:
    async def attack(world: World) -> None:
        data = spare_of(HIDDEN, presenter=HIDDEN.public)
        kept = world.server._spares._kept
        reader, writer = await asyncio.open_connection(*world.server.address)
        writer.write(data)
        await until(lambda: HIDDEN.public in kept)
        mine = kept[HIDDEN.public]
        found, (_, second) = await world.show(data)
        assert found is TicketStatus.REPLAYED
        assert kept == {HIDDEN.public: mine}
        second.close()
        world.server._spares.drop(HIDDEN.public)
        assert await reader.read() == b""
        writer.close()

    run(attack)


@BOTH
def test_a_ticket_with_bytes_behind_it_that_never_end_is_cut_off_by_the_peer(may_splice: bool) -> None:
    """A relay keeps nothing of them; the peer takes no more of a stranger than a handshake may be long."""

    async def attack(world: World) -> None:
        _, writer = await asyncio.open_connection(*world.server.address)
        # a record whose end never comes
        writer.write(shown() + tls.hello(HOSTILE_CERTIFICATE) + b"\x16\x03\x01\x40\x00")
        with pytest.raises(ConnectionError):
            await pour(writer)
        writer.close()
        # of each, what fits into the kernel's and the relay's buffers came this far
        assert world.peer.counter.received[MessageKind.CONTROL] < 1 << 20

    run(attack, may_splice=may_splice, spare=True)


def test_a_refused_ticket_with_bytes_behind_it_that_never_end_is_closed() -> None:
    async def attack(world: World) -> None:
        nobody = local_key(7, "nobody").public
        reader, writer = await asyncio.open_connection(*world.server.address)
        writer.write(shown(peer=nobody) + bytes(1000))
        assert relay_tickets.read_answer(await reader.readexactly(relay_tickets.ANSWER_BYTES)) is TicketStatus.ABSENT
        with pytest.raises(ConnectionError):
            await pour(writer)
        writer.close()

    run(attack)
