"""Computes the Merkle roots over the inputs of an execution, and verifies one element opened from them.

    state, buffers   Merkle root over encode((section, tensor root)); a tensor root as in core.tensor_layout, over
                     chunks of ROOT_CHUNK elements, little-endian. ZERO_HASH: every element is zero
    tokens           Merkle root over chunks of ROOT_CHUNK tokens, 4 bytes each, little-endian
    tables           Merkle root over rows of float32, little-endian

`InputLeafProof` is a leaf of such a tree with its path; how many leaves there are, the root itself says. What is shown
is looked at only as far as it stands under a root that the terms or the accused had fixed. Every reader here is total:
what does not fit raises ProtocolError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from farflung.core import merkle
from farflung.core.canon.array_operations import DTYPES, Array, canonical_bytes
from farflung.core.canon.operation_rules import F32, TensorType
from farflung.core.canon.token_leaves import TokenLeaves, TokenSource, leaf_bytes, leaf_count, leaf_hash
from farflung.core.codec import Wire, encode
from farflung.core.crypto import NS_STATE, NS_TENSOR_CHUNK, digest
from farflung.core.errors import ProtocolError
from farflung.core.ids import ZERO_HASH, Hash
from farflung.core.tensor_layout import ROOT_CHUNK, Float32, TensorSpec

TOKEN_BYTES = 4
TOKEN_BLOCK = 64 * ROOT_CHUNK  # tokens that are looked at together


class InputLeafProof(Wire, frozen=True):
    """Leaf `index` of the `count` of a core.merkle tree. `data` is empty where it follows from what else is shown."""

    count: int
    index: int
    data: bytes
    path: tuple[Hash, ...]


def _of(leaves: Sequence[bytes], index: int, data: bytes) -> InputLeafProof:
    return InputLeafProof(len(leaves), index, data, merkle.prove(leaves, index))


def _cut(data: bytes, item: int) -> list[bytes]:
    """Chunks of ROOT_CHUNK items."""
    return [data[at : at + ROOT_CHUNK * item] for at in range(0, len(data), ROOT_CHUNK * item)]


def _bytes(array: Array) -> bytes:
    """As they stand under core.tensor_layout's roots: row-major, little-endian, a NaN with its owner's bits."""
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _names(name: str) -> tuple[str, str]:
    """`section/tensor` → both."""
    section, _, tensor = name.partition("/")
    return section, tensor


def _chunk_hash(chunk: bytes) -> Hash:
    return digest(NS_TENSOR_CHUNK, chunk)


def _tensor_root(name: str, shape: tuple[int, ...], chunks: Hash) -> bytes:
    """The leaf of a state's tree, for the tensor `section/tensor` whose chunks have this root."""
    section, tensor = _names(name)
    return encode((section, digest(NS_STATE, encode(TensorSpec(tensor, shape)), chunks)))


def _tensors(arrays: Mapping[str, Array]) -> list[bytes]:
    """The leaves of a state's tree, by `section/tensor`, in the mapping's order."""
    made = []
    for name, array in arrays.items():
        chunks = merkle.root([_chunk_hash(chunk) for chunk in _cut(_bytes(array), array.itemsize)])
        made.append(_tensor_root(name, array.shape, chunks))
    return made


def buffers_root(arrays: Mapping[str, Array]) -> Hash:
    """Root of a graph's constant inputs by their names `buffers/NAME`, sorted; ZERO_HASH where it has none."""
    return merkle.root(_tensors(dict(sorted(arrays.items())))) if arrays else ZERO_HASH


def open_tensor(arrays: Mapping[str, Array], name: str, place: int) -> tuple[InputLeafProof, InputLeafProof]:
    """Element `place` of tensor `name`: its chunk, and the tensor's leaf.

    `arrays`: all tensors of the state by `section/tensor`, in the order of its root: sections sorted, within each the
    layout's order (core.layout.state_root); buffers sorted by name.
    """
    array = arrays[name]
    chunks = _cut(_bytes(array), array.itemsize)
    at = place // ROOT_CHUNK
    return (
        _of([_chunk_hash(chunk) for chunk in chunks], at, chunks[at]),
        _of(_tensors(arrays), list(arrays).index(name), b""),
    )


