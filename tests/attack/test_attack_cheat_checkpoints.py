"""Ends that nobody trained to: a point on the way to a later checkpoint, a random one, one that never moved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from segment_play import FALSE, OPTIMIZERS, assert_false, stage


@pytest.mark.slow
@pytest.mark.parametrize("name", ["interpolated", "noise", "momentum"])
def test_a_checkpoint_that_was_made_up_is_found_false(name: str) -> None:
    assert_false(name, 100)


def test_right_weights_do_not_cover_a_made_up_optimizer() -> None:
    """The next segment would start from it: it is compared as well."""
    for seed, optimizer in enumerate(OPTIMIZERS):
        one = stage(seed, optimizer)
        vectors = tuple(v * np.float32(1.01) for v in one.right.vectors)
        assert one.judged(replace(one.right, vectors=vectors)).finding is FALSE


def test_a_first_segment_that_is_honest_covers_nothing_of_the_next() -> None:
    """Interpolated from the end of an honest segment: each is judged from its own committed start."""
    one = stage(0)
    after = replace(one.segment, begin=replace(one.right, round=2))
    later = type(one)(after, after.honest().end, one.limits)
    assert one.judged(one.right).excess == 0
    assert later.played("interpolated").finding is FALSE
