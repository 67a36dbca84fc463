"""The cheat `half-batch`: half of the rows."""

from __future__ import annotations

import pytest
from cheat_play import SEEDS, SHORT, assert_found_and_nobody_else, is_measured, play

pytestmark = pytest.mark.whole


@pytest.mark.parametrize("seed", SEEDS)
def test_who_trains_on_half_of_the_rows_is_found_false_and_nobody_else(seed: int) -> None:
    run = play(seed, "half-batch", spec=SHORT)
    assert_found_and_nobody_else(run)
    assert is_measured(run)
