"""`farflung check --net` as a person types it: what it takes, what it refuses, what its lines and objects say."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from farflung.app.cli import checking, netting
from farflung.app.probing_relay import Named
from farflung.core.crypto import SigningKey, local_key
from farflung.net.io.relay import RelayServer

R, A = local_key(11, "relay"), local_key(11, "a")


@contextmanager
def relay(key: SigningKey = R, **options: object) -> Iterator[str]:
    """A relay in a thread of its own; its place."""
    loop, over = asyncio.new_event_loop(), asyncio.Event()
    is_there, places = threading.Event(), []

    async def serve() -> None:
        server = RelayServer(key, **options)  # type: ignore[arg-type]
        places.append("{}:{}".format(*await server.start()))
        is_there.set()
        await over.wait()
        await server.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert is_there.wait(30)
        yield places[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("relay.example:4510", Named("relay.example", 4510)),
        ("192.0.2.1:1", Named("192.0.2.1", 1)),
        ("[2001:db8::1]:4510", Named("2001:db8::1", 4510)),
        (f"r:9,{R.public.hex()}", Named("r", 9, R.public)),
    ],
)
def test_a_relay_is_named_by_its_place_and_perhaps_its_key(text: str, named: Named) -> None:
    assert netting.place(text) == named


@pytest.mark.parametrize(
    "text", ["", "relay", "relay:0", "relay:70000", "2001:db8::1:45x", "r:1,ab", "a b:1", f"r:1,{'g' * 64}"]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        netting.place(text)


def test_flags_of_net_without_net_are_refused() -> None:
    for words in (["--relay", "r:1"], ["--listen", "9"]):
        done = CliRunner().invoke(checking.check, words)
        assert done.exit_code == 2
        assert "--net" in done.output


def test_a_relay_that_answers_is_told_with_its_rates_and_the_port_that_it_reached() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with relay() as place:
        words = ["--net", "--relay", f"{place},{R.public.hex()}", "--listen", port, "--json"]
        done = CliRunner().invoke(checking.check, words)
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
        done = CliRunner().invoke(checking.check, ["--net", "--relay", f"{place},{A.public.hex()}"])
    assert done.exit_code == 1
    assert f"fails    relay      FF-HOST-092: {place} has another key than you named" in done.stdout
    assert "\n         try        ask who runs the relay for its key" in done.stdout
    assert "\n         side       this computer\n" in done.stdout
    assert "to be mended at this computer" in " ".join(done.stdout.split())


def test_a_relay_that_serves_few_takes_in_the_key_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "own.key"
    file.write_text(A.private.private_bytes_raw().hex() + "\n")
    file.chmod(0o600)
    with relay(admit=lambda peer: peer == A.public) as place:
        refused = CliRunner().invoke(checking.check, ["--net", "--relay", place, "--json"])
        taken = CliRunner().invoke(checking.check, ["--net", "--relay", place, "--json", "--as", str(file)])
    assert [one["fault"] for one in json.loads(refused.stdout)["faults"]].count("not_admitted") == 1
    assert (refused.exit_code, taken.exit_code) == (1, 0)


def test_lines_that_share_a_cause_tell_it_once() -> None:
    text = CliRunner().invoke(checking.check, ["--net"]).stdout
    assert text.count("no relay was named, and nobody else is asked") == 1
    assert text.count("could not measure") >= 6
