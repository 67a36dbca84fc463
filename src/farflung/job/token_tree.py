"""Names a large data set by the roots over its tokens, and cuts out the pieces that somebody needs, with their proofs.

A data set that is larger than limits.WHOLE_DATA_BYTES goes to no node whole. The job's terms name its *root*: how many
tokens its parts have, in which dtype, and a Merkle root over each part (core.canon.token_leaves). Whoever holds the
data keeps the nodes above each SHARD of it; the leaves below them are hashed again where a piece of one is asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from farflung.core import merkle
from farflung.core.canon.token_leaves import TokenLeaf, TokenLeaves, TokenSource, leaf_count, leaf_hash, read_leaves
from farflung.core.crypto import NS_OBJECT, digest
from farflung.core.errors import ProtocolError
from farflung.core.ids import ID_BYTES, Hash
from farflung.core.tensor_layout import ROOT_CHUNK
from farflung.job.dataset import Dataset, unpack

SHARD_LEAVES: Final = 16  # a power of two: the leaves of one node that is kept
SHARD: Final = SHARD_LEAVES * ROOT_CHUNK  # tokens
_ROOT: Final = struct.Struct("<4sHBxQQ32s32s")
_MAGIC: Final = b"FFDR"
_VERSION: Final = 1
ROOT_BYTES: Final = _ROOT.size


class DatasetRoot(NamedTuple):
    """What terms name of a large data set: bytes of a token, and of each part its length and its root."""

    item: int
    train: int
    heldout: int
    train_root: Hash
    heldout_root: Hash

    @property
    def name(self) -> Hash:
        """What terms name it by: the hash of its object."""
        return digest(NS_OBJECT, pack_root(self))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its tokens."""
        return np.dtype(f"<u{self.item}")

    def empty(self) -> tuple[TokenLeaves, TokenLeaves]:
        """Both parts, of which nothing is here yet."""
        return (
            TokenLeaves(self.train, self.dtype, self.train_root),
            TokenLeaves(self.heldout, self.dtype, self.heldout_root),
        )


def pack_root(root: DatasetRoot) -> bytes:
    """The object that terms name."""
    return _ROOT.pack(_MAGIC, _VERSION, *root)


def is_root(data: bytes | memoryview) -> bool:
    """Whether this names a data set, and is none."""
    return bytes(data[:4]) == _MAGIC


def read_root(data: bytes | memoryview) -> DatasetRoot:
    """Raises ProtocolError FF-JOB-031."""
    if len(data) != _ROOT.size:
        raise _malformed(f"it has {len(data)} bytes")
    magic, version, item, train, heldout, *roots = _ROOT.unpack(data)
    if magic != _MAGIC or version != _VERSION or data[7] or item not in (1, 2, 4) or not (train and heldout):
        raise _malformed("its head is of another kind")
    return DatasetRoot(item, train, heldout, Hash(roots[0]), Hash(roots[1]))


def opened(data: bytes | memoryview, leaves: bytes | memoryview = b"") -> Dataset:
    """The data set in an object that terms name: all of it, or of a large one these packed leaves of its training part.

    Raises ProtocolError FF-JOB-030, -031, FF-CORE-098, VersionError FF-CORE-095.
    """
    if not is_root(data):
        return unpack(data)
    train, heldout = read_root(data).empty()
    if len(leaves):
        train.hold(read_leaves(leaves, train.size, train.dtype))
    return Dataset(train, heldout)


def _malformed(cause: str) -> ProtocolError:
    return ProtocolError("FF-JOB-031", "this does not name a data set", cause=cause)


def shard_nodes(tokens: TokenSource) -> bytes:
    """The nodes above the shards, one behind the other, in one pass over the tokens."""
    made: list[bytes] = []
    for start in range(0, tokens.size, 16 * SHARD):
        block = tokens[start : start + 16 * SHARD]
        places = range(0, len(block), SHARD)
        made += [merkle.top(_hashes(start + at, block[at : at + SHARD])) for at in places]
    return b"".join(made)


def _hashes(start: int, tokens: Any) -> list[Hash]:
    """Of the leaves of some tokens, the first of which is number `start`."""
    first = start // ROOT_CHUNK
    return [leaf_hash(first + i, tokens[i * ROOT_CHUNK :][:ROOT_CHUNK]) for i in range(leaf_count(len(tokens)))]


class TokenTree:
    """The tree over one part of a data set. `nodes`: those above its shards, as `shard_nodes` gives them."""

    def __init__(self, tokens: TokenSource, nodes: bytes) -> None:
        """Raises ProtocolError FF-JOB-031: these are not as many as it has shards."""
        if len(nodes) != ID_BYTES * -(-tokens.size // SHARD):
            raise _malformed(f"{len(nodes)} bytes of nodes for {tokens.size} tokens")
        self._tokens, self._levels = tokens, [nodes]
        while len(self._levels[-1]) > ID_BYTES:
            level = self._levels[-1]
            pairs = [level[at : at + 2 * ID_BYTES] for at in range(0, len(level), 2 * ID_BYTES)]
            self._levels.append(b"".join(merkle.parents(pairs)))

    @property
    def count(self) -> int:
        """How many leaves there are."""
        return leaf_count(self._tokens.size)

    @property
    def root(self) -> Hash:
        """As core.canon.input_roots.tokens_root has it."""
        return merkle.seal(self.count, self._levels[-1])

    def leaves(self, numbers: Iterable[int]) -> dict[int, TokenLeaf]:
        """These leaves with their paths. Each is below `count`."""
        made: dict[int, TokenLeaf] = {}
        shard, held, hashes = -1, np.empty(0, self._tokens.dtype), list[Hash]()
        for number in sorted(set(numbers)):
            if number // SHARD_LEAVES != shard:
                shard = number // SHARD_LEAVES
                held = self._tokens[shard * SHARD : (shard + 1) * SHARD]
                hashes = _hashes(shard * SHARD, held)
            inside = number % SHARD_LEAVES
            path = (*merkle.path_in(hashes, inside), *self._above(shard))
            made[number] = TokenLeaf(held[inside * ROOT_CHUNK :][:ROOT_CHUNK].copy(), path)
        return made

    def _above(self, node: int) -> Iterable[Hash]:
        for level in self._levels[:-1]:
            sibling = (node ^ 1) * ID_BYTES
            if sibling < len(level):
                yield Hash(level[sibling : sibling + ID_BYTES])
            node //= 2


class DatasetTrees(NamedTuple):
    """The trees over both parts of a data set."""

    train: TokenTree
    heldout: TokenTree

    @classmethod
    def of(cls, data: Dataset, nodes: bytes) -> DatasetTrees:
        """`nodes`: of the training part, then of the validation part. Raises ProtocolError FF-JOB-031."""
        cut = ID_BYTES * -(-data.train.size // SHARD)
        return cls(TokenTree(data.train, nodes[:cut]), TokenTree(data.heldout, nodes[cut:]))


def root_of(data: Dataset, trees: DatasetTrees) -> DatasetRoot:
    """What terms name."""
    item = data.train.dtype.itemsize
    return DatasetRoot(item, data.train.size, data.heldout.size, trees.train.root, trees.heldout.root)
