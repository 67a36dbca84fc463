"""Two peers that listen nowhere, and a relay that forwards what it cannot read."""

import asyncio
import random
import socket

import msgspec
import pytest
from net_relays import A, B, C, R, echo, hidden, pair, relay, run, tapped, until

from farflung.core import limits
from farflung.core.errors import NetworkError, PolicyError, ProtocolError
from farflung.net import tls
from farflung.net.certificates import Identity, bare
from farflung.net.counters import ByteCounter
from farflung.net.io.admission import Admission
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_circuits import RelayLimits
from farflung.net.io.relay_splice import CAN_SPLICE, MemorySplice, RelayCircuit, SpliceBuffer
from farflung.net.io.tcp_listener import ListenConfig
from farflung.net.messages import MessageKind, RemoteError
from farflung.net.relay_tickets import Ticket, TicketStatus

BOTH = pytest.mark.parametrize("may_splice", [True, False], ids=["splice", "buffer"])


@BOTH
def test_two_hidden_peers_call_each_other_through_the_relay_alone(may_splice: bool) -> None:
    async def test() -> None:
        async with pair(limits=RelayLimits(may_splice=may_splice)) as (server, a, b, connection):
            body = random.Random(1).randbytes(limits.BULK_BYTES)
            assert connection.peer == B.public
            assert await connection.call("a", body, kind=MessageKind.SYNC) == body
            back = b.connection(A.public)
            assert back is not None
            assert await back.call("b", body[:99]) == body[:99]
            (circuit,) = server._circuits.circuits
            kind = SpliceBuffer if may_splice and CAN_SPLICE else MemorySplice
            assert {type(way.splice) for way in circuit._ways} == {kind}
            assert not a._listener.is_open
            assert not b._listener.is_open

    run(test)


@BOTH
def test_many_large_calls_at_once_of_every_kind_come_through_equal(may_splice: bool) -> None:
    async def test() -> None:
        async with pair(limits=RelayLimits(may_splice=may_splice)) as (_, _, b, connection):
            back = b.connection(A.public)
            assert back is not None
            source = random.Random(2)
            calls, wanted = [], []
            for i in range(32):
                body = source.randbytes(source.randrange(1, limits.MIB))
                wanted.append(body)
                calls.append((connection, back)[i % 2].call("x", body, kind=list(MessageKind)[i % 4]))
            assert await asyncio.gather(*calls) == wanted

    run(test)


def test_forwarded_bytes_are_the_peers_own_and_tickets_are_control() -> None:
    async def test() -> None:
        told: list[int] = []
        async with pair(on_traffic=told.append) as (server, a, b, connection):
            await connection.call("a", bytes(300_000), kind=MessageKind.SYNC)
            connection.close()
            await connection.closed()
            await until(lambda: not server._circuits.circuits)
            assert a.counter.sent[MessageKind.SYNC] > 300_000
        sent = a.counter.total_sent + b.counter.total_sent + server.counter.total_sent
        received = a.counter.total_received + b.counter.total_received + server.counter.total_received
        assert sent == received
        assert server.forwarded == sum(told) > 600_000
        own = server.counter.total_sent + server.counter.total_received
        assert own == sum(server.counter.sent.values()) + server.counter.received[MessageKind.CONTROL]
        assert server.counter.total_sent < 20_000

    run(test)


