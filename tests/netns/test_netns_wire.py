"""An object goes from home to home through a relay: over a narrow line, over an interrupted one, and watched."""

from __future__ import annotations

import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farflung.core.crypto import digest
from farflung.local.netlab import EmulatedHome, NatType, NetworkLab, why_not

pytestmark = [pytest.mark.netns, pytest.mark.xdist_group("wire"), pytest.mark.timeout(200)]

PORT = 4610
SIZE = 6_000_000  # of an object that takes seconds
LINE = {"up": 20, "down": 50, "rtt": 20}
WORDS = b"what is said in the open is heard by all who stand beside the road"
PROGRAM = f"""
import asyncio, os, random, sys, time
from pathlib import Path
from farflung.peers.transfer import objects
from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import local_key, digest
from farflung.core.errors import NetworkError
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.tcp_listener import ListenConfig
from farflung.net.io.relay import RelayServer
from farflung.net.messages import MessageKind
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import open_object, seal

role, host, folder, size = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
R, B, A = (local_key(17, name) for name in ("relay", "holder", "asker"))
KEY = digest("test/job/1")
PLAIN = random.Random(size).randbytes(size)
MANIFEST, CHUNKS = seal(KEY, PLAIN)

async def serve(connection, method, body):
    if method == "words":
        return body
    return KERNELS.serve(connection.peer, method, body)

async def relay():
    server = RelayServer(R, listen=ListenConfig(host, {PORT}, allow_remote=True))
    await server.start()

async def holder():
    global KERNELS
    disk = DiskObjectStore(folder)
    disk.begin(MANIFEST)
    for index, chunk in enumerate(CHUNKS):
        disk.write_chunk(MANIFEST.id, index, chunk)
    disk.finish(MANIFEST.id)
    KERNELS = objects.ObjectServer(disk, limits.OBJECT_BYTES)
    endpoint = Endpoint(B, serve, ByteCounter())
    endpoint.attach(R.public, host, {PORT})
    await endpoint.attached()
    return endpoint

async def asker():
    endpoint, disk = Endpoint(A, serve, ByteCounter()), DiskObjectStore(folder)
    dial = lambda peer: endpoint.dial(peer, host, {PORT}, relay=R.public)
    connection = await dial(B.public)
    print("met", flush=True)
    try:
        if role == "asker":
            assert await connection.call("words", {WORDS!r}) == {WORDS!r}
            await objects.fetch(disk, MANIFEST, (B.public,), dial, MessageKind.SYNC)
            chunks = [disk.chunk(MANIFEST.id, index) for index in range(len(MANIFEST.chunks))]
            print("whole" if open_object(KEY, MANIFEST, chunks) == PLAIN else "damaged", flush=True)
        else:
            await connection.call("words", bytes(200_000), timeout=3)
    except NetworkError as error:
        print(error.code, flush=True)
    await endpoint.close()

async def main():
    if role in ("relay", "holder"):
        kept = await globals()[role]()
        print("ready", flush=True)
        await asyncio.Event().wait()
    await asyncio.wait_for(asker(), 60)

asyncio.run(main())
"""


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    if why := why_not():
        pytest.skip(why)


class Scene:
    """A relay on the backbone; holders are at home 1, who asks is at home 2."""

    def __init__(self, laboratory: NetworkLab, folder: Path) -> None:
        self.laboratory, self.folder = laboratory, folder
        self._kept = [self.start("s1", "relay", 1)]

    def start(self, who: str, role: str, size: int) -> subprocess.Popen[str]:
        folder = self.folder / f"{who}-{role}-{size}-{time.monotonic_ns()}"
        host = self.laboratory.address("s1")
        command = [sys.executable, "-c", PROGRAM, role, host, str(folder), str(size)]
        process = self.laboratory.start(who, command, out=subprocess.PIPE)
        assert process.stdout is not None
        if role in ("relay", "holder"):
            assert process.stdout.readline() == "ready\n"
        return process

    @contextmanager
    def asking(self, size: int, role: str = "asker") -> Iterator[subprocess.Popen[str]]:
        """A program at home 2 that has met the holder of an object of `size` bytes."""
        holder = self.start("h1", "holder", size)
        asker = self.start("h2", role, size)
        try:
            assert asker.stdout is not None
            assert asker.stdout.readline() == "met\n"
            yield asker
        finally:
            for process in (holder, asker):
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()

    def close(self) -> None:
        for process in self._kept:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    homes = [EmulatedHome(**LINE, nat=NatType.SYMMETRIC), EmulatedHome(**LINE)]
    with NetworkLab(homes) as laboratory:
        made = Scene(laboratory, tmp_path_factory.mktemp("wire"))
        try:
            yield made
        finally:
            made.close()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


