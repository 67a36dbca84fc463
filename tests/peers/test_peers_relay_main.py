"""The relay as a process of its own: for a supervisor, and for a person."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from farflung.app.cli import relay as cli_relay
from farflung.app.cli.relay import read_or_make_key
from farflung.core.crypto import local_key
from farflung.core.errors import NetworkError, UsageError
from farflung.net.counters import ByteCounter
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.messages import MessageKind
from farflung.peers.network.operator_folder import write_relay
from farflung.peers.process.child import ChildProcess
from farflung.peers.process.config import HexId
from farflung.peers.relay import config as relay_config

A, B, C, R = (local_key(8, name) for name in ("a", "b", "c", "relay"))
SIZE = 1_000_000

Said = dict[str, Any]


class Process:
    """A relay on a leash, and what it said."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "relay.log"
        self.said: list[Said] = []
        self.child: ChildProcess | None = None

    async def start(self, port: int = 0, allow: list[bytes] | None = None) -> tuple[str, int]:
        told = [*map(HexId, allow)] if allow is not None else None
        config = write_relay(self._log.parent / "relay", R, {"port": port, "allow": told})
        self.child = await ChildProcess.start(
            "relay", "relay", config, self._log, lambda _, said: self.said.append(said)
        )
        ready = await self.child.first
        assert ready["peer"] == R.public.hex()
        return ready["host"], ready["port"]

    def last(self, kind: str) -> Said:
        return [said for said in self.said if said["kind"] == kind][-1]


async def echo(connection: Connection, method: str, body: bytes) -> bytes:
    return body


@asynccontextmanager
async def peers(*place: Any) -> AsyncIterator[tuple[Endpoint, Endpoint]]:
    a, b = Endpoint(A, echo, ByteCounter()), Endpoint(B, echo, ByteCounter())
    try:
        for each in (a, b):
            each.attach(R.public, *place)
            await each.attached()
        yield a, b
    finally:
        await a.close()
        await b.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(100):
            await test()

    asyncio.run(bounded())


@pytest.mark.slow
def test_peers_of_a_relay_that_was_killed_go_on_when_it_is_started_again(tmp_path: Path) -> None:
    async def test() -> None:
        process = Process(tmp_path)
        place = await process.start()
        async with peers(*place) as (a, b):
            for _ in range(2):
                connection = await a.dial(B.public, *place, relay=R.public)
                assert await connection.call("a", bytes(SIZE), kind=MessageKind.SYNC) == bytes(SIZE)
                assert process.child is not None
                os.kill(process.child.pid, signal.SIGKILL)
                await process.child.stop()
                await connection.closed()
                with pytest.raises(NetworkError):
                    await a.dial(B.public, *place, relay=R.public)
                await until(lambda: not any(each._attachments[R.public].is_there for each in (a, b)))
                assert await process.start(place[1]) == place
                await asyncio.gather(a.attached(), b.attached())
            connection = await a.dial(B.public, *place, relay=R.public)
            assert await connection.call("a", b"1") == b"1"
        await process.child.stop()

    run(test)


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0.01)


def test_a_relay_tells_what_it_forwarded_and_what_it_said_itself(tmp_path: Path) -> None:
    async def test() -> None:
        process = Process(tmp_path)
        place = await process.start()
        async with peers(*place) as (a, b):
            connection = await a.dial(B.public, *place, relay=R.public)
            await connection.call("a", bytes(SIZE), kind=MessageKind.SYNC)
            await until(lambda: any(said.get("relay", 0) > 2 * SIZE for said in process.said))
            through = sum(end.counter.sent[MessageKind.SYNC] for end in (a, b))
        assert process.child is not None
        await process.child.stop()
        told = process.last("bytes")
        own = sum(end.counter.total_sent for end in (a, b))
        assert 2 * SIZE < through < told["relay"] < own
        assert 0 < told["control"] < 20_000
        assert told["sync"] == told["audit"] == told["join"] == 0
        assert process.last("usage")["process"] == "relay"
        assert await process.child.gone() == 0

    run(test)


def test_a_relay_serves_only_the_keys_that_it_was_given(tmp_path: Path) -> None:
    async def test() -> None:
        process = Process(tmp_path)
        place = await process.start(allow=[A.public, B.public])
        stranger = Endpoint(C, echo, ByteCounter())
        async with peers(*place) as (a, _):
            assert (await a.dial(B.public, *place, relay=R.public)).is_open
            with pytest.raises(NetworkError, match="FF-NET-072") as refused:
                await stranger.dial(B.public, *place, relay=R.public)
            assert refused.value.cause == "it does not serve this key"
        await stranger.close()
        assert process.child is not None
        await process.child.stop()

    run(test)


