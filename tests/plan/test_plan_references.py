"""Published figures of traffic, bubbles, work and failures: each within 3 %, or its last digit's rounding."""

import pytest
from traffic_cases import CASES, distro


def test_a_published_figure_comes_out(subtests: pytest.Subtests) -> None:
    for case in CASES:
        with subtests.test(case=case):
            assert abs(case.ours() - case.published) <= case.allowed, case.source


def test_against_a_ring_distro_s_ratio_is_sixteen_times_smaller() -> None:
    """Its baseline is a naive exchange, which moves n/2 times a ring: nobody runs that."""
    assert distro().against_ring(1.2e9, 32) == pytest.approx(857.14 / 16, rel=1e-3)
