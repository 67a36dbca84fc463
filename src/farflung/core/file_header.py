"""Names at the head of a file what it holds, in which version, and which farflung wrote it.

    farflung terms 1 0.1.0 9f86d081884c7d65\n        kind, version, program, checksum of the body
    body

Every file that outlives its process begins so, or names its version in a form of its own (docs/compatibility). The
checksum tells damage from another version: a body that is what was written, and still cannot be read, was written by
a farflung with another idea of it. A file without a header is of a farflung before there were any. Whoever changes a
body raises the version of its `FileFormat`.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_STORED, digest
from farflung.core.errors import ProtocolError, VersionError
from farflung.core.release import VERSION

T = TypeVar("T")

PROGRAM_LENGTH: Final = 32  # characters of a program's version
HEAD_BYTES: Final = 128  # the longest header
_LINE: Final = re.compile(rb"farflung ([a-z-]{1,32}) ([0-9]{1,9}) ([0-9A-Za-z.+!-]{1,32}) ([0-9a-f]{16})\n")
_MAGIC: Final = b"farflung "
_ARRAY: Final = re.compile(rb"[\x90-\x9f\xdc\xdd]")
_NEW_RUN: Final = "begin a new run with `farflung run`"


class FileFormat(NamedTuple):
    """One kind of file: the word for it, its version, and what else to do about a file of another version."""

    name: str
    version: int = 1
    remedy: str = _NEW_RUN


class JsonVersion(msgspec.Struct, frozen=True):
    """What a JSON object of ours says of itself, in whatever form; 0 and empty: nothing."""

    format: int = 0
    program: str = ""


def check_json(form: FileFormat, data: bytes, *earlier: int) -> JsonVersion:
    """Whether a JSON object is of this version, or of one of the earlier ones, by its `format`.

    Raises VersionError FF-CORE-095, ValueError and RecursionError (no such object).
    """
    said = msgspec.json.decode(data, type=JsonVersion)
    if said.format not in (form.version, *earlier):
        raise other_version(form, said.format, said.program)
    return said


def headed(form: FileFormat, body: bytes) -> bytes:
    """The file with this body."""
    return f"farflung {form.name} {form.version} {VERSION} {_checksum(body)}\n".encode() + body


def is_headed(data: bytes) -> bool:
    """Whether a file begins with a header, of whatever kind."""
    return data.startswith(_MAGIC)


def program_of(data: object) -> str:
    """Which farflung wrote these bytes, by their header; empty where there is none."""
    found = _LINE.match(data) if isinstance(data, bytes) else None
    return found[3].decode() if found else ""


def body_of(form: FileFormat, data: bytes) -> bytes:
    """The body of a file of this kind and version.

    Raises VersionError FF-CORE-095 (another version), ProtocolError FF-CORE-096 (another kind, or damaged).
    """
    return _split(form, data)[1]


def file_of(form: FileFormat, value: Any) -> bytes:
    """The file that holds a value: canonical bytes behind a header."""
    return headed(form, encode(value))


def value_of(form: FileFormat, data: bytes, kind: type[T], limit: int) -> T:
    """The value in a file that `file_of` made, of some `limit` bytes at most.

    Raises as `body_of`, and ProtocolError FF-CORE-020 (too long).
    """
    if len(data) > limit + HEAD_BYTES:
        raise ProtocolError("FF-CORE-020", f"a file of {len(data)} bytes", cause=f"the limit is {limit} bytes")
    program, body = _split(form, data)
    try:
        return decode(body, kind, limit + HEAD_BYTES)
    except ProtocolError as error:
        raise other_version(form, form.version, program) from error


def other_version(form: FileFormat, version: int, program: str = "") -> VersionError:
    """The error FF-CORE-095: a file was written in `version` of its form, by that program (empty: it named none)."""
    known = _shown(program)
    writer = f"farflung {known}" if known else "an earlier farflung" if version < form.version else "another farflung"
    cause = f"it is in form {version}, and this farflung reads form {form.version}"
    if version == form.version:
        cause = f"both call it form {version}, and mean another by it: one of them is no released version"
    elif known == VERSION:
        writer, cause = f"another build of farflung {known}", f"{cause}: one of them is no released version"
    known_program = "the farflung that wrote it" if known in ("", VERSION) else f"farflung {known}"
    return VersionError(
        "FF-CORE-095",
        f"the {form.name} file was written by {writer}; this is farflung {VERSION}",
        cause=cause,
        hint=f"use {known_program}, or {form.remedy}",
    )


def earlier_version(form: FileFormat) -> VersionError:
    """The error FF-CORE-095 for a file without a header."""
    return VersionError(
        "FF-CORE-095",
        f"the {form.name} file was written by an earlier farflung; this is farflung {VERSION}",
        cause="it does not name its version, as every file does now",
        hint=f"use the farflung that wrote it, or {form.remedy}",
    )


def _split(form: FileFormat, data: bytes) -> tuple[str, bytes]:
    """Program and body."""
    found = _LINE.match(data)
    if found is None:
        raise earlier_version(form) if is_bare(data) else _damaged(form, "it does not begin as one")
    name, version, program = found[1].decode(), int(found[2]), found[3].decode()
    if name != form.name:
        raise _damaged(form, f"it is a {name} file")
    if version != form.version:
        raise other_version(form, version, program)
    body = data[found.end() :]
    if _checksum(body) != found[4].decode():
        raise _damaged(form, "its checksum does not agree")
    return program, body


def is_bare(data: bytes) -> bool:
    """Whether these can be the bytes of a file from before headers: one whole array of msgpack, as all of them were."""
    if not _ARRAY.match(data):
        return False
    try:
        msgspec.msgpack.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _checksum(body: bytes) -> str:
    return digest(NS_STORED, body)[:8].hex()


def _shown(program: str) -> str:
    return "".join(each for each in program if each.isprintable())[:PROGRAM_LENGTH]


def _damaged(form: FileFormat, cause: str) -> ProtocolError:
    return ProtocolError("FF-CORE-096", f"this is no {form.name} file, or it is damaged", cause=cause)
