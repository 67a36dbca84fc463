"""Reads the files that a job names: the job file, its data and a user's model. Sizes are checked before reading.

Names are relative, with forward slashes, and sorted by code point, so that neither the working folder nor the
locale changes a data set.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from farflung.core import limits
from farflung.core.canon.token_leaves import TokenSource
from farflung.core.errors import SpecError
from farflung.job import data_formats, toml_parser
from farflung.job.dataset import (
    Dataset,
    check_dataset,
    check_lengths,
    joined_files,
    split_files,
    token_dtype,
    train_part,
)
from farflung.job.io.input_files import check_input, read_input, too_large, unreadable
from farflung.job.io.text_folders import folder_files, stdlib_files
from farflung.job.io.token_file import FileTokens
from farflung.job.model_source import check_source, parse_name, too_long
from farflung.job.module_package import INIT, is_name, pack
from farflung.job.safetensors_header import (
    HEAD_BYTES,
    TokenExtent,
    bad_tokens,
    check_kind,
    check_range,
    find_tokens,
    narrowed,
)
from farflung.job.spec import TOKEN_FILES, DataSpec, ModelSpec
from farflung.job.text_files import DataAccount, FileCounts, Selection, check_text, decoded, no_data, select

_JOB: Final = ".toml"
_OTHER_JOBS: Final[Mapping[str, str]] = {  # what is taken for a job file, and why it is none
    ".py": "it is Python; a job is a TOML file that names it as model.module",
    ".json": "a job is written in TOML, not in JSON",
    ".yaml": "a job is written in TOML, not in YAML",
    ".yml": "a job is written in TOML, not in YAML",
}
_TAKEN: Final = sys.stdlib_module_names | {"farflung", "numpy", "torch"}  # a package of such a name would hide it


def read_job(path: Path) -> str:
    """The text of a job file. Raises SpecError FF-JOB-003, 010, 011, 012."""
    if path.suffix in _OTHER_JOBS:
        raise SpecError(
            "FF-JOB-003",
            f"{path.name} is not a job file",
            cause=_OTHER_JOBS[path.suffix],
            hint="farflung init" + (" --model module" if path.suffix == ".py" else " job.toml"),
        )
    try:
        data = read_input(path, limits.SPEC_BYTES)
    except SpecError as error:
        if error.code == "FF-JOB-012" and path.suffix != _JOB:
            raise _no_job(path, "it is too large for one") from error
        raise
    try:
        text = data.decode("utf-8-sig")
        if path.suffix != _JOB:
            toml_parser.read(text, path.name)
        return text
    except SpecError as error:
        raise _no_job(path, error.message) from error
    except UnicodeDecodeError as error:
        if path.suffix != _JOB:
            raise _no_job(path, "it is not UTF-8 text") from error
        line = data.count(b"\n", 0, error.start) + 1
        raise SpecError(
            "FF-JOB-003", f"{path} line {line} is not TOML", cause="it is not UTF-8 text", hint="save the file as UTF-8"
        ) from None


def _no_job(path: Path, why: str) -> SpecError:
    return SpecError(
        "FF-JOB-003",
        f"{path.name} is not a job file",
        cause=f"a job is a short TOML file, which names its data: {why}",
        hint=f"to train on this file: farflung init --data {shlex.quote(str(path))}",
    )


class DataReading(NamedTuple):
    """A data set, and what was found where it was read."""

    dataset: Dataset
    account: DataAccount


def read_dataset(data: DataSpec, model: ModelSpec, base: Path) -> Dataset:
    """The data set of `read_data`, for whoever has told or need not tell what was left out of it."""
    return read_data(data, model, base).dataset


def read_data(data: DataSpec, model: ModelSpec, base: Path) -> DataReading:
    """The data set that a job names, checked against its model; relative paths start at `base`. Tokens of a file are
    looked through once, and read again where they are used.

    Raises SpecError FF-JOB-010 to 012 (cannot be read), FF-JOB-020 to 024 (cannot be used).
    """
    _check_is_here(data.path, base)
    path = _at(base, data.path)
    if data.path != "stdlib" and path.suffix in TOKEN_FILES:
        tokens = _tokens(path, model)
        cut = train_part(tokens.size, data.heldout)
        dataset = Dataset(tokens.part(0, cut), tokens.part(cut, tokens.size))
        noted = FileCounts()
        if data.limit:
            noted.add("tokens", path.name, path.stat().st_size)
        check_lengths(dataset, model)
        return DataReading(dataset, DataAccount(noted=noted.counts()))
    is_own = data.path != "stdlib"
    selection = text_selection(path, data.limit) if is_own else _checked(select(stdlib_files(), data.limit), path)
    dataset = split_files(selection.files, data.heldout)
    check_dataset(dataset, model)
    return DataReading(dataset, selection.account)


def _check_is_here(name: str, base: Path) -> None:
    """Raises SpecError FF-JOB-010 for an address, and for a name of a data set that is no path here."""
    hint = data_formats.elsewhere_hint(name)
    if not hint and not _at(base, name).exists():
        hint = data_formats.hub_hint(name)
    if hint:
        cause = "nothing is downloaded: data is a file or a folder of this computer"
        raise SpecError("FF-JOB-010", f"{name[:200]} is not here", cause=cause, hint=hint)


def read_tokens(path: Path, model: ModelSpec) -> tuple[TokenSource, DataAccount]:
    """All tokens of a text file, a folder of them or a token file, none held out: to measure a model on.

    Raises SpecError FF-JOB-010 to 012 (cannot be read), FF-JOB-020 to 024 (cannot be used).
    """
    if path.suffix in TOKEN_FILES:
        return _tokens(path, model), DataAccount()
    selection = text_selection(path)
    return narrowed(path.name, joined_files(selection.files), model.vocabulary), selection.account


def _tokens(path: Path, model: ModelSpec) -> FileTokens:
    extent = _npy(path) if path.suffix == ".npy" else _safetensors(path)
    tokens = FileTokens(path, extent, token_dtype(model.vocabulary))
    for block in tokens.blocks():
        check_range(path.name, block, model.vocabulary)
    return tokens


def text_selection(path: Path, limit: int = 0) -> Selection:
    """The text of a file or folder, whole files of at most `limit` bytes together (0: all), and what is left out.

    A file that cannot be read, and files that are too large together, are refused by name. Raises SpecError
    FF-JOB-010 to 012, FF-JOB-020 (no text in it), FF-JOB-021 (a file that is named alone is no text).
    """
    if path.is_dir():
        files, left_out = folder_files(path)
        return _checked(select(files, limit, left_out), path)
    data = read_input(path, limits.TEXT_BYTES)
    here = Path.cwd()
    check_text(path.name, decoded(data), str(path.relative_to(here) if path.is_relative_to(here) else path))
    return _checked(select([(path.name, data)], limit), path)


def _checked(found: Selection, path: Path) -> Selection:
    if not found.files:
        raise no_data(found.account.left_out)
    marks = max(0, len(found.files) - 2)  # between the files of either part
    if sum(len(data) for _, data in found.files) + marks > limits.TEXT_BYTES:
        raise too_large(path, f"as UTF-8 it has over {limits.TEXT_BYTES} bytes")
    return found


def read_module(module: str, base: Path) -> tuple[bytes, str]:
    """`file.py:function` → the source and the function's name; of a package's folder its Python files, packed.

    Raises SpecError FF-JOB-01x, FF-JOB-04x.
    """
    name, function = parse_name(module)
    path = _at(base, name)
    source = _package(path) if path.is_dir() else read_input(path, limits.MODULE_BYTES)
    check_source(source, name, function)
    return source, function


def _package(folder: Path) -> bytes:
    """The Python files below a folder, packed. Raises SpecError FF-JOB-041: too long, FF-JOB-049: it is no package."""
    if not (folder / INIT).is_file() or not folder.name.isidentifier():
        raise _no_package(folder, f"a model's folder has a file {INIT} and a name that Python can import")
    if folder.name in _TAKEN:
        raise _no_package(folder, f"a worker loads another module called {folder.name}")
    files: dict[str, bytes] = {}
    left = limits.MODULE_BYTES
    for path in folder.rglob("*.py"):
        if path.is_symlink() or not path.is_file():
            continue
        name = path.relative_to(folder).as_posix()
        if not is_name(name):
            raise _no_package(folder, f"{name} cannot be imported")
        files[name] = read_input(path, limits.MODULE_BYTES)
        left -= len(files[name])
        if left < 0:
            raise too_long(folder.name)
    return pack(files)


def _no_package(folder: Path, cause: str) -> SpecError:
    return SpecError(
        "FF-JOB-049",
        f"{folder.name} is no package",
        cause=cause,
        hint='name its folder and files as Python imports them, or one file: module = "model.py:build"',
    )


def _at(base: Path, name: str) -> Path:
    try:
        return base / Path(name).expanduser()
    except RuntimeError:  # no such user: then it is a name like any other
        return base / name


def _npy(path: Path) -> TokenExtent:
    """Where its tokens lie: its size is checked by NumPy against the file's, pickles are refused."""
    check_input(path, limits.DATA_BYTES)
    try:
        mapped = np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, EOFError, OverflowError, TypeError, SyntaxError) as error:
        raise bad_tokens(path.name, str(error)) from None
    check_kind(path.name, mapped.dtype, mapped.ndim)
    return TokenExtent(mapped.offset, mapped.size, mapped.dtype)


def _safetensors(path: Path) -> TokenExtent:
    size = check_input(path, limits.DATA_BYTES)
    try:
        with path.open("rb") as file:
            return find_tokens(path.name, file.read(8 + HEAD_BYTES), size)
    except OSError as error:
        raise unreadable(path, error) from error
