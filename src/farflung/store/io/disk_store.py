"""Stores objects in a folder: `ID.data` holds the ciphertext chunks in order, `ID.manifest` describes them.

An object is there if and only if its manifest is: the manifest is written last, atomically, once the chunks are
durable. Chunks without a manifest are a fetch that was cut off; `begin` finds the good ones by their hashes and
the fetch goes on. Nothing read is trusted: each chunk is checked against its hash, and a damaged object is
repaired by beginning it again.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from farflung.core import limits
from farflung.core.errors import FarflungError, ProtocolError, RunError, VerificationError, VersionError
from farflung.core.file_header import HEAD_BYTES, FileFormat, body_of, file_of, other_version, program_of
from farflung.core.ids import ID_BYTES, Hash, short, text
from farflung.core.io.durable_files import remove, sync_file, write_at, write_atomic
from farflung.core.io.spool_file import SpoolFile
from farflung.core.units import Bytes
from farflung.store.sealed_objects import (
    SEALED_BYTES,
    ObjectManifest,
    check_chunk,
    check_manifest,
    chunk_bytes,
    chunk_hash,
    opened,
    read_manifest,
    sealed,
)

_FORM: Final = FileFormat("manifest", remedy="fetch the object again from another peer: beginning it anew repairs it")
_REMEMBERED: Final = 64  # manifests kept decoded
_BEGUN: Final = 256  # fetches under way; the oldest must begin again when there are more


class DiskObjectStore:
    """The objects in one folder of mode 0700. `label` names its failpoints: `LABEL.chunk.write` and so on.

    Every method raises RunError FF-CORE-050 when the disk is full, FF-STOR-014 when the folder cannot be used.
    """

    def __init__(self, root: Path, label: str = "store") -> None:
        self.root, self._label = root, label
        self._partial: dict[Hash, tuple[ObjectManifest, set[int]]] = {}  # what was begun, and its missing chunks
        self._known: dict[Hash, ObjectManifest] = {}
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def _path(self, object_id: Hash, kind: str) -> Path:
        if len(object_id) != ID_BYTES:
            raise VerificationError("FF-STOR-009", "not an object's id", cause=f"{len(object_id)} bytes")
        return self.root / f"{text(object_id)}.{kind}"

    def _unusable(self, error: OSError) -> RunError:
        return RunError(
            "FF-STOR-014",
            f"cannot use the store in {self.root}",
            cause=error.strerror or str(error),
            hint="choose another folder, or make this one readable and writable for you",
        )

    # Reading

    def has(self, object_id: Hash) -> bool:
        """Whether the object is complete here (it may be damaged: reading tells)."""
        return self._path(object_id, "manifest").exists()

    def manifest(self, object_id: Hash) -> ObjectManifest:
        """The manifest; raises RunError FF-STOR-010 (not here), VerificationError FF-STOR-013 (damaged), VersionError
        FF-CORE-095.
        """
        if (known := self._known.get(object_id)) is not None and self.has(object_id):
            return known
        path = self._path(object_id, "manifest")
        try:
            with path.open("rb") as file:
                found = _manifest(file.read(limits.MANIFEST_BYTES + HEAD_BYTES + 1))
        except FileNotFoundError:
            raise _absent(object_id) from None
        except OSError as error:
            raise self._unusable(error) from error
        except VersionError:
            raise
        except FarflungError as error:
            raise _damaged("FF-STOR-013", object_id, "its manifest", str(error)) from error
        if found.id != object_id:
            raise _damaged("FF-STOR-013", object_id, "its manifest", "it names another object")
        self._remember(object_id, found)
        return found

    def _remember(self, object_id: Hash, manifest: ObjectManifest) -> None:
        _make_room(self._known, _REMEMBERED)
        self._known[object_id] = manifest

    def chunk(self, object_id: Hash, index: int) -> bytes:
        """One ciphertext chunk of a complete object, checked.

        Raises as `manifest`; VerificationError FF-STOR-002 (no such chunk), FF-STOR-012 (damaged on disk).
        """
        manifest = self.manifest(object_id)
        size = chunk_bytes(manifest, index)
        data = self._read(object_id, index, size)
        try:
            check_chunk(manifest, index, data)
        except VerificationError as error:
            raise _damaged("FF-STOR-012", object_id, f"chunk {index}", str(error)) from error
        return data

    def _read(self, object_id: Hash, index: int, size: int) -> bytes:
        """What lies at a chunk's place: less than `size` bytes where the file ends early or is missing."""
        try:
            with self._path(object_id, "data").open("rb") as file:
                return os.pread(file.fileno(), size, index * SEALED_BYTES)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise self._unusable(error) from error

    def present(self, object_id: Hash) -> tuple[int, ...]:
        """Chunks of an object that are here: of a begun one those that are verified, else all or none."""
        if (begun := self._partial.get(object_id)) is not None:
            manifest, missing = begun
            return tuple(i for i in range(len(manifest.chunks)) if i not in missing)
        return tuple(range(len(self.manifest(object_id).chunks))) if self.has(object_id) else ()

    def ids(self) -> tuple[Hash, ...]:
        """The complete objects, sorted."""
        return tuple(Hash(bytes.fromhex(p.stem)) for p in self._files() if p.suffix == ".manifest")

    def size(self) -> Bytes:
        """Bytes of all files here, unfinished fetches included."""
        return Bytes(sum(path.stat().st_size for path in self._files()))

    def _files(self) -> list[Path]:
        try:
            return sorted(p for p in self.root.iterdir() if _is_ours(p))
        except OSError as error:
            raise self._unusable(error) from error

    # Writing

    def put(self, manifest: ObjectManifest, chunks: Sequence[bytes]) -> None:
        """Stores a whole object; durable on return. Raises VerificationError FF-STOR-001 to 004."""
        if len(chunks) != len(manifest.chunks):
            raise VerificationError(
                "FF-STOR-002", "object is cut short", cause=f"{len(chunks)} of {len(manifest.chunks)} chunks"
            )
        for index in self.begin(manifest):
            self.write_chunk(manifest.id, index, chunks[index])
        self.finish(manifest.id)

    def seal(self, job_key: bytes, *content: bytes | memoryview) -> ObjectManifest:
        """Stores content, in parts, sealed chunk by chunk; durable on return. Raises PolicyError FF-STOR-007."""
        size = sum(memoryview(part).nbytes for part in content)
        said, chunks = sealed(job_key, content)
        written = self.root / f"sealed.{secrets.token_hex(4)}.tmp"  # the object's name follows from all of its chunks
        hashes = []
        try:
            for index, chunk in enumerate(chunks):
                write_at(written, index * SEALED_BYTES, chunk, f"{self._label}.chunk", private=True)
                hashes.append(chunk_hash(chunk))
            manifest = ObjectManifest(said, size, tuple(hashes))
            if self.begin(manifest) or not self._is_complete(manifest.id):
                if hashes:
                    written.replace(self._path(manifest.id, "data"))
                self._partial[manifest.id] = (manifest, set())
                self.finish(manifest.id)
            return manifest
        finally:
            written.unlink(missing_ok=True)

    def content(self, job_key: bytes, manifest: ObjectManifest) -> memoryview:
        """What a complete object holds, in a file of this process alone. Raises as `chunk` and `opened` do,
        RunError FF-CORE-050 where there is no room for it.
        """
        spool = SpoolFile(self.root)
        try:
            spool.begin()
            chunks = (self.chunk(manifest.id, index) for index in range(len(manifest.chunks)))
            for piece in opened(job_key, manifest, chunks):
                spool.write(piece)
            return spool.views()[0]
        finally:
            spool.close()

    def begin(self, manifest: ObjectManifest) -> tuple[int, ...]:
        """Starts, resumes or repairs an object: the chunks that are missing, after all here were re-verified.

        A complete and sound object gives (). A damaged one counts as incomplete from here on.
        """
        check_manifest(manifest)
        object_id = manifest.id
        missing = {i for i in range(len(manifest.chunks)) if not self._is_sound(object_id, manifest, i)}
        if not missing and self._is_complete(object_id):
            self._partial.pop(object_id, None)
            return ()
        self._known.pop(object_id, None)
        if self.has(object_id):
            remove(self._path(object_id, "manifest"), f"{self._label}.manifest")
        self._partial.pop(object_id, None)
        _make_room(self._partial, _BEGUN)
        self._partial[object_id] = (manifest, missing)
        return tuple(sorted(missing))

    def _is_sound(self, object_id: Hash, manifest: ObjectManifest, index: int) -> bool:
        try:
            check_chunk(manifest, index, self._read(object_id, index, chunk_bytes(manifest, index)))
        except VerificationError:
            return False
        return True

    def _is_complete(self, object_id: Hash) -> bool:
        self._known.pop(object_id, None)
        try:
            return self.has(object_id) and self.manifest(object_id).id == object_id
        except (VerificationError, VersionError):
            return False

    def write_chunk(self, object_id: Hash, index: int, data: bytes | memoryview) -> None:
        """Takes one chunk of a begun object, checked first; durable after `finish`.

        Raises VerificationError FF-STOR-002 to 004, RunError FF-STOR-011 (not begun).
        """
        if (begun := self._partial.get(object_id)) is None:
            if self.has(object_id):
                return  # another fetch of the same object came first
            raise RunError("FF-STOR-011", f"object {short(object_id)} was not begun here")
        manifest, missing = begun
        check_chunk(manifest, index, data)
        if index not in missing:
            return
        place = index * SEALED_BYTES
        write_at(self._path(object_id, "data"), place, data, f"{self._label}.chunk", private=True)
        missing.discard(index)

    def finish(self, object_id: Hash) -> None:
        """Makes a begun object complete and durable. Raises RunError FF-STOR-011, FF-STOR-015 (chunks missing)."""
        if (begun := self._partial.get(object_id)) is None:
            if self.has(object_id):
                return
            raise RunError("FF-STOR-011", f"object {short(object_id)} was not begun here")
        manifest, missing = begun
        if missing:
            raise RunError(
                "FF-STOR-015",
                f"object {short(object_id)} is not whole",
                cause=f"{len(missing)} of {len(manifest.chunks)} chunks are missing",
                hint="fetch the rest, then finish",
            )
        if manifest.chunks:
            sync_file(self._path(object_id, "data"), f"{self._label}.chunk")
        path = self._path(object_id, "manifest")
        write_atomic(path, file_of(_FORM, manifest), f"{self._label}.manifest", private=True)
        self._partial.pop(object_id, None)

    def delete(self, object_id: Hash) -> None:
        """Forgets an object, complete or not; the manifest goes first. Not an error when it is not here."""
        self._known.pop(object_id, None)
        self._partial.pop(object_id, None)
        remove(self._path(object_id, "manifest"), f"{self._label}.delete")
        remove(self._path(object_id, "data"), f"{self._label}.delete")


def _manifest(data: bytes) -> ObjectManifest:
    body = body_of(_FORM, data)
    try:
        return read_manifest(body)
    except ProtocolError as error:  # by its checksum it is what was written
        raise other_version(_FORM, _FORM.version, program_of(data)) from error


def _make_room(kept: dict[Hash, Any], most: int) -> None:
    while len(kept) >= most:
        kept.pop(next(iter(kept)), None)


def _is_ours(path: Path) -> bool:
    stem = path.stem
    is_id = len(stem) == 2 * ID_BYTES and all(c in "0123456789abcdef" for c in stem)
    return is_id and path.suffix in (".manifest", ".data")


def _absent(object_id: Hash) -> RunError:
    return RunError(
        "FF-STOR-010", f"object {short(object_id)} is not in this store", hint="fetch it from a peer that holds it"
    )


def _damaged(code: str, object_id: Hash, part: str, cause: str) -> VerificationError:
    return VerificationError(
        code,
        f"stored object {short(object_id)} is damaged: {part}",
        cause=cause,
        hint="fetch it again from another peer: beginning it anew repairs it",
    )
