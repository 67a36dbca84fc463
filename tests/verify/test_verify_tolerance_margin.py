"""A job whose tolerances would let a shortcut through is refused, with the numbers."""

from __future__ import annotations

import pytest

from farflung.core.errors import PolicyError
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import Tolerance
from farflung.train.worker_messages import ShortcutDistance
from farflung.verify.tolerance import tolerance_of
from farflung.verify.tolerance_margin import check_margins, margin

LAYOUT = TensorLayout.of({"a": (2,), "b": (3,)})
TAU = 2.0**-10
LIMITS = Tolerance((("params", (1 << 20, 0)), ("mean", (1 << 21, 1 << 22))))


def spared(*distances: float, name: str = "drop-row") -> ShortcutDistance:
    return ShortcutDistance(name, "one row left out", 0.125, (("params", distances[:2]), ("mean", distances[2:])))


def test_the_margin_is_that_of_the_tensor_that_stands_out_most() -> None:
    one = margin(LIMITS, LAYOUT, spared(3 * TAU, 0.9, 4 * TAU, 20 * TAU))
    assert (one.tensor, one.distance, one.limit, one.value) == ("mean b", 20 * TAU, 4 * TAU, 5)


def test_noise_tensors_tell_nothing() -> None:
    one = margin(LIMITS, LAYOUT, spared(3 * TAU, 1e9, 0, 0))
    assert (one.tensor, one.value) == ("params a", 3)


@pytest.mark.parametrize(("times", "is_refused"), [(1.0, True), (2.0, True), (2.001, False), (100.0, False)])
def test_a_shortcut_within_twice_the_tolerance_is_no_job(times: float, is_refused: bool) -> None:
    far, near = spared(100 * TAU, 0, 0, 0, name="far"), spared(times * TAU, 0, 0, 0)
    if not is_refused:
        return check_margins(LIMITS, LAYOUT, [far, near])
    with pytest.raises(PolicyError, match=r"FF-VERI-115.*one row left out") as caught:
        check_margins(LIMITS, LAYOUT, [far, near])
    told = caught.value.cause
    assert f"saves 12% of a segment and lies {times * TAU:.2g} from honest work in params a" in told
    assert f"tolerance is {TAU:.2g}: {times:.1f} times" in told
    return None


def test_a_job_on_which_nothing_could_be_played_is_not_refused() -> None:
    check_margins(LIMITS, LAYOUT, [])


def test_a_model_with_so_much_noise_that_dropped_rows_hide_in_it_is_refused() -> None:
    """32 times an honest distance of 5e-3 is above a half of what one row of eight changes."""
    noisy = tolerance_of([("params", (5e-3, 6e-3)), ("mean", (5e-3, 5e-3))])
    with pytest.raises(PolicyError, match="FF-VERI-115"):
        check_margins(noisy, LAYOUT, [spared(0.22, 0.2, 0.2, 0.2)])
    calm = tolerance_of([("params", (7e-6, 6e-6)), ("mean", (7e-6, 5e-6))])
    check_margins(calm, LAYOUT, [spared(0.22, 0.2, 0.2, 0.2)])
