"""Opens a SQLite file of the ledger, runs its transactions, and reports its errors.

`synchronous=FULL`, and a rollback journal instead of a write-ahead log: behind a damaged frame SQLite drops the rest
of such a log without a word, and with it blocks that were promised (docs/log). The file is locked while open.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from farflung.core.crypto import NS_STORED, digest
from farflung.core.errors import RunError
from farflung.core.io.durable_files import failpoint, remove, sync_folder

_LOCK_SECONDS = 2
_SETTINGS: Final = (
    "locking_mode = EXCLUSIVE",
    "journal_mode = TRUNCATE",
    "synchronous = FULL",
    "cache_size = -65536",  # KiB, at most: a block of thousands of accounts changes more pages than 2 MiB hold
)
DAMAGED: Final = "FF-LEDG-081"
_CHECK: Final = 16  # bytes of a checksum
_MACHINE_ERRORS: Final = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)


class LedgerFile:
    """An open file. One process and one writer at a time."""

    def __init__(self, path: Path, label: str, create: Callable[[sqlite3.Connection], None]) -> None:
        """Opens the file, or makes it and lets `create` fill it; `label` names its failpoints.

        Raises RunError FF-LEDG-081 damaged, -082 cannot be read or written, -083 in use.
        """
        self.path, self._label = path, label
        with told(path):
            if not path.exists():
                self._make(create)
        self._connect(path)

    def _make(self, create: Callable[[sqlite3.Connection], None]) -> None:
        """Under another name until it is whole: an empty file is what damage leaves, never a crash."""
        made = self.path.with_name(self.path.name + ".made")
        made.unlink(missing_ok=True)
        self._connect(made)
        try:
            with self.transaction("create") as connection:
                create(connection)
        finally:
            self.close()
        remove(made.with_name(made.name + "-journal"), f"{self._label}.create")
        failpoint(f"{self._label}.create.rename")
        os.replace(made, self.path)
        sync_folder(self.path.parent, f"{self._label}.create")

    def _connect(self, path: Path) -> None:
        with told(self.path):
            self.connection = sqlite3.connect(
                path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False
            )
        try:
            with told(self.path):
                for setting in _SETTINGS:
                    self.connection.execute(f"PRAGMA {setting}")
                self.connection.execute("BEGIN IMMEDIATE")  # takes the lock, which stays
                self.connection.execute("COMMIT")
        except BaseException:
            self.close()
            raise

    @contextmanager
    def transaction(self, name: str) -> Iterator[sqlite3.Connection]:
        """All or nothing of what is executed in it; durable at its end. Raises RunError FF-LEDG-081, -082."""
        label = f"{self._label}.{name}"
        with told(self.path):
            failpoint(f"{label}.begin")
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                failpoint(f"{label}.commit")
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise
            failpoint(f"{label}.committed")

    def rows(self, query: str, *values: Any) -> list[Any]:
        """Everything that a query gives. Raises RunError FF-LEDG-081, -082."""
        with told(self.path):
            return self.connection.execute(query, values).fetchall()

    def one(self, query: str, *values: Any) -> Any:
        """The first value of the first row, or None. Raises RunError FF-LEDG-081, -082."""
        found = self.rows(query, *values)
        return found[0][0] if found else None

    def close(self) -> None:
        """Closes the file and gives up its lock."""
        self.connection.close()


def sealed(name: str, data: bytes) -> bytes:
    """Data behind a checksum: a flipped bit is seen when it is read, not when somebody relies on it."""
    return digest(NS_STORED, name.encode(), data)[:_CHECK] + data


def unsealed(path: Path, name: str, data: object) -> bytes:
    """What was sealed under this name. Raises RunError FF-LEDG-081."""
    if not isinstance(data, bytes) or digest(NS_STORED, name.encode(), data[_CHECK:])[:_CHECK] != data[:_CHECK]:
        raise damaged(path, f"{name} is not what was written")
    return data[_CHECK:]


@contextmanager
def told(path: Path) -> Iterator[None]:
    """SQLite's errors as a person can use them."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        # The primary of extended codes.
        kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise RunError(
                "FF-LEDG-083",
                f"{path.name} is in use",
                cause="another ledger process holds it",
                hint="stop the other run (`farflung status` shows it), or choose another folder",
            ) from error
        if kind in _MACHINE_ERRORS or isinstance(error, OSError):
            raise RunError(
                "FF-LEDG-082",
                f"cannot read or write {path.name}",
                cause=str(error),
                hint=f"check free space and permissions of {path.parent}, then run `farflung resume`",
            ) from error
        raise damaged(path, str(error)) from error
    except UnicodeDecodeError as error:  # the library's message quotes what it could not read
        raise damaged(path, "its schema cannot be read") from error


def damaged(path: Path, cause: str) -> RunError:
    """The file is not as it was written."""
    return RunError(
        "FF-LEDG-081",
        f"{path.name} is damaged",
        cause=cause,
        hint="restore the file from a copy; without one, move it away and start the run anew",
    )
