"""Writes and reads a finished run's exported log: all that a second reader needs, nothing it must trust."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.errors import VerificationError
from farflung.core.io.durable_files import write_atomic
from farflung.core.io.ordinary_files import LINK, ForeignFileError, check_folder, open_ordinary
from farflung.core.io.spool_file import mapped_file
from farflung.job import terms_file
from farflung.job.spec import JobTerms
from farflung.ledger import genesis_file, receipt_file
from farflung.ledger.block import Block, Genesis
from farflung.ledger.receipt_checks import LedgerReceipt
from farflung.peers.rundir.archive import Archive, RunLog, read_entries
from farflung.peers.rundir.folder import RunFolder
from farflung.train.run_log import accepted_by_round
from farflung.verify import evidence
from farflung.verify.run_replay import ExportedRun

LABEL = "run.export"


def write_export(
    folder: RunFolder,
    genesis: Genesis,
    terms: JobTerms,
    log: RunLog,
    archive: Archive,
    blocks: Sequence[Block],
    receipts: Sequence[LedgerReceipt],
    files: Mapping[str, bytes],
) -> None:
    """Writes `export/`: genesis, terms, run log, blocks, payloads, receipts, evidence, and round 0's state.

    `files`: each party's receipt file (ledger.receipt_file) by the party's name.
    """
    root = folder.export
    for part in (root, root / "payloads", root / "receipts", root / "blocks"):
        part.mkdir(exist_ok=True)
        check_folder(part)
    write_atomic(root / "genesis.bin", genesis_file.write(genesis), LABEL)
    write_atomic(root / "terms.bin", terms_file.write(terms), LABEL)
    write_atomic(root / "initial.bin", mapped_file(folder.initial_file), LABEL)
    write_atomic(root / "rounds.log", folder.rounds_file.read_bytes(), LABEL)
    for block in blocks:
        write_atomic(root / "blocks" / f"{block.header.height:08d}.bin", encode(block), LABEL)
    for receipt in receipts:
        write_atomic(root / "receipts" / f"{receipt.table}-{receipt.index:06d}.bin", encode(receipt), LABEL)
    for name, data in files.items():
        write_atomic(root / "receipts" / f"{name}.receipt", data, LABEL)
    if folder.evidence.is_dir():
        (root / "evidence").mkdir(exist_ok=True)
        for path in sorted(folder.evidence.iterdir()):
            write_atomic(root / "evidence" / path.name, path.read_bytes(), LABEL)
    for contributions in accepted_by_round(log.records).values():
        for c in contributions:
            write_atomic(root / "payloads" / f"{c.payload.hex()}.bin", archive.payload(c), LABEL)


def read_export(folder: RunFolder) -> ExportedRun:
    """Reads `export/` and the model file; checks nothing but sizes. Raises VerificationError FF-APP-080."""
    root = folder.export
    try:
        for part in (root, root / "blocks", root / "payloads", root / "receipts"):
            _check_no_link(part)
        if (root / "evidence").exists():
            _check_no_link(root / "evidence")
        genesis = _bounded(root / "genesis.bin", genesis_file.BYTES)
        terms = _bounded(root / "terms.bin", terms_file.BYTES)
        entries, log_bytes = read_entries(root / "rounds.log")
        return ExportedRun(
            genesis=genesis,
            terms=terms,
            initial=_mapped(root / "initial.bin"),
            entries=entries,
            log_bytes=log_bytes,
            blocks=tuple(_bounded(p, limits.BLOCK_BYTES) for p in sorted((root / "blocks").iterdir())),
            receipts=tuple(_bounded(p, limits.TX_BYTES) for p in sorted((root / "receipts").glob("*.bin"))),
            payload=lambda name: _mapped(root / "payloads" / f"{name.hex()}.bin"),
            model=_mapped(folder.model_file),
            receipt_files={
                p.stem: _bounded(p, receipt_file.BYTES) for p in sorted((root / "receipts").glob("*.receipt"))
            },
            evidence=tuple(_bounded(p, evidence.BYTES) for p in sorted((root / "evidence").glob("*.bin"))),
        )
    except OSError as error:
        raise _missing(folder, error) from error


def _check_no_link(folder: Path) -> None:
    if folder.is_symlink():
        raise ForeignFileError(LINK, folder)


def _bounded(path: Path, limit: int) -> bytes:
    try:
        with open_ordinary(path, os.O_NOFOLLOW) as file:  # a device or a pipe has no size that could be trusted
            data = file.read(limit + 1)
        if len(data) > limit:
            raise VerificationError("FF-APP-081", f"{path.name} is over its size limit", cause=f"{limit} bytes")
        return data
    except OSError as error:
        raise _unread(path, error) from error


def _mapped(path: Path) -> memoryview:
    """What grows with the model is read where it lies."""
    try:
        return mapped_file(path, os.O_NOFOLLOW)
    except OSError as error:
        raise _unread(path, error) from error


def _unread(path: Path, error: OSError) -> VerificationError:
    return VerificationError(
        "FF-APP-080",
        "the exported log is not complete",
        cause=f"{path.name}: {error.strerror or error}",
        hint="finish the run with `farflung resume`, or copy the export folder again",
    )


def _missing(folder: RunFolder, error: OSError) -> VerificationError:
    return VerificationError(
        "FF-APP-080",
        "the exported log is not complete",
        cause=f"{folder.name}: {error.strerror or error}",
        hint="finish the run with `farflung resume`, or copy the export folder again",
    )
