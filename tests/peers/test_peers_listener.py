"""What the listener of the ledger's readers sends is what its own description says, whatever it is asked."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any
from urllib.parse import urlsplit

import pytest
from app_reading import served
from ledger_history import batches, history
from ledger_world import JOB, NODES, PARAMS, REQUESTER

from farflung.app.explorer.schema_check import fault_of
from farflung.core import limits
from farflung.ledger.chain import Chain
from farflung.ledger.transactions import tx_id
from farflung.peers.ledger_http import http1, openapi
from farflung.peers.ledger_http.rate_limit import AddressRateLimiter

ODD = ("-1", "0", "1", "9" * 15, "9" * 19, "9" * 400, "00", "ff" * 32, "zz" * 32, "FF" * 32, "é", "%C3%A9")


@cache
def chain() -> Chain:
    return history(batches(), PARAMS)


def words() -> dict[str, str]:
    """A path of every route with a name in it, whose name the ledger holds."""
    node, job = NODES[0].public.hex(), JOB.hex()
    return {
        "/v1/blocks/{height}": "/v1/blocks/1",
        "/v1/tx/{id}": f"/v1/tx/{tx_id(chain().blocks[0].txs[0]).hex()}",
        "/v1/accounts/{key}": f"/v1/accounts/{REQUESTER.public.hex()}",
        "/v1/nodes/{key}": f"/v1/nodes/{node}",
        "/v1/nodes/{key}/leases": f"/v1/nodes/{node}/leases",
        "/v1/jobs/{id}": f"/v1/jobs/{job}",
        "/v1/jobs/{id}/life": f"/v1/jobs/{job}/life",
        "/v1/committees/{epoch}": "/v1/committees/0",
        "/v1/receipts/{table}/{key}": f"/v1/receipts/accounts/{REQUESTER.public.hex()}",
        "/v1/find/{digits}": f"/v1/find/{job[:8]}",
    }


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(chain(), AddressRateLimiter(1e9, 1e9)) as at:
        yield at


def sent(url: str, asked: bytes) -> bytes:
    """All that comes back to these bytes; nothing when the listener hangs up without a word."""
    with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=60) as link:
        link.sendall(asked)
        return b"".join(iter(lambda: link.recv(1 << 16), b""))


def asked(url: str, target: str, method: str = "GET", *lines: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to one request."""
    head = "\r\n".join([f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""])
    return parts_of(sent(url, head.encode()))


def parts_of(reply: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = reply.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body


def check(answer: tuple[int, dict[str, str], bytes], operation: dict[str, Any]) -> int:
    """The status, when it and the body are as described."""
    status, headers, body = answer
    described = operation["responses"][str(status)]
    schema = described["content"]["application/json"]["schema"]
    assert fault_of(json.loads(body), schema) == ""
    assert int(headers["Content-Length"]) == len(body)
    return status


def paths(url: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(asked(url, "/v1/openapi.json")[2])["paths"]
    return found


def test_every_described_route_is_answered_as_described_and_to_a_head_without_its_body(url: str) -> None:
    described, named = paths(url), words()
    assert named.keys() == {path for path in described if "{" in path}
    for path, operations in described.items():
        target = named.get(path, path)
        got = asked(url, target)
        assert check(got, operations["get"]) == 200, path
        status, headers, body = asked(url, target, "HEAD")
        assert (status, headers, body) == (200, got[1], b"")
        assert operations["head"]["responses"].keys() == operations["get"]["responses"].keys()
        assert "content" not in operations["head"]["responses"]["200"]


def test_odd_words_in_any_path_or_query_are_answered_as_described(url: str) -> None:
    named = words()
    seen = set()
    for path, operations in paths(url).items():
        for word in ODD if "{" in path else ():
            name = "{table}" if "{table}" in path and word == "-1" else re.findall(r"{\w+}", path)[-1]
            target = re.sub(r"{\w+}", "accounts", path.replace(name, word))
            seen.add(check(asked(url, target), operations["get"]))
        queries = [each["name"] for each in operations["get"]["parameters"] if each["in"] == "query"]
        for query, word in product([*queries, "none"], ODD):
            target = f"{named.get(path, path)}?{query}={word}"
            status = check(asked(url, target), operations["get"])
            assert status == 400 or query != "none"
            seen.add(status)
    assert seen == {200, 400, 404}


@pytest.mark.parametrize(
    ("asking", "expected"),
    [
        (("/v1/head", "POST"), 405),
        (("/v1/head", "OPTIONS"), 405),
        (("/v1/none",), 404),
        (("/",), 404),
        (("/v1/blocks/é",), 400),
        (("http://127.0.0.1/v1/head",), 400),
        (("/v1/head", "GET", "Content-Length: 3"), 400),
        (("/v1/head", "GET", "Host: 127.0.0.1"), 400),
        (("/v1/head", "GET", "X: " + "x" * (64 << 10)), 400),
    ],
)
def test_an_odd_request_is_refused_as_described_and_a_head_without_a_body(
    url: str, asking: tuple[str, ...], expected: int
) -> None:
    assert check(asked(url, *asking), paths(url)["/v1/head"]["get"]) == expected
    if expected != 405:
        target, _, *lines = (*asking, "GET")[: max(2, len(asking))]
        status, headers, body = asked(url, target, "HEAD", *lines)
        assert (status, body) == (expected, b"")
        assert int(headers["Content-Length"]) > 0
    else:
        assert asked(url, *asking)[1]["Allow"] == "GET, HEAD"


def test_another_host_is_misdirected_and_a_flood_is_told_when_to_come_again(url: str) -> None:
    operation = paths(url)["/v1/head"]["get"]
    reply = sent(url, b"GET /v1/head HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    assert check(parts_of(reply), operation) == 421
    with served(chain(), AddressRateLimiter(1e-9, 1)) as slow:
        assert asked(slow, "/v1/head")[0] == 200
        flood = asked(slow, "/v1/head")
        assert check(flood, operation) == 429
        assert int(flood[1]["Retry-After"]) > 0
        assert asked(slow, "/v1/head", "HEAD")[::2] == (429, b"")


def test_a_request_that_does_not_end_is_hung_up_on_without_an_answer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(limits, "API_HEAD_SECONDS", 0.2)
        assert sent(url, b"GET /v1/head HTTP/1.1\r\nHost: 127.0.0.1\r\n") == b""
    assert asked(url, "/v1/head")[0] == 200


def test_an_answer_that_is_too_large_and_a_crowd_are_refused_as_described(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = paths(url)["/v1/head"]["get"]
    with monkeypatch.context() as patch:
        patch.setattr(limits, "API_ANSWER_BYTES", 10)
        assert check(asked(url, "/v1/head"), operation) == 500
    monkeypatch.setattr(limits, "API_CONNECTIONS", 0)
    assert check(asked(url, "/v1/head"), operation) == 503


def test_every_status_that_can_be_sent_is_described() -> None:
    assert {str(status) for status in http1._REASONS} == {"200", *openapi.REFUSALS}
    assert set(http1._STATUS.values()) <= http1._REASONS.keys()