@pytest.mark.guarantee
def test_what_crosses_the_relay_holds_no_run_of_plaintext() -> None:
    """Both peers reach the relay through a wire that keeps everything: looked at in runs of 32 bytes."""

    async def test() -> None:
        secret = random.Random(3).randbytes(limits.MIB // 4)
        runs = {secret[i : i + 32] for i in range(0, len(secret) - 32, 32)}
        async with relay() as server, tapped(server.address) as tap:
            place = await tap.start()
            async with hidden(A, place) as a, hidden(B, place):
                connection = await a.dial(B.public, *place, relay=R.public)
                assert await connection.call("a", secret, kind=MessageKind.AUDIT) == secret
            await until(lambda: not server._circuits.circuits)
            heard = [bytes(copy) for copy in tap.heard]
            assert sum(map(len, heard)) > 4 * len(secret)  # there and back, into the relay and out of it
            assert not any(leaks(copy, runs) for copy in heard)
            assert leaks(b"abc" + secret[100:200], runs)  # the search finds what is there

    run(test)


def leaks(copy: bytes, runs: set[bytes]) -> bool:
    """Whether any 32 bytes of the copy are one of the runs; every run of 63 bytes of the secret holds one."""
    return any(copy[i : i + 32] in runs for i in range(len(copy) - 31))


def test_a_byte_that_the_relay_changes_ends_the_connection_and_is_never_heard() -> None:
    async def test() -> None:
        heard: list[bytes] = []
        is_bad = False

        def change(data: bytes) -> bytes:
            return data[:-1] + bytes([data[-1] ^ 1]) if is_bad else data

        async def note(connection: Connection, method: str, body: bytes) -> bytes:
            heard.append(body)
            return body

        async with relay() as server, tapped(server.address, change) as tap:
            place = await tap.start()
            async with hidden(A, None) as a, hidden(B, server.address, note):
                connection = await a.dial(B.public, *place, relay=R.public)
                assert await connection.call("a", b"1") == b"1"
                is_bad = True
                with pytest.raises(NetworkError):
                    await connection.call("a", b"2")
                assert heard == [b"1"]

    run(test)


def test_a_relay_that_joins_another_peer_than_the_dialled_one_is_found_out() -> None:
    async def test() -> None:
        async with relay() as server, hidden(A, None) as a, hidden(C, server.address) as c:
            server._attached[B.public] = server._attached[C.public]
            join = server._join

            def join_anyone(ticket: Ticket, who: Identity, comer: socket.socket) -> TicketStatus | None:
                (waiting,) = server._waiting.values()
                return join(msgspec.structs.replace(ticket, presenter=waiting.target), who, comer)

            server._join = join_anyone  # type: ignore[method-assign]
            with pytest.raises(ProtocolError, match="FF-NET-004"):
                await a.dial(B.public, *server.address, relay=R.public)
            assert c.connection(A.public) is None

    run(test)


def test_a_peer_that_is_not_attached_or_no_relay_says_so() -> None:
    async def test() -> None:
        async with relay() as server, hidden(A, None) as a, Listener() as other:
            with pytest.raises(NetworkError, match="FF-NET-071") as absent:
                await a.dial(B.public, *server.address, relay=R.public)
            assert absent.value.hint
            with pytest.raises(NetworkError, match="FF-NET-070"):
                await a.dial(B.public, "127.0.0.1", other.free_port, relay=R.public)
            with pytest.raises(ProtocolError, match="FF-NET-074"):
                await a.dial(B.public, "127.0.0.1", other.port, relay=R.public)
            with pytest.raises(NetworkError, match="FF-NET-072") as refused:
                await a.dial(B.public, *server.address, relay=C.public)
            assert refused.value.cause == "another relay listens there"

    run(test)


class Listener:
    """Something on a port that is no relay, and a port on which there is nothing."""

    async def __aenter__(self) -> "Listener":
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"HTTP/1.1 400\r\n\r\n")
            writer.close()

        self.server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        with socket.create_server(("127.0.0.1", 0)) as other:
            self.free_port = other.getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        await self.server.wait_closed()


def test_a_peer_that_does_not_come_is_given_up() -> None:
    async def test() -> None:
        async with (
            relay(limits=RelayLimits(callback_seconds=0.05)) as server,
            hidden(A, None) as a,
            hidden(B, server.address, spare=False) as b,
        ):
            with socket.create_server(("127.0.0.1", 0)) as mute:
                b._attachments[R.public].place = mute.getsockname()  # where nobody answers
                with pytest.raises(NetworkError, match="FF-NET-073") as silent:
                    await a.dial(B.public, *server.address, relay=R.public)
                assert silent.value.cause == "it did not come in time"
                assert not server._waiting
                assert not server._owned

    run(test)


def test_a_peer_admits_through_a_relay_whom_it_admits_at_all() -> None:
    async def test() -> None:
        async with relay() as server, hidden(A, None) as a, hidden(C, None) as c:
            only_a = lambda peer: peer in (A.public, R.public)  # noqa: E731
            async with hidden(B, server.address, admission=Admission(only_a), spare=False):
                with pytest.raises(NetworkError, match="FF-NET-073") as declined:
                    await c.dial(B.public, *server.address, relay=R.public)
                assert declined.value.cause == "it declined"
                assert (await a.dial(B.public, *server.address, relay=R.public)).is_open

    run(test)


