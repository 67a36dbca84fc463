"""The cheat `wrong-data`: all steps are made, on windows of one's own choice."""

from __future__ import annotations

import pytest
from cheat_play import SEEDS, SHORT, assert_found_and_nobody_else, is_measured, play

pytestmark = pytest.mark.whole


@pytest.mark.parametrize("seed", SEEDS)
def test_who_trains_on_other_data_is_found_false_and_nobody_else(seed: int) -> None:
    run = play(seed, "wrong-data", spec=SHORT)
    assert_found_and_nobody_else(run)
    assert is_measured(run)
