"""Reads tokens of a file where they are used: as many bytes are held as are asked for, whatever the file's size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from farflung.core.canon.token_leaves import Tokens
from farflung.core.errors import RunError
from farflung.core.io.ordinary_files import open_ordinary
from farflung.job.safetensors_header import TokenExtent

BLOCK: Final = 1 << 18  # tokens that a pass over a file holds


class FileTokens:
    """Tokens that lie in a file behind each other, as numbers of `dtype`; slices of it are arrays."""

    def __init__(self, path: Path, extent: TokenExtent, dtype: np.dtype[Any]) -> None:
        self._path, self._extent, self.dtype = path, extent, dtype

    @property
    def size(self) -> int:
        """How many there are."""
        return self._extent.length

    def __len__(self) -> int:
        return self._extent.length

    def __getitem__(self, part: slice) -> Tokens:
        """Raises RunError FF-JOB-061: the file cannot be read any more, or is shorter than it was."""
        start, stop, step = part.indices(len(self))
        read: Tokens = self.stored(start, max(start, stop)).astype(self.dtype, copy=False)[::step]
        return read

    def stored(self, start: int, stop: int) -> np.ndarray[Any, np.dtype[Any]]:
        """The tokens from `start` to `stop` in the file's own dtype. Raises RunError FF-JOB-061."""
        dtype = self._extent.dtype
        try:
            with open_ordinary(self._path) as file:
                file.seek(self._extent.offset + start * dtype.itemsize)
                found = np.fromfile(file, dtype, stop - start)
        except OSError as error:
            raise _unreadable(self._path, error.strerror or str(error)) from error
        if found.size != stop - start:
            raise _unreadable(self._path, "it is shorter than it was")
        return found

    def part(self, start: int, stop: int) -> FileTokens:
        """Some of them, which are not read yet."""
        offset, _, dtype = self._extent
        return FileTokens(self._path, TokenExtent(offset + start * dtype.itemsize, stop - start, dtype), self.dtype)

    def blocks(self) -> Iterator[np.ndarray[Any, np.dtype[Any]]]:
        """All of them in the file's own dtype, a piece at a time. Raises RunError FF-JOB-061."""
        return (self.stored(at, min(at + BLOCK, len(self))) for at in range(0, len(self), BLOCK))


def _unreadable(path: Path, cause: str) -> RunError:
    return RunError(
        "FF-JOB-061",
        f"{path.name} cannot be read any more",
        cause=cause,
        hint=f"leave {path} as it is while farflung works on it, then give the command again",
    )
