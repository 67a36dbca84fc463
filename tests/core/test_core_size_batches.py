"""Groups that fit."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from farflung.core.size_batches import batches


@given(st.lists(st.integers(0, 20)), st.integers(0, 30))
def test_groups_keep_the_order_fit_and_are_as_few_as_in_one_pass(sizes: list[int], room: int):
    groups = list(batches(range(len(sizes)), sizes.__getitem__, room))
    assert [each for group in groups for each in group] == list(range(len(sizes)))
    totals = [sum(sizes[each] for each in group) for group in groups]
    assert all(total <= room or len(group) == 1 for group, total in zip(groups, totals, strict=True))
    assert all(total + sizes[after[0]] > room for total, (_, after) in zip(totals, pairwise(groups), strict=False))
