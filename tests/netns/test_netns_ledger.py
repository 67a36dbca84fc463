"""Four validators in homes of their own: killed, cut off, stopped, out of disk, and nobody is ever told what is not so.

The order of a ledger's writes is that of its blocks. So a history of writes is linearizable exactly if each transaction
that was answered is in the chain once, in the block that the answer names, and if none that was answered before another
one began stands in a later block than that one: no search is needed (Herlihy and Wing, TOPLAS 12(3), 1990, section 3).
What reads saw of a register for each of some accounts needs one (`ledger_linear`): writers that gave up included.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from netns_registers import Registers
from netns_spots import Spot

from farflung.core import limits
from farflung.core.codec import decode, describe, encode
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import FarflungError
from farflung.core.ids import Hash
from farflung.ledger.block import Genesis
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.params import LedgerParams
from farflung.ledger.transactions import Transfer, tx_id
from farflung.local.netlab import EmulatedHome, NatType, NetworkLab, why_not
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import LedgerClient, serve_nothing
from farflung.peers.ledger_client.connect import reaches_of
from farflung.peers.validator.requests import STANDING, ValidatorStatus

pytestmark = [pytest.mark.netns, pytest.mark.quiet, pytest.mark.xdist_group("ledger"), pytest.mark.timeout(240)]

PORT, RTT, MONEY = 4520, 20, 10**9
SEATS = tuple(local_key(61, "seat", index) for index in range(4))
CLIENTS = tuple(local_key(61, "client", index) for index in range(4))
USERS = tuple(local_key(61, "user", index) for index in range(4))
REGISTERS = tuple(local_key(61, "register", index) for index in range(2))
SINK = local_key(61, "sink").public


@dataclass(frozen=True)
class Written:
    """One answered write: when it began and ended, and the transaction's nonce in its account."""

    client: int
    nonce: int
    began: float
    ended: float


class Scene:
    """Four homes with a validator and a client each; the last one's disk is small."""

    def __init__(self, laboratory: NetworkLab, folder: Path) -> None:
        self.laboratory, self.folder = laboratory, folder
        law = LedgerParams(fee_min=1, delta_ms=150, idle_ms=200)
        accounts = tuple((key.public, MONEY) for key in (*SEATS, *CLIENTS, *USERS, *REGISTERS))
        validators = tuple(key.public for key in SEATS)
        self.genesis = Genesis("netns", int(time.time() * 1000), accounts, validators, law)
        self.homes = [f"h{number}" for number in (1, 2, 3, 4)]
        self.places = [
            (key.public, laboratory.address(home), PORT) for key, home in zip(SEATS, self.homes, strict=True)
        ]
        self.processes: list[subprocess.Popen[str] | None] = [None] * 4
        self.spots = [Spot(laboratory, home) for home in self.homes]
        self.history: list[Written] = []
        self.is_over = False
        self.registers = Registers(REGISTERS, self.genesis.time, 61)
        for index in range(4):
            self._write(index)
            self.start(index)

    def place(self, index: int) -> Path:
        return self.folder / str(index)

    def _write(self, index: int) -> None:
        place = self.place(index)
        (place / "data").mkdir(parents=True, exist_ok=True)
        key = place / "validator.key"
        key.write_text(SEATS[index].seed.hex() + "\n")
        key.chmod(0o600)
        (place / "genesis.bin").write_bytes(encode(self.genesis))
        others = "\n".join(f'"{p.hex()}" = "{h}:{o}"' for p, h, o in self.places if p != SEATS[index].public)
        text = f'host = "{self.places[index][1]}"\nport = {PORT}\n[validators]\n{others}\n'
        (place / "validator.toml").write_text(text)

    def start(self, index: int) -> None:
        command = [sys.executable, "-m", "farflung.app.cli.main", "ledger", "validator"]
        command += [str(self.place(index) / "validator.toml")]
        with (self.place(index) / "log").open("a") as out:
            self.processes[index] = self.laboratory.start(
                self.homes[index], command, environment=dict(os.environ), out=out, errors=out
            )

    def signal(self, index: int, number: int) -> None:
        process = self.processes[index]
        assert process is not None
        os.kill(process.pid, number)

    def kill(self, index: int) -> None:
        self.signal(index, signal.SIGKILL)
        self.wait(index)

    def wait(self, index: int, seconds: float = 40) -> int:
        process = self.processes[index]
        assert process is not None
        self.processes[index] = None
        return process.wait(seconds)

    # Clients

    async def write(self, index: int) -> None:
        """Pays, one transaction after the other, until it is told to stop."""
        endpoint = Endpoint(CLIENTS[index], serve_nothing, ByteCounter())
        client = self._client(index, endpoint, CLIENTS[index])
        sent, began = 0, time.monotonic()
        while not self.is_over:
            try:
                await client.submit(Transfer(SINK, 1 + sent))
            except FarflungError:
                continue  # its fate is unknown: the same is sent again, and began when it was sent first
            self.history.append(Written(index, sent, began, time.monotonic()))
            sent, began = sent + 1, time.monotonic()
        await endpoint.close()

    async def found(self) -> None:
        """The registers' first values."""
        endpoint = Endpoint(USERS[0], serve_nothing, ByteCounter())
        await self.registers.found(lambda key: self._client(0, endpoint, key, 20.0))
        await endpoint.close()

    async def use(self, index: int) -> None:
        """Reads and writes registers, until it is told to stop."""
        endpoint = Endpoint(USERS[index], serve_nothing, ByteCounter())
        clients = lambda key: self._client(index, endpoint, key)  # noqa: E731
        await self.registers.use(index, USERS[index], clients, lambda: self.is_over)
        await endpoint.close()

    def _client(self, index: int, endpoint: Endpoint, key: SigningKey, patience: float = 2.0) -> LedgerClient:
        """Asks the validator of its own home first."""
        order = [*self.places[index:], *self.places[:index]]
        return LedgerClient(reaches_of(order, endpoint), key, self.genesis, patience, 1.0)

    async def standing(self, index: int) -> ValidatorStatus | None:
        endpoint = Endpoint(SigningKey(os.urandom(32)), serve_nothing, ByteCounter())
        try:
            connection = await endpoint.dial(*self.places[index])
            return decode(await connection.call(STANDING, b"", timeout=2.0), ValidatorStatus, limits.CONTROL_BYTES)
        except FarflungError:
            return None
        finally:
            await endpoint.close()

    def heights(self) -> list[int]:
        said = [self.spots[i].do(self.standing(i)) for i in range(4)]
        return [each.height if each is not None else -1 for each in said]

    def goes_on(self, seconds: float = 30.0) -> None:
        """More is answered than was."""
        before, deadline = len(self.history), time.monotonic() + seconds
        while len(self.history) < before + 4:
            assert time.monotonic() < deadline, (self.heights(), before)
            time.sleep(0.05)

    def is_used(self, seconds: float = 90.0) -> None:
        """Registers were read and written so often that their histories say something."""
        deadline = time.monotonic() + seconds
        while min(self.registers.seen()["reads"], self.registers.seen()["writes"]) < 10:
            assert time.monotonic() < deadline, self.registers.seen()
            time.sleep(0.1)

    def levels(self, seconds: float = 40.0) -> None:
        """All four are where the first of them was."""
        deadline = time.monotonic() + seconds
        top = max(self.heights())
        while min(self.heights()) < top:
            assert time.monotonic() < deadline, self.heights()
            time.sleep(0.1)

    def close(self) -> None:
        self.is_over = True
        for process in self.processes:
            if process is not None:
                process.kill()
                process.wait(100)
        for spot in self.spots:
            spot.end()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    describe(ValidatorStatus)
    home = EmulatedHome(up=50, down=50, rtt=RTT, nat=NatType.NONE)
    disk = tmp_path / "3" / "data"
    with NetworkLab([home] * 4) as laboratory:
        disk.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(disk)], check=True)
        made = Scene(laboratory, tmp_path)
        try:
            yield made
        finally:
            made.close()
            subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(path: Path) -> None:
    """Nothing is left on that disk."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def chains(scene: Scene) -> list[list[tuple[Hash, tuple[Hash, ...]]]]:
    """Each validator's blocks, and their transactions, as its disk has them."""
    found = []
    for index in range(4):
        store = LedgerStore.open(scene.place(index) / "data" / "chain.db", scene.genesis)
        blocks = store.load().blocks
        found.append([(b.header.id, tuple(tx_id(signed) for signed in b.txs)) for b in blocks])
        nonces = {(s.tx.sender, s.tx.nonce): b.header.height for b in blocks for s in b.txs}
        store.close()
        check_history(scene.history, nonces)
    return found


