"""Seals objects: defines the manifest, and encrypts bytes into chunks that only a key's holder can read.

An object is cut into chunks of limits.CHUNK_BYTES; each is sealed with AES-256-GCM under the STREAM construction
(Hoang, Reyhanitabar, Rogaway, Vizár 2015): the nonce is a 7-byte prefix, a 4-byte big-endian counter and a byte
that is 1 in the last chunk only, so chunks cannot be dropped, added, swapped or moved between objects.

The object's key is derived from the job's key and the hash of the content. So no key ever seals two different
plaintexts, the prefix may be zero, and equal content under one job key gives equal ciphertext: sealing is
reproducible, and re-sealing is free of cost at every peer that has the chunks.

A manifest names the hash of each *ciphertext* chunk: whoever fetches can check what arrives without any key.
It also names the hash of the content: its reader can confirm a guess of the whole content, never a part of it.
An empty object has no chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import NS_CHUNK, NS_MANIFEST, NS_OBJECT, NS_OBJECT_KEY, PieceDigest, derive, digest
from farflung.core.errors import PolicyError, VerificationError
from farflung.core.ids import ID_BYTES, Hash
from farflung.core.mapped_pages import walked

TAG_BYTES: Final = 16
SEALED_BYTES: Final = limits.CHUNK_BYTES + TAG_BYTES  # ciphertext of every chunk but the last
_PREFIX: Final = bytes(7)


class ObjectManifest(Wire, frozen=True):
    """What an object is: hash of its content, its size in bytes, and the hash of each ciphertext chunk."""

    content: Hash
    size: int
    chunks: tuple[Hash, ...]

    @property
    def id(self) -> Hash:
        """The object's id, which names the content and its sealed form."""
        return digest(NS_MANIFEST, encode(self))


