"""Node keys on disk as an owner meets them: made, replaced in time, revoked, and refused when others may read them."""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from farflung.app.cli import relay
from farflung.app.cli.key import key as verb
from farflung.core.codec import encode
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import FarflungError, ProtocolError, RunError, UsageError
from farflung.ledger.block import Genesis
from farflung.ledger.params import LedgerParams
from farflung.net.certificates import Credential
from farflung.net.counters import ByteCounter
from farflung.net.io.admission import Admission
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay import RelayServer
from farflung.peers.keys.files import read_account, read_own, write_own
from farflung.peers.ledger_client.node_key import DAY, NodeKeyRotator, ledger_of, made, replace_at, revoked
from farflung.peers.network.operator_folder import write_seat
from farflung.peers.process.child import ChildProcess
from farflung.peers.process.config import KeyFile
from farflung.peers.relay.config import RelayConfig

VALIDATOR, OWNER, OTHER = (local_key(15, name) for name in ("validator", "owner", "other"))
NOW = 1_800_000_000


def invoke(*words: str) -> dict[str, Any]:
    """The verb with --json; what it raises is raised."""
    done = CliRunner().invoke(verb, [*words, "--json"])
    if done.exception is not None:
        raise done.exception
    said: dict[str, Any] = msgspec.json.decode(done.stdout)
    return said


def account_in(folder: Path, account: SigningKey = OWNER) -> str:
    path = folder / "account.key"
    path.write_text(account.seed.hex() + "\n")
    path.chmod(0o600)
    return str(path)


async def echo(_: Connection, __: str, body: bytes) -> bytes:
    return body


