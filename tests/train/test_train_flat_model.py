"""The model as one flat vector, and what a user's model may not do."""

import re

import msgspec
import numpy as np
import pytest
import torch

from farflung.core.errors import FarflungError, SpecError
from farflung.job.spec import JobSpec, ModelSpec
from farflung.train import data_order, flat_model, inner_steps
from farflung.train.flat_model import FlatModel

GPT_NAMES = sorted(
    ["embed.weight", "position.weight", "norm.weight", "norm.bias"]
    + [
        f"blocks.0.{layer}.{kind}"
        for layer in ("norm1", "qkv", "out", "norm2", "up", "down")
        for kind in ("weight", "bias")
    ]
)


def probe(job, data):
    spec, source = job
    built = flat_model.build(spec, source)
    built.probe(*inner_steps.tensors(data_order.batch(data.train, spec, 0, 0, 0)))
    return built


def refusal(job, data):
    with pytest.raises(FarflungError) as caught:
        probe(job, data)
    return caught.value


def test_gpt_parameters_have_their_names_and_the_tied_head_counts_once(tiny):
    assert [t.name for t in flat_model.build(tiny, b"").layout.tensors] == GPT_NAMES


def test_default_gpt_has_between_half_a_million_and_a_million_parameters():
    assert 500_000 < flat_model.build(JobSpec(), b"").layout.size < 1_000_000


def test_parameters_and_gradients_are_views_of_flat_vectors(tiny, data):
    built = flat_model.build(tiny, b"")
    built.put(flat_model.initial(tiny, built))
    built.gradient(*inner_steps.tensors(data_order.batch(data.train, tiny, 0, 0, 0)))
    named = dict(built.module.named_parameters())
    arrays = {name: p.detach().numpy() for name, p in named.items()}
    assert np.array_equal(built.layout.flatten(arrays), built.params.numpy())
    grads = {name: p.grad.numpy() for name, p in named.items()}
    assert np.array_equal(built.layout.flatten(grads), built.grads.numpy())
    assert np.count_nonzero(built.grads.numpy()) > 0


def test_gradients_do_not_add_up_over_steps(tiny, data):
    built = flat_model.build(tiny, b"")
    built.put(flat_model.initial(tiny, built))
    batch = inner_steps.tensors(data_order.batch(data.train, tiny, 0, 0, 0))
    built.gradient(*batch)
    once = built.grads.clone()
    built.gradient(*batch)
    assert torch.equal(once, built.grads)


def test_flat_gradient_equals_that_of_an_untouched_module(tiny, data):
    built = flat_model.build(tiny, b"")
    start = flat_model.initial(tiny, built)
    built.put(start)
    x, y = inner_steps.tensors(data_order.batch(data.train, tiny, 0, 0, 0))
    built.gradient(x, y)
    plain = flat_model.gpt.build(tiny.model)
    tensors = {name: torch.from_numpy(v.copy()) for name, v in built.layout.unflatten(start).items()}
    plain.load_state_dict(tensors)
    plain(x, y).backward()
    arrays = {name: p.grad.numpy() for name, p in plain.named_parameters()}
    np.testing.assert_allclose(built.grads.numpy(), built.layout.flatten(arrays), rtol=1e-5, atol=1e-7)


def test_gpt_is_causal(tiny):
    built = flat_model.build(tiny, b"")
    noise = np.random.default_rng(0).standard_normal(built.layout.size).astype(np.float32)
    built.put(flat_model.initial(tiny, built) + noise * np.float32(0.3))
    x = torch.arange(8).view(1, 8)
    y = torch.full((1, 8), -100)
    y[0, 2] = 5  # only the third prediction counts
    early = built.loss(x, y)
    later = x.clone()
    later[0, 3:] = 99
    assert torch.equal(early, built.loss(later, y))
    x[0, 1] = 77
    assert not torch.equal(early, built.loss(x, y))


def test_initial_weights_follow_the_seed_and_start_near_uniform(tiny, data):
    built = flat_model.build(tiny, b"")
    start = flat_model.initial(tiny, built)
    assert np.array_equal(start, flat_model.initial(tiny, built))
    assert not np.array_equal(start, flat_model.initial(msgspec.structs.replace(tiny, seed=8), built))
    built.put(start)
    loss = built.loss(*inner_steps.tensors(data_order.batch(data.train, tiny, 0, 0, 0)))
    assert float(loss.detach()) == pytest.approx(np.log(256), abs=0.1)


def test_sizes_that_do_not_fit_are_refused():
    spec = JobSpec(model=ModelSpec(width=10, heads=4))
    with pytest.raises(SpecError, match="FF-TRAIN-050"):
        flat_model.build(spec, b"")


