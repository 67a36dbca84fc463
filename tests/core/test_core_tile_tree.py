"""The tree of tiles: any size, any leaf; what stands at another place, level or in another tree is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.canon import tile_tree
from farflung.core.canon.tile_tree import WIDTH, TileTree, child_count, holds, leaf_hash, node_hash, root_over, sizes
from farflung.core.errors import ProtocolError

SIZES = st.one_of(st.integers(1, 600), st.sampled_from([15, 16, 17, 255, 256, 257, 4095, 4096, 4097]))


def tile(number: int) -> bytes:
    return b"tile %d" % number


def tree_of(count: int) -> TileTree:
    return TileTree(leaf_hash(number, tile(number)) for number in range(count))


@given(SIZES, st.data())
def test_every_leaf_has_a_path_and_no_other_place_takes_it(count: int, data: st.DataObject) -> None:
    made, number = tree_of(count), data.draw(st.integers(0, count - 1))
    path = made.path(number)
    assert len(path) <= 15 * made.depth
    assert holds(made.root, count, number, tile(number), path)
    other = data.draw(st.integers(0, count - 1))
    assert holds(made.root, count, other, tile(number), path) == (other == number)
    assert not holds(made.root, count, number, tile(number) + b"!", path)


@given(SIZES, st.data())
def test_a_sibling_that_is_changed_moved_missing_or_added_is_refused(count: int, data: st.DataObject) -> None:
    made, number = tree_of(count), data.draw(st.integers(0, count - 1))
    path = list(made.path(number))
    wrong = [[*path, bytes(32)]]
    if path:
        at = data.draw(st.integers(0, len(path) - 1))
        wrong += [path[:at] + path[at + 1 :], [*path[:at], bytes(32), *path[at + 1 :]]]
    if len(set(path)) > 1:
        wrong.append([*path[1:], path[0]])
    for each in wrong:
        assert not holds(made.root, count, number, tile(number), each)


@given(SIZES)
def test_children_lead_from_the_root_to_every_leaf(count: int) -> None:
    made = tree_of(count)
    level = {0: made.root}
    for height in range(made.depth, 0, -1):
        below = {}
        for first, name in level.items():
            children = made.children(height, first)
            assert len(children) == child_count(count, height, first) > 0
            assert node_hash(height, first, children) == name
            below |= {first + i * WIDTH ** (height - 1): child for i, child in enumerate(children)}
        level = below
    assert level == {number: made.leaf(number) for number in range(count)}
    assert [made.leaf(n) for n in (0, count - 1)] == [leaf_hash(n, tile(n)) for n in (0, count - 1)]


def test_only_the_last_node_of_a_level_is_ragged():
    shapes = {1: (1,), 16: (16, 1), 17: (17, 2, 1), 257: (257, 17, 2, 1)}
    assert {count: sizes(count) for count in shapes} == shapes
    assert [child_count(257, 1, first) for first in (0, 240, 256)] == [16, 16, 1]
    assert [child_count(257, 2, first) for first in (0, 256)] == [16, 1]
    assert child_count(257, 3, 0) == 2


@pytest.mark.parametrize(("level", "first"), [(0, 0), (4, 0), (1, 8), (2, 16), (1, 272), (1, -16)])
def test_there_is_no_other_node(level: int, first: int):
    assert child_count(257, level, first) == 0 == len(tree_of(257).children(level, first))


def test_a_hash_of_one_level_or_place_is_none_of_another():
    children = tree_of(16).children(1, 0)
    assert len({node_hash(1, 0, children), node_hash(2, 0, children), node_hash(1, 16, children)}) == 3
    assert node_hash(1, 0, children) != node_hash(1, 0, children[:15])
    assert leaf_hash(0, tile(0)) != leaf_hash(1, tile(0))


@pytest.mark.parametrize("count", [0, -1, limits.EXECUTION_LEAVES + 1])
def test_a_tree_out_of_bounds_is_refused_before_anything_is_built(count: int):
    with pytest.raises(ProtocolError, match="FF-CORE-071"):
        sizes(count)
    assert root_over(count, 0, bytes(32), []) is None
    assert not holds(bytes(32), count, 0, b"", [])


def test_an_empty_tree_is_none():
    with pytest.raises(ProtocolError, match="FF-CORE-071"):
        TileTree([])


def test_the_deepest_tree_has_a_path_of_eight_levels():
    assert tile_tree.depth(limits.EXECUTION_LEAVES) == 8
    assert root_over(limits.EXECUTION_LEAVES, 5, bytes(32), [bytes(32)] * 120) is not None
    assert root_over(limits.EXECUTION_LEAVES, 5, bytes(32), [bytes(32)] * 119) is None
