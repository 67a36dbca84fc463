from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from farflung.core import limits
from farflung.core.errors import FarflungError, RunError, VerificationError
from farflung.core.ids import Hash, text
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import SEALED_BYTES, check_chunk, open_object, seal

KEY = bytes(range(32))
CONTENT = b"far" * (limits.CHUNK_BYTES // 2) + b"flung"  # two chunks


@pytest.fixture
def disk(tmp_path):
    return DiskObjectStore(tmp_path / "store")


@pytest.fixture(scope="module")
def sealed():
    return seal(KEY, CONTENT)


def code_of(call, *args):
    with pytest.raises(FarflungError) as caught:
        call(*args)
    return caught.value.code


def read_all(disk, object_id):
    manifest = disk.manifest(object_id)
    return open_object(KEY, manifest, (disk.chunk(object_id, i) for i in range(len(manifest.chunks))))


def data_file(disk, object_id):
    return disk.root / f"{text(object_id)}.data"


def flip(path, place):
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def test_what_is_put_is_there_for_another_process_too(disk, sealed):
    manifest, chunks = sealed
    assert not disk.has(manifest.id)
    disk.put(manifest, chunks)
    again = DiskObjectStore(disk.root)
    assert again.has(manifest.id)
    assert again.ids() == (manifest.id,)
    assert read_all(again, manifest.id) == CONTENT
    assert again.size() == sum(p.stat().st_size for p in disk.root.iterdir())


def test_an_empty_object_is_an_object(disk):
    manifest, chunks = seal(KEY, b"")
    disk.put(manifest, chunks)
    assert disk.has(manifest.id)
    assert read_all(disk, manifest.id) == b""


def test_files_and_folder_are_private(disk, sealed):
    disk.put(*sealed)
    assert stat.S_IMODE(disk.root.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in disk.root.iterdir()} == {0o600}


def test_nothing_on_disk_is_in_clear(disk, sealed):
    disk.put(*sealed)
    assert all(b"farfarfar" not in p.read_bytes() for p in disk.root.iterdir())


def test_an_object_without_its_manifest_is_not_there(disk, sealed):
    manifest, chunks = sealed
    disk.begin(manifest)
    for index, chunk in enumerate(chunks):
        disk.write_chunk(manifest.id, index, chunk)
    assert not disk.has(manifest.id)
    assert disk.ids() == ()
    assert code_of(disk.chunk, manifest.id, 0) == "FF-STOR-010"
    disk.finish(manifest.id)
    disk.finish(manifest.id)
    assert disk.has(manifest.id)


def test_a_cut_off_fetch_goes_on_with_what_is_missing(disk, sealed):
    manifest, chunks = sealed
    assert disk.begin(manifest) == (0, 1)
    disk.write_chunk(manifest.id, 1, chunks[1])
    again = DiskObjectStore(disk.root)
    assert again.begin(manifest) == (0,)
    assert again.present(manifest.id) == (1,)
    assert code_of(again.finish, manifest.id) == "FF-STOR-015"
    again.write_chunk(manifest.id, 0, chunks[0])
    again.finish(manifest.id)
    assert again.present(manifest.id) == (0, 1)
    assert read_all(again, manifest.id) == CONTENT


def test_a_resumed_fetch_does_not_believe_the_chunks_it_finds(disk, sealed):
    manifest, chunks = sealed
    disk.begin(manifest)
    disk.write_chunk(manifest.id, 0, chunks[0])
    flip(data_file(disk, manifest.id), 5)
    assert DiskObjectStore(disk.root).begin(manifest) == (0, 1)


def test_a_wrong_chunk_is_not_written(disk, sealed):
    manifest, chunks = sealed
    disk.begin(manifest)
    assert code_of(disk.write_chunk, manifest.id, 0, bytes(len(chunks[0]))) == "FF-STOR-004"
    assert code_of(disk.write_chunk, manifest.id, 0, chunks[1]) == "FF-STOR-003"
    assert code_of(disk.write_chunk, manifest.id, 2, chunks[1]) == "FF-STOR-002"
    assert disk.size() == 0
    assert code_of(disk.put, manifest, chunks[:1]) == "FF-STOR-002"


def test_chunks_of_an_object_that_was_not_begun_are_refused(disk, sealed):
    manifest, chunks = sealed
    assert code_of(disk.write_chunk, manifest.id, 0, chunks[0]) == "FF-STOR-011"
    assert code_of(disk.finish, manifest.id) == "FF-STOR-011"
    assert code_of(disk.manifest, manifest.id) == "FF-STOR-010"
    assert code_of(disk.has, Hash(b"../../etc/passwd")) == "FF-STOR-009"


def test_a_second_fetch_of_a_finished_object_changes_nothing(disk, sealed):
    manifest, chunks = sealed
    disk.put(manifest, chunks)
    before = data_file(disk, manifest.id).stat().st_mtime_ns
    assert disk.begin(manifest) == ()
    disk.write_chunk(manifest.id, 0, b"whatever")
    disk.finish(manifest.id)
    disk.put(manifest, chunks)
    assert data_file(disk, manifest.id).stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["flip", "truncate", "swap", "lost"])