def chunk_count(size: int) -> int:
    """How many chunks an object of `size` bytes has."""
    return -(-size // limits.CHUNK_BYTES)


def chunk_bytes(manifest: ObjectManifest, index: int) -> int:
    """Ciphertext bytes of chunk `index`; raises VerificationError FF-STOR-002 when there is none."""
    if not 0 <= index < len(manifest.chunks):
        raise VerificationError(
            "FF-STOR-002", f"no chunk {index}", cause=f"the object has {len(manifest.chunks)} chunks"
        )
    start = index * limits.CHUNK_BYTES
    return min(limits.CHUNK_BYTES, manifest.size - start) + TAG_BYTES


def check_manifest(manifest: ObjectManifest) -> None:
    """Raises VerificationError FF-STOR-001 when a bound is broken; call before anything is allocated."""
    good = (
        len(manifest.content) == ID_BYTES
        and 0 <= manifest.size <= limits.OBJECT_BYTES
        and len(manifest.chunks) <= limits.OBJECT_CHUNKS
        and len(manifest.chunks) == chunk_count(manifest.size)
        and all(len(chunk) == ID_BYTES for chunk in manifest.chunks)
    )
    if not good:
        raise VerificationError(
            "FF-STOR-001",
            "bad manifest",
            cause=f"{len(manifest.chunks)} chunks for {manifest.size} bytes, or a hash of another length",
            hint="ask its maker for a fresh copy",
        )


def read_manifest(data: bytes | memoryview) -> ObjectManifest:
    """Manifest from its canonical bytes, checked. Raises ProtocolError FF-CORE-02x, VerificationError."""
    manifest = decode(data, ObjectManifest, limits.MANIFEST_BYTES)
    check_manifest(manifest)
    return manifest


def check_chunk(manifest: ObjectManifest, index: int, data: bytes | memoryview) -> None:
    """Raises VerificationError FF-STOR-003 (length) or FF-STOR-004 (hash); needs no key."""
    wanted = chunk_bytes(manifest, index)
    if len(data) != wanted:
        raise VerificationError(
            "FF-STOR-003", f"chunk {index} has a wrong length", cause=f"{len(data)} bytes, not {wanted}"
        )
    if digest(NS_CHUNK, data) != manifest.chunks[index]:
        raise VerificationError(
            "FF-STOR-004",
            f"chunk {index} is not the one that the manifest names",
            cause="its hash differs",
            hint="fetch it again, from another source",
        )


def sealed(job_key: bytes, plaintext: Sequence[bytes | memoryview]) -> tuple[Hash, Iterator[bytes]]:
    """Content, in parts → its hash, and its ciphertext chunks one by one. `job_key` has 32 bytes.

    Raises PolicyError FF-STOR-007.
    """
    size = sum(memoryview(part).nbytes for part in plaintext)
    if size > limits.OBJECT_BYTES:
        raise PolicyError(
            "FF-STOR-007", f"object of {size} bytes", cause=f"the limit is {limits.OBJECT_BYTES} bytes", hint="split it"
        )
    found = PieceDigest(NS_OBJECT, size)
    for part in plaintext:
        found.update(part)
    content = found.value()
    cipher, count = _cipher(job_key, content), chunk_count(size)
    return content, (cipher.encrypt(_nonce(i, count), chunk, None) for i, chunk in enumerate(_cut(plaintext)))


def _cut(plaintext: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The content in chunks of CHUNK_BYTES, wherever its parts end; the last one may be shorter."""
    rest = bytearray()  # what of earlier parts is no whole chunk
    for part in plaintext:
        for piece in walked(part):
            start = -len(rest) % limits.CHUNK_BYTES if rest else 0
            rest += piece[:start]
            if len(rest) == limits.CHUNK_BYTES:
                yield bytes(rest)
                rest.clear()
            for at in range(start, len(piece), limits.CHUNK_BYTES):
                chunk = piece[at : at + limits.CHUNK_BYTES]
                if len(chunk) < limits.CHUNK_BYTES:
                    rest += chunk
                else:
                    yield chunk
    if rest:
        yield bytes(rest)


def seal(job_key: bytes, plaintext: bytes | memoryview) -> tuple[ObjectManifest, list[bytes]]:
    """The manifest of content, and all its chunks. Raises PolicyError FF-STOR-007."""
    content, made = sealed(job_key, [plaintext])
    chunks = list(made)
    return ObjectManifest(content, len(plaintext), tuple(map(chunk_hash, chunks))), chunks


def chunk_hash(chunk: bytes) -> Hash:
    """What a manifest names a ciphertext chunk by."""
    return digest(NS_CHUNK, chunk)


def open_object(job_key: bytes, manifest: ObjectManifest, chunks: Iterable[bytes | memoryview]) -> bytes:
    """The content, from all chunks in order (they may come one by one). Raises what `opened` raises."""
    return b"".join(opened(job_key, manifest, chunks))


def opened(job_key: bytes, manifest: ObjectManifest, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """The content piece by piece; it is the one that the manifest names if no error comes until the end.

    Raises VerificationError: FF-STOR-001 to 004 (002 also for a chunk too few or too many), FF-STOR-005 for a wrong
    key or a forged chunk, FF-STOR-006 when the content is not what the manifest names.
    """
    check_manifest(manifest)
    size, found = 0, PieceDigest(NS_OBJECT, manifest.size)
    for piece in _opened(job_key, manifest, chunks):
        size += len(piece)
        found.update(piece)
        yield piece
    if size != manifest.size or found.value() != manifest.content:
        raise VerificationError(
            "FF-STOR-006",
            "object is not the one that its manifest names",
            cause="the hash of the content differs",
            hint="ask its maker for a fresh copy",
        )


def _opened(job_key: bytes, manifest: ObjectManifest, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    cipher, seen = _cipher(job_key, manifest.content), 0
    for index, data in enumerate(chunks):
        yield _open(cipher, manifest, index, data)
        seen = index + 1
    if seen != len(manifest.chunks):
        raise VerificationError(
            "FF-STOR-002",
            "object is cut short",
            cause=f"{seen} of {len(manifest.chunks)} chunks",
            hint="fetch the rest",
        )


def _open(cipher: AESGCM, manifest: ObjectManifest, index: int, data: bytes | memoryview) -> bytes:
    check_chunk(manifest, index, data)
    try:
        return cipher.decrypt(_nonce(index, len(manifest.chunks)), data, None)
    except InvalidTag:
        raise VerificationError(
            "FF-STOR-005",
            f"chunk {index} cannot be opened",
            cause="it was sealed under another key, in another place, or by somebody without the key",
            hint="check that the object belongs to this job",
        ) from None


def _cipher(job_key: bytes, content: bytes) -> AESGCM:
    return AESGCM(derive(NS_OBJECT_KEY, job_key, content))


def _nonce(index: int, count: int) -> bytes:
    return _PREFIX + index.to_bytes(4, "big") + (b"\1" if index == count - 1 else b"\0")
