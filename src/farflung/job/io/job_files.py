"""Reads the files that a job names: the job file, its data and a user's model. Sizes are checked before reading.

Names are relative, with forward slashes, and sorted by code point, so that neither the working folder nor the
locale changes a data set.
"""

from __future__ import annotations

import os
import stat
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from farflung.core import limits
from farflung.core.errors import SpecError
from farflung.job.dataset import Dataset, File, check_dataset, is_text, joined_files, limited, split_files, split_tokens
from farflung.job.model_source import check_source, parse_name
from farflung.job.safetensors_header import HEAD_BYTES, bad_tokens, find_tokens, narrowed
from farflung.job.spec import DataSpec, ModelSpec

FOLDER_FILES: Final = 1 << 20  # files of one data folder
_STDLIB_SKIPPED: Final = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
_SITE_FILES: Final = frozenset({"sitecustomize.py", "usercustomize.py"})  # of the installation, not of Python
_OTHER_JOBS: Final[Mapping[str, str]] = {  # what is taken for a job file, and why it is none
    ".py": "it is Python; a job is a TOML file that names it as model.module",
    ".json": "a job is written in TOML, not in JSON",
    ".yaml": "a job is written in TOML, not in YAML",
    ".yml": "a job is written in TOML, not in YAML",
}
_GENERATED_HEAD: Final = 400  # bytes in which a generated file says so


def read_job(path: Path) -> str:
    """The text of a job file. Raises SpecError FF-JOB-003, 010, 011, 012."""
    if path.suffix in _OTHER_JOBS:
        raise SpecError(
            "FF-JOB-003",
            f"{path.name} is not a job file",
            cause=_OTHER_JOBS[path.suffix],
            hint="farflung init" + (" --model module" if path.suffix == ".py" else " job.toml"),
        )
    data = _read(path, limits.SPEC_BYTES)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SpecError(
            "FF-JOB-003", f"{path} line {line} is not TOML", cause="it is not UTF-8 text", hint="save the file as UTF-8"
        ) from None


def read_dataset(data: DataSpec, model: ModelSpec, base: Path) -> Dataset:
    """The data set that a job names, checked against its model; relative paths start at `base`.

    Raises SpecError FF-JOB-010 to 012 (cannot be read), FF-JOB-020 to 024 (cannot be used).
    """
    path = _at(base, data.path)
    if data.path == "stdlib":
        dataset = split_files(limited(stdlib_files(), data.limit), data.heldout)
    elif path.suffix in (".npy", ".safetensors"):
        tokens = _npy(path) if path.suffix == ".npy" else _safetensors(path)
        dataset = split_tokens(narrowed(path.name, tokens, model.vocabulary), data.heldout)
    else:
        files = folder_files(path) if path.is_dir() else [(path.name, _read(path, limits.DATA_BYTES))]
        dataset = split_files(limited(files, data.limit), data.heldout)
    check_dataset(dataset, model)
    return dataset


def read_tokens(path: Path, model: ModelSpec) -> NDArray[Any]:
    """All tokens of a text file, a folder of them or a token file, none held out: to measure a model on.

    Raises SpecError FF-JOB-010 to 012 (cannot be read), FF-JOB-020 to 024 (cannot be used).
    """
    if path.suffix in (".npy", ".safetensors"):
        loaded = _npy(path) if path.suffix == ".npy" else _safetensors(path)
        return narrowed(path.name, loaded, model.vocabulary)
    files = folder_files(path) if path.is_dir() else [(path.name, _read(path, limits.DATA_BYTES))]
    return narrowed(path.name, joined_files(files), model.vocabulary)


def read_module(module: str, base: Path) -> tuple[bytes, str]:
    """`file.py:function` → the file's source and the function's name; raises SpecError FF-JOB-01x, FF-JOB-04x."""
    name, function = parse_name(module)
    source = _read(_at(base, name), limits.MODULE_BYTES)
    check_source(source, name, function)
    return source, function


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


def folder_files(root: Path) -> list[File]:
    """The text files below a folder; hidden and binary ones, and links to folders, are passed over."""
    return [(name, data) for name, data in _walk(root, _is_shown, _is_shown) if is_text(data)]


def _is_shown(name: str) -> bool:
    return not name.startswith(".")


def _walk(root: Path, enters: Callable[[str], bool], takes: Callable[[str], bool]) -> Iterator[File]:
    """(relative name, bytes) of the regular files below `root`, sorted by name; bounded in number and bytes."""
    found: list[tuple[str, Path]] = []
    for folder, folders, names in os.walk(root, onerror=_raise_unreadable):
        folders[:] = [name for name in folders if enters(name)]
        paths = [Path(folder, name) for name in names if takes(name)]
        found += [(path.relative_to(root).as_posix(), path) for path in paths if path.is_file()]
        if len(found) > FOLDER_FILES:
            raise _too_large(root, f"more than {FOLDER_FILES} files")
    room = limits.DATA_BYTES
    for name, path in sorted(found):
        data = _read(path, room)
        room -= len(data)
        yield name, data


def _raise_unreadable(error: OSError) -> None:
    raise _unreadable(Path(error.filename), error)


def _at(base: Path, name: str) -> Path:
    try:
        return base / Path(name).expanduser()
    except RuntimeError:  # no such user: then it is a name like any other
        return base / name


def _read(path: Path, limit: int) -> bytes:
    _check_file(path, limit)  # before it is opened: opening a pipe waits for its writer
    try:
        with path.open("rb") as file:
            _measure(path, os.fstat(file.fileno()), limit)
            data = file.read(limit + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > limit:
        raise _too_large(path, "it grew while it was read")
    return data


def _measure(path: Path, status: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SpecError(
            "FF-JOB-011", f"cannot read {path}", cause="it is not a regular file", hint="name a file or a folder"
        )
    if status.st_size > limit:
        raise _too_large(path, f"{status.st_size} bytes; the limit is {limit}")


def _unreadable(path: Path, error: OSError) -> SpecError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        hint = f"check the path; it was looked for in {path.absolute().parent}"
        return SpecError("FF-JOB-010", f"{path} is not there", cause="no such file or folder", hint=hint)
    cause = error.strerror or str(error)
    return SpecError("FF-JOB-011", f"cannot read {path}", cause=cause, hint="name a file that you may read")


def _too_large(path: Path, cause: str) -> SpecError:
    return SpecError("FF-JOB-012", f"{path} is too large", cause=cause, hint="use a smaller part of it")


def _npy(path: Path) -> NDArray[Any]:
    """The array as a map of the file: its size is checked by NumPy against the file's, pickles are refused."""
    _check_file(path, limits.DATA_BYTES)
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, EOFError, OverflowError, TypeError, SyntaxError) as error:
        raise bad_tokens(path.name, str(error)) from None


def _safetensors(path: Path) -> NDArray[Any]:
    size = _check_file(path, limits.DATA_BYTES)
    try:
        with path.open("rb") as file:
            place = find_tokens(path.name, file.read(8 + HEAD_BYTES), size)
            file.seek(place.offset)
            tokens = np.fromfile(file, place.dtype, place.length)
    except OSError as error:
        raise _unreadable(path, error) from error
    if tokens.size != place.length:
        raise bad_tokens(path.name, "the file shrank while it was read")
    return tokens


def _check_file(path: Path, limit: int) -> int:
    """Bytes of a regular file, checked."""
    try:
        status = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    _measure(path, status, limit)
    return status.st_size