def test_a_relay_that_lies_about_the_dialer_does_not_get_it_admitted() -> None:
    """The relay says that A calls; it is C, and the handshake says so."""

    async def test() -> None:
        async with relay() as server, hidden(C, None) as c:
            async with hidden(B, server.address, admission=Admission(lambda peer: peer in (A.public, R.public))) as b:
                dial = server._dial

                def dial_as_a(ticket: Ticket, who: Identity, dialer: socket.socket) -> TicketStatus | None:
                    return dial(msgspec.structs.replace(ticket, presenter=A.public), who, dialer)

                server._dial = dial_as_a  # type: ignore[method-assign]
                refused = await c.dial(B.public, *server.address, relay=R.public)
                with pytest.raises(NetworkError, match="FF-NET-045"):
                    await refused.call("a", b"1")
                assert b.connection(C.public) is None
                assert server.forwarded > 0  # it came as far as the handshake

    run(test)


def test_only_a_relay_that_a_peer_is_attached_to_can_summon_it() -> None:
    async def say(connection: Connection, method: str, body: bytes) -> bytes:
        return method.encode()

    async def test() -> None:
        async with relay() as server, hidden(A, server.address, say), hidden(B, server.address) as b:
            connection = await b.dial(A.public, *server.address, relay=R.public)
            said = await connection.call("relay.circuit", b"")
            assert said == b"relay.circuit"  # A's own handler heard it, as any method of any peer

    run(test)


def test_concurrent_dials_share_one_circuit() -> None:
    async def test() -> None:
        async with relay() as server, hidden(A, server.address) as a, hidden(B, server.address) as b:
            dials = (a.dial(B.public, *server.address, relay=R.public) for _ in range(8))
            first, *others = await asyncio.gather(*dials)
            assert all(each is first for each in others)
            assert len(server._circuits.circuits) == 1
            assert await b.dial(A.public, *server.address, relay=R.public) is b.connection(A.public)

    run(test)


def test_both_may_dial_at_once() -> None:
    async def test() -> None:
        async with relay() as server, hidden(A, server.address) as a, hidden(B, server.address) as b:
            there, back = await asyncio.gather(
                a.dial(B.public, *server.address, relay=R.public), b.dial(A.public, *server.address, relay=R.public)
            )
            assert await there.call("a", b"1") == b"1"
            assert await back.call("a", b"2") == b"2"

    run(test)


def test_a_dial_given_up_leaves_nothing_behind() -> None:
    async def test() -> None:
        async with relay() as server, hidden(A, server.address) as a, hidden(B, server.address):
            dial = asyncio.ensure_future(a.dial(B.public, *server.address, relay=R.public))
            await until(lambda: bool(server._waiting or server._circuits.circuits))
            for task in a._dials.values():
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await dial
            await until(lambda: not server._circuits.circuits and not server._waiting and not server._owned)
            assert (await a.dial(B.public, *server.address, relay=R.public)).is_open

    run(test)


def test_peers_find_a_relay_again_that_died_and_came_back_on_its_port() -> None:
    async def test() -> None:
        async with relay() as server, hidden(A, server.address) as a, hidden(B, server.address) as b:
            for _ in range(2):
                connection = await a.dial(B.public, *server.address, relay=R.public)
                assert await connection.call("a", b"1") == b"1"
                place = server.address
                await server.close()
                await connection.closed()
                with pytest.raises(NetworkError, match="FF-NET-046"):
                    await connection.call("a", b"2")
                with pytest.raises(NetworkError, match="FF-NET-070"):
                    await a.dial(B.public, *place, relay=R.public)
                await until(lambda: not b._attachments[R.public].is_there)
                server.__init__(R, listen=ListenConfig(port=place[1]))  # type: ignore[misc] - as a new process would
                await server.start()
                await asyncio.gather(a.attached(), b.attached())

    run(test)


def test_not_attached_in_time_says_why() -> None:
    async def test() -> None:
        async with relay(admission=Admission(lambda peer: peer == B.public)) as server, hidden(A, None) as a:
            a.attach(R.public, *server.address)
            await until(lambda: a._attachments[R.public]._last is not None)
            with pytest.raises(NetworkError, match="FF-NET-077") as late:
                await a.attached(0.01)
            assert "FF-NET-045" in late.value.cause

    run(test)