def test_damage_is_found_when_read_and_repaired_by_beginning_again(disk, sealed, damage):
    manifest, chunks = sealed
    disk.put(manifest, chunks)
    path = data_file(disk, manifest.id)
    if damage == "flip":
        flip(path, SEALED_BYTES + 3)
    elif damage == "truncate":
        os.truncate(path, SEALED_BYTES + 3)
    elif damage == "swap":
        path.write_bytes(chunks[1] + chunks[0])
    else:
        path.unlink()
    with pytest.raises(VerificationError, match="FF-STOR-012") as caught:
        disk.chunk(manifest.id, 1)
    assert "fetch it again" in caught.value.hint
    missing = disk.begin(manifest)
    assert 1 in missing
    assert not disk.has(manifest.id)
    for index in missing:
        disk.write_chunk(manifest.id, index, chunks[index])
    disk.finish(manifest.id)
    assert read_all(disk, manifest.id) == CONTENT


def test_a_duplicated_tail_is_not_read(disk, sealed):
    manifest, chunks = sealed
    disk.put(manifest, chunks)
    with data_file(disk, manifest.id).open("ab") as file:
        file.write(chunks[-1])
    assert code_of(disk.chunk, manifest.id, 2) == "FF-STOR-002"
    assert read_all(disk, manifest.id) == CONTENT


@pytest.mark.parametrize("damage", [b"", b"\xc1", None])
def test_a_damaged_manifest_is_found_and_repaired(disk, sealed, damage):
    manifest, chunks = sealed
    other, other_chunks = seal(KEY, b"other")
    disk.put(manifest, chunks)
    disk.put(other, other_chunks)
    path = disk.root / f"{text(manifest.id)}.manifest"
    path.write_bytes((disk.root / f"{text(other.id)}.manifest").read_bytes() if damage is None else damage)
    again = DiskObjectStore(disk.root)
    assert code_of(again.manifest, manifest.id) == "FF-STOR-013"
    again.put(manifest, chunks)
    assert read_all(again, manifest.id) == CONTENT


def test_a_deleted_object_is_gone_for_every_reader(disk, sealed):
    manifest, chunks = sealed
    disk.put(manifest, chunks)
    disk.chunk(manifest.id, 0)
    DiskObjectStore(disk.root).delete(manifest.id)
    assert code_of(disk.chunk, manifest.id, 0) == "FF-STOR-010"
    assert list(disk.root.iterdir()) == []
    disk.delete(manifest.id)


def test_foreign_files_in_the_folder_are_not_objects(disk, sealed):
    disk.put(*sealed)
    (disk.root / "notes.txt").write_text("hello")
    (disk.root / ("A" * 64 + ".manifest")).write_text("hello")
    assert disk.ids() == (sealed[0].id,)


