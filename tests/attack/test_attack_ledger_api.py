"""Strangers at the interface that a ledger's readers use: slow, loud, lying about who they are; it goes on serving."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ledger_history import history

from farflung.core import limits
from farflung.core.errors import FarflungError, PolicyError
from farflung.ledger import queries
from farflung.ledger.chain import Chain
from farflung.peers.ledger_http import http1, server
from farflung.peers.ledger_http.http1 import read_target
from farflung.peers.ledger_http.metrics import LedgerMetrics
from farflung.peers.ledger_http.rate_limit import AddressRateLimiter
from farflung.peers.ledger_http.server import LedgerHttpServer

NAMES = frozenset({"localhost"})
HOST = b"Host: 127.0.0.1\r\n"
GET_HEAD = b"GET /v1/head HTTP/1.1\r\n" + HOST + b"\r\n"


@cache
def chain() -> Chain:
    return history()


@asynccontextmanager
async def listener(**options: Any) -> AsyncIterator[tuple[LedgerHttpServer, int]]:
    explorer = LedgerHttpServer(partial(queries.reply, chain()), LedgerMetrics(), **options)
    port = await explorer.start()
    try:
        yield explorer, port
    finally:
        await explorer.close()


async def asked(port: int, data: bytes, *, ends: bool = False) -> bytes:
    """What comes back for these bytes, until the listener closes; `ends`: we close our side first."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    if ends:
        writer.write_eof()
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def code_of(reply: bytes) -> str:
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 ")
    return head.split()[1].decode() + " " + str(json.loads(body).get("code", ""))


async def is_serving(port: int) -> None:
    assert code_of(await asked(port, GET_HEAD)) == "200 "


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"PUT /v1/head HTTP/1.1\r\n" + HOST, "405 FF-APP-268"),
        (b"POST /v1/head HTTP/1.1\r\n" + HOST, "405 FF-APP-268"),
        (b"DELETE /v1/head HTTP/1.1\r\n" + HOST, "405 FF-APP-268"),
        (b"GET /v1/head HTTP/1.1\r\nHost: evil.example\r\n", "421 FF-APP-270"),
        (b"GET /v1/head HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n", "421 FF-APP-270"),
        (b"GET /v1/head HTTP/1.1\r\nHost: localhost.\r\n", "421 FF-APP-270"),
        (b"GET /v1/head HTTP/1.1\r\n", "421 FF-APP-270"),
        (b"GET /v1/head HTTP/1.1\r\n" + HOST + HOST, "400 FF-APP-266"),
        (b"GET /v1/head HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n", "400 FF-APP-266"),
        (b"GET /v1/head HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n", "400 FF-APP-266"),
        (b"GET /v1/head HTTP/1.1\r\n" + HOST + b" folded: 1\r\n", "400 FF-APP-266"),
        (b"GET http://127.0.0.1/v1/head HTTP/1.1\r\n" + HOST, "400 FF-APP-266"),
        (b"GET /v1/head HTTP/2.0\r\n" + HOST, "400 FF-APP-266"),
        (b"get /v1/head HTTP/1.1\r\n" + HOST, "400 FF-APP-266"),
        (b"GET  /v1/head HTTP/1.1\r\n" + HOST, "400 FF-APP-266"),
        (b"GET /v1/../../etc/passwd HTTP/1.1\r\n" + HOST, "404 FF-APP-267"),
        (b"GET /v1/%2e%2e/etc/passwd HTTP/1.1\r\n" + HOST, "400 FF-APP-266"),
        (b"GET /v1/head/ HTTP/1.1\r\n" + HOST, "404 FF-APP-267"),
        (b"GET //v1/head HTTP/1.1\r\n" + HOST, "404 FF-APP-267"),
        (b"GET /v1/jobs/{id} HTTP/1.1\r\n" + HOST, "400 FF-APP-272"),
        (b"GET /v1/accounts/" + b"00" * 33 + b" HTTP/1.1\r\n" + HOST, "400 FF-APP-272"),
        (b"GET /v1/receipts/secrets/00 HTTP/1.1\r\n" + HOST, "404 FF-APP-271"),
        (b"GET /v1/blocks?from=-1 HTTP/1.1\r\n" + HOST, "400 FF-APP-272"),
        (b"GET /v1/blocks?from=99999999999999999999 HTTP/1.1\r\n" + HOST, "400 FF-APP-272"),
        (b"GET /v1/blocks?limit=65 HTTP/1.1\r\n" + HOST, "400 FF-APP-272"),
        (b"GET /v1/blocks?limit=1&limit=2 HTTP/1.1\r\n" + HOST, "400 FF-APP-272"),
        (b"GET /v1/head?callback=alert HTTP/1.1\r\n" + HOST, "400 FF-APP-272"),
        (b"GET /v1/find/ffg HTTP/1.1\r\n" + HOST, "400 FF-APP-272"),
        (b"GET /v1/find/a HTTP/1.1\r\n" + HOST, "400 FF-APP-272"),
        (b"GET /v1/blocks/" + b"9" * 15 + b" HTTP/1.1\r\n" + HOST, "404 FF-APP-271"),
        (b"GET /v1/nodes?from=999999999 HTTP/1.1\r\n" + HOST, "200 "),
        (b"GET /v1/head HTTP/1.0\r\nhost: [::1]:7780\r\n", "200 "),
        (b"GET /v1/head HTTP/1.1\r\nHost: localhost:1\r\n", "200 "),
    ],
)
def test_what_is_no_request_of_ours_is_refused_in_words(request_: bytes, code: str) -> None:
    async def test() -> None:
        async with asyncio.timeout(30), listener() as (_, port):
            assert code_of(await asked(port, request_ + b"\r\n")) == code
            await is_serving(port)

    asyncio.run(test())


