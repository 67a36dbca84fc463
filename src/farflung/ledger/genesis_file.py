"""Writes and reads what a ledger begins with as a file, which its operator hands to everybody.

Whoever reads one knows the hash of the right genesis from elsewhere, so a file from before headers is read as well.
"""

from __future__ import annotations

from typing import Final

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.errors import ProtocolError
from farflung.core.file_header import HEAD_BYTES, FileFormat, earlier_version, file_of, is_bare, is_headed, value_of
from farflung.ledger.block import Genesis

FORMAT: Final = FileFormat("genesis", remedy="ask who runs the ledger for its genesis file")
BYTES: Final = limits.TX_BYTES + HEAD_BYTES  # of a file, at most


def write(genesis: Genesis) -> bytes:
    """The file of a genesis."""
    return file_of(FORMAT, genesis)


def read(data: bytes) -> Genesis:
    """The genesis in a file. Raises VersionError FF-CORE-095, ProtocolError FF-CORE-020 to -023, FF-CORE-096."""
    if is_headed(data):
        return value_of(FORMAT, data, Genesis, limits.TX_BYTES)
    try:
        return decode(data, Genesis, limits.TX_BYTES)
    except ProtocolError as error:
        if error.code != "FF-CORE-020" and is_bare(data):
            raise earlier_version(FORMAT) from error
        raise
