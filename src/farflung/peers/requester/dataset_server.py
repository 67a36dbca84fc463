"""Hands out a job's data set: a small one whole, and of a large one its root, and the pieces that a node asks for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from farflung.core import limits
from farflung.core.canon.token_leaves import pack_leaves
from farflung.core.codec import decode, encode
from farflung.core.errors import PolicyError
from farflung.core.ids import Hash
from farflung.job.spec import JobTerms
from farflung.job.token_tree import DatasetTrees, pack_root, root_of
from farflung.peers.protocol.messages import DatasetLeavesRequest
from farflung.peers.rundir.archive import Archive
from farflung.peers.rundir.dataset_file import DatasetFile
from farflung.peers.rundir.folder import RunFolder
from farflung.plan.dataset_traffic import is_whole
from farflung.store.sealed_objects import ObjectManifest

KEPT_BYTES: Final = limits.GIB  # of pieces that lie sealed in the requester's store, for members that come later


class DatasetServer:
    """The data set of one job, as its requester gives it to nodes."""

    def __init__(self, terms: JobTerms, folder: RunFolder, archive: Archive) -> None:
        self._terms, self._archive, self._file = terms, archive, folder.dataset_file
        self._trees: DatasetTrees | None = None
        self._kept: OrderedDict[Hash, int] = OrderedDict()  # sealed pieces by id, the one asked for last at the end
        self._turn = threading.Lock()

    def supplied(self) -> ObjectManifest:
        """What a node begins with, sealed in the own store: the data set, or what names it."""
        data = DatasetFile(self._file)
        for anew in () if is_whole(self._terms.spec, data.size) else (False, True):
            self._trees = data.trees(anew=anew)
            root = root_of(data.parts(), self._trees)
            if root.name == self._terms.dataset:
                return self._archive.put(pack_root(root))
        return self._archive.put(data.mapped())

    def serve(self, body: bytes) -> bytes:
        """Answers a DatasetLeavesRequest with the manifest of an object that holds the pieces.

        Raises PolicyError FF-APP-721: there are no such, or they are too many for one request.
        """
        asked = decode(body, DatasetLeavesRequest, limits.CONTROL_BYTES)
        with self._turn:
            if self._trees is None:
                self._trees = DatasetFile(self._file).trees()
            tree, numbers = self._trees[asked.is_heldout], asked.leaves
            is_sound = 0 < len(numbers) <= limits.DATASET_LEAVES and numbers[0] >= 0
            is_sound = is_sound and all(a < b for a, b in zip(numbers, (*numbers[1:], tree.count), strict=True))
            if asked.job != self._terms.id or not is_sound:
                raise PolicyError(
                    "FF-APP-721",
                    "the data set has no such pieces",
                    cause=f"{len(numbers)} were asked for, in ascending order, of {tree.count}",
                    hint=f"ask for {limits.DATASET_LEAVES} at a time, in their order",
                )
            manifest = self._archive.put(pack_leaves(tree.leaves(numbers)))
            self._keep(manifest)
        return encode(manifest)

    def _keep(self, manifest: ObjectManifest) -> None:
        self._kept[manifest.id] = manifest.size
        self._kept.move_to_end(manifest.id)
        while sum(self._kept.values()) > KEPT_BYTES and len(self._kept) > 1:
            self._archive.disk.delete(self._kept.popitem(last=False)[0])
