from __future__ import annotations

import pytest

from farflung.core.tensor_layout import TensorLayout
from farflung.job.gpt_shapes import gpt_shapes, gpt_size
from farflung.job.spec import ModelSpec


@pytest.mark.parametrize(
    ("layers", "width", "context", "vocabulary"), [(1, 32, 32, 256), (4, 128, 128, 256), (2, 8, 16, 50)]
)
def test_the_number_of_parameters_has_its_closed_form(layers, width, context, vocabulary):
    model = ModelSpec(layers=layers, width=width, heads=2, context=context, vocabulary=vocabulary)
    assert gpt_size(model) == (vocabulary + context) * width + layers * (12 * width**2 + 13 * width) + 2 * width


def test_shapes_are_those_of_the_blocks_and_make_a_layout():
    shapes = gpt_shapes(ModelSpec(layers=2, width=8, heads=2, context=16))
    assert shapes["embed.weight"] == (256, 8)
    assert shapes["position.weight"] == (16, 8)
    assert shapes["blocks.1.qkv.weight"] == (24, 8)
    assert shapes["blocks.1.down.weight"] == (8, 32)
    assert shapes["blocks.0.up.bias"] == (32,)
    assert len(shapes) == 2 + 2 * 12 + 2
    assert TensorLayout.of(shapes).size == gpt_size(ModelSpec(layers=2, width=8, heads=2, context=16))