def test_a_key_whose_connection_to_the_relay_ended_is_not_attached_any_more() -> None:
    async def test() -> None:
        async with relay() as server, hidden(A, None) as a:
            async with hidden(B, server.address):
                assert B.public in server._attached
            await until(lambda: not server._attached)
            with pytest.raises(NetworkError, match="FF-NET-071"):
                await a.dial(B.public, *server.address, relay=R.public)

    run(test)


def test_the_newest_connection_of_a_key_is_the_attached_one() -> None:
    async def test() -> None:
        async with relay() as server, hidden(A, None) as a, hidden(B, server.address) as old:
            async with hidden(B, server.address) as new:
                assert (await a.dial(B.public, *server.address, relay=R.public)).is_open
                assert new.connection(A.public) is not None
                assert old.connection(A.public) is None

    run(test)


@BOTH
def test_a_reader_that_stops_stops_the_sender_and_the_relay_holds_two_buffers_at_most(may_splice: bool) -> None:
    async def test() -> None:
        async with pair(limits=RelayLimits(may_splice=may_splice)) as (server, _, b, connection):
            back = b.connection(A.public)
            assert back is not None
            assert back._writer is not None
            back._writer._transport.pause_reading()
            calls = [connection.call("a", bytes(limits.BULK_BYTES), kind=MessageKind.SYNC) for _ in range(16)]
            tasks = [asyncio.ensure_future(call) for call in calls]
            (circuit,) = server._circuits.circuits
            most, quiet, before = 0, 0, -1
            while quiet < 300:  # until nothing moves any more
                await asyncio.sleep(0)
                most = max(most, circuit.held)
                quiet = quiet + 1 if server.forwarded == before else 0
                before = server.forwarded
            assert 0 < circuit.held <= most <= 2 * limits.CIRCUIT_BUFFER_BYTES
            assert server.forwarded < 16 * limits.BULK_BYTES
            assert all(way.splice.held <= limits.CIRCUIT_BUFFER_BYTES for way in circuit._ways)
            assert way_of_sender(circuit)._waits_for is way_of_sender(circuit)._sink
            circuit.hold()  # somebody has to sign first: what is in the buffer stays there
            before, held = server.forwarded, circuit.held
            back._writer._transport.resume_reading()
            for _ in range(300):
                await asyncio.sleep(0)
            assert (server.forwarded, circuit.held) == (before, held)
            circuit.release()
            for body in await asyncio.gather(*tasks):
                assert body == bytes(limits.BULK_BYTES)

    def way_of_sender(circuit):  # type: ignore[no-untyped-def]
        return next(way for way in circuit._ways if way.splice.held)

    run(test)


def test_a_circuit_that_stands_still_leaves_others_alone() -> None:
    async def test() -> None:
        async with pair() as (server, _, b, connection), hidden(C, None) as c:
            back = b.connection(A.public)
            assert back is not None
            assert back._writer is not None
            back._writer._transport.pause_reading()
            calls = [connection.call("a", bytes(limits.BULK_BYTES), kind=MessageKind.SYNC) for _ in range(16)]
            tasks = [asyncio.ensure_future(call) for call in calls]
            await until(lambda: any(circuit.held for circuit in server._circuits.circuits))
            other = await c.dial(A.public, *server.address, relay=R.public)
            assert await other.call("a", bytes(limits.MIB), kind=MessageKind.SYNC) == bytes(limits.MIB)
            back._writer._transport.resume_reading()
            await asyncio.gather(*tasks)

    run(test)


@BOTH
def test_one_half_of_a_circuit_may_close_before_the_other(may_splice: bool) -> None:
    """Raw sockets joined: what was sent before the end arrives, and the way back stays open."""

    async def test() -> None:
        async with pair(limits=RelayLimits(may_splice=may_splice)) as (server, *_):
            one, its, other, theirs = two_pairs()
            circuit = join(server, its, theirs)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(one, b"question")
            one.shutdown(socket.SHUT_WR)
            assert await everything(other) == b"question"
            assert circuit in server._circuits.circuits
            answer = b"answer" * 100_000  # more than all buffers on the way hold
            reading = asyncio.ensure_future(everything(one))
            await loop.sock_sendall(other, answer)
            other.close()
            assert await reading == answer
            await until(lambda: circuit not in server._circuits.circuits)
            assert its.fileno() == theirs.fileno() == -1
            one.close()

    run(test)