def refused(*words: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        invoke(*words)
    return caught.value


# Without a ledger


def test_a_first_command_makes_an_account_and_a_node_key_that_nobody_else_may_read(tmp_path: Path) -> None:
    node, account = tmp_path / "node.key", tmp_path / "account.key"
    said = invoke("new", str(node), "--account", str(account), "--days", "30")
    own, owner = read_own(node), read_own(account)
    assert {stat.S_IMODE(each.stat().st_mode) for each in (node, account)} == {0o600}
    assert (own.account, own.identity.epoch) == (owner.account, 1)
    assert said["account"] == owner.account.hex() != said["node"] == own.node.public.hex()
    assert abs(said["expires"] - time.time() - 30 * DAY) < DAY
    assert own.node.seed.hex() not in str(said)
    assert list(tmp_path.glob("*.tmp")) == []
    assert invoke("show", str(node)) | {"is_registered": False} == said
    assert invoke("show", str(account))["epoch"] == 0


def test_a_key_is_never_overwritten_by_a_new_one_but_replaced_by_the_next_epoch(tmp_path: Path) -> None:
    node, account = str(tmp_path / "node.key"), account_in(tmp_path)
    first = invoke("new", node, "--account", account)
    error = refused("new", node, "--account", account)
    assert (error.code, f"key rotate {node}" in error.hint) == ("FF-APP-261", True)
    second = invoke("rotate", node, "--account", account)
    assert (first["epoch"], second["epoch"]) == (1, 2)
    assert first["node"] != second["node"] == read_own(Path(node)).node.public.hex()


def test_what_a_clumsy_owner_names_is_refused_with_its_cause(tmp_path: Path) -> None:
    node, account = str(tmp_path / "node.key"), account_in(tmp_path)
    assert refused("rotate", node, "--account", account).code == "FF-APP-260"  # there is none yet
    assert refused("show", node).cause == "No such file or directory"
    invoke("new", node, "--account", account)
    other = tmp_path / "other"
    other.mkdir()
    assert refused("rotate", node, "--account", account_in(other, OTHER)).code == "FF-APP-262"
    assert refused("rotate", node, "--account", node).code == "FF-APP-262"  # a node key certifies nothing
    assert refused("show", str(tmp_path)).code == "FF-APP-260"
    (tmp_path / "link").symlink_to(node)
    assert refused("show", str(tmp_path / "link")).code == "FF-APP-260"
    for text in (b"", b"\xff\n", b"0" * 63, b"0" * 64 + b"\nzz\n", b"0" * 64 + b"\n00\n"):
        (tmp_path / "odd").write_bytes(text)
        (tmp_path / "odd").chmod(0o600)
        assert refused("show", str(tmp_path / "odd")).code == "FF-APP-260"


def test_a_node_key_never_takes_the_place_of_the_accounts(tmp_path: Path) -> None:
    account = Path(account_in(tmp_path))
    before = account.read_bytes()
    (tmp_path / "folder").mkdir()
    same = str(tmp_path / "folder" / ".." / "account.key")
    for words in (("rotate", str(account)), ("rotate", same)):
        assert refused(*words, "--account", str(account)).code == "FF-APP-265"
    assert account.read_bytes() == before
    none = str(tmp_path / "none.key")
    assert refused("new", none, "--account", none).code == "FF-APP-265"
    assert not Path(none).exists()


LEDGER = ("--ledger", f"127.0.0.1:9,{VALIDATOR.public.hex()}")


def test_every_wrong_file_for_an_account_is_told_with_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    node, account = str(tmp_path / "node.key"), account_in(tmp_path)
    invoke("new", node, "--account", account)
    link, folder = tmp_path / "link.key", tmp_path / "folder"
    link.symlink_to(account)
    folder.mkdir()
    for name, text in (("empty", ""), ("garbage", "\x00secret"), ("cut", OWNER.seed.hex()[:40] + "\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    wrong = {
        "no.key": ("FF-APP-260", "No such file or directory", "name the file that holds it; farflung key new FILE"),
        "folder": ("FF-APP-260", "it is a folder", "name the file in it"),
        "link.key": ("FF-APP-260", "it is a link, which is not followed", f"name the file itself: {account}"),
        "empty": ("FF-APP-260", "it is empty", "bring it back from a copy"),
        "garbage": ("FF-APP-260", "its first line is not 64 hex digits", "bring it back from a copy"),
        "cut": ("FF-APP-260", "its first line is not 64 hex digits", "bring it back from a copy"),
        "node.key": ("FF-APP-262", f"it is a node key of {OWNER.public.hex()}", "name the file of the account"),
    }
    other = tmp_path / "other.key"
    invoke("new", str(other), "--account", account)
    for name, (code, cause, hint) in wrong.items():
        given = ("--account", str(tmp_path / name))
        for words in (("rotate", str(other), *given), ("revoke", *given, *LEDGER)):
            error = refused(*words)
            assert error.code == code, name
            assert cause in error.cause, name
            assert hint in error.hint, name
            assert "secret" not in "".join(error.lines())
        if name != "no.key":  # where there is none, a new account is made
            assert refused("new", str(tmp_path / "new.key"), *given).code == code, name


def test_without_a_folder_for_them_no_key_is_made(tmp_path: Path) -> None:
    here, there = tmp_path / "a.key", tmp_path / "my keys" / "b.key"
    for words in ((str(here), "--account", str(there)), (str(there), "--account", str(here))):
        error = refused("new", *words)
        assert (error.code, error.cause) == ("FF-APP-260", "its folder does not exist")
        assert error.hint == f"mkdir -p '{there.parent}', or name another file"
    assert list(tmp_path.iterdir()) == []
    here.write_text("")
    error = refused("new", str(tmp_path / "c.key"), "--account", str(here / "b.key"))
    assert error.cause == f"{here} is no folder"


def test_who_let_others_read_a_key_is_told_what_is_lost_with_it(tmp_path: Path) -> None:
    node, account = tmp_path / "node.key", Path(account_in(tmp_path))
    invoke("new", str(node), "--account", str(account))
    (tmp_path / "empty").touch()
    hints = {}
    for path in (node, account, tmp_path / "empty"):
        path.chmod(0o644)
        hints[path.name] = refused("show", str(path)).hint
        assert hints[path.name].startswith(f"chmod 600 {path}")
    assert f"farflung key rotate {node}" in hints["node.key"]
    assert "go over to another account, and keep this file" in hints["account.key"]
    assert hints["empty"] == f"chmod 600 {tmp_path / 'empty'}"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    node, account = tmp_path / "node.key", account_in(tmp_path)
    invoke("new", str(node), "--account", account)
    node.chmod(mode)
    assert refused("show", str(node)).code == refused("rotate", str(node), "--account", account).code == "FF-APP-141"
    with pytest.raises(UsageError, match="others may read"):
        relay.read_or_make(node)


def test_a_certificate_for_another_key_is_refused(tmp_path: Path) -> None:
    one, two = (made(OWNER, 1, NOW, 90) for _ in range(2))
    path = tmp_path / "node.key"
    path.write_text(f"{one.node.seed.hex()}\n{encode(two.certificate).hex()}\n")
    path.chmod(0o600)
    assert "another node key" in refused("show", str(path)).cause


# A relay that runs


class Machine:
    """A relay with a node key in a file, and whoever looks after it."""

    def __init__(self, folder: Path, account: SigningKey | None) -> None:
        self.path, self.warned = folder / "relay.key", list[FarflungError]()
        own = made(OWNER, 1, NOW, 80)
        write_own(self.path, own)
        self.server = RelayServer(own, admission=Admission(clock=lambda: NOW))
        self.minder = NodeKeyRotator(self.path, own, self.server.endpoint.renew, None, account, self.warned.append)

    async def proved(self) -> int:
        """The epoch of the key that a peer is shown now."""
        peer = Endpoint(OTHER, echo, ByteCounter(), admission=Admission(clock=lambda: NOW))
        try:
            connection = await peer.dial(OWNER.public, *self.server.address)
            return connection.identity.epoch
        finally:
            await peer.close()


def at_work(folder: Path, account: SigningKey | None, story: Callable[[Machine], Awaitable[None]]) -> None:
    async def whole() -> None:
        machine = Machine(folder, account)
        await machine.server.start()
        try:
            await story(machine)
        finally:
            await machine.server.close()

    asyncio.run(whole())


def test_a_relay_takes_a_newer_key_from_its_file_and_no_older_and_nobody_elses(tmp_path: Path) -> None:
    async def story(machine: Machine) -> None:
        assert await machine.proved() == 1
        write_own(machine.path, made(OWNER, 4, NOW, 80))
        await machine.minder.look(NOW)
        assert await machine.proved() == 4
        write_own(machine.path, made(OWNER, 2, NOW, 80))
        await machine.minder.look(NOW)
        assert await machine.proved() == 4
        write_own(machine.path, made(OTHER, 9, NOW, 80))
        with pytest.raises(ProtocolError, match="keeps its account"):
            await machine.minder.look(NOW)
        assert await machine.proved() == 4

    at_work(tmp_path, None, story)


def test_with_the_accounts_key_a_relay_rotates_before_the_end_and_without_it_says_how(tmp_path: Path) -> None:
    due = replace_at(made(OWNER, 1, NOW, 80).identity)
    assert due == NOW + 60 * DAY

    async def alone(machine: Machine) -> None:
        await machine.minder.look(due - 1)
        with pytest.raises(UsageError) as caught:
            await machine.minder.look(due)
        assert caught.value.code == "FF-APP-263"
        assert f"farflung key rotate {machine.path}" in caught.value.hint
        assert await machine.proved() == 1

    async def able(machine: Machine) -> None:
        await machine.minder.look(due - 1)
        assert machine.minder.own.identity.epoch == 1
        await machine.minder.look(due)
        own = read_own(machine.path)
        assert own.identity.epoch == machine.minder.own.identity.epoch == 2
        assert (own.identity.begins, own.identity.expires) == (due, due + 80 * DAY)
        await machine.minder.look(due + 1)  # not again
        assert machine.minder.own.identity.epoch == 2

    at_work(tmp_path, None, alone)
    at_work(tmp_path, OWNER, able)


def test_a_relay_that_is_paid_needs_its_accounts_key_and_no_other(tmp_path: Path) -> None:
    own = made(OWNER, 1, NOW, 80)
    free = RelayConfig(key=KeyFile(own, tmp_path / "node.key"))
    assert free.signer is None
    paid = msgspec.structs.replace(free, account=read_account(Path(account_in(tmp_path))), price=5)
    assert paid.signer is not None
    assert paid.signer.public == OWNER.public
    with pytest.raises(UsageError) as caught:
        assert msgspec.structs.replace(free, price=5).signer
    assert caught.value.code == "FF-APP-264"
    with pytest.raises(UsageError) as caught:
        assert msgspec.structs.replace(free, account=OTHER).signer
    assert caught.value.code == "FF-APP-262"


# With a ledger


@asynccontextmanager
async def ledger(folder: Path) -> AsyncIterator[tuple[str, tuple[str, int]]]:
    """A validator in a process, as it is named on a command line."""
    genesis = Genesis("keys", 0, ((OWNER.public, 1 << 30),), (VALIDATOR.public,), LedgerParams(fee_min=100))
    config = write_seat(folder / "seat", VALIDATOR, genesis, {"port": 0, "local": True})
    child = await ChildProcess.start("ledger", "validator", config, folder / "log", lambda _, __: None)
    try:
        ready = await child.first
        yield f"{ready['host']}:{ready['port']},{VALIDATOR.public.hex()}", (ready["host"], ready["port"])
    finally:
        await child.stop()


def test_a_key_is_registered_replaced_with_an_overlap_and_revoked_for_ever(tmp_path: Path) -> None:
    node, account = str(tmp_path / "node.key"), account_in(tmp_path)

    async def story() -> None:
        async with ledger(tmp_path) as (named, place), asyncio.timeout(120):

            async def ask(*words: str) -> dict[str, Any]:
                return await asyncio.to_thread(invoke, *words, "--ledger", named)

            first = await ask("new", node, "--account", account)
            assert first["is_registered"]
            old = await asyncio.to_thread(Path(node).read_bytes)
            assert (await ask("show", node))["fault"] == ""
            second = await ask("rotate", node, "--account", account, "--overlap", "0")
            assert second["epoch"] == 2
            (tmp_path / "stolen").write_bytes(old)
            (tmp_path / "stolen").chmod(0o600)
            assert "overlap of epoch 1 is over" in (await ask("show", str(tmp_path / "stolen")))["fault"]
            assert (await ask("revoke", "--account", account))["revoked"] == 2
            assert (await ask("show", node))["fault"] == "epoch 2 is revoked"
            assert (await ask("rotate", node, "--account", account))["epoch"] == 3
            assert (await ask("show", node))["fault"] == ""
            with pytest.raises(RunError) as caught:  # what is revoked stays revoked
                await ask("revoke", "--account", account, "--epoch", "0")
            assert caught.value.code == "FF-APP-070"
            async with ledger_of(VALIDATOR.public, *place, OWNER) as client:
                row = await client.keys(OWNER.public)
            assert (row.epoch, row.void, row.node) == (3, 3, read_own(Path(node)).node.public)

    asyncio.run(story())


def test_a_revocation_reaches_a_key_that_was_never_registered_by_its_file_or_its_epoch(tmp_path: Path) -> None:
    node, account = str(tmp_path / "node.key"), account_in(tmp_path)

    async def story() -> None:
        async with ledger(tmp_path) as (named, _), asyncio.timeout(120):

            async def ask(*words: str) -> dict[str, Any]:
                return await asyncio.to_thread(invoke, *words, "--ledger", named)

            async def fault() -> Any:
                return (await ask("show", node))["fault"]

            await ask("new", node, "--account", account)
            # Nobody tells the ledger of epochs 2 and 3.
            await asyncio.to_thread(invoke, "rotate", node, "--account", account)
            await asyncio.to_thread(invoke, "rotate", node, "--account", account)
            plain = CliRunner()
            said = await asyncio.to_thread(plain.invoke, verb, ["revoke", "--account", account, "--ledger", named])
            assert "epochs 0 to 1;" in said.stdout
            assert "never registered" in said.stdout
            assert "--epoch N" in said.stdout
            assert await fault() == ""  # as it says
            assert await ask("revoke", node, "--account", account) == {
                "account": OWNER.public.hex(),
                "revoked": 3,
                "up_to": "file",
            }
            assert await fault() == "epoch 3 is revoked"
            assert (await ask("rotate", node, "--account", account))["epoch"] == 4
            await asyncio.to_thread(invoke, "rotate", node, "--account", account)
            assert (await ask("revoke", "--account", account, "--epoch", "9"))["up_to"] == "epoch"
            assert await fault() == "epoch 5 is revoked"
            assert (await ask("rotate", node, "--account", account))["epoch"] == 10
            assert await fault() == ""

    asyncio.run(story())


def test_a_revocation_by_a_strangers_file_or_by_two_measures_is_refused(tmp_path: Path) -> None:
    node, account = str(tmp_path / "node.key"), account_in(tmp_path)
    write_own(Path(node), made(OTHER, 7, NOW, 90))
    words = ["revoke", node, "--account", account, "--ledger", f"127.0.0.1:9,{VALIDATOR.public.hex()}"]
    both = CliRunner().invoke(verb, [*words, "--epoch", "3"])
    assert (both.exit_code, "not both" in both.output) == (2, True)

    async def of_another() -> None:
        with pytest.raises(UsageError) as caught:
            await revoked(OWNER, None, None, Path(node))  # type: ignore[arg-type]  # it is not asked
        assert caught.value.code == "FF-APP-262"

    asyncio.run(of_another())


def test_an_account_without_money_keeps_a_key_that_counts_and_hears_why(tmp_path: Path) -> None:
    node, account = tmp_path / "node.key", account_in(tmp_path, OTHER)

    async def story() -> None:
        async with ledger(tmp_path) as (named, _), asyncio.timeout(120):
            with pytest.raises(RunError) as caught:
                await asyncio.to_thread(invoke, "new", str(node), "--account", account, "--ledger", named)
            assert caught.value.code == "FF-APP-070"

    asyncio.run(story())
    own: Credential = read_own(node)
    assert (own.account, own.identity.epoch) == (OTHER.public, 1)
