"""Roles that nobody supervises: a configuration file, keys beside it, a log, and a signal that ends them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from free_ports import free_ports

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import UsageError
from farflung.ledger.block import Genesis
from farflung.ledger.params import LedgerParams
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import LedgerClient, serve_nothing
from farflung.peers.node.config import NodeConfig
from farflung.peers.process.child import ChildProcess
from farflung.peers.process.config import read_role_config
from farflung.peers.relay.config import RelayConfig

VALIDATOR, LENDER, AUDITOR, ASKER = (local_key(21, name) for name in ("validator", "lender", "auditor", "asker"))
GENESIS = Genesis(
    "doors",
    0,
    ((LENDER.public, 10**9), (AUDITOR.public, 10**9), (ASKER.public, 10**6)),
    (VALIDATOR.public,),
    LedgerParams(fee_min=1),
)


def write_key(path: Path, key: SigningKey) -> None:
    path.write_text(key.seed.hex() + "\n")
    path.chmod(0o600)


@asynccontextmanager
async def role(module: str, config: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A role's process, which a signal ends at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"farflung.peers.{module}", "--config", str(config)), stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def said(process: asyncio.subprocess.Process, kind: str) -> dict[str, str]:
    """The facts of the next line of a kind."""
    assert process.stderr is not None
    seen = []
    while line := (await process.stderr.readline()).decode():
        seen.append(line)
        if line.split()[0] == kind:
            return dict(word.split("=", 1) for word in line.split()[1:] if "=" in word)
    raise AssertionError(seen)


def made(folder: Path) -> tuple[Path, str]:
    """Files of a validator and of two nodes; a node's configuration lacks the ledger's port."""
    for each in (folder, folder / "auditor"):
        each.mkdir(exist_ok=True)
        (each / "genesis.bin").write_bytes(encode(GENESIS))
    write_key(folder / "auditor" / "account.key", AUDITOR)
    write_key(folder / "validator.key", VALIDATOR)
    write_key(folder / "account.key", LENDER)
    (folder / "validator.toml").write_text("port = 0\nlocal = true\nfolder = 'ledger'\n")
    node = "unit_price = 10\nstake = 1000\nfolder = 'lent'\n"
    place = f"peer = '{VALIDATOR.public.hex()}'\nhost = '127.0.0.1'\n"
    return folder / "validator.toml", f"{node}[ledger]\n{place}"


def test_nodes_register_by_their_files_and_each_ends_by_a_signal(tmp_path: Path) -> None:
    async def test() -> None:
        validator, node = made(tmp_path)
        async with role("validator.main", validator) as ledger:
            port = int((await said(ledger, "ready"))["port"])
            configs = tmp_path / "node.toml", tmp_path / "auditor" / "node.toml"
            for config in configs:
                config.write_text(f"{node}port = {port}\n")
            async with role("node.provider", configs[0]) as provider, role("node.verifier", configs[1]) as verifier:
                for process, key in ((provider, LENDER), (verifier, AUDITOR)):
                    assert (await said(process, "ready"))["peer"] == key.public.hex()
                    await said(process, "registered")
                own = Endpoint(ASKER, serve_nothing, ByteCounter())
                client = LedgerClient(lambda: own.dial(VALIDATOR.public, "127.0.0.1", port), ASKER, GENESIS)
                found = {each.node: (each.unit_price, each.stake) for each in await client.nodes()}
                assert found == dict.fromkeys((LENDER.public, AUDITOR.public), (10, 1000))
                await own.close()
            assert (provider.returncode, verifier.returncode) == (0, 0)
        assert ledger.returncode == 0

    async def bounded() -> None:
        async with asyncio.timeout(100):
            await test()

    asyncio.run(bounded())


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("stak = 1", "did you mean 'stake'"),
        ("stake = -1", "stake is -1"),
        ("port = 70000", "port is 70000"),
        ("genesis = 'none.bin'", "genesis is 'none.bin'"),
        ("relays = [{peer = 'ab', host = 'h', port = 1}]", "64 hex digits"),
    ],
)
def test_a_file_is_read_strictly(tmp_path: Path, line: str, cause: str) -> None:
    _, node = made(tmp_path)
    path = tmp_path / "node.toml"
    path.write_text(f"{line}\n{node}port = 1\n".replace("stake = 1000\n", "" if "stake" in line else "stake = 1\n"))
    with pytest.raises(UsageError, match="FF-APP-300") as caught:
        read_role_config(path, NodeConfig)
    assert cause in caught.value.cause


def test_a_file_without_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "large.toml").write_bytes(b"#" * (limits.TX_BYTES + 1))
    for name, cause in (("pipe.toml", "a pipe"), ("large.toml", "more than")):
        with pytest.raises(UsageError, match="FF-APP-300") as caught:
            read_role_config(tmp_path / name, NodeConfig)
        assert cause in caught.value.cause


def test_files_are_found_beside_the_configuration_and_keys_are_checked(tmp_path: Path) -> None:
    write_key(tmp_path / "relay.key", LENDER)
    (tmp_path / "relay.json").write_text('{"port": 0, "uplink_mbit": 20}')
    config = read_role_config(tmp_path / "relay.json", RelayConfig)
    assert config.key.credential.account == LENDER.public
    assert config.folder == tmp_path / "relay.key.till"
    (tmp_path / "relay.key").chmod(0o644)
    with pytest.raises(UsageError, match="FF-APP-141"):
        read_role_config(tmp_path / "relay.json", RelayConfig)


def test_a_supervisor_hears_what_is_wrong_with_a_file_and_names_a_port_in_its_place(tmp_path: Path) -> None:
    write_key(tmp_path / "relay.key", LENDER)
    path = tmp_path / "relay.toml"

    async def ready(port: int) -> int:
        child = await ChildProcess.start("r", "relay", path, tmp_path / "log", lambda *_: None, (), port)
        try:
            async with asyncio.timeout(100):
                return int((await child.first)["port"])
        finally:
            await child.stop()

    path.write_text("prot = 1\n")
    with pytest.raises(UsageError, match="FF-APP-300") as caught:
        asyncio.run(ready(0))
    assert "did you mean 'port'" in caught.value.cause
    first = free_ports(2)
    path.write_text(f"port = {first}\n")
    assert asyncio.run(ready(first + 1)) == first + 1


def test_a_role_computes_with_one_thread_beside_its_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, str] = {}

    async def started(*_: object, **named: object) -> None:
        seen.update(named["env"])  # type: ignore[arg-type]
        raise OSError("no")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "8")
    with pytest.raises(OSError, match="no"):
        asyncio.run(ChildProcess.start("p", "provider", tmp_path, tmp_path / "log", lambda *_: None))
    assert {seen["OPENBLAS_NUM_THREADS"], seen["OMP_NUM_THREADS"]} == {"1"}
