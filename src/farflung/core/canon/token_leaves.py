"""Holds those tokens of a large data set that somebody needs: leaves of its tree, with the paths that prove them.

A leaf is ROOT_CHUNK tokens, 4 bytes each, of the tree whose root `core.canon.input_roots.tokens_root` is. Some leaves
travel packed, little-endian: how many they are (8 bytes), their numbers (8 bytes each, ascending), all their paths,
then the tokens of all, in the data set's own dtype. What is missing is never taken for zeros: whoever asks for it is
refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from farflung.core import merkle
from farflung.core.errors import ProtocolError, RunError, VerificationError
from farflung.core.ids import ID_BYTES, Hash
from farflung.core.tensor_layout import ROOT_CHUNK

Tokens = NDArray[np.unsignedinteger[Any]]
_NUMBER = 8  # bytes of a leaf's number


class TokenSource(Protocol):
    """An array of tokens, or what is read like one: its slices are arrays."""

    @property
    def size(self) -> int:
        """How many there are."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its slices."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Tokens: ...


class TokenLeaf(NamedTuple):
    """The tokens of one leaf, and the hashes beside its way to the root."""

    tokens: Tokens
    path: tuple[Hash, ...]


class TokenLeaves:
    """A token source of `size` tokens under `root`, of which `leaves` are here, by number."""

    def __init__(self, size: int, dtype: np.dtype[Any], root: Hash, leaves: Mapping[int, TokenLeaf] | None = None):
        self.size, self.dtype, self.root = size, dtype, root
        self._leaves: Mapping[int, TokenLeaf] = leaves or {}

    def hold(self, leaves: Mapping[int, TokenLeaf]) -> None:
        """From now on these are here, and no others."""
        self._leaves = leaves

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> Tokens:
        """Raises RunError FF-CORE-097: some of it is not here."""
        start, stop, step = part.indices(self.size)
        if stop <= start:
            return np.empty(0, self.dtype)
        found = [self.leaf(number).tokens for number in leaf_numbers(start, stop)]
        whole: Tokens = found[0] if len(found) == 1 else np.concatenate(found)
        first = start // ROOT_CHUNK * ROOT_CHUNK
        return whole[start - first : stop - first : step]

    def leaf(self, number: int) -> TokenLeaf:
        """Raises RunError FF-CORE-097: it is not here."""
        found = self._leaves.get(number)
        if found is None:
            raise RunError(
                "FF-CORE-097",
                f"tokens from {number * ROOT_CHUNK} on are not here",
                cause=f"{len(self._leaves)} of {leaf_count(self.size)} pieces of the data set were fetched",
                hint="train on what the data order gives, in the round that is ordered",
            )
        return found


def leaf_count(tokens: int) -> int:
    """Leaves of so many tokens."""
    return -(-tokens // ROOT_CHUNK)


def leaf_numbers(start: int, stop: int) -> range:
    """The leaves that hold the tokens from `start` to `stop`, of which there is at least one."""
    return range(start // ROOT_CHUNK, (stop - 1) // ROOT_CHUNK + 1)


def leaf_hash(number: int, tokens: Tokens) -> Hash:
    """A leaf as it stands in the tree."""
    return merkle.leaf_hash(number, leaf_bytes(tokens))


def leaf_bytes(tokens: Tokens) -> bytes:
    """What a leaf's hash is made of."""
    return tokens.astype("<u4").tobytes()


def pack_leaves(leaves: Mapping[int, TokenLeaf]) -> bytes:
    """The packed form."""
    ordered = sorted(leaves.items())
    numbers = np.array([number for number, _ in ordered], "<u8").tobytes()
    paths = b"".join(sibling for _, leaf in ordered for sibling in leaf.path)
    return b"".join(
        (len(ordered).to_bytes(_NUMBER, "little"), numbers, paths, *(leaf.tokens.tobytes() for _, leaf in ordered))
    )


def packed_bytes(size: int, item: int, numbers: Iterable[int]) -> int:
    """Length of the packed form of these leaves of `size` tokens of `item` bytes."""
    count = leaf_count(size)
    each = (_NUMBER + ID_BYTES * merkle.path_length(count, n) + item * _leaf_size(size, n) for n in numbers)
    return _NUMBER + sum(each)


def _leaf_size(size: int, number: int) -> int:
    return min(ROOT_CHUNK, size - number * ROOT_CHUNK)


def read_leaves(data: bytes | memoryview, size: int, dtype: np.dtype[Any]) -> dict[int, TokenLeaf]:
    """Packed leaves of a source of `size` tokens, as views. Whose they are `check_leaves` says.

    Raises ProtocolError FF-CORE-098.
    """
    view, count = memoryview(data), leaf_count(size)
    said = int.from_bytes(view[:_NUMBER], "little")
    if len(view) < _NUMBER or said > min(count, len(view) // _NUMBER):
        raise _malformed("it is cut short")
    numbers = np.frombuffer(view, "<u8", said, _NUMBER).tolist()
    if any(a >= b for a, b in zip(numbers, [*numbers[1:], count], strict=True)):
        raise _malformed("its leaves are out of order, or there are no such")
    if len(view) != packed_bytes(size, dtype.itemsize, numbers):
        raise _malformed("its length is not that of its leaves")
    made: dict[int, TokenLeaf] = {}
    at = _NUMBER * (1 + said)
    place = at + ID_BYTES * sum(merkle.path_length(count, number) for number in numbers)
    for number in numbers:
        end = at + ID_BYTES * merkle.path_length(count, number)
        path = tuple(Hash(bytes(view[i : i + ID_BYTES])) for i in range(at, end, ID_BYTES))
        tokens = np.frombuffer(view, dtype, _leaf_size(size, number), place)
        made[number], at, place = TokenLeaf(tokens, path), end, place + tokens.nbytes
    return made


def check_leaves(leaves: Mapping[int, TokenLeaf], size: int, root: Hash) -> None:
    """Raises VerificationError FF-CORE-099 for a leaf that does not stand under the root."""
    count = leaf_count(size)
    for number, leaf in leaves.items():
        if merkle.root_over(count, number, leaf_bytes(leaf.tokens), leaf.path) != root:
            raise VerificationError(
                "FF-CORE-099",
                f"piece {number} of the data set is not the one that the job names",
                cause="it does not stand under the data set's root",
                hint="take no part in this job: its requester hands out other data than it names",
            )


def _malformed(cause: str) -> ProtocolError:
    return ProtocolError("FF-CORE-098", "these are no pieces of this data set", cause=cause)
