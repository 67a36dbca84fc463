"""A listening port that is closed at any moment, with strangers on the doorstep."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from farflung.core.crypto import local_key
from farflung.core.errors import NetworkError
from farflung.net.counters import ByteCounter
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.paths import PathType

A, B = (local_key(31, name) for name in "ab")


async def deaf(_connection: Connection, _method: str, _body: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("turns", range(8))
def test_an_endpoint_closes_whatever_it_has_just_accepted(turns: int) -> None:
    """`turns` of the loop after strangers have come: in one of them asyncio's own server is a trap."""

    async def test() -> None:
        endpoint = Endpoint(A, deaf, ByteCounter())
        address = await endpoint.start()
        strangers = [socket.create_connection(address) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await endpoint.close()
        for stranger in strangers:
            with stranger:
                stranger.settimeout(60)
                with contextlib.suppress(ConnectionResetError):
                    assert stranger.recv(1) == b""

    asyncio.run(test())


def test_a_connection_that_never_had_a_socket_keeps_no_endpoint_open() -> None:
    async def test() -> None:
        endpoint = Endpoint(A, deaf, ByteCounter())
        connection = endpoint.fresh(B.public, PathType.DIRECT)
        async with asyncio.timeout(60):
            await endpoint.close()
            await connection.closed()
        with pytest.raises(NetworkError, match="FF-NET-046"):
            await connection.call("anything", b"")

    asyncio.run(test())


def test_tcp_that_comes_after_its_connection_was_closed_is_cut() -> None:
    async def test() -> None:
        endpoint = Endpoint(A, deaf, ByteCounter())
        connection = endpoint.fresh(None, PathType.DIRECT)
        connection.close()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, ours)
            theirs.settimeout(60)
            assert await asyncio.to_thread(theirs.recv, 1) == b""
        await endpoint.close()

    asyncio.run(test())
