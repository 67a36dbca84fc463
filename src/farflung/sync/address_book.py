"""Defines the address book: the public keys that train together, their addresses, and the files of secret keys."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from farflung.core import key_file, limits
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import ProtocolError, UsageError
from farflung.core.ids import ID_BYTES, PeerId


class Peer(NamedTuple):
    """One member: its public key (64 hex digits) and the host and TCP port where the others reach it."""

    key: str
    host: str
    port: int


def new_key(path: str | os.PathLike[str]) -> str:
    """Makes a key, keeps its secret in a new file that only you can read, and returns the public key as hex.

    Raises UsageError FF-SYNC-012 when the file is there already or cannot be written.
    """
    seed = os.urandom(ID_BYTES)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(key_file.write(seed.hex() + "\n"))
    except OSError as error:
        raise _bad_key(path, error.strerror or str(error)) from None
    return SigningKey(seed).public.hex()


def load_key(path: str | os.PathLike[str]) -> SigningKey:
    """Reads what `new_key` wrote. Raises UsageError FF-SYNC-012, VersionError FF-CORE-095."""
    try:
        with open(Path(path), "rb") as file:
            text = key_file.read(file.read(2 * ID_BYTES + 2 + key_file.HEAD))
        return SigningKey(bytes.fromhex(text.strip()))
    except OSError as error:
        raise _bad_key(path, error.strerror or str(error)) from None
    except ProtocolError as error:
        raise _bad_key(path, error.cause) from None
    except ValueError:
        raise _bad_key(path, f"it does not hold {2 * ID_BYTES} hex digits") from None


def unsafe_key(seed: int, index: int) -> SigningKey:
    """A key that anybody can compute from the two numbers: for tests and for one machine, never for a network."""
    return local_key(seed, "sync", index)


def members(peers: Sequence[Peer | tuple[str, str, int]], own: PeerId) -> dict[PeerId, tuple[str, int]]:
    """The book sorted by key, so that ranks are the same whatever the order in which people wrote it down.

    Raises UsageError FF-SYNC-013: a key that is none, twice, or one's own missing; no host or port.
    """
    book: dict[PeerId, tuple[str, int]] = {}
    for entry in peers:
        peer = Peer(*entry)
        try:
            key = PeerId(bytes.fromhex(peer.key))
        except ValueError:
            raise _bad_book(f"{peer.key[:80]!r} is not hex") from None
        if len(key) != ID_BYTES or key in book:
            raise _bad_book(f"{peer.key[:16]} is no public key, or is there twice")
        if not 0 < len(peer.host) <= limits.HOST_BYTES or not 0 < peer.port < 1 << 16:
            raise _bad_book(f"{peer.host[:80]!r} and {peer.port} are no host and port")
        book[key] = (peer.host, peer.port)
    if own not in book:
        raise _bad_book(f"your own key {own.hex()[:16]} is not in it")
    if len(book) > limits.CONNECTIONS:
        raise _bad_book(f"{len(book)} peers; {limits.CONNECTIONS} are the most in a full mesh")
    return dict(sorted(book.items()))


def _bad_book(cause: str) -> UsageError:
    return UsageError(
        "FF-SYNC-013",
        "the address book cannot be used",
        cause=cause,
        hint="list every peer once, as (public key in hex, host, port); farflung.sync.new_key prints the key",
    )


def _bad_key(path: str | os.PathLike[str], cause: str) -> UsageError:
    return UsageError(
        "FF-SYNC-012",
        f"the key file {os.fspath(path)} cannot be used",
        cause=cause,
        hint="make one with farflung.sync.new_key(path)",
    )
