"""Stores a provider's private files: sealed under a key that follows from the job's, replaced atomically.

A node's disk holds nothing of a job in clear, and once the lease has ended the node cannot open what is left on it.
"""

from __future__ import annotations

from pathlib import Path

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import FarflungError, VerificationError
from farflung.core.io.durable_files import write_atomic
from farflung.store.sealed_objects import ObjectManifest, open_object, seal


class _SealedFile(Wire, frozen=True):
    manifest: ObjectManifest
    chunks: tuple[bytes, ...]


class SealedFileStore:
    """Named sealed files in one folder."""

    def __init__(self, folder: Path, secret: bytes) -> None:
        """`secret`: 32 bytes, in memory only."""
        self._folder, self._secret = folder, secret
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.sealed"

    def save(self, name: str, data: bytes) -> None:
        """Replaces a file; durable on return."""
        manifest, chunks = seal(self._secret, data)
        write_atomic(
            self._path(name), encode(_SealedFile(manifest, tuple(chunks))), "provider.vault", private=True
        )

    def load(self, name: str) -> bytes | None:
        """A file's content, or None; raises VerificationError FF-APP-040 when it is damaged."""
        try:
            data = self._path(name).read_bytes()
        except FileNotFoundError:
            return None
        try:
            sealed = decode(data, _SealedFile, limits.PIPE_BYTES)
            return open_object(self._secret, sealed.manifest, sealed.chunks)
        except FarflungError as error:
            raise VerificationError(
                "FF-APP-040",
                f"the checkpoint {name} is damaged",
                cause=str(error)[:200],
                hint="nothing: the peer joins anew from public state",
            ) from error

    def names(self) -> list[str]:
        """All names."""
        return sorted(p.name.removesuffix(".sealed") for p in self._folder.glob("*.sealed"))

    def drop(self, name: str) -> None:
        """Deletes a file, if it is there."""
        self._path(name).unlink(missing_ok=True)
