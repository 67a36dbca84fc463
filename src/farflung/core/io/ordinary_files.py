"""Opens files that somebody else named or wrote: an ordinary file alone, read within a bound, and never waited for.

A file that is written where it stands must be our own besides: not reached through a link, of no other user, and
under no second name. A run's folder can be a stranger's, and a link in it would lead the writer to the user's files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, Final

NO_FILE: Final = "it is a folder, a pipe or a device"
LINK: Final = "it is a link, which is not followed"
SECOND_NAME: Final = "it has a second name elsewhere (a hard link), and would be changed there, too"
ANOTHER_USER: Final = "it belongs to another user"


class ForeignFileError(OSError):
    """A file is no ordinary file, or not ours to write; `cause` says why."""

    def __init__(self, cause: str, path: Path) -> None:
        super().__init__(0, cause, str(path))
        self.cause = cause


def open_ordinary(path: Path, flags: int = 0) -> BinaryIO:
    """A file to read; `flags` are os.open's further ones. Raises OSError, whose `strerror` says the cause."""
    # A pipe does not make us wait.
    file = _opened(path, os.O_RDONLY | flags, 0)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ForeignFileError(NO_FILE, path)
    return os.fdopen(file, "rb")


def open_own(path: Path, flags: int, mode: int = 0o600) -> int:
    """A file to write, made where `flags` says so: an ordinary one of our own, found through no link.

    Nothing is changed before that is known, so O_TRUNC is not among `flags`. Raises ForeignFileError, OSError.
    """
    file = _opened(path, flags | os.O_NOFOLLOW, mode)
    fault = _fault(os.fstat(file))
    if fault:
        os.close(file)
        raise ForeignFileError(fault, path)
    return file


def _opened(path: Path, flags: int, mode: int) -> int:
    try:
        return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and flags & os.O_NOFOLLOW:
            raise ForeignFileError(LINK, path) from None
        raise


def _fault(status: os.stat_result) -> str:
    """Why a file must not be written where it stands."""
    if stat.S_ISLNK(status.st_mode):
        return LINK
    if status.st_uid != os.geteuid():
        return ANOTHER_USER
    if not stat.S_ISREG(status.st_mode):
        return NO_FILE
    return SECOND_NAME if status.st_nlink > 1 else ""


def read_bounded(path: Path, limit: int, flags: int = 0) -> bytes:
    """All of a file of at most `limit` bytes, and no more memory than it has bytes. Raises OSError as above."""
    with open_ordinary(path, flags) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(0, f"it has more than {limit} bytes")
        return file.read(size)


def check_folder(path: Path) -> None:
    """A folder of our own, which is no link. Raises ForeignFileError, OSError."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        raise ForeignFileError(LINK, path)
    if not stat.S_ISDIR(status.st_mode):
        raise ForeignFileError("it is no folder", path)
    if status.st_uid != os.geteuid():
        raise ForeignFileError(ANOTHER_USER, path)


def own_files(root: Path, left_out: Collection[str] = ()) -> Iterator[Path]:
    """All files in `root`, at any depth, each of which is ours to write. `left_out`: names of folders not looked into.

    Costs a look at each name, some 5 microseconds. Raises ForeignFileError, OSError.
    """
    waiting = [root]
    while waiting:
        with os.scandir(waiting.pop()) as found:
            for entry in found:
                with contextlib.suppress(FileNotFoundError):  # a process that is about to end took it away
                    status, path = entry.stat(follow_symlinks=False), Path(entry.path)
                    if stat.S_ISDIR(status.st_mode):
                        check_folder(path)
                        waiting += [path] if entry.name not in left_out else []
                    elif fault := _fault(status):
                        raise ForeignFileError(fault, path)
                    else:
                        yield path