class Ear:
    """Hears every packet that the backbone's router sees, while it is open."""

    ALL = socket.htons(0x0003)  # ETH_P_ALL

    def __init__(self, laboratory: NetworkLab) -> None:
        with laboratory.inside("bb"):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, self.ALL)
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        self._socket.settimeout(0.2)
        self.heard: list[bytes] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self) -> Ear:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while not self._ends.is_set():
            try:
                self.heard.append(self._socket.recv(1 << 17))
            except TimeoutError:
                continue

    @property
    def lost(self) -> int:
        """Packets that did not fit into its buffer."""
        packets, lost = struct.unpack("II", self._socket.getsockopt(263, 6, 8))  # PACKET_STATISTICS
        return int(lost) if packets else 0

    def runs(self, size: int = 12) -> set[bytes]:
        """All runs of `size` bytes in what was heard."""
        return {packet[at : at + size] for packet in self.heard for at in range(len(packet) - size + 1)}


def test_what_crosses_the_backbone_holds_nothing_of_an_object_or_of_a_word(scene: Scene) -> None:
    size = 300_000
    plain = random.Random(size).randbytes(size)
    with Ear(scene.laboratory) as ear, scene.asking(size) as asker:
        assert said(asker) == "whole"
        with scene.laboratory.socket("h1", socket.SOCK_DGRAM) as shouting:
            shouting.sendto(b"aloud: " + plain[:100], (scene.laboratory.address("s1"), 9))
        time.sleep(0.3)
        assert ear.lost == 0
    heard = ear.runs()
    assert sum(map(len, ear.heard)) > 2 * size
    texts = (plain[1000:], WORDS, b"object.chunk", digest("test/job/1"))
    wanted = {text[at : at + 12] for text in texts for at in range(len(text) - 11)}
    assert heard.isdisjoint(wanted)
    assert plain[:12] in heard  # the ear hears, and the search finds


def test_a_line_that_swallows_large_packets_is_an_error_in_time(scene: Scene) -> None:
    scene.laboratory.set_mtu(2, 1280, silent=True)
    for who in ("h2", "s1"):  # the kernel remembers what it was told of a path
        scene.laboratory.run(who, ["ip", "route", "flush", "cache"])
    try:
        with scene.asking(1000, "pusher") as asker:
            assert said(asker) == "FF-NET-047"
    finally:
        scene.laboratory.set_mtu(2, 1500)


def test_an_object_crosses_a_line_of_1280_bytes_a_packet_that_is_cut_for_ten_seconds(scene: Scene) -> None:
    scene.laboratory.set_mtu(2, 1280)
    try:
        with scene.asking(SIZE) as asker:
            time.sleep(0.5)
            assert scene.laboratory.counters(2)[1].arrived
            scene.laboratory.cut(2)
            time.sleep(10)
            scene.laboratory.restore(2)
            assert said(asker) == "whole"
    finally:
        scene.laboratory.set_mtu(2, 1500)


@pytest.mark.parametrize("home", [1, 2])
def test_an_object_goes_on_though_its_holder_or_asker_gets_another_address(scene: Scene, home: int) -> None:
    with scene.asking(SIZE) as asker:
        time.sleep(0.5)
        assert scene.laboratory.counters(2)[1].arrived
        scene.laboratory.change_address(home)
        assert said(asker) == "whole"
