"""The source article's figures by its own formulas, and the right ones."""

import pytest

from farflung.advice.traffic import article_figures
from farflung.advice.traffic.hybrid_parallel import ParallelMesh, TrainingStep, load
from farflung.advice.traffic.transformer_shapes import TransformerShape
from farflung.core.errors import UsageError

# Its 20 days and 20 switches are 19.2, told to the next ten.
ROUNDED = {"days on one switch of 51.2 Tbit/s": 5.0, "switches for 100 epochs in 100 days": 5.0}


@pytest.mark.parametrize("figure", article_figures.figures("article"), ids=lambda figure: figure.name)
def test_the_article_s_figures_come_out(figure: article_figures.ArticleFigure) -> None:
    assert figure.value == pytest.approx(figure.printed, rel=0.005, abs=ROUNDED.get(figure.name, 0.0))


def test_a_ring_is_the_default_and_has_the_right_figures() -> None:
    found = {figure.name: figure.value for figure in article_figures.figures()}
    assert found == {
        "data parallel, backward": pytest.approx(348.9, rel=1e-3),
        "fully sharded, forward": pytest.approx(174.5, rel=1e-3),
        "fully sharded, backward": pytest.approx(348.9, rel=1e-3),
        "tensor parallel, backward": pytest.approx(5725, rel=1e-3),
        "tensor parallel, forward": pytest.approx(5725, rel=1e-3),
        "pipeline, forward": pytest.approx(17.9, rel=1e-3),
        "pipeline, backward": pytest.approx(17.9, rel=1e-3),
        "3-D on 1,024 cards": pytest.approx(12.2, rel=5e-3),
        "days on one switch of 51.2 Tbit/s": pytest.approx(1.42, rel=5e-3),
        "switches for 100 epochs in 100 days": pytest.approx(1.42, rel=5e-3),
    }


def test_what_leaves_a_node_is_a_sixteenth_and_needs_no_twenty_switches() -> None:
    whole, leaving = article_figures.mixed()
    assert leaving / 1e18 == pytest.approx(0.78, rel=0.01)
    assert whole / leaving > 15


def test_its_own_85_exabytes_take_153_7_days_when_bits_are_bits() -> None:
    assert article_figures.unslipped() == pytest.approx(153.7, abs=0.05)


def test_the_right_figure_of_1024_cards_is_what_a_step_of_that_layout_sends() -> None:
    """428 tokens a sample, where the article has 427.87."""
    shape = TransformerShape(article_figures.LAYERS, article_figures.WIDTH, 428, parameters=article_figures.PARAMETERS)
    mesh = ParallelMesh(data=16, tensor=8, pipeline=8, node=8)
    epoch = load(shape, mesh, TrainingStep(micros=article_figures.BATCH // 16, is_scattered=True)).times(
        article_figures.STEPS
    )
    handed = [term for term in epoch.terms if "gathered" not in term.name]  # it knows no scattering
    assert sum(term.total for term in handed) == pytest.approx(article_figures.mixed()[0], rel=1e-3)
    assert epoch.between == pytest.approx(article_figures.mixed()[1], rel=1e-3)


def test_every_figure_says_what_is_wrong_with_it() -> None:
    for figure in article_figures.figures("article"):
        right = next(one for one in article_figures.figures() if one.name == figure.name)
        assert (figure.note.startswith("right")) == (figure.value == pytest.approx(right.value))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        article_figures.figures("seed")
    assert error.value.code == "FF-PLAN-026"