def tensor_element(root: Hash, name: str, of: TensorType, place: int, pieces: Sequence[InputLeafProof]) -> bytes:
    """The bytes of element `place` of tensor `name` under `root`.

    Raises ProtocolError FF-CORE-074: what is shown does not stand under the root.
    """
    item = DTYPES[of.kind].itemsize
    if root == ZERO_HASH and not pieces:
        return bytes(item)
    if len(pieces) != 2:
        raise unproved("of a tensor's element a chunk and a leaf are due")
    chunk, leaf = pieces
    chunks = merkle.root_over(chunk.count, chunk.index, _chunk_hash(chunk.data), chunk.path)
    data = _tensor_root(name, of.shape, chunks or ZERO_HASH)
    if chunks is None or merkle.root_over(leaf.count, leaf.index, data, leaf.path) != root:
        raise unproved("the tensor's chunk stands under another root")
    return _within(chunk, place, item)


def tokens_root(tokens: TokenSource) -> Hash:
    """Root over a job's training tokens, shape (n,), n ≥ 1."""
    if isinstance(tokens, TokenLeaves):
        return tokens.root
    leaves: list[Hash] = []
    for start in range(0, len(tokens), TOKEN_BLOCK):  # they may lie in a file
        block = tokens[start : start + TOKEN_BLOCK]
        chunks = range(0, len(block), ROOT_CHUNK)
        leaves += [leaf_hash((start + at) // ROOT_CHUNK, block[at : at + ROOT_CHUNK]) for at in chunks]
    return merkle.root_of_hashes(leaves)


def _token_chunks(tokens: TokenSource) -> list[bytes]:
    """A chunk at a time: the widened tokens of a whole data set would leave the processor's cache."""
    return [leaf_bytes(tokens[at : at + ROOT_CHUNK]) for at in range(0, len(tokens), ROOT_CHUNK)]


def open_token(tokens: TokenSource, place: int) -> tuple[InputLeafProof]:
    """Token `place`: its chunk."""
    at = place // ROOT_CHUNK
    if isinstance(tokens, TokenLeaves):
        leaf = tokens.leaf(at)
        return (InputLeafProof(leaf_count(len(tokens)), at, leaf_bytes(leaf.tokens), leaf.path),)
    chunks = _token_chunks(tokens)
    return (_of(chunks, at, chunks[at]),)


def token_at(root: Hash, place: int, pieces: Sequence[InputLeafProof]) -> int:
    """Token `place` under `root`. Raises ProtocolError FF-CORE-074."""
    piece = _one(root, pieces)
    return int.from_bytes(_within(piece, place, TOKEN_BYTES), "little")


def table_root(rows: Iterable[Float32]) -> Hash:
    """Root over a table's rows, each of shape (columns,); ZERO_HASH where there are none."""
    leaves = [canonical_bytes(row) for row in rows]
    return merkle.root(leaves) if leaves else ZERO_HASH


def open_row(rows: Iterable[Float32], number: int) -> tuple[InputLeafProof]:
    """Row `number` of a table."""
    leaves = [canonical_bytes(row) for row in rows]
    return (_of(leaves, number, leaves[number]),)


def table_element(root: Hash, number: int, column: int, pieces: Sequence[InputLeafProof]) -> bytes:
    """The bytes of a table's element. Raises ProtocolError FF-CORE-074."""
    piece, item = _one(root, pieces), DTYPES[F32].itemsize
    found = piece.data[column * item : (column + 1) * item]
    if piece.index != number or len(found) != item:
        raise unproved("the row is another one, or has no such column")
    return found


def _one(root: Hash, pieces: Sequence[InputLeafProof]) -> InputLeafProof:
    """The only piece, which stands under `root`."""
    if len(pieces) != 1:
        raise unproved("one leaf is due")
    piece = pieces[0]
    if merkle.root_over(piece.count, piece.index, piece.data, piece.path) != root:
        raise unproved("the leaf stands under another root")
    return piece


def _within(piece: InputLeafProof, place: int, item: int) -> bytes:
    """Item `place` of what is cut into chunks, from the chunk in which it must lie."""
    number, at = divmod(place, ROOT_CHUNK)
    found = piece.data[at * item : (at + 1) * item]
    if piece.index != number or len(found) != item:
        raise unproved("it is another chunk, or too short")
    return found


def unproved(cause: str) -> ProtocolError:
    """The error for an element of an input that is not proved."""
    return ProtocolError("FF-CORE-074", "an input's element is not proved", cause=cause)


def canonical(kind: str, data: bytes) -> bytes:
    """The canonical bytes of one element: a NaN has one form, and so has a truth."""
    return canonical_bytes(np.frombuffer(data, "<u1" if kind == "bool" else DTYPES[kind]).astype(DTYPES[kind]))
