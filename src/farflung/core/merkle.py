"""Computes roots and inclusion proofs of dense binary Merkle trees over a list of leaves.

Leaf and node hashes have different namespaces and a leaf's hash holds its index (no second preimages);
the root holds the number of leaves. An odd node is carried up unchanged (RFC 6962, section 2.1, shape).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from blake3 import blake3

from farflung.core import limits
from farflung.core.crypto import NS_LEAF, NS_NODE, NS_ROOT, digest
from farflung.core.ids import ID_BYTES, Hash

# What `digest` hashes before a leaf's index and before a left node: a ledger makes some 20 hashes a transaction.
_LEAF: Final = NS_LEAF.encode() + b"\0" + (8).to_bytes(8, "little")
_LENGTH: Final = ID_BYTES.to_bytes(8, "little")
_NODE: Final = NS_NODE.encode() + b"\0" + _LENGTH


def leaf_hash(index: int, data: bytes | memoryview) -> Hash:
    """H(leaf | index | data)."""
    head = _LEAF + index.to_bytes(8, "little") + len(data).to_bytes(8, "little")
    return Hash(blake3(head + data).digest())


def parents(pairs: Sequence[bytes]) -> list[bytes]:
    """The node above each pair of hashes, which stand one behind the other; above a single one it is that one."""
    made: list[bytes] = [
        blake3(_NODE + pair[:ID_BYTES] + _LENGTH + pair[ID_BYTES:]).digest() if len(pair) == 2 * ID_BYTES else pair
        for pair in pairs
    ]
    return made


def _parent(left: bytes, right: bytes) -> Hash:
    return digest(NS_NODE, left, right)


def _up(level: Sequence[bytes]) -> list[bytes]:
    return parents([b"".join(level[start : start + 2]) for start in range(0, len(level), 2)])


def seal(count: int, top: bytes) -> Hash:
    """The root of `count` leaves whose topmost node is `top` (nothing where there is no leaf)."""
    return digest(NS_ROOT, count.to_bytes(8, "little"), top)


def root_of_hashes(leaves: Sequence[bytes]) -> Hash:
    """The root over leaves that are already `leaf_hash`es."""
    return seal(len(leaves), top(leaves) if leaves else b"")


def top(level: Sequence[bytes]) -> bytes:
    """The topmost node over the nodes of one level, of which there is at least one."""
    while len(level) > 1:
        level = _up(level)
    return level[0]


def root(leaves: Sequence[bytes]) -> Hash:
    """The root over raw leaves, in their order."""
    return root_of_hashes([leaf_hash(i, leaf) for i, leaf in enumerate(leaves)])


def prove(leaves: Sequence[bytes], index: int) -> tuple[Hash, ...]:
    """The sibling hashes from leaf `index` to the top, for `holds`."""
    return path_in([leaf_hash(i, leaf) for i, leaf in enumerate(leaves)], index)


def path_in(level: Sequence[bytes], index: int) -> tuple[Hash, ...]:
    """The sibling hashes from node `index` of one level to the top."""
    path: list[Hash] = []
    while len(level) > 1:
        sibling = index ^ 1
        if sibling < len(level):
            path.append(Hash(bytes(level[sibling])))
        level, index = _up(level), index // 2
    return tuple(path)


def path_length(count: int, index: int) -> int:
    """How many sibling hashes lead from leaf `index` of `count` to the top."""
    found = 0
    while count > 1:
        found += index ^ 1 < count
        index, count = index // 2, (count + 1) // 2
    return found


def holds(root_hash: bytes, count: int, index: int, data: bytes, path: Sequence[bytes]) -> bool:
    """Whether `data` is leaf `index` of the `count` leaves under `root_hash`."""
    return root_over(count, index, data, path) == root_hash


def root_over(count: int, index: int, data: bytes, path: Sequence[bytes]) -> Hash | None:
    """The root to which `path` leads from leaf `index` of `count`; None when a path cannot have this length."""
    if not 0 <= index < count or len(path) > limits.PROOF_DEPTH:
        return None
    node: bytes = leaf_hash(index, data)
    steps, width = list(path), count
    while width > 1:
        if index ^ 1 < width:
            if not steps:
                return None
            sibling = steps.pop(0)
            node = _parent(sibling, node) if index % 2 else _parent(node, sibling)
        index, width = index // 2, (width + 1) // 2
    return None if steps else seal(count, node)