def check_history(history: list[Written], nonces: dict[tuple[bytes, int], int]) -> None:
    """Every answered write is in the chain, and blocks do not contradict the clock."""
    placed = [(nonces[CLIENTS[w.client].public, w.nonce], w) for w in history]
    ended = sorted(placed, key=lambda each: each[1].ended)
    for height, write in sorted(placed, key=lambda each: each[1].began):
        while ended and ended[0][1].ended < write.began:
            assert ended.pop(0)[0] <= height
            # what ended before this one began is not behind it; all later ones begin later still


def test_the_check_of_histories_can_fail() -> None:
    first, second = Written(0, 0, 0.0, 1.0), Written(1, 0, 2.0, 3.0)
    keys = [(CLIENTS[0].public, 0), (CLIENTS[1].public, 0)]
    check_history([first, second], dict(zip(keys, (1, 1), strict=True)))
    with pytest.raises(AssertionError):
        check_history([first, second], dict(zip(keys, (2, 1), strict=True)))
    with pytest.raises(KeyError):
        check_history([first, second], {keys[0]: 1})


def test_four_validators_survive_what_happens_to_validators(scene: Scene) -> None:
    scene.spots[0].do(scene.found())
    scene.levels()
    clients = [
        asyncio.run_coroutine_threadsafe(work(index), scene.spots[index].loop)
        for index in range(4)
        for work in (scene.write, scene.use)
    ]
    scene.goes_on(60)
    scene.kill(0)
    scene.goes_on()
    scene.start(0)
    scene.laboratory.cut(2)
    scene.goes_on()
    scene.laboratory.restore(2)
    scene.signal(2, signal.SIGSTOP)
    scene.goes_on()
    scene.signal(2, signal.SIGCONT)
    scene.goes_on()
    fill(scene.place(3) / "data" / "ballast")
    assert scene.wait(3) == 1  # it says so, and says nothing more
    scene.goes_on()
    subprocess.run(["mount", "-o", "remount,size=64m", str(scene.place(3) / "data")], check=True)
    scene.start(3)
    scene.levels()
    scene.is_used()
    medians = [scene.spots[i].do(scene.standing(i)).finality_ms for i in (0, 1, 2)]
    scene.is_over = True
    for client in clients:
        client.result(30)
    for index in range(4):
        scene.kill(index)
    found = chains(scene)
    longest = max(found, key=len)
    assert all(chain == longest[: len(chain)] for chain in found)
    names = [name for _, txs in longest for name in txs]
    assert len(set(names)) == len(names)
    seen = scene.registers.check()
    print({"answered": len(scene.history), "blocks": len(longest), "finality_ms": medians, **seen})
