"""Reads the files below a folder in the order of their names, and counts what it passes over.

Names are relative, with forward slashes, and sorted by code point. A link to a file is read like a file.
"""

from __future__ import annotations

import os
import stat
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.errors import SpecError
from farflung.job.io.input_files import read_input, too_large, unreadable
from farflung.job.text_files import HIDDEN_FILES, File, FileCounts, is_text

FOLDER_FILES: Final = 1 << 20  # files of one data folder
_GENERATED_HEAD: Final = 400  # bytes in which a generated file says so
_STDLIB_SKIPPED: Final = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
_SITE_FILES: Final = frozenset({"sitecustomize.py", "usercustomize.py"})  # of the installation, not of Python


def stdlib_files(root: Path | None = None) -> list[File]:
    """Python's own library as (relative name, source): no tests, no installed packages, no generated files."""
    top = root or Path(sysconfig.get_path("stdlib"))
    files = [(name, data) for name, data in _walk(top, _is_library_folder, _is_source) if _is_written(data)]
    if not files:
        raise SpecError(
            "FF-JOB-010",
            "this Python has no library sources",
            cause=f"no .py files in {top}",
            hint="set path in [data] to a text file or a folder of text files",
        )
    return files


def _is_library_folder(name: str) -> bool:
    return name not in _STDLIB_SKIPPED and not name.startswith("config-")


def _is_source(name: str) -> bool:
    return name.endswith(".py") and name not in _SITE_FILES and not name.startswith("_sysconfigdata")


def _is_written(data: bytes) -> bool:
    return b"generated" not in data[:_GENERATED_HEAD].lower() and is_text(data)


def folder_files(root: Path) -> tuple[Iterator[File], FileCounts]:
    """The files below a folder, and what is passed over: what is hidden, links to folders, and what is no file."""
    left_out = FileCounts()
    return _walk(root, _is_shown, _is_shown, left_out), left_out


def _is_shown(name: str) -> bool:
    return not name.startswith(".")


def _walk(
    root: Path, enters: Callable[[str], bool], takes: Callable[[str], bool], left_out: FileCounts | None = None
) -> Iterator[File]:
    """(relative name, bytes) of the regular files below `root`, sorted by name; bounded in number and bytes.

    `left_out` is told of all others.
    """
    found: list[tuple[str, Path]] = []
    for folder, folders, names in os.walk(root, onerror=_raise_unreadable):
        folders.sort()
        paths = [Path(folder, name) for name in sorted(names) if takes(name)]
        found += [(path.relative_to(root).as_posix(), path) for path in paths if _is_file(path, root, left_out)]
        if len(found) > FOLDER_FILES:
            raise too_large(root, f"more than {FOLDER_FILES} files")
        if left_out is not None:
            _count_others(Path(folder), folders, sorted(names), root, left_out)
        folders[:] = [name for name in folders if enters(name)]
    room = limits.TEXT_BYTES
    for name, path in sorted(found):
        data = read_input(path, room)
        room -= len(data)
        yield name, data


def _is_file(path: Path, root: Path, left_out: FileCounts | None) -> bool:
    """Whether it is a regular file, or a link to one; `left_out` is told of what is not."""
    try:
        status = path.stat()
    except OSError as error:
        if not path.is_symlink() or isinstance(error, PermissionError):
            raise unreadable(path, error) from error
        status = None  # a link that leads nowhere, or round in a circle
    if status is not None and stat.S_ISREG(status.st_mode):
        return True
    if left_out is not None:
        left_out.add("dead link" if status is None else "special", path.relative_to(root).as_posix(), 0)
    return False


def _count_others(folder: Path, folders: list[str], names: list[str], root: Path, left_out: FileCounts) -> None:
    """Counts the hidden files of a folder, those below its hidden folders, and its links to folders."""
    hidden = [folder / name for name in names if not _is_shown(name)]
    for name in folders:
        path = folder / name
        if path.is_symlink():
            left_out.add("link" if _is_shown(name) else "hidden", path.relative_to(root).as_posix(), 0)
        elif not _is_shown(name):
            hidden += _below(path, HIDDEN_FILES - left_out.files("hidden") - len(hidden))
    for path in hidden:
        left_out.add("hidden", path.relative_to(root).as_posix(), _size(path))


def _below(folder: Path, most: int) -> list[Path]:
    """At most so many files below a hidden folder; what cannot be looked into has none."""
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        if len(found) >= most:
            break
        folders.sort()
        found += [Path(place, name) for name in sorted(names)[: most - len(found)]]
    return found


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # it went away
        return 0


def _raise_unreadable(error: OSError) -> None:
    raise unreadable(Path(error.filename), error)
