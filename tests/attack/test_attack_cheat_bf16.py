"""A job in float32, products in bfloat16: half the time where a processor has units for it, and nothing is left out."""

from __future__ import annotations

import pytest
from segment_play import FALSE, OPTIMIZERS, assert_false, stage

from farflung.job.spec import Tolerance


@pytest.mark.slow
def test_who_multiplies_in_bfloat16_is_found_false() -> None:
    assert_false("bf16")


def test_it_is_the_nearest_of_all_and_a_margin_of_ten_times_more_would_let_it_pass() -> None:
    """Which is why every job measures it before it begins (verify.tolerance_margin)."""
    for seed, optimizer in enumerate(OPTIMIZERS[1:]):  # muon's products stand out more
        one = stage(seed, optimizer)
        assert one.played("bf16").excess < min(one.played(n).excess for n in ("fp8", "drop-row", "skip-one"))
        loose = Tolerance(tuple((name, tuple(40 * x for x in row)) for name, row in one.limits.limits))
        assert type(one)(one.segment, one.right, loose).played("bf16").finding is not FALSE
