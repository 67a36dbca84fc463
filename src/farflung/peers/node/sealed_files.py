"""Stores a provider's private files: sealed under a key that follows from the job's, replaced atomically.

A node's disk holds nothing of a job in clear, and once the lease has ended the node cannot open what is left on it.

Among them is private state before each round, with the last result. A round that was not accepted did not happen for
the peer. It goes on from the private state before that round: so what it would have sent is unsent still, its optimizer
has counted nothing, and nothing stale is ever sent.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, TypeVar

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import FarflungError, ProtocolError, VerificationError, VersionError
from farflung.core.file_header import FileFormat, file_of, other_version, value_of
from farflung.core.ids import Hash
from farflung.core.io.durable_files import write_atomic
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import ObjectManifest, open_object, seal
from farflung.train import blobs
from farflung.train.blobs import Blob
from farflung.train.contribution_trace import ContributionTrace

T = TypeVar("T", bound=Wire)

UNUSABLE: Final = (VerificationError, VersionError)  # what loading a file raises
_FORMAT: Final = FileFormat("sealed", 2, "do nothing: the peer joins anew from public state")


class _SealedFile(Wire, frozen=True):
    """A value without its blobs, and what these are in the folder `states`."""

    manifest: ObjectManifest
    chunks: tuple[bytes, ...]
    states: tuple[ObjectManifest, ...]


class SealedFileStore:
    """Named sealed files in one folder."""

    def __init__(self, folder: Path, secret: bytes) -> None:
        """`secret`: 32 bytes, in memory only."""
        self._folder, self._secret = folder, secret
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def _states(self) -> DiskObjectStore:
        """Where blobs lie; the folder is there while one does."""
        return DiskObjectStore(self._folder / "states", "provider.states")

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.sealed"

    def save(self, name: str, value: Wire) -> None:
        """Replaces a file; durable on return."""
        light, long = blobs.take(value)
        states = tuple(self._states.seal(self._secret, *blobs.parts_of(blob)) for blob in long)
        manifest, chunks = seal(self._secret, encode(light))
        data = file_of(_FORMAT, _SealedFile(manifest, tuple(chunks), states))
        is_new = not self._path(name).exists()
        write_atomic(self._path(name), data, "provider.vault", private=True)
        if not is_new:
            self._tidy()

    def load(self, name: str, kind: type[T]) -> T | None:
        """What a file holds, its blobs mapped, or None.

        Raises VerificationError FF-APP-040 when it is damaged, VersionError FF-CORE-095 when another version wrote it.
        """
        try:
            data = self._path(name).read_bytes()
        except FileNotFoundError:
            return None
        try:
            sealed = value_of(_FORMAT, data, _SealedFile, limits.VAULT_BYTES)
            opened = open_object(self._secret, sealed.manifest, sealed.chunks)
            long = [self._states.content(self._secret, manifest) for manifest in sealed.states]
        except VersionError:
            raise
        except FarflungError as error:
            raise VerificationError(
                "FF-APP-040",
                f"the checkpoint {name} is damaged",
                cause=str(error)[:200],
                hint="nothing: the peer joins anew from public state",
            ) from error
        try:
            return blobs.put(decode(opened, kind, limits.VAULT_BYTES), iter(long))
        except ProtocolError as error:  # its own key has opened it, so it is what was written
            raise other_version(_FORMAT, _FORMAT.version) from error

    def names(self) -> list[str]:
        """All names."""
        return sorted(p.name.removesuffix(".sealed") for p in self._folder.glob("*.sealed"))

    def drop(self, name: str) -> None:
        """Deletes a file, if it is there."""
        self._path(name).unlink(missing_ok=True)
        self._tidy()

    def _tidy(self) -> None:
        """Deletes the states that no file names any more."""
        named: set[Hash] = set()
        for name in self.names():
            with contextlib.suppress(FarflungError, OSError):
                sealed = value_of(_FORMAT, self._path(name).read_bytes(), _SealedFile, limits.VAULT_BYTES)
                named.update(manifest.id for manifest in sealed.states)
        store = self._states
        for each in set(store.ids()) - named:
            store.delete(each)
        with contextlib.suppress(OSError):  # not empty
            store.root.rmdir()


class PrivateRoundResult(Wire, frozen=True):
    """What a finished round left behind."""

    round: int
    manifest: ObjectManifest
    trace: ContributionTrace
    seconds: float


class PrivateCheckpoint(Wire, frozen=True):
    """Private state before round `round`, and the result of the round before it."""

    round: int
    inner: Blob
    result: PrivateRoundResult | None


class PrivateStateStore:
    """One job's files in a vault."""

    def __init__(self, vault: SealedFileStore, job: Hash) -> None:
        self._vault, self._job = vault, job[:8].hex()

    def _name(self, round: int) -> str:
        return f"{self._job}-{round:06d}"

    def save(self, kept: PrivateCheckpoint) -> None:
        """Durable on return."""
        self._vault.save(self._name(kept.round), kept)

    def before(self, round: int) -> PrivateCheckpoint | None:
        """Private state before a round, and what the round before it gave."""
        try:
            return self._vault.load(self._name(round), PrivateCheckpoint)
        except UNUSABLE:  # as if it were not there
            return None

    def undo(self, round: int) -> None:
        """After `round`, which was not accepted, private state is what it was before it; durable on return."""
        before = self.before(round)
        if before is None:
            self._vault.drop(self._name(round + 1))
        else:
            self.save(PrivateCheckpoint(round + 1, before.inner, None))

    def recover(self, round: int, disk: DiskObjectStore) -> tuple[PrivateCheckpoint | None, str]:
        """Private state for `round`, or already the result of it; a file that cannot be used is said and left out."""
        warning = ""
        for name in (round + 1, round):
            try:
                kept = self._vault.load(self._name(name), PrivateCheckpoint)
            except UNUSABLE as error:
                warning = f"{error.code}: {error.message}"
                continue
            if kept is not None:
                if kept.result is not None and name > round and disk.begin(kept.result.manifest):
                    continue  # the payload is gone or damaged: its round is trained again, to the same bits
                return kept, warning
        return None, warning or ("" if round == 0 else "private state is not here: the peer joins anew")

    def forget(self, keep_from: int) -> None:
        """Deletes what no resume can ask for any more."""
        for name in self._vault.names():
            job, _, round = name.rpartition("-")
            if job == self._job and int(round) < keep_from:
                self._vault.drop(name)

    def end(self) -> None:
        """Deletes all that the job has in the vault, openings included."""
        for name in self._vault.names():
            if name.startswith(self._job):
                self._vault.drop(name)
