"""The remembering tree gives the roots and paths of core.merkle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import merkle
from farflung.ledger.merkle_tree import MerkleTree

pytestmark = pytest.mark.whole

BATCHES = st.lists(
    st.tuples(
        st.sampled_from((*range(10), 63, 64, 130)), st.lists(st.integers(0, 40), max_size=4), st.binary(max_size=4)
    ),
    max_size=8,
)


@given(BATCHES)
@settings(max_examples=60)
def test_tree_equals_core_merkle_after_any_changes(batches: list[tuple[int, list[int], bytes]]):
    tree, leaves = MerkleTree(), list[bytes]()
    for added, replaced, data in batches:
        before, root = tree, tree.root
        count = len(leaves)
        changes = {place: data + b"new" for place in replaced if place < count}
        changes |= {count + place: data + bytes([place]) for place in range(added)}
        for place, leaf in sorted(changes.items()):
            leaves[place : place + 1] = [leaf]
        tree = tree.with_leaves({place: merkle.leaf_hash(place, leaf) for place, leaf in changes.items()})
        assert tree.root == merkle.root(leaves)
        assert before.root == root, "the source of a change moved"
    for place in range(0, len(leaves), 1 + len(leaves) // 16):
        leaf = leaves[place]
        assert tree.path(place) == merkle.prove(leaves, place)
        assert merkle.holds(tree.root, tree.count, place, leaf, tree.path(place))
