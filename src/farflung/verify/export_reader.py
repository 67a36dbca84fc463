"""Reads the bytes of an exported run, from a disk or from a stranger, and trusts nothing in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from farflung.core.ids import Hash
from farflung.train.blobs import Blob


class ExportedRun(msgspec.Struct, frozen=True):
    """The bytes of an exported run. `payload` finds one payload by its content hash.

    `evidence`: of each contribution that was found false or withheld; none where it was not handed on.
    `receipt_files`: what the parties keep, by name, where it is there.
    """

    genesis: bytes
    terms: bytes
    initial: Blob
    entries: tuple[bytes, ...]
    log_bytes: int
    blocks: tuple[bytes, ...]
    receipts: tuple[bytes, ...]
    payload: Callable[[Hash], Blob]
    model: Blob
    evidence: tuple[bytes, ...] = ()
    receipt_files: Mapping[str, bytes] = {}
