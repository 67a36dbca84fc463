"""The cheat `stale`: the change of the round before is sent again."""

from __future__ import annotations

import pytest
from cheat_play import SEEDS, SHORT, assert_found_and_nobody_else, is_measured, play

pytestmark = pytest.mark.whole


@pytest.mark.parametrize("seed", SEEDS)
def test_who_sends_its_last_change_again_is_found_false_and_nobody_else(seed: int) -> None:
    run = play(seed, "stale", spec=SHORT)
    assert_found_and_nobody_else(run)
    assert is_measured(run)
