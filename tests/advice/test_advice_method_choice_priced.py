"""The choice weighs loss: what the page of methods says of homes is what the command takes."""

from __future__ import annotations

import pytest

from farflung.advice.method_choice import choose
from farflung.advice.method_costs import MethodSetting, sync_of
from farflung.advice.method_loss_table import ABOVE, expected
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Seconds
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.spec import ModelSpec
from farflung.plan import link_syntax

LAYOUT = TensorLayout.of(gpt_shapes(ModelSpec()))


@pytest.mark.parametrize(
    ("link", "step", "method"),
    [
        ("1000/1000/1ms", 10.0, "dense"),  # one machine, or a switch
        ("20/100/30ms", 0.1, "muloco"),  # the command of the page
        ("20/100/30ms", 1.0, "muloco"),
        ("50/200/20ms", 0.1, "muloco"),
        ("10/100/30ms", 1.0, "sparse_loco"),  # below 20 Mbit/s up
    ],
)
def test_the_method_for_links_agrees_with_the_page(link: str, step: float, method: str) -> None:
    choice = choose(MethodSetting(LAYOUT, link_syntax.parse(link), 8, Seconds(step)))
    assert (choice.chosen.method, choice.fits) == (method, True), choice.reasons


def test_a_sparse_method_is_taken_over_a_dense_one_only_where_its_loss_is_paid_for() -> None:
    found = set()
    for peers, step in ((8, 0.05), (8, 0.1), (8, 0.5), (32, 0.08), (32, 0.1), (32, 0.3)):
        choice = choose(MethodSetting(LAYOUT, link_syntax.parse("20/100/30ms"), peers, Seconds(step)))
        rows = {row.method: row for row in choice.methods}
        cost = {name: row.step * (1 + expected(row.sync) / 100) for name, row in rows.items()}
        assert choice.chosen.method == min(("muloco", "sparse_loco"), key=cost.__getitem__), (peers, step)
        found.add(choice.chosen.method)
    assert found == {"muloco", "sparse_loco"}


def test_expected_loss_is_what_was_measured_and_grows_with_the_local_steps() -> None:
    for one, loss in ABOVE.items():
        if one.method in ("muloco", "sparse_loco") and "topk 256" not in one.codec:
            assert expected(sync_of(one.method, steps=one.steps)) == pytest.approx(loss) or "64/" in one.codec
    assert expected(sync_of("muloco", steps=20)) < expected(sync_of("muloco", steps=100)) < 15
    assert expected(sync_of("muloco", steps=100)) < expected(sync_of("sparse_loco", steps=20))