def test_a_head_that_never_ends_is_cut_off_by_its_length_and_by_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "API_HEAD_SECONDS", 0.2)

    async def test() -> None:
        async with asyncio.timeout(30), listener() as (explorer, port):
            long = b"GET /v1/head HTTP/1.1\r\nX: " + b"a" * (limits.API_HEAD_BYTES + 100)
            assert code_of(await asked(port, long)) == "400 FF-APP-266"
            many = b"GET /v1/head HTTP/1.1\r\n" + HOST + b"a: b\r\n" * (limits.API_HEADERS + 1) + b"\r\n"
            assert code_of(await asked(port, many)) == "400 FF-APP-266"
            assert await asked(port, b"GET /v1/head HT") == b"", "a slow one is not waited for"
            assert await asked(port, b"GET /v1", ends=True) == b""
            await is_serving(port)
            await until(lambda: not explorer._tasks)

    asyncio.run(test())


async def until(is_so: Any) -> None:
    while not is_so():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0.01)


def test_who_holds_many_connections_keeps_nobody_else_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "API_CONNECTIONS_PER_ADDRESS", 4)
    monkeypatch.setattr(server, "block_of", lambda address: address + str(next(turns)))
    turns = iter([0] * 6 + [1] * 10)

    async def test() -> None:
        async with asyncio.timeout(30), listener() as (explorer, port):
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
            await until(lambda: len(explorer._tasks) == 4)
            for _ in range(2):
                assert code_of(await asked(port, GET_HEAD)) == "503 FF-APP-274"
            await is_serving(port)  # from another address
            for _, writer in held:
                writer.close()
            await until(lambda: not explorer._tasks and not explorer._open)

    asyncio.run(test())


def test_a_flood_is_told_when_to_come_again_and_others_are_served() -> None:
    now = 0.0
    rates = AddressRateLimiter(rate=1.0, burst=8.0)

    async def test() -> None:
        nonlocal now
        async with asyncio.timeout(30), listener(rates=rates, clock=lambda: now) as (explorer, port):
            replies = [code_of(await asked(port, GET_HEAD)) for _ in range(12)]
            assert replies == ["200 "] * 8 + ["429 FF-APP-269"] * 4
            wrong = GET_HEAD.replace(b"/v1/head", b"/v1/none")
            assert code_of(await asked(port, wrong)) == "429 FF-APP-269", "mistakes cost, too"
            told = await asked(port, GET_HEAD)
            assert b"\r\nRetry-After: 1\r\n" in told
            assert explorer.reply(GET_HEAD, "192.0.2.9").status == 200
            now += 1.0
            await is_serving(port)

    asyncio.run(test())


def test_who_does_not_take_its_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "API_SEND_SECONDS", 0.2)
    monkeypatch.setattr(http1, "TEXT", "text/plain")
    big = http1.HttpResponse(200, b"x" * (32 << 20))
    monkeypatch.setitem(server._PAGES, "/metrics", lambda _: big)

    async def test() -> None:
        async with asyncio.timeout(30), listener() as (explorer, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET_HEAD.replace(b"/v1/head", b"/metrics"))
            await until(lambda: explorer._tasks)
            await until(lambda: not explorer._tasks)
            await is_serving(port)
            writer.transport.abort()

    asyncio.run(test())


def test_an_answer_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "API_ANSWER_BYTES", 100)
    explorer = LedgerHttpServer(partial(queries.reply, chain()), LedgerMetrics())
    reply = explorer.reply(GET_HEAD, "192.0.2.1")
    assert (reply.status, json.loads(reply.body)["code"]) == (500, "FF-APP-273")


def test_nothing_but_loopback_is_listened_on_unless_it_is_asked_for() -> None:
    explorer = LedgerHttpServer(partial(queries.reply, chain()), LedgerMetrics())
    with pytest.raises(PolicyError, match="FF-APP-275"):
        asyncio.run(explorer.start("0.0.0.0"))


@given(st.binary(max_size=300))
@example(b"GET / HTTP/1.1")
@example(b"GET /v1/head HTTP/1.1\r\nHost: \xff")
@example(b"GET /\n/v1/head HTTP/1.1")
@example(b"GET /v1/head HTTP/1.1\r\nHost: 127.0.0.1\nHost: evil")
def test_no_bytes_make_anything_but_an_answer_or_a_refusal(head: bytes) -> None:
    said = ""
    try:
        target = read_target(head + b"\r\n\r\n", NAMES)
    except FarflungError as error:
        target, said = "", error.code
    assert said in {"", "FF-APP-266", "FF-APP-268", "FF-APP-270"}
    assert target.isascii()
    assert target == "" or target.isprintable()


@given(st.from_regex(r"/v1/[a-z0-9/]{0,40}(\?[a-z=&0-9]{0,20})?", fullmatch=True))
def test_every_path_is_answered_or_refused_and_never_breaks(target: str) -> None:
    explorer = LedgerHttpServer(partial(queries.reply, chain()), LedgerMetrics())
    reply = explorer.reply(GET_HEAD.replace(b"/v1/head", target.encode()), "192.0.2.1")
    assert reply.status in (200, 400, 404)
    json.loads(reply.body)
