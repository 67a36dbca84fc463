"""Writes and reads the text of a secret key's file: lines of hex digits behind a header.

Files from before headers are the lines alone, and are read for ever: money hangs on them.
"""

from __future__ import annotations

from typing import Final

from farflung.core.file_header import HEAD_BYTES, FileFormat, body_of, headed, is_headed

FORMAT: Final = FileFormat("key", remedy="keep the file: nothing else proves that you are who it says")
HEAD: Final = HEAD_BYTES  # what a file may be longer than its text


def write(text: str) -> bytes:
    """The file of this text."""
    return headed(FORMAT, text.encode("ascii"))


def read(data: bytes) -> str:
    """The text in a file. Raises VersionError FF-CORE-095, ProtocolError FF-CORE-096."""
    body = body_of(FORMAT, data) if is_headed(data) else data
    return body.decode("ascii", "replace")


def lines_of(data: bytes) -> bytes:
    """The lines behind the header, whether or not they can be read."""
    return data.partition(b"\n")[2] if is_headed(data) else data
