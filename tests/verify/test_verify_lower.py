"""What has no canonical form is refused by name; moves that become one do what both did."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from farflung.core.canon.graph import GraphInput
from farflung.core.errors import SpecError
from farflung.job.spec import JobSpec, ModelSpec, OptimizerSpec
from farflung.train import flat_model as models
from farflung.verify.canon import step_graph
from farflung.verify.canon.graph_builder import GraphBuilder, composed, contiguous

SPEC = JobSpec(batch=2, model=ModelSpec(context=4, vocabulary=6), optimizer=OptimizerSpec(name="gradient"))


class Bad(nn.Module):
    """One weight, and one thing done with it that is refused."""

    def __init__(self, what):
        super().__init__()
        self.what, self.weight = what, nn.Parameter(torch.ones(6, 4))

    def forward(self, x, y):
        return self.what(self.weight[x.clamp(0, 5)], x).sum()


REFUSED = {
    "convolution": (lambda h, x: nn.functional.conv1d(h, h[:, :, :1]), "FF-VERI-080"),
    "cumsum": (lambda h, x: h.cumsum(1), "FF-VERI-080"),
    "topk": (lambda h, x: h.topk(2).values, "FF-VERI-080"),
    "sort": (lambda h, x: h.sort().values, "FF-VERI-080"),
    "cosine": (lambda h, x: h.cos(), "FF-VERI-080"),
    "floor": (lambda h, x: h.floor(), "FF-VERI-080"),
    "max_pool": (lambda h, x: nn.functional.max_pool1d(h, 2), "FF-VERI-080"),
    "slice_in_place": (lambda h, x: h.clone().index_fill_(0, x[0, :1], 0.0), "FF-VERI-082"),
    "dropout": (lambda h, x: nn.functional.dropout(h, 0.1), "FF-VERI-081"),
    "noise": (lambda h, x: h + torch.rand(4), "FF-VERI-081"),
    "power": (lambda h, x: h.pow(1.7), "FF-VERI-082"),
    "integer_sum": (lambda h, x: h * x.sum(), "FF-VERI-082"),
    "double": (lambda h, x: h.double() * 2, "FF-VERI-083"),
    "bfloat16": (lambda h, x: h.bfloat16() * 2, "FF-VERI-083"),
    "empty": (lambda h, x: torch.cat([h[:0], h]), "FF-VERI-084"),
    "constant": (lambda h, x: h * torch.tensor([1.0, 2.0, 3.0, 4.0]), "FF-VERI-085"),
    "branch": (lambda h, x: h if h.sum() > 0 else -h, "FF-VERI-086"),
}


ALIKE = ("topk", "sort", "floor", "max_pool", "noise", "bfloat16")  # refused where their neighbours are
CASES = [pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name for name in REFUSED]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_what_has_no_canonical_form_is_refused_with_its_code_and_line(name):
    what, code = REFUSED[name]
    with pytest.raises(SpecError) as refused:
        step_graph.traced(models.FlatModel(Bad(what)), SPEC)
    assert refused.value.code == code, refused.value
    assert "/" not in refused.value.cause.replace("1 / ", "")
    if code == "FF-VERI-080":
        assert "test_verify_lower.py, line" in refused.value.cause


def moved(source, shape, attrs):
    """The move's definition: flat_source[offset + sum i_j stride_j]."""
    places = np.full(shape, attrs[0])
    for counts, stride in zip(np.indices(shape), attrs[1:], strict=True):
        places += counts * stride
    return source.reshape(-1)[places]


shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


@settings(max_examples=40)
@given(st.data())
def test_two_moves_are_one_only_where_that_one_does_what_both_did(data):
    source = np.arange(4000)
    inner_shape = data.draw(shapes)
    inner = (1000, *(data.draw(st.integers(-60, 60)) for _ in inner_shape))
    first = moved(source, inner_shape, inner)
    shape = data.draw(shapes)
    strides = [data.draw(st.integers(-first.size, first.size)) for _ in shape]
    ends = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    low, high = sum(min(e, 0) for e in ends), sum(max(e, 0) for e in ends)
    if high - low >= first.size:
        return
    outer = (-low, *strides)
    both = composed(inner_shape, inner, shape, outer)
    if both is not None:
        second = moved(first, shape, outer)
        assert np.array_equal(moved(source, shape, both), second)


def test_views_that_follow_each_other_are_one_node():
    draft = GraphBuilder([GraphInput("x", "f32", (2, 3, 4))])
    x = draft.input(0)
    turned = draft.move(x, (2, 4, 3), 0, (12, 1, 4))
    back = draft.move(turned, (2, 3, 4), 0, (12, 1, 3))
    assert back == x  # a permutation and its inverse are no node at all
    row = draft.move(draft.move(turned, (4, 3), 12, (3, 1)), (3,), 3, (1,))
    graph = draft.finished({"row": row}, frozenset())
    assert [node.attrs for node in graph.nodes] == [(13, 4)]
    assert contiguous((2, 1, 4)) == (4, 0, 1)
