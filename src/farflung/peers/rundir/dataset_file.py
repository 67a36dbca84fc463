"""Reads the packed data set of a run, which is as large as it is: piece by piece, where it is used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.crypto import NS_OBJECT, PieceDigest
from farflung.core.ids import Hash
from farflung.core.io.ordinary_files import open_ordinary
from farflung.job.dataset import HEAD_BYTES, Dataset, read_head
from farflung.job.io.token_file import FileTokens
from farflung.job.safetensors_header import TokenExtent
from farflung.peers.rundir.bounded_read import unreadable
from farflung.train.blobs import Blob, in_file

_PIECE: Final = 4 * limits.MIB


class DatasetFile:
    """`dataset.bin` of one run."""

    def __init__(self, path: Path) -> None:
        """Raises RunError FF-APP-161."""
        self.path = path
        try:
            with open_ordinary(path, os.O_NOFOLLOW) as file:
                self.size, self._head = os.fstat(file.fileno()).st_size, file.read(HEAD_BYTES)
        except OSError as error:
            raise unreadable(path, error.strerror or str(error)) from None

    def parts(self) -> Dataset:
        """Its tokens, which are read where they are used. Raises ProtocolError FF-JOB-030, VersionError FF-CORE-095."""
        head = read_head(self._head, self.size)
        after = HEAD_BYTES + head.train * head.dtype.itemsize
        extents = (TokenExtent(HEAD_BYTES, head.train, head.dtype), TokenExtent(after, head.heldout, head.dtype))
        train, heldout = (FileTokens(self.path, extent, head.dtype) for extent in extents)
        return Dataset(train, heldout)

    def content(self) -> Hash:
        """The hash that terms name it by. Raises RunError FF-APP-161."""
        found = PieceDigest(NS_OBJECT, self.size)
        for piece in self._pieces():
            found.update(piece)
        return found.value()

    def _pieces(self) -> Iterator[bytes]:
        try:
            with open_ordinary(self.path, os.O_NOFOLLOW) as file:
                while piece := file.read(_PIECE):
                    yield piece
        except OSError as error:
            raise unreadable(self.path, error.strerror or str(error)) from None

    def lent(self) -> Blob:
        """All of it, for a worker of this computer, which maps the file."""
        return in_file(self.path, self.size)
