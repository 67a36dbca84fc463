"""The root that names a large data set, and the pieces that are cut out of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core.canon import input_roots
from farflung.core.canon.token_leaves import (
    TokenLeaves,
    check_leaves,
    leaf_count,
    leaf_numbers,
    pack_leaves,
    packed_bytes,
    read_leaves,
)
from farflung.core.errors import ProtocolError, RunError, VerificationError
from farflung.core.tensor_layout import ROOT_CHUNK
from farflung.job import token_tree
from farflung.job.dataset import Dataset
from farflung.job.token_tree import DatasetTrees, TokenTree, shard_nodes

ENDS = (1, ROOT_CHUNK, ROOT_CHUNK + 1, 5 * ROOT_CHUNK, token_tree.SHARD, token_tree.SHARD + 1, 3 * token_tree.SHARD + 7)


def tokens(size: int, dtype: type = np.uint16) -> np.ndarray:
    return (np.arange(size, dtype=np.uint64) ** 2 % 251).astype(dtype)


@pytest.mark.parametrize("size", ENDS)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_every_leaf_stands_under_the_root_that_a_program_names(size: int, dtype: type) -> None:
    data = tokens(size, dtype)
    tree = TokenTree(data, shard_nodes(data))
    assert tree.root == input_roots.tokens_root(data)
    wanted = sorted({0, tree.count // 2, tree.count - 1})
    packed = pack_leaves(tree.leaves(wanted))
    assert len(packed) == packed_bytes(size, data.itemsize, wanted)
    found = read_leaves(packed, size, data.dtype)
    check_leaves(found, size, tree.root)
    held = TokenLeaves(size, data.dtype, tree.root, found)
    assert input_roots.tokens_root(held) == tree.root
    for place in (0, size - 1):
        assert input_roots.open_token(held, place) == input_roots.open_token(data, place)
        assert input_roots.token_at(tree.root, place, input_roots.open_token(held, place)) == data[place]


@settings(max_examples=30)
@given(data=st.data())
def test_windows_of_what_is_here_are_those_of_the_whole_and_nothing_else_is_given(data: st.DataObject) -> None:
    whole = tokens(2 * token_tree.SHARD + 999)
    tree = TokenTree(whole, NODES)
    start = data.draw(st.integers(0, len(whole) - 1))
    stop = data.draw(st.integers(start + 1, min(len(whole), start + 3 * ROOT_CHUNK)))
    numbers = leaf_numbers(start, stop)
    held = TokenLeaves(len(whole), whole.dtype, tree.root, tree.leaves(numbers))
    assert (held[start:stop] == whole[start:stop]).all()
    assert held[start:start].size == 0
    missing = (numbers[-1] + 1) % leaf_count(len(whole))
    if missing not in numbers:
        with pytest.raises(RunError, match="FF-CORE-097"):
            held[missing * ROOT_CHUNK : missing * ROOT_CHUNK + 1]


NODES = shard_nodes(tokens(2 * token_tree.SHARD + 999))


def test_a_piece_that_is_not_the_data_sets_is_refused() -> None:
    whole = tokens(token_tree.SHARD + 5)
    tree = TokenTree(whole, shard_nodes(whole))
    packed = bytearray(pack_leaves(tree.leaves([0, 16])))
    packed[-1] ^= 1
    with pytest.raises(VerificationError, match="FF-CORE-099"):
        check_leaves(read_leaves(packed, len(whole), whole.dtype), len(whole), tree.root)
    for bad in (b"", bytes(packed[:-1]), bytes(8), (3).to_bytes(8, "little") + bytes(64), b"\xff" * 100):
        if bad != bytes(8):  # of no leaves
            with pytest.raises(ProtocolError, match="FF-CORE-098"):
                read_leaves(bad, len(whole), whole.dtype)
    swapped = packed[:8] + packed[16:24] + packed[8:16] + packed[24:]
    with pytest.raises(ProtocolError, match="FF-CORE-098"):
        read_leaves(bytes(swapped), len(whole), whole.dtype)


def test_a_root_names_one_data_set_and_reads_back() -> None:
    data = Dataset(tokens(token_tree.SHARD + 5), tokens(ROOT_CHUNK))
    trees = DatasetTrees.of(data, shard_nodes(data.train) + shard_nodes(data.heldout))
    root = token_tree.root_of(data, trees)
    packed = token_tree.pack_root(root)
    assert token_tree.read_root(packed) == root
    assert token_tree.is_root(packed)
    opened = token_tree.opened(packed)
    assert (len(opened.train), len(opened.heldout), opened.train.dtype) == (len(data.train), ROOT_CHUNK, np.uint16)
    for bad in (
        packed[:-1],
        b"FFDX" + packed[4:],
        packed[:6] + b"\3" + packed[7:],
        packed[:8] + bytes(8) + packed[16:],
    ):
        with pytest.raises(ProtocolError, match="FF-JOB-031"):
            token_tree.read_root(bad)
    with pytest.raises(ProtocolError, match="FF-JOB-031"):
        TokenTree(data.train, bytes(32))
