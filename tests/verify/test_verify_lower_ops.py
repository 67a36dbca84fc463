"""Operation by operation: the canonical form of an aten operation gives what torch gives."""

import numpy as np
import pytest
import torch
from torch._decomp import core_aten_decompositions
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from farflung.verify.canon.execute import execute
from farflung.verify.canon.lower import lowered

pytestmark = pytest.mark.whole

X = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
LONG = torch.randn(2, 9000, generator=torch.Generator().manual_seed(2))
I = torch.tensor([[2, 0, 2, -1, 1], [1, 1, 0, 0, 3]])  # noqa: E741 - indices
J = torch.tensor([0, 2, 1, 2])

OPERATIONS = {
    "long sum": (lambda a, i, j: a.sum(1), LONG),
    "long sum of all": (lambda a, i, j: a.sum(), LONG),
    "long maximum": (lambda a, i, j: a.amax(1), LONG),
    "long product": (lambda a, i, j: a @ a.mT, LONG),
    "long softmax": (lambda a, i, j: torch.softmax(a, 1), LONG),
    "sides in the middle": (lambda a, i, j: a.mean((0, 2)), X),
    "kept sides": (lambda a, i, j: a.sum(1, keepdim=True) * a.amin(-1, keepdim=True), X),
    "variance": (lambda a, i, j: a.var(1).sum() + a.var((0, 2), correction=0), X),
    "counts": (lambda a, i, j: (a > 0).sum(1).to(torch.float32), X),
    "any and all": (lambda a, i, j: torch.where((a > 0).any(0) & ~(a > 1).all(0), a, -a), X),
    "xor": (lambda a, i, j: ((a > 0) ^ (a < 1)).float(), X),
    "softmax in the middle": (lambda a, i, j: torch.softmax(a, 1), X),
    "repeat": (lambda a, i, j: a.repeat(2, 1, 3), X),
    "flip and step": (lambda a, i, j: a.flip(0, 2)[:, 1::2, ::3], X),
    "stack of parts": (lambda a, i, j: torch.stack([p.sum(1) for p in a.split([1, 3], 1)]), X),
    "unbind": (lambda a, i, j: sum(p * n for n, p in enumerate(a.unbind(1), 1)), X),
    "padding and cutting": (lambda a, i, j: torch.nn.functional.pad(a, (1, -2, 0, 3), value=7.0), X),
    "triangle": (lambda a, i, j: a.tril(1) + a.triu(), X),
    "write into a row": (lambda a, i, j: torch.select_scatter(a, a[:, 0] * 2, 1, 2), X),
    "rows by index": (lambda a, i, j: a[j[:3]] + a[j[1:], j[1:]].unsqueeze(1), X),
    "rows from the end": (lambda a, i, j: a[j - 3], X),
    "rows added": (lambda a, i, j: a.index_put((j,), a[:1].expand(4, 4, 5), accumulate=True), X),
    "many rows added": (
        lambda a, i, j: torch.zeros(4, 5).index_put(
            (j.repeat(150),), a.repeat(50, 1, 1)[:, 0].repeat(4, 1), accumulate=True
        ),
        X,
    ),
    "gather": (lambda a, i, j: torch.gather(a[0], 0, i.clamp(0, 2)), X),
    "scatter a number": (lambda a, i, j: a[0].scatter(0, i.clamp(0, 2), 9.0), X),
    "scatter a tensor": (lambda a, i, j: a[0].scatter(1, j.unsqueeze(1), a[1, :, :1]), X),
    "scatter and add": (lambda a, i, j: a[0].scatter_add(0, i.clamp(0, 2), a[1, :2]), X),
    "arange of floats": (lambda a, i, j: a * torch.arange(1, 3.5, 0.5), X),
    "whole numbers": (lambda a, i, j: (a * 9).to(torch.int64) * 3 - torch.arange(5) * -(j[0] - 2), X),
    "signs": (lambda a, i, j: a.sign() * a.abs().sqrt() + (a.neg().to(torch.int64).abs() - 1), X),
    "powers": (lambda a, i, j: a**2 + a**3 - (a * a) ** -0.5 + a**-1 + a**4, X),
    "clamps": (lambda a, i, j: a.clamp(min=-0.5) + a.clamp(max=0.2) + torch.minimum(a, -a), X),
    "norms": (lambda a, i, j: torch.linalg.vector_norm(a, dim=1) + torch.linalg.vector_norm(a, 1, (1,)), X),
    "gelus": (lambda a, i, j: torch.nn.functional.gelu(a) + torch.nn.functional.gelu(a, approximate="tanh"), X),
    "infinities": (lambda a, i, j: torch.softmax(torch.where(a > 0, float("-inf"), a), -1).exp(), X),
    "weighted sum": (lambda a, i, j: torch.add(a, a, alpha=0.5) - torch.addmm(a[0], a[1, :, :4], a[2], beta=2), X),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_canonical_form_of_an_operation_gives_what_torch_gives(name):
    function, x = OPERATIONS[name]
    step = functionalize(lambda *given: [function(*given)], remove="mutations")
    module = make_fx(step, core_aten_decompositions(), "fake")(x, I, J)
    graph = lowered(module, ["x", "i", "j"], ["out"], "")
    given = {"x": x.numpy(), "i": I.numpy(), "j": J.numpy()}
    found = execute(graph, {each.name: given[each.name] for each in graph.inputs})["out"]
    np.testing.assert_allclose(found, function(x, I, J).numpy(), rtol=1e-5, atol=1e-6 * x.shape[-1] ** 0.5)
