"""One process of the network benchmark that does not speak farflung: `net_plain.py ROLE JSON`, with blocking sockets.

    take, give                 one TCP connection, unencrypted, `congestion` set by the sender and read back
    sealed-take, sealed-give   the same between `ssl` sockets: TLS 1.3 as farflung uses it
    answer, ask                small words and their echo, on a connection with `congestion`
    drain, pour                one end of `count` such connections of each home, all at once
    meet, flood                the two ends of one circuit of a relay, with nothing of TLS in it
    crowd                      both ends of `count` circuits through which nothing goes; until it is ended

A sender begins with when it began, how many bytes it will send, and for how many seconds at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from net_worker import PAUSE, Options, key, place, say

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.crypto import SigningKey
from farflung.core.ids import PeerId
from farflung.net import relay_tickets
from farflung.net.counters import ByteCounter
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay_dialer import new_ticket
from farflung.net.io.relay_registration import ATTACH, CALLBACK
from farflung.net.io.tls_key import FileTlsCredentials
from farflung.net.relay_tickets import CallbackRequest, TicketPurpose, TicketStatus
from farflung.peers.relay.main import allow_many_files

HEAD: Final = struct.Struct("!dQd")  # when it began, bytes, seconds
PIECE: Final = 1 << 20
RECEIVE: Final = 1 << 18
GRACE: Final = 30.0
WORD: Final = 32


def take(options: Options) -> None:
    """Says bytes and seconds of each of `times` transfers, at the last byte or at the deadline."""
    with socket.create_server((options["host"], 0)) as server:
        say(port=server.getsockname()[1])
        for _ in range(options["times"]):
            connection, _ = server.accept()
            with connection:
                _taken(connection)


def _taken(connection: socket.socket) -> None:
    head = b""
    while len(head) < HEAD.size:
        piece = connection.recv(HEAD.size - len(head))
        if not piece:
            raise EOFError
        head += piece
    began, wanted, seconds = HEAD.unpack(head)
    buffer, got, cpu = bytearray(RECEIVE), 0, time.process_time()
    try:
        while got < wanted:
            connection.settimeout(max(1e-3, began + seconds - time.monotonic()))
            size = connection.recv_into(buffer)
            if not size:
                break
            got += size
            if time.monotonic() >= began + seconds:
                break
    except TimeoutError:
        pass
    spent = min(seconds, time.monotonic() - began)
    # a reset: what is still on its way shall not meet the next transfer
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    cpu = time.process_time() - cpu
    say(bytes=got, seconds=spent if got >= wanted else seconds, began=began, cpu=cpu)


def give(options: Options) -> None:
    """Says which congestion control each of `times` transfers had."""
    for _ in range(options["times"]):
        connection, found = _dialled(options)
        with connection:
            _given(connection, options)
            say(congestion=found)


def _dialled(options: Options) -> tuple[socket.socket, str]:
    """A connection, and the congestion control that it has."""
    made = socket.socket()
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, options["congestion"].encode())
    made.connect(place(options))
    return made, made.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b"\0")[0].decode()


def answer(options: Options) -> None:
    """Gives back what comes on one connection, until its end."""
    with socket.create_server((options["host"], 0)) as server:
        say(port=server.getsockname()[1])
        connection, _ = server.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, options["congestion"].encode())
            while word := connection.recv(WORD):
                connection.sendall(word)


def ask(options: Options) -> None:
    """Asks one small thing after the other until the file `stop` is there; says when each left and what it took."""
    connection, found = _dialled(options)
    trips: list[tuple[float, float]] = []
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not Path(options["stop"]).exists():
            when = time.monotonic()
            connection.sendall(bytes(WORD))
            connection.recv(WORD, socket.MSG_WAITALL)
            trips.append((when, time.monotonic() - when))
            time.sleep(PAUSE)
    say(trips=trips, congestion=found)


def drain(options: Options) -> None:
    """Says what each of `count` connections brings in `seconds`, from `warm` seconds after the last has come."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server((options["host"], 0), backlog=options["count"]))
        say(port=server.getsockname()[1])
        made = [stack.enter_context(server.accept()[0]) for _ in range(options["count"])]
        first = time.monotonic() + options["warm"]
        end = first + options["seconds"]

        def counted(connection: socket.socket) -> int:
            buffer, got = bytearray(RECEIVE), 0
            while (now := time.monotonic()) < end:
                connection.settimeout(max(1e-3, end - now))
                try:
                    size = connection.recv_into(buffer)
                except TimeoutError:
                    break
                got += size if time.monotonic() >= first else 0
            return got

        with ThreadPoolExecutor(len(made)) as pool:
            say(got=list(pool.map(counted, made)))