def test_a_manifest_out_of_bounds_starts_nothing(disk, sealed):
    bad = type(sealed[0])(sealed[0].content, limits.OBJECT_BYTES + 1, ())
    assert code_of(disk.begin, bad) == "FF-STOR-001"


def test_fetches_that_nobody_finishes_do_not_pile_up(disk):
    made = [seal(KEY, bytes([i % 256, i // 256])) for i in range(300)]
    for manifest, _ in made:
        disk.begin(manifest)
    assert len(disk._partial) == 256
    assert code_of(disk.write_chunk, made[0][0].id, 0, made[0][1][0]) == "FF-STOR-011"


def test_a_full_disk_is_reported_and_the_fetch_goes_on_later(disk, sealed):
    manifest, chunks = sealed
    disk.begin(manifest)
    disk.write_chunk(manifest.id, 0, chunks[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SEALED_BYTES + 1000, hard))
    try:
        with pytest.raises(RunError, match="FF-CORE-050") as caught:
            disk.write_chunk(manifest.id, 1, chunks[1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "resume" in caught.value.hint
    assert code_of(disk.finish, manifest.id) == "FF-STOR-015"
    disk.write_chunk(manifest.id, 1, chunks[1])
    disk.finish(manifest.id)
    assert read_all(disk, manifest.id) == CONTENT


def test_a_store_that_cannot_be_used_says_so(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert code_of(DiskObjectStore, tmp_path / "file") == "FF-STOR-014"
    gone = DiskObjectStore(tmp_path / "gone")
    gone.root.rmdir()
    assert code_of(gone.ids) == "FF-STOR-014"


PROGRAM = """
import sys
from pathlib import Path
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import seal
disk = DiskObjectStore(Path(sys.argv[1]))
manifest, chunks = seal(bytes(range(32)), b"x" * ((1 << 20) + 9))
disk.put(manifest, chunks)
old, old_chunks = seal(bytes(range(32)), b"old")
disk.put(old, old_chunks)
disk.delete(old.id)
"""


def run_put(root: Path, **environment: str) -> int:
    env = {**os.environ, **environment}
    command = [sys.executable, "-c", PROGRAM, str(root)]
    return subprocess.run(command, env=env, start_new_session=True, timeout=60, check=False).returncode


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    """Every failpoint that the program passes, with how often."""
    folder = tmp_path_factory.mktemp("points")
    assert run_put(folder / "store", FARFLUNG_FAILPOINT_LOG=str(folder / "log")) == 0
    passed = (folder / "log").read_text().split()
    return [f"{name}@{passed[: i + 1].count(name)}" for i, name in enumerate(passed)]


def test_every_kind_of_write_has_its_failpoint(points):
    assert {point.partition("@")[0] for point in points} == {
        "store.chunk.write", "store.chunk.fsync", "store.chunk.dirsync",
        "store.manifest.write", "store.manifest.fsync", "store.manifest.rename", "store.manifest.dirsync",
        "store.delete.unlink", "store.delete.dirsync",
    }  # fmt: skip


@pytest.mark.whole
def test_death_at_any_write_leaves_only_whole_objects_and_a_store_that_goes_on(points, tmp_path):
    manifest, chunks = seal(KEY, b"x" * (limits.CHUNK_BYTES + 9))
    for number, point in enumerate(points):
        root = tmp_path / str(number)
        assert run_put(root, FARFLUNG_FAILPOINT=point) == -signal.SIGKILL, point
        disk = DiskObjectStore(root)
        for object_id in disk.ids():
            assert read_all(disk, object_id), point
        for index in disk.begin(manifest):
            disk.write_chunk(manifest.id, index, chunks[index])
        disk.finish(manifest.id)
        assert read_all(disk, manifest.id) == b"x" * (limits.CHUNK_BYTES + 9), point
        check_chunk(manifest, 0, disk.chunk(manifest.id, 0))