@BOTH
def test_a_broken_socket_ends_both_sides_of_a_circuit(may_splice: bool) -> None:
    async def test() -> None:
        async with pair(limits=RelayLimits(may_splice=may_splice)) as (server, *_):
            one, its, other, theirs = two_pairs()
            circuit = join(server, its, theirs)
            await asyncio.get_running_loop().sock_sendall(one, b"never read")
            await until(lambda: server.forwarded >= len(b"never read") and circuit.held == 0)
            other.close()  # with something unread: a reset
            await until(lambda: circuit not in server._circuits.circuits)
            assert its.fileno() == theirs.fileno() == -1
            one.close()

    run(test)


@BOTH
def test_a_circuit_whose_peers_keep_up_goes_on_waiting_for_the_same(
    may_splice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To change what is waited for costs a system call or two, as much as to forward some ten KiB."""

    async def test() -> None:
        async with pair(limits=RelayLimits(may_splice=may_splice)) as (server, *_):
            one, its, other, theirs = two_pairs()
            join(server, its, theirs)
            loop = asyncio.get_running_loop()
            changed: list[int] = []
            for name in ("add_reader", "add_writer", "remove_reader", "remove_writer"):
                act = getattr(loop, name)
                monkeypatch.setattr(loop, name, lambda fd, *more, act=act: changed.append(fd) or act(fd, *more))
            for n in range(50):
                await loop.sock_sendall(one, bytes([n]) * 1000)
                got = b""
                while len(got) < 1000:
                    got += await loop.sock_recv(other, 1000)
                assert got == bytes([n]) * 1000
            monkeypatch.undo()
            assert not {its.fileno(), theirs.fileno()} & set(changed)
            one.close()
            other.close()

    run(test)


def two_pairs() -> tuple[socket.socket, socket.socket, socket.socket, socket.socket]:
    """A peer's end and the relay's, twice; none blocks."""
    four = (*socket.socketpair(), *socket.socketpair())
    for each in four:
        each.setblocking(False)
    return four


def join(server: RelayServer, its: socket.socket, theirs: socket.socket) -> RelayCircuit:
    junction = server._circuits
    may_splice = junction._limits.may_splice
    circuit = RelayCircuit(its, theirs, may_splice=may_splice, on_moved=junction._carried, on_end=junction._ended)
    junction.circuits[circuit] = bare(A.public), bare(B.public)
    server._owned[A.public] += 1
    circuit.start()
    return circuit


async def everything(source: socket.socket) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    while piece := await loop.sock_recv(source, 65536):
        data += piece
    return data


def test_a_circuit_through_which_nothing_goes_is_ended() -> None:
    async def test() -> None:
        async with pair() as (server, _, _, connection):
            (circuit,) = server._circuits.circuits
            for _ in range(3):  # a call is time enough for three more looks
                for _ in range(3):
                    circuit.look()
                assert await connection.call("a", b"1") == b"1"
            for _ in range(4):
                circuit.look()
            await connection.closed()
            assert not server._circuits.circuits
            assert not server._owned

    run(test)


def test_only_loopback_is_listened_on_unless_told_and_a_taken_port_says_so() -> None:
    async def test() -> None:
        with pytest.raises(PolicyError, match="FF-NET-042"):
            async with relay(listen=ListenConfig("0.0.0.0")):
                pass
        async with relay(listen=ListenConfig("0.0.0.0", allow_remote=True)) as server:
            with pytest.raises(NetworkError, match="FF-NET-040"):
                async with relay(listen=ListenConfig("0.0.0.0", server.address[1], allow_remote=True)):
                    pass

    run(test)


def test_a_relay_serves_attachments_and_nothing_else() -> None:
    async def test() -> None:
        async with relay() as server:
            a = Endpoint(A, echo, ByteCounter())
            connection = await a.dial(R.public, *server.address)
            for method, body in (("ledger.query", b""), ("relay.attach", b"x")):
                with pytest.raises(RemoteError, match="FF-NET-075"):
                    await connection.call(method, body)
            assert not server._attached
            await a.close()

    run(test)


def test_a_stranger_that_cannot_be_taken_in_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket was accepted: left open, each would hold a descriptor for ever."""

    kept: list[socket.socket] = []  # else it is the collector that closes it

    async def fail(stranger: socket.socket, _first: bytes) -> None:
        kept.append(stranger)
        raise OSError("no transport can be made")

    async def test() -> None:
        async with relay() as server:
            monkeypatch.setattr(server._endpoint, "adopt", fail)
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(tls.MAGIC)
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()

    run(test)