def pour(options: Options) -> None:
    """Sends over `count` connections until it is ended; says first which congestion control they have."""
    made = [_dialled(options) for _ in range(options["count"])]
    say(congestion=sorted({found for _, found in made}))

    def send(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(bytes(PIECE))

    with ThreadPoolExecutor(len(made)) as pool:
        list(pool.map(send, (connection for connection, _ in made)))


def _given(connection: socket.socket, options: Options) -> float:
    """Sends until the last byte or the deadline, then waits for the other end; processor seconds of the sending."""
    began, piece, sent = time.monotonic(), memoryview(bytes(PIECE)), 0
    end, cpu = began + options["seconds"], time.process_time()
    with contextlib.suppress(OSError):  # the receiver ends it at the deadline
        connection.sendall(HEAD.pack(began, options["bytes"], options["seconds"]))
        while sent < options["bytes"] and time.monotonic() < end:
            connection.settimeout(max(1e-3, end + 1 - time.monotonic()))
            connection.sendall(piece[: options["bytes"] - sent])
            sent += PIECE
    spent = time.process_time() - cpu
    with contextlib.suppress(OSError):
        connection.settimeout(max(1e-3, end + 1 - time.monotonic()))
        connection.recv(1)
    return spent


def serve(options: Options) -> None:
    """Sends to `count` homes at once, as soon as all of them have come."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server((options["host"], 0)))
        say(port=server.getsockname()[1])
        made = [stack.enter_context(server.accept()[0]) for _ in range(options["count"])]
        for connection in made:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, options["congestion"].encode())
        with ThreadPoolExecutor(len(made)) as pool:
            list(pool.map(lambda connection: _given(connection, options), made))
    say(sent=len(made))


def fetch(options: Options) -> None:
    """Comes for what `serve` sends."""
    with socket.create_connection(place(options)) as connection:
        _taken(connection)


def _context(side: int, own: SigningKey) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    credentials = FileTlsCredentials(own)
    credentials.load(context)
    credentials.close()
    return context


def sealed_take(options: Options) -> None:
    context = _context(ssl.PROTOCOL_TLS_SERVER, key("receive"))
    with socket.create_server((options["host"], 0)) as server:
        say(port=server.getsockname()[1])
        for _ in range(options["times"]):
            connection, _ = server.accept()
            with context.wrap_socket(connection, server_side=True) as sealed:
                _taken(sealed)


def sealed_give(options: Options) -> None:
    context = _context(ssl.PROTOCOL_TLS_CLIENT, key("send"))
    for _ in range(options["times"]):
        with context.wrap_socket(socket.create_connection(place(options))) as sealed:
            name = sealed.cipher()
            say(cpu=_given(sealed, options), cipher=name[0] if name else "")


# Through a relay


def _shown(own: SigningKey, purpose: TicketPurpose, peer: PeerId, options: Options, circuit: int = 0) -> socket.socket:
    """A connection to the relay that has shown its ticket."""
    made = socket.create_connection(place(options), timeout=GRACE)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.sendall(relay_tickets.sign_ticket(own, new_ticket(own, purpose, key("relay").public, peer, circuit)))
    return made


def _joined(made: socket.socket) -> socket.socket:
    """It, once the relay has joined it."""
    word = made.recv(relay_tickets.ANSWER_BYTES, socket.MSG_WAITALL)
    if len(word) < relay_tickets.ANSWER_BYTES or relay_tickets.read_answer(word) is not TicketStatus.JOINED:
        raise ConnectionError(f"the relay answers {word.hex()}")
    return made


async def _attach(name: str, options: Options, come: Callable[[CallbackRequest], None]) -> Endpoint:
    """A peer that is known at the relay, and answers its summons in its own way."""

    async def handle(_: Connection, method: str, body: bytes) -> bytes:
        if method == CALLBACK:
            await asyncio.to_thread(come, decode(body, CallbackRequest, limits.TICKET_BYTES))
        return b""

    endpoint = Endpoint(key(name), handle, ByteCounter())
    connection = await endpoint.dial(key("relay").public, *place(options))
    await connection.call(ATTACH, b"")
    return endpoint


async def meet(options: Options) -> None:
    """Comes when it is called, and says what came through the circuit, `times` over."""
    left = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    def come(summons: CallbackRequest) -> None:
        made = _shown(key("receive"), TicketPurpose.ACCEPT, summons.dialer, options, summons.circuit)
        with _joined(made):
            _taken(made)
        loop.call_soon_threadsafe(left.release)

    endpoint = await _attach("receive", options, come)
    say(port=0)
    for _ in range(options["times"]):
        await left.acquire()
    await endpoint.close()


def flood(options: Options) -> None:
    """Sends through one circuit, `times` over."""
    for _ in range(options["times"]):
        with _joined(_shown(key("send"), TicketPurpose.DIAL, key("receive").public, options)) as made:
            say(cpu=_given(made, options))


async def crowd(options: Options) -> None:
    """As many circuits as asked for, each with both its ends here."""
    allow_many_files()
    kept: list[socket.socket] = []

    def come(summons: CallbackRequest) -> None:
        made = _shown(key("receive"), TicketPurpose.ACCEPT, summons.dialer, options, summons.circuit)
        kept.append(_joined(made))

    def dial(index: int) -> None:
        own = key("dialer", index // (limits.CIRCUITS_PER_KEY // 2))
        kept.append(_joined(_shown(own, TicketPurpose.DIAL, key("receive").public, options)))

    def settle() -> None:  # the last one is on its way back
        deadline = time.monotonic() + GRACE
        while len(kept) < 2 * options["count"] and time.monotonic() < deadline:
            time.sleep(PAUSE)

    endpoint = await _attach("receive", options, come)
    for index in range(options["count"]):
        await asyncio.to_thread(dial, index)
    await asyncio.to_thread(settle)
    say(circuits=len(kept) // 2)
    await asyncio.Event().wait()
    await endpoint.close()


ROLES: Final = {
    "take": take, "give": give, "answer": answer, "ask": ask, "drain": drain, "pour": pour, "sealed-take": sealed_take,
    "sealed-give": sealed_give, "meet": meet, "flood": flood, "crowd": crowd, "serve": serve, "fetch": fetch,
}  # fmt: skip

if __name__ == "__main__":
    done = ROLES[sys.argv[1]](json.loads(sys.argv[2]))
    if done is not None:
        asyncio.run(done)
