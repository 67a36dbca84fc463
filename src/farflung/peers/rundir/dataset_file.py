"""Reads the packed data set of a run, which is as large as it is: piece by piece, where it is used."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.crypto import NS_OBJECT, PieceDigest
from farflung.core.errors import ProtocolError
from farflung.core.ids import Hash
from farflung.core.io.durable_files import write_atomic
from farflung.core.io.ordinary_files import open_ordinary
from farflung.core.io.spool_file import mapped
from farflung.job.dataset import HEAD_BYTES, Dataset, read_head
from farflung.job.io.token_file import FileTokens
from farflung.job.safetensors_header import TokenExtent
from farflung.job.spec import JobSpec
from farflung.job.token_tree import DatasetRoot, DatasetTrees, root_of, shard_nodes
from farflung.peers.rundir.bounded_read import unreadable
from farflung.plan.dataset_traffic import is_whole
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

    def root(self, spec: JobSpec) -> DatasetRoot | None:
        """What the terms of a new job name of a data set that its nodes do not get whole; None: they do.

        Raises RunError FF-APP-161, FF-CORE-050.
        """
        return None if is_whole(spec, self.size) else root_of(self.parts(), self.trees())

    def is_named(self, name: Hash) -> bool:
        """Whether terms name this very data set, all of which is read. Raises as `root`."""
        if self.size > limits.WHOLE_DATA_BYTES:
            data = self.parts()
            nodes = shard_nodes(data.train) + shard_nodes(data.heldout)
            if root_of(data, DatasetTrees.of(data, nodes)).name == name:
                return True
        return self.content() == name  # also one that was made when large ones were named so

    def trees(self, *, anew: bool = False) -> DatasetTrees:
        """The trees over both parts, of which the run's folder keeps the nodes above shards.

        What is kept follows from the data, and nobody need trust it: with other nodes the root is another. `anew`: all
        data are read for it.
        """
        data, kept = self.parts(), self.path.with_suffix(".tree")
        if not anew:
            with contextlib.suppress(OSError, ProtocolError), open_ordinary(kept, os.O_NOFOLLOW) as file:
                return DatasetTrees.of(data, file.read())
        nodes = shard_nodes(data.train) + shard_nodes(data.heldout)
        write_atomic(kept, nodes, "run.tree")
        return DatasetTrees.of(data, nodes)

    def mapped(self) -> memoryview:
        """All of it, mapped. Raises RunError FF-APP-161."""
        try:
            with open_ordinary(self.path, os.O_NOFOLLOW) as file:
                return mapped(file.fileno(), [self.size])[0]
        except (OSError, ValueError) as error:
            raise unreadable(self.path, str(error)) from None

    def content(self) -> Hash:
        """The hash of its packed form. Raises RunError FF-APP-161."""
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
