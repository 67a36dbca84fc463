"""Parts of the application on their own: run folders, vaults, objects between peers, asking."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import (
    FarflungError,
    NetworkError,
    PolicyError,
    ProtocolError,
    RunError,
    UsageError,
    VerificationError,
)
from farflung.core.ids import PeerId
from farflung.local.jobs import resolve
from farflung.market.provider_offer import Capabilities
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress, issue
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.messages import MessageKind
from farflung.peers.node.sealed_files import PrivateCheckpoint, SealedFileStore
from farflung.peers.protocol.directory import advertise, check_advertisement
from farflung.peers.rundir import folder
from farflung.peers.rundir.runs import resolve_again
from farflung.peers.transfer import objects
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import seal

ALICE, BOB, EVE = (SigningKey(bytes([i]) * 32) for i in (1, 2, 3))
JOB_KEY = b"\x09" * 32
IDENTITY = folder.RunIdentity(folder.FORMAT, 0.0, "", "/")


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(RunError, match="FF-APP-012"):
        folder.create(tmp_path, IDENTITY)
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_a_run_is_locked_while_a_process_has_it(tmp_path: Path) -> None:
    made = folder.create(tmp_path / "r", IDENTITY)
    assert made.owner() == os.getpid()
    with pytest.raises(RunError, match="FF-APP-010") as caught:
        folder.RunFolder(tmp_path / "r").lock()
    assert str(os.getpid()) in caught.value.cause


def test_a_run_log_has_one_coordinator_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "COORDINATOR_SECONDS", 0.0)
    made = folder.create(tmp_path / "r", IDENTITY)  # the supervisor's own lock is another one
    first = folder.RunFolder(made.root)
    asyncio.run(first.lock_coordinator())
    with pytest.raises(RunError, match="FF-APP-018"):
        asyncio.run(folder.RunFolder(made.root).lock_coordinator())


def test_a_coordinator_waits_for_the_one_before_it_to_end(tmp_path: Path) -> None:
    made = folder.create(tmp_path / "r", IDENTITY)
    held = os.open(made.root / "coordinator.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)

    async def scenario() -> None:
        waiting = asyncio.create_task(folder.RunFolder(made.root).lock_coordinator())
        await asyncio.sleep(0)
        assert not waiting.done()
        os.close(held)
        await waiting

    asyncio.run(scenario())


def test_a_run_from_before_cheats_were_shown_has_none(tmp_path: Path) -> None:
    made = folder.RunFolder(tmp_path)
    made.identity_file.write_text('{"format":1,"created":1.0,"text":"","base":"/"}')
    assert made.read_identity().cheat == "none"


def test_who_cheats_is_asked_for_or_shown_by_default_and_never_in_your_own_job() -> None:
    off = {"audit.rate": "0", "audit.probation": "0"}
    asked = [
        ((None, "local", {}), None, "skip"),
        ((None, "tiny", {}), None, "none"),
        (("seed = 2", "local", {}), None, "none"),
        ((None, "local", off), None, "none"),  # nobody would catch it
        ((None, "local", {}), "none", "none"),
        (("seed = 2", "tiny", {}), "poison-encoding", "poison-encoding"),
    ]
    for words, cheat, expected in asked:
        resolved, identity = resolve.resolve(*words, cheat=cheat)
        assert identity.cheat == expected
        assert "cheat" not in identity.text  # it is no part of the job
        if expected != "none":
            assert encode(resolved.spec).find(expected.encode()) == -1
    with pytest.raises(UsageError, match="FF-APP-019"):
        resolve.resolve(None, "tiny", {}, cheat="lie")


def test_runs_are_found_by_name_path_or_as_the_newest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="FF-APP-014"):
        folder.find(tmp_path, None)
    folder.create(tmp_path / "one", IDENTITY)
    folder.create(tmp_path / "two", IDENTITY)
    os.utime(tmp_path / "one" / "run.json", (1, 1))
    assert folder.find(tmp_path, None).name == "two"
    assert folder.find(tmp_path, "one").name == "one"
    assert folder.find(Path("/nowhere"), str(tmp_path / "one")).name == "one"
    with pytest.raises(UsageError, match="FF-APP-014") as caught:
        folder.find(tmp_path, "three")
    assert "one, two" in caught.value.cause
    assert folder.new_root(tmp_path, "2026-01-31", "x").name == "2026-01-31-x"


def test_the_stored_job_gives_the_same_spec_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved, identity = resolve.resolve("seed = 7\n[sync]\nsteps = 4\n", "tiny", {"batch": "3"})
    made = folder.create(tmp_path / "r", identity)
    monkeypatch.setenv("FARFLUNG_SYNC_STEPS", "99")
    assert resolve_again(made).spec == resolved.spec
    assert resolved.spec.seed == 7
    assert resolved.spec.batch == 3
    assert resolved.origins["batch"] == "flag batch"


def test_a_vault_keeps_files_sealed_and_finds_damage(tmp_path: Path) -> None:
    vault = SealedFileStore(tmp_path, ALICE.seed)
    secret = b"private state of a peer " * 1000
    vault.save("a-000001", PrivateCheckpoint(1, secret, None))
    (stored,) = tmp_path.glob("*.sealed")
    files = [stored, *(tmp_path / "states").iterdir()]
    assert not [each for each in files if b"private state" in each.read_bytes()]
    assert vault.load("a-000001", PrivateCheckpoint) == PrivateCheckpoint(1, secret, None)
    assert vault.load("a-000002", PrivateCheckpoint) is None
    with pytest.raises(VerificationError, match="FF-APP-040"):
        SealedFileStore(tmp_path, BOB.seed).load("a-000001", PrivateCheckpoint)
    vault.save("a-000002", PrivateCheckpoint(2, secret, None))
    vault.drop("a-000002")
    (state,) = (tmp_path / "states").glob("*.data")  # which the other file names, too
    kept = state.read_bytes()
    state.write_bytes(kept[:-1])
    with pytest.raises(VerificationError, match="FF-APP-040"):
        vault.load("a-000001", PrivateCheckpoint)
    state.write_bytes(kept)
    data = bytearray(stored.read_bytes())
    data[len(data) // 2] ^= 1
    stored.write_bytes(bytes(data))
    with pytest.raises(VerificationError, match="FF-APP-040"):
        vault.load("a-000001", PrivateCheckpoint)
    vault.drop("a-000001")
    assert vault.names() == []
    assert not list(tmp_path.iterdir())


def test_an_advertisement_speaks_for_its_own_key_only() -> None:
    facts = Capabilities(2, 1, 1, 1, 1, "Linux", "x86_64", "2.13.0")
    record = issue(ALICE.public, (EndpointAddress("127.0.0.1", 1234),), 1)
    said = advertise(ALICE, record, facts)
    check_advertisement(said, ALICE.public, 1)
    with pytest.raises(VerificationError, match="FF-APP-032"):
        check_advertisement(said, EVE.public, 1)
    with pytest.raises(VerificationError, match="FF-APP-032"):
        check_advertisement(advertise(EVE, record, facts), ALICE.public, 1)
    with pytest.raises(ProtocolError, match="FF-NET-110"):
        check_advertisement(said, ALICE.public, 1000)


@pytest.mark.parametrize("text", ["\x1b[2J", "Linux\n", "x" * 65, "\u202exunil"])
@pytest.mark.parametrize("name", ["system", "machine", "torch"])
def test_an_advertisement_that_could_write_to_others_terminals_is_refused(name: str, text: str) -> None:
    facts = replace(Capabilities(2, 1, 1, 1, 1, "Linux", "x86_64", "2.13.0"), **{name: text})
    said = advertise(ALICE, issue(ALICE.public, (EndpointAddress("127.0.0.1", 1234),), 1), facts)
    with pytest.raises(ProtocolError, match="FF-APP-653"):
        check_advertisement(said, ALICE.public, 1)


class Peers:
    """Endpoints on loopback with a store each; `lies` turns every served chunk into rubbish."""

    def __init__(self, root: Path, lies: set[PeerId]) -> None:
        self.disks = {key.public: DiskObjectStore(root / key.public.hex()[:4]) for key in (ALICE, BOB, EVE)}
        self.lies = lies
        self.shelves = {peer: objects.ObjectServer(disk, 4_000_000) for peer, disk in self.disks.items()}
        self.endpoints = {
            key.public: Endpoint(key, self.handler(key.public), ByteCounter()) for key in (ALICE, BOB, EVE)
        }
        self.places: dict[PeerId, tuple[str, int]] = {}

    def handler(self, me: PeerId) -> Any:
        async def handle(connection: Connection, method: str, body: bytes) -> bytes:
            answer = self.shelves[me].serve(connection.peer, method, body)
            return bytes(len(answer)) if me in self.lies else answer

        return handle

    async def __aenter__(self) -> Peers:
        for peer, endpoint in self.endpoints.items():
            self.places[peer] = await endpoint.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for endpoint in self.endpoints.values():
            await endpoint.close()

    def dial(self, me: PeerId) -> Any:
        return lambda peer: self.endpoints[me].dial(peer, *self.places[peer])


def test_an_object_is_fetched_past_a_source_that_lies_and_one_that_has_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Peers(tmp_path, {EVE.public}) as peers:
            manifest, chunks = seal(JOB_KEY, os.urandom(3_000_000))
            for peer in (BOB.public, EVE.public):
                peers.disks[peer].put(manifest, chunks)
            mine = peers.disks[ALICE.public]
            sources = (EVE.public, BOB.public)
            await objects.fetch(mine, manifest, sources, peers.dial(ALICE.public), MessageKind.JOIN)
            assert [mine.chunk(manifest.id, i) for i in range(len(chunks))] == chunks

    asyncio.run(scenario())


def test_when_nobody_has_an_object_the_error_says_what_each_source_said(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Peers(tmp_path, set()) as peers:
            manifest, _ = seal(JOB_KEY, b"x")
            disk = peers.disks[ALICE.public]
            with pytest.raises(NetworkError, match="FF-APP-034") as caught:
                await objects.fetch(disk, manifest, (BOB.public,), peers.dial(ALICE.public), MessageKind.SYNC)
            assert BOB.public.hex()[:8] in caught.value.cause
            assert not disk.has(manifest.id)

    asyncio.run(scenario())


def test_a_pushed_object_is_whole_and_durable_at_the_replica(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Peers(tmp_path, set()) as peers:
            manifest, chunks = seal(JOB_KEY, os.urandom(2_500_000))
            peers.disks[ALICE.public].put(manifest, chunks)
            disk, dial = peers.disks[ALICE.public], peers.dial(ALICE.public)
            await objects.push(disk, manifest, BOB.public, dial, MessageKind.SYNC)
            assert peers.disks[BOB.public].manifest(manifest.id) == manifest
            assert DiskObjectStore(tmp_path / BOB.public.hex()[:4]).has(manifest.id)

    asyncio.run(scenario())


def test_an_unknown_object_request_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FarflungError, match="FF-APP-033"):
        objects.ObjectServer(DiskObjectStore(tmp_path), 100).serve(EVE.public, "object.steal", b"")


def test_a_peer_cannot_fill_the_disk_of_another(tmp_path: Path) -> None:
    shelf = objects.ObjectServer(DiskObjectStore(tmp_path), 1000)
    large, _ = seal(JOB_KEY, bytes(1001))
    with pytest.raises(PolicyError, match="FF-APP-039"):
        shelf.serve(EVE.public, objects.BEGIN, encode(large))
    for i in range(objects.LEFT_PER_PEER):
        manifest, chunks = seal(JOB_KEY, bytes([i]))
        shelf.serve(EVE.public, objects.BEGIN, encode(manifest))
        shelf.serve(EVE.public, objects.PUT, encode((manifest.id, 0, chunks[0])))
        shelf.serve(EVE.public, objects.FINISH, encode(manifest.id))
    more, _ = seal(JOB_KEY, b"one more")
    with pytest.raises(PolicyError, match="FF-APP-039"):
        shelf.serve(EVE.public, objects.BEGIN, encode(more))
    shelf.serve(BOB.public, objects.BEGIN, encode(more))
    with pytest.raises(PolicyError, match="FF-APP-039"):
        shelf.serve(EVE.public, objects.FINISH, encode(more.id))


def test_what_was_accepted_counts_no_more_against_who_left_it(tmp_path: Path) -> None:
    """A sole survivor leaves its payload with the requester every round, for as long as the job lasts."""
    shelf = objects.ObjectServer(DiskObjectStore(tmp_path), 1000)
    for i in range(3 * objects.LEFT_PER_PEER):
        manifest, chunks = seal(JOB_KEY, bytes([i]))
        shelf.serve(EVE.public, objects.BEGIN, encode(manifest))
        shelf.serve(EVE.public, objects.PUT, encode((manifest.id, 0, chunks[0])))
        shelf.serve(EVE.public, objects.FINISH, encode(manifest.id))
        shelf.keep(manifest.id)
    with pytest.raises(PolicyError, match="FF-APP-039"):  # and it is nobody's to change any more
        shelf.serve(EVE.public, objects.FINISH, encode(manifest.id))


def test_settings_that_are_no_pairs_are_a_usage_error(farflung: Any) -> None:
    ended = farflung("plan", "--set", "rounds")
    assert ended.code == 2
    assert "key=value" in ended.errors