# For people


RELAYS: list["subprocess.Popen[str]"] = []


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Ends the relays of a test that failed."""
    yield
    while RELAYS:
        relay = RELAYS.pop()
        if relay.poll() is None:
            relay.kill()
            relay.communicate()


def command(*words: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-m", "farflung.app.cli.main", "relay", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    RELAYS.append(process)
    return process


def started(key: Path, *words: str) -> tuple["subprocess.Popen[str]", str]:
    process = command("--port", "0", "--key", str(key), *words)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()
    return process, line


def test_the_verb_prints_its_address_forwards_and_says_how_much(tmp_path: Path) -> None:
    process, line = started(tmp_path / "relay.key", "--json")
    said = msgspec.json.decode(line)

    async def test() -> None:
        relay = bytes.fromhex(said["peer"])
        a, b = Endpoint(A, echo, ByteCounter()), Endpoint(B, echo, ByteCounter())
        b.attach(relay, said["host"], said["port"])  # type: ignore[arg-type]
        await b.attached()
        connection = await a.dial(B.public, said["host"], said["port"], relay=relay)  # type: ignore[arg-type]
        await connection.call("a", bytes(SIZE), kind=MessageKind.SYNC)
        await a.close()
        await b.close()

    run(test)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=100)
    assert (process.returncode, errors) == (0, "")
    assert msgspec.json.decode(out)["forwarded"] > 2 * SIZE


def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    key = tmp_path / "relay.key"
    heads = []
    for _ in range(2):
        process, line = started(key)
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=100)
        assert (process.returncode, errors) == (0, "")
        assert "forwarded 0" in out
        heads.append(line)
    assert heads[0] == heads[1] == f"relay {read_or_make_key(key).public.hex()}\n"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert read_or_make_key(key).seed.hex() not in "".join(heads)
    assert os.listdir(tmp_path) == ["relay.key"]


def test_a_taken_port_ends_the_verb_with_a_code(tmp_path: Path) -> None:
    process, line = started(tmp_path / "relay.key", "--json")
    other = command("--port", str(msgspec.json.decode(line)["port"]), "--key", str(tmp_path / "other.key"))
    _, errors = other.communicate(timeout=60)
    process.kill()
    process.communicate()
    assert other.returncode == 3
    assert errors.startswith("error[FF-NET-040]: port ")
    assert "Traceback" not in errors


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux paces")
def test_a_relay_says_what_it_leaves_of_its_line(tmp_path: Path) -> None:
    process, line = started(tmp_path / "relay.key", "--json", "--uplink", "20")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=100)
    assert (process.returncode, errors) == (0, "")
    assert msgspec.json.decode(line)["bytes_per_second"] == 2_375_000  # 95 % of 20 Mbit/s


@pytest.mark.parametrize("rate", ["nan", "inf", "0", "-1", "10001", "x"])
def test_an_uplink_that_is_no_rate_is_not_understood(tmp_path: Path, rate: str) -> None:
    key = tmp_path / "relay.key"
    done = CliRunner().invoke(cli_relay.relay, ["--key", str(key), "--uplink", rate])
    assert done.exit_code == 2
    assert "--uplink" in done.output
    assert not key.exists()


def test_an_uplink_that_cannot_be_kept_is_refused_and_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_config, "CAN_PACE", False)
    with pytest.raises(UsageError, match="FF-APP-142"):
        relay_config.sent_at_most(20.0)
    assert relay_config.sent_at_most(None) is None


@pytest.mark.parametrize("text", ["", "ab" * 31, "ab" * 33, "AB" * 32, "x" * 64, "ab" * 32 + "\n\n"])
def test_a_file_that_holds_no_key_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    key = tmp_path / "relay.key"
    key.write_text(text)
    key.chmod(0o600)
    with pytest.raises(UsageError, match="FF-APP-140"):
        read_or_make_key(key)
    assert key.read_text() == text


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "relay.key"
    seed = read_or_make_key(key).seed
    key.chmod(0o640)
    with pytest.raises(UsageError, match="FF-APP-141") as refused:
        read_or_make_key(key)
    assert "chmod 600" in refused.value.hint
    key.chmod(0o600)
    assert read_or_make_key(key).seed == seed


def test_a_link_a_folder_or_a_missing_folder_is_no_key(tmp_path: Path) -> None:
    read_or_make_key(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "link", tmp_path, tmp_path / "none" / "relay.key", tmp_path / "pipe"):
        with pytest.raises(UsageError, match="FF-APP-140"):
            read_or_make_key(path)
