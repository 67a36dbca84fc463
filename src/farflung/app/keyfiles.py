"""Private keys on disk: an account's, and a node key with the certificate of its account. Never readable by others.

account     one line: the seed, 64 hex digits
node key    two lines: its seed, and its certificate (net.certificates) in hex; in one file they change at once
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, UsageError
from farflung.core.ids import ID_BYTES
from farflung.core.io.durable import write_atomic
from farflung.net.certificates import Credential, read_certificate

_TEXT_BYTES: Final = 2 * ID_BYTES + 1  # hex digits and a line's end
_NODE_BYTES: Final = _TEXT_BYTES + 2 * limits.NODE_CERTIFICATE_BYTES + 1


def read_private(path: Path, most: int) -> bytes:
    """The content of a file that only its owner may read, at most `most` bytes of it.

    Raises UsageError FF-APP-141 (others may read it), OSError; no link is followed, and nothing but a file is read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode):
        os.close(handle)
        raise OSError(0, "it is no file")
    with open(handle, "rb") as file:
        if facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(
                "FF-APP-141",
                f"others may read {path}",
                cause=f"its mode is {stat.S_IMODE(facts.st_mode):o}",
                hint=f"chmod 600 {path}; if others did read it, delete it and let a new key be made",
            )
        return file.read(most)


def is_there(path: Path) -> bool:
    """Whether something has that name: a link that leads nowhere counts, too."""
    return path.exists() or path.is_symlink()


def seed_in(text: str) -> bytes | None:
    """The 32 bytes that a line of lower-case hex digits says; None: it is no such line."""
    try:
        seed = bytes.fromhex(text)
    except ValueError:
        return None
    return seed if len(seed) == ID_BYTES and seed.hex() == text else None


def new_account(path: Path) -> SigningKey:
    """Makes an account's key. Raises RunError FF-CORE-050."""
    seed = secrets.token_bytes(ID_BYTES)
    write_atomic(path, seed.hex().encode() + b"\n", "relay.key", private=True)
    return SigningKey(seed)


def read_own(path: Path) -> Credential:
    """What a file lets a machine prove: an account's own key, or a node key.

    Raises UsageError FF-APP-141 (others may read it), FF-APP-260 (it is neither, or it is not there).
    """
    try:
        text = read_private(path, _NODE_BYTES + 1).decode("ascii", "replace")
    except OSError as error:
        raise _no_key(path, error.strerror or str(error)) from error
    first, end, rest = text.removesuffix("\n").partition("\n")
    seed = seed_in(first)
    if seed is None:
        raise _no_key(path, f"its first line is not {2 * ID_BYTES} hex digits")
    if not end:
        return Credential(SigningKey(seed))
    try:
        certificate = read_certificate(bytes.fromhex(rest))
        return Credential(SigningKey(seed), certificate)
    except ValueError as error:
        raise _no_key(path, "its second line is no certificate") from error
    except FarflungError as error:
        raise _no_key(path, f"{error.message}: {error.cause}") from error


def read_account(path: Path) -> SigningKey:
    """An account's own key. Raises UsageError FF-APP-141, FF-APP-260; FF-APP-262 for a node key."""
    own = read_own(path)
    if own.certificate is not None:
        raise another_account(path, "it is a node key, which certifies no other")
    return own.node


def another_account(path: Path, cause: str) -> UsageError:
    """FF-APP-262: a file is not of the account that is meant."""
    return UsageError(
        "FF-APP-262",
        f"{path} is not the account's key",
        cause=cause,
        hint="name the file of the account that the node key speaks for",
    )


def write_own(path: Path, own: Credential) -> None:
    """Replaces a node key and its certificate at once; durable on return. Raises RunError FF-CORE-050."""
    text = f"{own.node.seed.hex()}\n{encode(own.certificate).hex()}\n"
    write_atomic(path, text.encode(), "node.key", private=True)


def _no_key(path: Path, cause: str) -> UsageError:
    return UsageError(
        "FF-APP-260",
        f"{path} holds no key",
        cause=cause,
        hint="farflung key new makes one",
    )
