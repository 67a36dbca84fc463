"""The learning rate is another one than the terms say."""

from __future__ import annotations

import pytest
from segment_play import OPTIMIZERS, assert_false, stage


@pytest.mark.parametrize("name", ["rate-1.01", "rate-1.1", "rate-2"])
def test_who_takes_another_rate_is_found_false(name: str) -> None:
    assert_false(name, 10)


def test_the_distance_is_the_share_by_which_the_rate_is_off() -> None:
    for seed, optimizer in enumerate(OPTIMIZERS):
        near, far = (stage(seed, optimizer).played(name).excess for name in ("rate-1.01", "rate-1.1"))
        assert 8 < far / near < 12
