"""Stores private keys, readable by their owner only: an account's, and a node key with its certificate.

account     one line: the seed, 64 hex digits
node key    two lines: its seed, and its certificate (net.certificates) in hex; in one file they change at once

Before them stands the header of a key (core.key_file).
"""

from __future__ import annotations

import os
import secrets
import shlex
import stat
from pathlib import Path
from typing import Final

from farflung.core import key_file, limits
from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, ProtocolError, UsageError
from farflung.core.ids import ID_BYTES
from farflung.core.io.durable_files import write_atomic
from farflung.core.io.ordinary_files import open_ordinary
from farflung.net.certificates import Credential, read_certificate

_TEXT_BYTES: Final = 2 * ID_BYTES + 1  # hex digits and a line's end
MAKE: Final = "name the file that holds it; farflung key new FILE --account ACCOUNT makes one"
RESTORE: Final = "name the file that holds it, or bring it back from a copy; farflung key new makes another one"
_NODE_BYTES: Final = _TEXT_BYTES + 2 * limits.NODE_CERTIFICATE_BYTES + 1


def read_private(path: Path, most: int) -> bytes:
    """The content of a file that only its owner may read, at most `most` bytes of it.

    Raises UsageError FF-APP-141 (others may read it), OSError; no link is followed, and nothing but a file is read.
    """
    with open_ordinary(path, os.O_NOFOLLOW) as file:
        facts = os.fstat(file.fileno())
        data = file.read(most)
    if facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(
            "FF-APP-141",
            f"others may read {path}",
            cause=f"its mode is {stat.S_IMODE(facts.st_mode):o}",
            hint=f"chmod 600 {shlex.quote(str(path))}{_if_read(path, data)}",
        )
    return data


def _if_read(path: Path, data: bytes) -> str:
    """What else is to be done if others did read it. An account's file is not thrown away: it holds money and stake."""
    lines = key_file.lines_of(data).strip()
    if len(lines) < _TEXT_BYTES - 1:
        return ""
    if lines.count(b"\n"):
        return f"; if others did read it: farflung key rotate {shlex.quote(str(path))}, and farflung key revoke"
    return "; if others did read it, go over to another account, and keep this file until nothing is left in it"


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
    key = new_key()
    write_account(path, key)
    return key


def new_key() -> SigningKey:
    """A random key."""
    return SigningKey(secrets.token_bytes(ID_BYTES))


def write_account(path: Path, key: SigningKey) -> None:
    """Writes an account's key. Raises RunError FF-CORE-050."""
    write_atomic(path, key_file.write(key.seed.hex() + "\n"), "relay.key", private=True)


def read_own(path: Path) -> Credential:
    """What a file lets a machine prove: an account's own key, or a node key.

    Raises UsageError FF-APP-141 (others may read it), FF-APP-260 (it is neither, or it is not there), VersionError
    FF-CORE-095.
    """
    try:
        text = key_file.read(read_private(path, _NODE_BYTES + key_file.HEAD + 1))
    except OSError as error:
        raise _no_key(path, *_why_not(path, error)) from error
    except ProtocolError as error:
        raise _no_key(path, error.cause, RESTORE) from error
    try:
        return _credential_in(text)
    except ValueError as error:
        raise _no_key(path, str(error), RESTORE) from error


def _credential_in(text: str) -> Credential:
    """What the text of such a file says. Raises ValueError."""
    first, end, rest = text.removesuffix("\n").partition("\n")
    seed = seed_in(first)
    if seed is None:
        raise ValueError(f"its first line is not {2 * ID_BYTES} hex digits" if text else "it is empty")
    if not end:
        return Credential(SigningKey(seed))
    try:
        certificate = bytes.fromhex(rest)
    except ValueError as error:
        raise ValueError("its second line is no certificate") from error
    try:
        return Credential(SigningKey(seed), read_certificate(certificate))
    except FarflungError as error:
        raise ValueError(f"{error.message}: {error.cause}") from error


def read_account(path: Path) -> SigningKey:
    """An account's own key. Raises UsageError FF-APP-141, FF-APP-260; FF-APP-262 for a node key."""
    own = read_own(path)
    if own.certificate is not None:
        raise another_account(path, f"it is a node key of {own.account.hex()}, which certifies no other")
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
    write_atomic(path, key_file.write(text), "node.key", private=True)


def _why_not(path: Path, error: OSError) -> tuple[str, str]:
    """Why a file cannot be read, and what to do."""
    if path.is_symlink():
        return "it is a link, which is not followed", f"name the file itself: {os.path.realpath(path)}"
    if path.is_dir():
        return "it is a folder", "name the file in it"
    cause = error.strerror or str(error)
    return cause, MAKE if isinstance(error, FileNotFoundError) else "name a file that you may read"


def check_place(path: Path) -> None:
    """Whether a key's file can be made there. Raises UsageError FF-APP-260."""
    if not path.parent.is_dir():
        parent = path.parent
        there = f"{parent} is no folder" if is_there(parent) else "its folder does not exist"
        raise _no_key(path, there, f"mkdir -p {shlex.quote(str(parent))}, or name another file")


def check_apart(file: Path, account: Path) -> None:
    """Raises UsageError FF-APP-265: a node key would be written over its account's."""
    if os.path.realpath(file) == os.path.realpath(account):
        raise UsageError(
            "FF-APP-265",
            f"{file} is named as the node key and as the account's",
            cause="the node key would take the place of the account's, and its money would be lost",
            hint="name two files: farflung key new node.key --account account.key",
        )


def _no_key(path: Path, cause: str, hint: str) -> UsageError:
    return UsageError("FF-APP-260", f"{path} holds no key", cause=cause, hint=hint)
