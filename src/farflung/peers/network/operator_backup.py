"""Copies an operator's folder into one file, and brings the folder back from it.

The file is a tar: `FORMAT`, then keys, configurations, genesis, the faucet's log, and a copy of the ledger. A network
that runs has its file locked: then the copy is made of its blocks, which are executed again. The backup holds the
treasury's key and is not encrypted: its mode is 0600.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

from farflung.core import limits
from farflung.core.errors import FarflungError, RunError, UsageError
from farflung.core.io.ordinary_files import open_ordinary
from farflung.core.release import VERSION
from farflung.ledger.block import Block
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.votes import VoteKind
from farflung.peers.network import operator_folder
from farflung.peers.network.operator_folder import FAUCET, RELAY, SEAT, TREASURY, OperatorFolder

_FORMAT: Final = "FORMAT"
_MAGIC: Final = b"farflung network-backup 1 "
_CHAIN: Final = "seat/data/chain.db"
_SMALL: Final = (
    SEAT,
    "seat/validator.key",
    "seat/genesis.bin",
    "seat/data/faucet.log",
    RELAY,
    "relay/relay.key",
    TREASURY,
    FAUCET,
)
_SMALL_BYTES: Final = 256 * limits.MIB  # of each file but the ledger: the faucet's log grows with its accounts
_PIECE: Final = limits.MIB


def is_running(root: Path) -> bool:
    """Whether a process has the folder's ledger open."""
    chain = root / _CHAIN
    if not chain.exists():
        return False
    with contextlib.closing(_opened(chain)) as source:
        try:
            source.execute("SELECT name FROM meta LIMIT 1").fetchone()
        except sqlite3.OperationalError:
            return True
    return False


def _opened(chain: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{chain.resolve().as_uri()}?mode=ro", uri=True, timeout=0)


def write_backup(root: Path, file: Path, blocks: Sequence[Block] | None = None) -> OperatorFolder:
    """Copies the folder into a new file. `blocks`: all since the genesis, where the network runs.

    Raises UsageError FF-APP-545, FF-APP-549 (it is there), RunError FF-APP-550.
    """
    found = operator_folder.read(root)
    if file.exists() or file.is_symlink():
        raise UsageError(
            "FF-APP-549", f"{file} is there already", cause="a backup is never written over", hint="name another file"
        )
    part = file.with_name(f"{file.name}.{secrets.token_hex(4)}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as out:
            with tarfile.open(fileobj=out, mode="w") as archive:
                _add(archive, _FORMAT, _MAGIC + VERSION.encode() + b"\n")
                for name in _SMALL:
                    if (root / name).exists():
                        archive.add(root / name, name, recursive=False)
                _add_chain(archive, found, part, blocks)
            out.flush()
            os.fsync(out.fileno())
        os.replace(part, file)
    except (OSError, sqlite3.Error) as error:
        raise RunError(
            "FF-APP-550",
            "the network's folder cannot be copied",
            cause=str(error)[:200],
            hint=f"see that there is room for {file} and that the folder is yours",
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return found


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode = len(data), 0o600
    archive.addfile(about, io.BytesIO(data))


def _add_chain(archive: tarfile.TarFile, found: OperatorFolder, part: Path, blocks: Sequence[Block] | None) -> None:
    """The ledger as its last block left it; none where the network never ran."""
    chain, folder = found.root / _CHAIN, part.with_name(f"{part.name}.ledger")
    if not chain.exists():
        return
    try:
        folder.mkdir(mode=0o700)
        copy = folder / "chain.db"
        if blocks is not None:
            _execute(copy, found, blocks)
        else:
            with contextlib.closing(_opened(chain)) as source, contextlib.closing(sqlite3.connect(copy)) as target:
                source.backup(target)
        archive.add(copy, _CHAIN, recursive=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _execute(copy: Path, found: OperatorFolder, blocks: Sequence[Block]) -> None:
    """A ledger's file from its blocks. Raises RunError FF-LEDG-080 .. 083, VerificationError."""
    with contextlib.closing(LedgerStore.open(copy, found.genesis)) as store:
        chain, waiting = store.load(), []
        for block in blocks:
            waiting.append(block)
            if block.certificate.kind == VoteKind.FINALIZE:
                store.adopt(chain, waiting)
                waiting = []


def restore(file: Path, root: Path) -> OperatorFolder:
    """Brings a folder back, whole or not at all.

    Raises UsageError FF-APP-543 (something is there), FF-APP-551 (no backup), RunError FF-APP-550.
    """
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise UsageError(
            "FF-APP-543",
            f"{root} is not empty",
            cause="a network's folder comes back into a new one",
            hint="name another",
        )
    part = root.with_name(f"{root.name}.{secrets.token_hex(4)}.part")
    try:
        part.mkdir(mode=0o700, parents=True)
        with open_ordinary(file, os.O_NOFOLLOW) as data, tarfile.open(fileobj=data, mode="r:") as archive:
            _extract(file, archive, part)
        operator_folder.read(part)
        if root.exists():
            root.rmdir()
        os.replace(part, root)
    except tarfile.TarError as error:
        raise _no_backup(file, str(error)[:200]) from error
    except OSError as error:
        raise RunError(
            "FF-APP-550",
            f"{root} cannot be written from {file}",
            cause=error.strerror or str(error),
            hint="see that the backup is there and that its disk has room",
        ) from error
    except FarflungError as error:
        if error.code == "FF-APP-545":
            raise _no_backup(file, error.cause) from error
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return operator_folder.read(root)


def _extract(file: Path, archive: tarfile.TarFile, folder: Path) -> None:
    """Writes what is in the archive: nothing but the names of a backup, each once, as files of their own."""
    seen: set[str] = set()
    for about in _members(file, archive):
        name, source = about.name, archive.extractfile(about)
        if not seen and (name != _FORMAT or source is None or not source.read(64).startswith(_MAGIC)):
            raise _no_backup(file, "it does not begin as a backup does")
        if seen and (name not in (*_SMALL, _CHAIN) or name in seen or source is None):
            raise _no_backup(file, f"{name[:60]!r} does not belong into one")
        if name != _CHAIN and about.size > _SMALL_BYTES:
            raise _no_backup(file, f"{name[:60]!r} is too large")
        if seen and source is not None:
            _write(folder / name, source)
        seen.add(name)


def _members(file: Path, archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for about in archive:
        if not about.isreg():
            raise _no_backup(file, f"{about.name[:60]!r} is no file")
        yield about


def _write(path: Path, source: IO[bytes]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as out:
        while piece := source.read(_PIECE):
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())


def _no_backup(file: Path, cause: str) -> UsageError:
    return UsageError(
        "FF-APP-551",
        f"{file} is no backup of a network",
        cause=cause,
        hint="name a file that farflung network backup wrote",
    )
