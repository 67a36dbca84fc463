"""What lies on the disks of those who lend, read in the middle of a run as a thief of the disk would read it (S1)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from app_trees import Farflung, kill_tree
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from farflung.core.crypto import NS_JOB_KEY, NS_OBJECT_KEY, derive, local_key
from farflung.job import terms_file
from farflung.store.io.disk_store import DiskObjectStore

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("bad input")]

RUN_BYTES = 64  # a run of plaintext so long is a leak


def blocks(secret: bytes) -> set[bytes]:
    """Every aligned block of what must not be readable; blocks of one repeated byte say nothing."""
    cut = (secret[i : i + RUN_BYTES] for i in range(0, len(secret) - RUN_BYTES + 1, RUN_BYTES))
    return {block for block in cut if len(set(block)) > 4}


def leaks(folder: Path, secrets: set[bytes]) -> Iterator[str]:
    """Files below `folder` in which some block stands, at whatever offset."""
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        data = path.read_bytes()
        if any(data[i : i + RUN_BYTES] in secrets for i in range(len(data) - RUN_BYTES + 1)):
            yield str(path.relative_to(folder))


@pytest.fixture
def stolen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose every process was killed after its third round."""
    farflung = Farflung(tmp_path_factory.mktemp("runs"))
    text = tmp_path_factory.mktemp("data") / "corpus.txt"
    text.write_text("".join(f"line {i}: what the job learns from is nobody's business, {i * i}\n" for i in range(3000)))
    job = ("--preset", "tiny", "--set", f"data.path={text}", "--set", "rounds=40", "--set", "audit.rate=1")
    process = farflung.start("run", *job, "--json")
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "round" and event["round"] >= 2:
            break
    kill_tree(process)
    run = farflung.newest()
    assert run is not None
    return run


def secrets_of(run: Path) -> set[bytes]:
    """Data, and the public states: what the requester has in clear on its own disk."""
    states = b"".join(p.read_bytes() for p in sorted((run / "snapshots").glob("*.bin")))
    return blocks((run / "dataset.bin").read_bytes()) | blocks(states)


@pytest.mark.guarantee
def test_a_stolen_disk_of_a_lender_holds_nothing_readable_and_no_key(stolen: Path, tmp_path: Path) -> None:
    secrets = secrets_of(stolen)
    assert_reader_finds_what_is_readable(stolen, secrets, tmp_path)
    assert_no_key(stolen)
    assert_the_jobs_key_is_what_opens_it(stolen)
    lenders = [p for p in stolen.iterdir() if p.name in ("providers", "verifiers")]
    stored = [p for folder in lenders for p in folder.rglob("*") if p.is_file() and p.stat().st_size > RUN_BYTES]
    assert len(lenders) == 2
    assert len(stored) > 8
    assert [leak for folder in lenders for leak in leaks(folder, secrets)] == []


def assert_reader_finds_what_is_readable(stolen: Path, secrets: set[bytes], tmp_path: Path) -> None:
    data = (stolen / "dataset.bin").read_bytes()
    (tmp_path / "leak").write_bytes(b"x" * 7 + data[100:400])
    assert list(leaks(tmp_path, secrets)) == ["leak"]


def key_of(stolen: Path) -> bytes:
    """The job's key, which the requester alone can make."""
    terms = terms_file.read((stolen / "terms.bin").read_bytes())
    return local_key(terms.spec.seed, "requester").secret(NS_JOB_KEY, terms.id)


def assert_the_jobs_key_is_what_opens_it(stolen: Path) -> None:
    """What is not readable may still be sealed under a key that everybody has: it is under one that is not here."""
    stores = [DiskObjectStore(place) for place in sorted(stolen.glob("*/*/store"))]
    held = [(store, store.manifest(id)) for store in stores for id in store.ids() if store.manifest(id).size]
    assert len(held) > 8
    for store, manifest in held:
        nonce = bytes(11) + bytes([len(manifest.chunks) == 1])
        cipher = AESGCM(derive(NS_OBJECT_KEY, key_of(stolen), manifest.content))
        assert cipher.decrypt(nonce, store.chunk(manifest.id, 0), None)


def assert_no_key(stolen: Path) -> None:
    """It is wrapped for a key that lives in memory alone: neither as bytes nor as text is it stored."""
    key = key_of(stolen)
    for folder in ("providers", "verifiers"):
        for path in (stolen / folder).rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                assert key not in data
                assert key.hex().encode() not in data
