"""`farflung check --net` as a person types it: what it takes, what it refuses, what its lines and objects say."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner

from farflung.app.cli import check, check_net
from farflung.app.cli.job_options import relay_address
from farflung.app.netcheck.relay import RelayAddress
from farflung.core.codec import encode
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import UsageError
from farflung.core.ids import PeerId
from farflung.ledger import queries
from farflung.market.provider_offer import Capabilities
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress, issue
from farflung.net.io.admission import Admission
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_probe_server import RelayProbeServer
from farflung.net.io.request_handlers import Handler
from farflung.peers.protocol.directory import LIST, Advertisement, DirectoryListing, advertise

R, A, L = (local_key(11, name) for name in ("relay", "a", "ledger"))
FACTS = Capabilities(2, 1 << 30, 1 << 30, 10**9, 1, "Linux", "x86_64", "2.13.0")


@contextmanager
def threaded(serve: Callable[[asyncio.Event, Callable[[str], None]], Awaitable[None]]) -> Iterator[str]:
    """Something that serves in a thread of its own; what it called `ready` with."""
    loop, over = asyncio.new_event_loop(), asyncio.Event()
    is_there, told = threading.Event(), list[str]()

    def ready(where: str) -> None:
        told.append(where)
        is_there.set()

    async def whole() -> None:
        await serve(over, ready)

    thread = threading.Thread(target=lambda: loop.run_until_complete(whole()))
    thread.start()
    try:
        assert is_there.wait(100)
        yield told[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


@contextmanager
def relay(key: SigningKey = R, **options: Any) -> Iterator[str]:
    """A relay in a thread of its own; its place."""

    async def serve(over: asyncio.Event, ready: Callable[[str], None]) -> None:
        server = RelayServer(key, **options)
        ready("{}:{}".format(*await server.start()))
        await over.wait()
        await server.close()

    with threaded(serve) as where:
        yield where


def directory(*advertisements: Advertisement):  # type: ignore[no-untyped-def]
    """A ledger that knows the nodes of these advertisements, and does not look at their time."""

    async def answer(connection: Connection, method: str, body: bytes) -> bytes:
        if method == LIST:
            return encode(DirectoryListing.of(advertisements))
        return encode(queries.ReceiptReply(None))

    return answer


def advertised(key: SigningKey, place: str, relay: PeerId, age: float = 0.0) -> Advertisement:
    host, _, port = place.rpartition(":")
    return advertise(key, issue(key.public, (EndpointAddress(host, int(port), relay),), time.time() - age), FACTS)


@contextmanager
def ledger(handler: Handler, place: str = "", attached: SigningKey | None = None) -> Iterator[str]:
    """A directory, and perhaps a peer that is attached to the relay at `place`, in a thread of their own."""

    async def both(over: asyncio.Event, ready: Callable[[str], None]) -> None:
        endpoint = Endpoint(L, handler, ByteCounter())
        where = "{}:{}".format(*await endpoint.start())
        peers = []
        if attached is not None:
            host, _, port = place.rpartition(":")
            peers.append(Endpoint(attached, handler, ByteCounter()))
            peers[0].attach(R.public, host, int(port))
            await peers[0].attached()
        ready(where)
        await over.wait()
        for each in (*peers, endpoint):
            await each.close()

    with threaded(both) as where:
        yield where


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("relay.example:4510", RelayAddress("relay.example", 4510)),
        ("192.0.2.1:1", RelayAddress("192.0.2.1", 1)),
        ("[2001:db8::1]:4510", RelayAddress("2001:db8::1", 4510)),
        (f"r:9,{R.public.hex()}", RelayAddress("r", 9, R.public)),
    ],
)
def test_a_relay_is_named_by_its_place_and_perhaps_its_key(text: str, named: RelayAddress) -> None:
    assert relay_address(text) == named


@pytest.mark.parametrize(
    "text", ["", "relay", "relay:0", "relay:70000", "2001:db8::1:45x", "r:1,ab", "a b:1", f"r:1,{'g' * 64}"]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        relay_address(text)


def test_flags_of_net_without_net_are_refused() -> None:
    for words in (["--relay", "r:1"], ["--listen", "9"]):
        done = CliRunner().invoke(check.check, words)
        assert done.exit_code == 2
        assert "--net" in done.output


def test_a_relay_that_answers_is_told_with_its_rates_and_the_port_that_it_reached() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with relay() as place:
        words = ["--net", "--relay", f"{place},{R.public.hex()}", "--listen", port, "--json"]
        done = CliRunner().invoke(check.check, words)
    facts = json.loads(done.stdout)
    states = {one["name"]: one["state"] for one in facts["findings"]}
    assert done.exit_code == 0
    assert facts["is_whole"]
    assert {states[name] for name in ("relay", "clock", "nat", "mtu", "reach")} == {"ok"}
    (seen,) = facts["readings"]["relays"]
    assert seen["up"]["rate"] > 0
    assert seen["down"]["rate"] > 0
    assert seen["key"] == R.public.hex()


def test_a_wrong_key_fails_and_the_line_has_code_cause_step_and_side() -> None:
    with relay() as place:
        done = CliRunner().invoke(check.check, ["--net", "--relay", f"{place},{A.public.hex()}"])
    assert done.exit_code == 1
    assert f"fails    relay      FF-HOST-092: {place} has another key than you named" in done.stdout
    assert "\n         try        ask who runs the relay for its key" in done.stdout
    assert "\n         side       this computer\n" in done.stdout
    assert "fix on this computer" in " ".join(done.stdout.split())


@pytest.mark.whole
def test_a_relay_that_serves_few_takes_in_the_key_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "own.key"
    file.write_text(A.private.private_bytes_raw().hex() + "\n")
    file.chmod(0o600)
    with relay(admission=Admission(lambda peer: peer == A.public)) as place:
        refused = CliRunner().invoke(check.check, ["--net", "--relay", place, "--json"])
        taken = CliRunner().invoke(check.check, ["--net", "--relay", place, "--json", "--as", str(file)])
    assert [one["fault"] for one in json.loads(refused.stdout)["faults"]].count("not_admitted") == 1
    assert (refused.exit_code, taken.exit_code) == (1, 0)


def test_lines_that_share_a_cause_tell_it_once() -> None:
    text = CliRunner().invoke(check.check, ["--net"]).stdout
    assert text.count("no relay was named, and no other computer is contacted") == 1
    assert text.count("could not measure") >= 6


def looked_for(peer: SigningKey, at: str) -> dict[str, tuple[str, str, str]]:
    words = ["--net", "--json", "--peer", peer.public.hex(), "--ledger", f"{at},{L.public.hex()}"]
    facts = json.loads(CliRunner().invoke(check.check, words).stdout)
    return {one["name"]: (one["state"], one["fault"], one["side"]) for one in facts["findings"]}


def test_a_peer_is_met_through_the_relay_that_its_record_names() -> None:
    with relay() as place, ledger(directory(advertised(A, place, R.public)), place, A) as at:
        found = looked_for(A, at)
    assert (found["record"], found["peer"]) == (("ok", "", ""), ("ok", "", ""))


def test_a_record_that_expired_and_a_peer_that_left_its_relay_are_the_peers() -> None:
    with relay() as place, ledger(directory(advertised(A, place, R.public, age=3600))) as at:
        found = looked_for(A, at)
        unknown = looked_for(R, at)
    assert found["record"] == ("fails", "expired_record", "the peer")
    assert found["peer"] == ("fails", "peer_absent", "the peer")
    assert unknown["record"] == ("fails", "no_record", "the peer")


def test_a_record_that_its_peer_did_not_sign_is_not_followed() -> None:
    real = advertised(A, "127.0.0.1:1", R.public)
    moved = msgspec.structs.replace(real.endpoint, places=(EndpointAddress("127.0.0.1", 2, R.public),))
    with ledger(directory(msgspec.structs.replace(real, endpoint=moved))) as at:
        found = looked_for(A, at)
    assert found["record"] == ("fails", "no_record", "the peer")
    assert "peer" not in found


def test_a_relay_that_tells_no_address_moves_no_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lie(self: RelayProbeServer, connection: Connection, body: bytes) -> bytes:
        return encode(("\x1b[2J", 1))

    monkeypatch.setattr(RelayProbeServer, "_where", lie)
    with relay() as place:
        done = CliRunner().invoke(check.check, ["--net", "--relay", place, "--json"])
    (seen,) = json.loads(done.stdout)["readings"]["relays"]
    assert seen["seen"] is None
    assert len(seen["trips"]) > 0


def test_a_peer_whose_relay_is_gone_is_the_relays_and_a_ledger_that_is_gone_is_not_known() -> None:
    with ledger(directory(advertised(A, "127.0.0.1:1", R.public))) as at:
        found = looked_for(A, at)
    assert found["peer"] == ("fails", "relay_down", "the relay")
    assert looked_for(A, at)["record"][0] == "unknown"


@pytest.mark.whole
def test_the_check_of_the_other_side_is_read_and_what_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "theirs.json"
    with relay() as place:
        file.write_text(CliRunner().invoke(check.check, ["--net", "--relay", place, "--json"]).stdout)
        done = CliRunner().invoke(check.check, ["--net", "--relay", place, "--theirs", str(file)])
    assert "ok       pair       both sides can open a direct way" in done.stdout
    whole = json.loads(file.read_text())
    whole["readings"]["relays"][0]["udp"] = {"hops": ["no address"], "seconds": [0.0]}
    for text in ("", '{"format": 1}', '{"format": 1, "readings": 3}', json.dumps(whole), "[" * 100_000):
        file.write_text(text)
        with pytest.raises(UsageError) as told:
            check_net.read_theirs(file)
        assert told.value.code == "FF-APP-182"