def test_weight_decay_is_for_matrices_only(tiny):
    built = flat_model.build(tiny, b"")
    decays = {
        name: set(v.reshape(-1)) for name, v in built.layout.unflatten(built.parameter_layout.decay.numpy()).items()
    }
    assert decays["norm.weight"] == decays["blocks.0.qkv.bias"] == {0.0}
    assert decays["embed.weight"] == decays["blocks.0.qkv.weight"] == {1.0}


def test_a_good_user_module_passes(user_job, data):
    built = probe(user_job("        return loss"), data)
    assert [t.name for t in built.layout.tensors] == ["table.weight"]


def test_a_loss_of_one_element_in_a_list_of_one_is_a_scalar(user_job, data):
    probe(user_job("        return loss.reshape(1)"), data)


@pytest.mark.parametrize(
    ("forward", "code", "says"),
    [
        ("        return loss * float('nan')", "FF-TRAIN-058", "nan"),
        ("        return loss / 0", "FF-TRAIN-058", "inf"),
        ("        return torch.stack([loss, loss])", "FF-TRAIN-057", r"\(2,\)"),
        ("        return (loss,)", "FF-TRAIN-056", "tuple"),
        ("        return loss.item()", "FF-TRAIN-056", "float"),
        ("        return None", "FF-TRAIN-056", "NoneType"),
        ("        return y.sum()", "FF-TRAIN-057", "int64"),
        ("        return loss.detach()", "FF-TRAIN-059", "gradient"),
        ("        raise KeyError('my own words')", "FF-TRAIN-055", "my own words' at mine.py:16"),
        ("        raise SystemExit('my own words')", "FF-TRAIN-055", "my own words at mine.py:16"),
        ("        self.seen += 1\n        return loss", "FF-TRAIN-054", "seen"),
        (
            "        self.table.weight.data = self.table.weight.data.double()\n        return loss",
            "FF-TRAIN-059",
            "storage",
        ),
    ],
)
def test_a_bad_loss_is_named_for_what_it_is(user_job, data, forward, code, says):
    error = refusal(user_job(forward), data)
    assert error.code == code
    assert re.search(says, str(error))
    assert error.hint


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [
        ("def build(:", "FF-TRAIN-052", "SyntaxError"),
        ("import nowhere_at_all", "FF-TRAIN-052", "nowhere_at_all"),
        ("def build():\n    raise SystemExit(3)", "FF-TRAIN-052", "SystemExit: 3 at mine.py:2"),
        ("def make(): pass", "FF-TRAIN-051", "build"),
        ("build = 3", "FF-TRAIN-051", "build"),
        ("def build(): return 3", "FF-TRAIN-053", "int"),
        ("def build():\n    import torch\n    return torch.nn.Identity()", "FF-TRAIN-054", "has none"),
        ("def build():\n    import torch\n    return torch.nn.Linear(2, 2).double()", "FF-TRAIN-054", "float64"),
        (
            "def build():\n    import torch\n    return torch.nn.Linear(2, 2).requires_grad_(False)",
            "FF-TRAIN-054",
            "frozen",
        ),
        (
            "def build():\n    from torch import nn, zeros\n    made = nn.Linear(2, 2)\n"
            "    made.none = nn.Parameter(zeros(0, 4))\n    return made",
            "FF-TRAIN-054",
            "none has no elements (shape (0, 4))",
        ),
        (
            "def build():\n    import torch\n    m = torch.nn.Linear(2, 3)\n"
            "    m.odd = torch.nn.Parameter(torch.ones([1] * 9))\n    return m",
            "FF-TRAIN-054",
            "odd has 9 sides",
        ),
        (
            "def build():\n    import torch\n    m = torch.nn.Linear(2, 3)\n"
            "    m.register_parameter('n' * 2000, torch.nn.Parameter(torch.ones(1)))\n    return m",
            "FF-TRAIN-054",
            "a name of 2000 bytes",
        ),
    ],
)
def test_a_source_that_makes_no_model_is_explained(user_job, data, source, code, says):
    spec, _ = user_job("")
    error = refusal((spec, source.encode()), data)
    assert error.code == code
    assert says in str(error)


@pytest.mark.parametrize("module", ["", "mine.py", "mine.py:", ":build", "mine.py:a b"])
def test_a_module_without_a_function_name_is_refused(user_job, data, module):
    spec, source = user_job("        return loss")
    spec = msgspec.structs.replace(spec, model=ModelSpec(kind="module", context=8, module=module))
    assert refusal((spec, source), data).code == "FF-TRAIN-051"


def test_tied_weights_stay_tied():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(4, 4, bias=False)
            self.b = torch.nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x, y):
            return self.b(self.a(x)).sum()

    built = FlatModel(Tied())
    assert built.layout.size == 16
    built.put(np.full(16, 2.0, np.float32))
    assert built.module.a.weight is built.module.b.weight
    assert float(built.module.b.weight.detach().sum()) == 32.0
